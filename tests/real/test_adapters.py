"""What every adapter promises (`jobs.sandbox.base`), tried from inside (P3, P6-P8, P20; C06, C09,
C14, C15, C24): bubblewrap as the user who runs the tests and as a plain one, and an engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from jobs.broker.server import INSIDE_SOCKET, Broker, new_token
from jobs.sandbox.base import USER_IDS, Adapter, Bind, SandboxError, SandboxSpec
from jobs.sandbox.runtime import runtime_dir, socket_path
from tests.fakes.run_handler import FakeRun
from tests.real.adapters import ADAPTERS, make_adapter, new_directory, tried
from tests.real.engines import Podman, running_podman
from tests.real.sandboxes import User, processes_with
from umpteenth.core import deadlines

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with running_podman() as found:
        yield found


@pytest.fixture(scope="module", params=ADAPTERS)
def user(request: pytest.FixtureRequest, podman: Podman) -> Iterator[User]:
    with tried(request.param, podman) as found:
        yield found


@pytest.fixture(scope="module", params=["bubblewrap", "engine"])
def adapter(
    request: pytest.FixtureRequest, podman: Podman, tmp_path_factory: pytest.TempPathFactory
) -> Adapter:
    """One of this process."""
    return make_adapter(request.param, podman, tmp_path_factory.mktemp("data"))


def test_a_command_runs_as_the_party_without_any_privilege(user: User) -> None:
    result = user.run(
        ["bash", "-c", "id -un; id -u; grep -E '^(Cap|NoNewPrivs)' /proc/self/status"]
    )
    name, number, *status = result["out"].split("\n")
    assert (name, number) == ("agent", "1000")
    held = dict(line.split(":\t") for line in status if line)
    assert held.pop("NoNewPrivs") == "1"
    assert set(held.values()) == {"0" * 16}


def test_a_server_is_another_user(user: User) -> None:
    """P7."""
    assert user.run(["id", "-un"], party="mcp")["out"] == "mcp\n"


def test_the_data_directory_is_not_there(user: User) -> None:
    """P3: neither by its own path nor through a shown directory that holds it."""
    secret = str(user.data_dir / "secret")
    assert user.run(["cat", secret])["code"] == 1
    shown = user.run(["cat", secret], readonly=[str(user.data_dir.parent)])
    assert (shown["code"], shown["out"]) == (1, "")


def test_a_shown_path_can_be_read_but_not_written(user: User) -> None:
    shown = user.data_dir.parent / uuid4().hex / "deep"
    shown.mkdir(parents=True)
    (shown / "file").write_text("seen")
    subprocess.run(["chmod", "-R", "a+rX", str(shown.parent)], check=True)
    result = user.run(
        ["bash", "-c", f"cat {shown}/file; echo x > {shown}/file"], readonly=[str(shown)]
    )
    assert (result["code"], result["out"]) == (1, "seen")


def test_shadow_cannot_be_read(user: User) -> None:
    assert user.run(["cat", "/etc/shadow"])["code"] == 1


def test_nothing_outside_of_its_places_can_be_written(user: User) -> None:
    places = "/x /usr/x /etc/x /dev/x /ump/x /ump/bin/x /run/x /tmp/x"
    script = f"for place in {places}; do touch $place 2>/dev/null && echo $place; done; true"
    assert user.run(["bash", "-c", script]) == {"code": 0, "out": "/tmp/x\n", "err": ""}


def test_its_own_places_can_be_written(user: User) -> None:
    script = """
        for place in /workspace /tmp /var/tmp /dev/shm "$HOME"; do echo a > $place/f || exit 1; done
        echo out > /dev/stdout; echo err > /dev/stderr
        python3 -c 'import multiprocessing as m; m.Lock()'
    """
    assert user.run(["bash", "-c", script]) == {"code": 0, "out": "out\n", "err": "err\n"}


def test_another_party_is_out_of_sight(user: User) -> None:
    """P7, P26: neither its environment nor its arguments nor its processes."""
    other = {
        "party": "mcp",
        "env": {"BRAVE_API_KEY": "key-of-the-server"},
        "argv": ["bash", "-c", "echo up; read", "argument-of-the-server"],
    }
    script = "cat /proc/*/environ /proc/*/cmdline /proc/*/maps; ls /proc | grep -c '^[0-9]'"
    result = user.run(["bash", "-c", script], others=[other])
    assert "key-of-the-server" not in result["out"]
    assert "argument-of-the-server" not in result["out"]
    assert int(result["out"].split()[-1]) <= 5


def test_the_workers_environment_does_not_come_along(user: User) -> None:
    """C14."""
    names = user.run(["python3", "-c", "import os; print(*os.environ)"])["out"].split()
    assert "PYTHONPATH" not in names
    assert "PYTHONWARNINGS" not in names
    assert "HOME" in names


def test_the_hosts_loopback_is_reached_only_with_a_network(user: User) -> None:
    """P22."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        connect = ["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached"]
        assert user.run(connect, network=True)["out"] == "reached\n"
        assert user.run(connect)["out"] == ""


