"""What a package's own scripts can do while an environment is built: nothing that stays but what
they leave in its directory, and that is read-only and harmless (issue 5, sections 1 and 6)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from jobs.environments import build as building
from jobs.environments.build import BuildFailed, build_directory
from jobs.environments.definition import Definition
from jobs.environments.log import BuildLog
from jobs.environments.recipe import Step, steps_of
from jobs.environments.store import Store
from jobs.sandbox import base as sandbox
from jobs.sandbox.base import SandboxSpec
from tests.real.sandboxes import wait_until_gone
from umpteenth.core.config import get_options

pytestmark = pytest.mark.real

DEFINITION = Definition("hostile", python=("a",))


def build(monkeypatch: pytest.MonkeyPatch, store: Store, script: str) -> tuple[Path, str]:
    """Carry out a script where a package's own would run; the directory and the log."""
    last = steps_of(DEFINITION)[-1]
    monkeypatch.setattr(
        building, "steps_of", lambda _: [Step("Hostile", script, (), "python", "bash"), last]
    )
    log = BuildLog()
    asyncio.run(build_directory(DEFINITION, store, log, lambda: False))
    path = store.find(DEFINITION.digest)
    assert path is not None
    return path, log.text()


async def look(base: Path, script: str, **fields: object) -> str:
    spec = SandboxSpec(party="mcp", network=False, base=str(base), **fields)  # type: ignore[arg-type]
    process = await sandbox.start(["bash", "-c", script], spec)
    try:
        process.stdin.close()
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return (out + err).decode()
    finally:
        await process.kill()


def test_it_reaches_nothing_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("the-key-of-everything")
    script = f"""
    id -u
    cat {tmp_path}/secret {get_options().data_dir}/* /etc/shadow 2>&1 | grep -c 'No such\\|denied'
    touch /usr/x /etc/x /ump/x 2>/dev/null || echo cannot
    env | grep -i 'secret\\|token\\|UMP_' || echo no secrets
    ls /ump/ump.sock /workspace
    (timeout 5 curl -sS --noproxy '*' http://1.1.1.1/ 2>&1 || true) | head -1
    """
    _, log = build(monkeypatch, Store(tmp_path), script)
    lines = log.splitlines()
    assert lines[1:3] == ["1000", "3"]
    assert lines[3:5] == ["cannot", "no secrets"]
    assert "the-key-of-everything" not in log
    assert "curl: (7)" in log


def test_what_it_leaves_is_for_everybody_to_read_and_for_nobody_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
    mkdir -p $INTO/bin $INTO/closed/deep
    ln -s /etc/shadow $INTO/shadow; ln -s ../../../../../../.. $INTO/up
    cp /bin/sleep $INTO/bin/sleeper; chmod 6755 $INTO/bin/sleeper
    echo seen > $INTO/closed/deep/file; chmod 000 $INTO/closed/deep/file $INTO/closed
    mkfifo $INTO/pipe
    setsid sleep 77.77 >/dev/null 2>&1 &
    """
    store = Store(tmp_path)
    base, _ = build(monkeypatch, store, script)
    said = asyncio.run(
        look(
            base,
            "cat /ump/env/python/closed/deep/file; stat -c %a /ump/env/python/bin/sleeper;"
            "cat /ump/env/python/shadow 2>&1 | grep -c denied; ls /ump/env/python/up;"
            "rm -rf /ump/env/python 2>&1 | tail -1; chmod 777 /ump/env 2>&1",
        )
    )
    assert said.startswith("seen\n755\n1\n")
    assert "Read-only file system" in said
    assert "environments" not in said
    assert wait_until_gone("sleep 77.77") == []
    assert store.remove_unused(set(), unused_since=0) == [DEFINITION.digest]
    assert [path.name for path in store.place.iterdir() if path.name != "machine"] == []


def test_a_step_finds_what_an_earlier_one_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = "mkdir -p $INTO/usr/bin; printf '#!/bin/sh\\necho made' > $INTO/usr/bin/maker"
    first = Step("Tool", f"{tool}; chmod 755 $INTO/usr/bin/maker", (), "debian", "bash")
    last = Step("Use", "maker; command -v ump", (), "", "bash")
    monkeypatch.setattr(building, "steps_of", lambda _: [first, last])
    log = BuildLog()
    asyncio.run(build_directory(DEFINITION, Store(tmp_path), log, lambda: False))
    assert log.text().splitlines()[-3:-1] == ["made", "/ump/bin/ump"]


def test_it_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = get_options()
    small = options.sandbox.model_copy(update={"environment_size": 16})
    monkeypatch.setattr(
        building, "get_options", lambda: options.model_copy(update={"sandbox": small})
    )
    script = "for n in 1 2 3 4 5; do head -c 10M /dev/zero > $SCRATCH/$n; done; sleep 60"
    with pytest.raises(BuildFailed, match=r"more than its 16 MiB of disk .*environment_size"):
        build(monkeypatch, Store(tmp_path), script)
    assert [path.name for path in Store(tmp_path).place.iterdir()] == []