def test_no_secret_is_in_any_argument_list(user: User) -> None:
    secret = f"secret-{uuid4().hex}"
    seen: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            seen.extend(processes_with(secret))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = user.run(["bash", "-c", "sleep 0.3; echo ${#TOKEN}"], env={"TOKEN": secret})
    finally:
        ended.set()
        watcher.join()
    assert result["out"].strip() == str(len(secret))
    assert seen == []


@pytest.mark.parametrize("network", [{}, {"egress": {}}], ids=["alone", "guarded"])
def test_a_command_that_does_not_exist_is_named(user: User, network: dict[str, Any]) -> None:
    """P21, P25: and is no fault of the network."""
    result = user.run(["no-such-command", "--flag"], **network)
    assert result["code"] == 127
    assert result["err"].startswith("command not found: no-such-command")


@pytest.mark.parametrize("network", [{}, {"egress": {}}], ids=["alone", "guarded"])
def test_a_command_that_is_no_program_is_said_by_its_path(
    user: User, network: dict[str, Any]
) -> None:
    result = user.run(["/etc/passwd"], **network)
    assert result["code"] in (126, 127)
    assert "/etc/passwd" in result["err"]


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -9 $$", 137),
        ("kill $$", 143),
        ("trap '' 15; kill 0", 0),
    ],
)
def test_the_exit_code_is_the_commands_own(user: User, script: str, code: int) -> None:
    assert user.run(["bash", "-c", script])["code"] == code


def test_what_a_command_leaves_behind_ends_with_it(user: User) -> None:
    """P8, C09."""
    marker = f"9{uuid4().int % 10**12}"
    script = f"trap '' TERM HUP; setsid sleep {marker} & nohup sleep {marker} & exit 3"
    assert user.run(["bash", "-c", script])["code"] == 3
    assert processes_with(marker) == []


def test_killing_ends_everything_however_it_resists(user: User) -> None:
    """C24."""
    marker = f"9{uuid4().int % 10**12}"
    script = (
        f"trap '' TERM HUP INT; setsid sleep {marker} & echo up; while :; do sleep {marker}; done"
    )
    result = user.run(["bash", "-c", script], kill_after_line=True)
    assert (result["code"], result["out"]) == (137, "up\n")
    assert processes_with(marker) == []


def test_long_lines_and_much_output_pass(user: User) -> None:
    """C15."""
    result = user.run(["bash", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; cat"], stdin="end")
    assert len(result["out"]) == 5_000_003


async def test_its_end_is_known_although_an_output_is_not_read(adapter: Adapter) -> None:
    """As far as the reader's limit goes; beyond it whoever writes is held back."""
    argv = ["sh", "-c", "head -c 1000000 /dev/zero >&2; echo done; exit 3"]
    process = await adapter.start(argv, SandboxSpec("agent", network=False))
    try:
        async with deadlines.timeout(20):
            assert await process.wait() == 3
            assert await process.stdout.read() == b"done\n"
    finally:
        await process.kill()


async def test_ump_reaches_its_broker_without_a_network(adapter: Adapter) -> None:
    """P4, P74."""
    run = FakeRun()
    path = socket_path()
    async with Broker(run, new_token(), path, owner=USER_IDS["agent"]) as broker:
        spec = SandboxSpec(
            party="agent",
            network=False,
            binds=(Bind(path, INSIDE_SOCKET, writable=True),),
            env=broker.environment(),
        )
        script = "ump step One; ump mcp call demo echo '{\"a\": 1}' && ump mcp call demo broken"
        process = await adapter.start(["bash", "-c", script], spec)
        out, code = await asyncio.gather(process.stdout.read(), process.wait())
        await process.kill()
    assert (json.loads(out), code) == ({"a": 1}, 1)
    assert run.calls[0] == ("step", "One")


async def test_uv_is_on_the_path(adapter: Adapter) -> None:
    """P20."""
    process = await adapter.start(["uvx", "--version"], SandboxSpec(party="mcp", network=False))
    out, code = await asyncio.gather(process.stdout.read(), process.wait())
    await process.kill()
    assert (out.startswith(b"uvx "), code) == (True, 0)


async def test_a_cancelled_task_can_still_end_its_sandbox(adapter: Adapter) -> None:
    """C24: the way through a cancellation must not lack the kill."""
    marker = f"9{uuid4().int % 10**12}"
    up = asyncio.Event()

    async def work() -> None:
        spec = SandboxSpec(party="agent", network=False)
        process = await adapter.start(["bash", "-c", f"echo up; sleep {marker}"], spec)
        try:
            await process.stdout.readline()
            up.set()
            await process.wait()
        finally:
            await process.kill()

    task = asyncio.create_task(work())
    await up.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_with(marker) == []


async def test_what_was_written_before_a_kill_can_be_read_after_it(adapter: Adapter) -> None:
    spec = SandboxSpec(party="agent", network=False)
    script = "echo first; echo last; echo written >&2; sleep 999"
    process = await adapter.start(["bash", "-c", script], spec)
    assert await process.stderr.readline() == b"written\n"
    await process.kill()
    assert await process.stdout.read() == b"first\nlast\n"


def test_several_threads_with_loops_of_their_own_share_an_adapter(adapter: Adapter) -> None:
    failures: list[object] = []

    async def many(number: int) -> None:
        spec = SandboxSpec(party="agent", network=False)
        for turn in range(8):
            process = await adapter.start(["bash", "-c", f"echo {number}-{turn}"], spec)
            out, code = await asyncio.gather(process.stdout.read(), process.wait())
            await process.kill()
            if (out.decode(), code) != (f"{number}-{turn}\n", 0):
                failures.append((number, turn, out, code))

    threads = [threading.Thread(target=asyncio.run, args=(many(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


async def test_nothing_of_it_is_left_with_the_worker(adapter: Adapter) -> None:
    spec = SandboxSpec(party="agent", network=False)
    counts = []
    for _ in range(14):
        process = await adapter.start(["cat"], spec)
        await process.kill()
        await asyncio.sleep(0)
        files = {path for path in os.listdir(runtime_dir()) if path.endswith((".sock", ".pipe"))}
        counts.append((len(os.listdir("/proc/self/fd")), len(files)))
    assert counts[4][1] == counts[-1][1] == 0
    # An engine's connections come and go with the threads that ask it something.
    assert counts[-1][0] < counts[4][0] + (5 if adapter.name == "engine" else 1)


async def test_output_arrives_as_it_is_written_and_input_may_end_by_itself(
    adapter: Adapter,
) -> None:
    """P6: a stdio server answers while its input is open, and ends when it is closed."""
    program = 'while read -r line; do echo "out $line"; echo "err $line" >&2; done; exit 4'
    process = await adapter.start(["bash", "-c", program], SandboxSpec("mcp", network=False))
    try:
        for number in range(3):
            process.stdin.write(b"%d\n" % number)
            await process.stdin.drain()
            assert await process.stdout.readline() == b"out %d\n" % number
            assert await process.stderr.readline() == b"err %d\n" % number
        process.stdin.close()
        assert process.stdin.is_closing()
        assert (await process.stdout.read(), await process.wait()) == (b"", 4)
    finally:
        await process.kill()
    assert process.ended is not None
    assert process.ended.fault == ""


async def test_writing_to_a_process_that_has_ended_is_told_and_harmless(adapter: Adapter) -> None:
    process = await adapter.start(["true"], SandboxSpec("mcp", network=False))
    assert await process.wait() == 0
    with pytest.raises(ConnectionError):  # noqa: PT012 - at which write is the system's choice
        for _ in range(100):
            process.stdin.write(b"x" * 65536)
            await process.stdin.drain()
            await asyncio.sleep(0.01)
    await process.kill()
    await process.kill()


@pytest.mark.parametrize(
    ("argv", "env", "words"),
    [
        ([], {}, "empty"),
        (["a\0b"], {}, "NUL"),
        (["echo", "x" * 140_000], {}, "128 KiB"),
        (["echo"], {"A=B": "c"}, "cannot be the name"),
    ],
)
async def test_what_no_process_can_be_started_with_is_refused_in_words(
    adapter: Adapter, argv: list[str], env: dict[str, str], words: str
) -> None:
    with pytest.raises(SandboxError, match=words):
        await adapter.start(argv, SandboxSpec("agent", network=False, env=env))


def test_workspace_home_and_outputs_are_the_workers_own_directories(user: User) -> None:
    """P6: what is written there can be read outside, at once and by the worker."""
    workspace, home, outputs = (new_directory(user, uuid4().hex) for _ in range(3))
    result = user.run(
        ["bash", "-c", 'pwd; echo w > f; echo h > "$HOME/f"; echo o > /ump/outputs/f'],
        workspace=str(workspace),
        home=str(home),
        binds=[[str(outputs), "/ump/outputs", True]],
    )
    assert result == {"code": 0, "out": "/workspace\n", "err": ""}
    found = [(path / "f").read_text() for path in (workspace, home, outputs)]
    assert found == ["w\n", "h\n", "o\n"]


def test_a_file_that_is_only_shown_cannot_be_changed(user: User) -> None:
    folder = new_directory(user, uuid4().hex)
    (folder / "input.json").write_text("{}")
    (folder / "input.json").chmod(0o644)
    script = "cat /ump/input.json; echo x > /ump/input.json; rm -f /ump/input.json; true"
    result = user.run(
        ["bash", "-c", script], binds=[[str(folder / "input.json"), "/ump/input.json"]]
    )
    assert result["out"] == "{}"
    assert (folder / "input.json").read_text() == "{}"


def test_the_specifications_variables_win(user: User) -> None:
    result = user.run(["bash", "-c", 'echo "$LANG $OWN"'], env={"LANG": "C", "OWN": "a\nb"})
    assert result["out"] == "C a\nb\n"


def test_too_much_memory_ends_it_and_is_said(user: User) -> None:
    """A plain user's processes are held one by one, and what ends them is not known."""
    program = "x = bytearray(300_000_000); print('still here')"
    result = user.run(["python3", "-c", program], limits={"memory": 100 * 1024**2})
    assert result["out"] == ""
    assert result["code"] != 0
    ended = result["ended"]
    assert ended["out_of_memory"] or ended["is_memory_per_process"], ended
    assert ("100 MiB of memory" in ended["broken_limit"]) == ended["out_of_memory"]


FORKS = """
import os, time
count = 0
try:
    while count < 60:
        if os.fork() == 0:
            time.sleep(60)
        count += 1
except OSError:
    pass
print(count)
"""


def test_a_fork_bomb_meets_its_limit(user: User) -> None:
    result = user.run(["python3", "-c", FORKS], limits={"processes": 20})
    assert result["code"] == 0
    assert 5 < int(result["out"]) < 20


def test_too_much_on_the_disk_ends_it_and_is_said(user: User) -> None:
    workspace = new_directory(user, uuid4().hex)
    script = "for n in 1 2 3 4; do head -c 8000000 /dev/zero > $n; done; sleep 60"
    result = user.run(
        ["bash", "-c", script], workspace=str(workspace), limits={"disk": 20 * 1024**2}
    )
    assert result["code"] == 137
    assert "20 MiB of disk" in result["ended"]["broken_limit"]


def test_a_guarded_network_reaches_its_proxy_and_nothing_else(user: User) -> None:
    """P22: a refusal comes from the proxy, and without it there is no route."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""
            curl -sS -o /dev/null -w '%{{http_code}} ' http://elsewhere.example.org/
            ump connect elsewhere.example.org 22 </dev/null || echo -n 'refused '
            exec 3<>/dev/tcp/127.0.0.1/{port} || echo unreached
        """
        result = user.run(["bash", "-c", script], egress={"known.example.org": []})
    assert result["out"] == "403 refused unreached\n"
    assert "elsewhere.example.org is not among the known ones." in result["err"]
    assert [event[:2] for event in result["events"]] == [["refused", "elsewhere.example.org"]] * 2
