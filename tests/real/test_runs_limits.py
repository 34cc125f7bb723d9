"""Real runs that come to a limit of their job: what the run says, and its servers (issue 5)."""

from __future__ import annotations

import pytest

from jobs.sandbox import cgroups
from tests.real.conftest import Site
from tests.real.test_runs import SYSTEM_PYTHON, make_job, of_kind, start, wait_for

pytestmark = pytest.mark.real

EATS = "held = bytearray(512 * 2**20)"


def has_groups() -> bool:
    return "memory" in cgroups.shared().controllers


def test_a_script_that_eats_memory_is_ended_and_names_the_setting(site: Site) -> None:
    job = make_job(site, f"echo up\npython3 -c '{EATS}'\n", memory=64)
    run_id = start(site, job)
    shown = wait_for(site, run_id, "failed", "succeeded")
    said = shown["error"]
    if has_groups():
        assert said == (
            "the script was ended: it used more than its 64 MiB of memory "
            "(Memory in the job's settings)"
        )
    else:
        assert said == "the script ended with exit code 1"
    [made] = of_kind(site, run_id, "sandbox.create")
    facts = [made[name] for name in ("adapter", "isolation", "memory", "network")]
    assert facts == ["bubblewrap", "namespaces", 64, "internet"]
    assert any("Memory" in gap for gap in made.get("unenforced", ())) != has_groups()
    assert of_kind(site, run_id, "sandbox.destroy") == [{}]
    [ended] = of_kind(site, run_id, "script.exit")
    assert (ended["timed_out"], ended.get("limit")) == (False, "memory" if has_groups() else None)


def test_a_script_that_goes_on_without_a_process_succeeds_and_says_it(site: Site) -> None:
    job = make_job(site, f"python3 -c '{EATS}' || echo went on\n", memory=64)
    run_id = start(site, job)
    assert wait_for(site, run_id, "failed", "succeeded")["status"] == "succeeded"
    notices = [payload["message"] for payload in of_kind(site, run_id, "log")]
    said = "A process of the script was ended: it used more than its 64 MiB of memory."
    assert (said in notices) == has_groups()


@pytest.mark.parametrize("place", ["/workspace", "/ump/logs"])
def test_a_script_that_fills_the_disk_is_ended_and_keeps_what_it_told(
    site: Site, place: str
) -> None:
    script = (
        f"cd {place}\n"
        "ump summary 'half way'\nfor n in {1..99}; do head -c 8M /dev/zero > $n; sleep .1; done\n"
    )
    job = make_job(site, script, disk=32)
    shown = wait_for(site, start(site, job), "failed", "succeeded")
    assert shown["error"] == (
        "the script was ended: it used more than its 32 MiB of disk (Disk in the job's settings)"
    )
    assert shown["summary"] == "half way"


def test_a_server_that_eats_memory_says_so_and_leaves_the_script_its_own(site: Site) -> None:
    """Each sandbox has the job's limits for itself."""
    done = site.run("mcp", "add", "glutton", "--", SYSTEM_PYTHON, "-c", EATS)
    assert done.returncode == 0, done.stderr
    script = "ump mcp tools glutton || echo 'no glutton'\n"
    run_id = start(site, make_job(site, script, servers={"glutton": "all"}, memory=64))
    assert wait_for(site, run_id, "failed", "succeeded")["status"] == "succeeded"
    [lost] = of_kind(site, run_id, "server.unavailable")
    if has_groups():
        assert "The server was ended: it used more than its 64 MiB of memory" in str(lost)
    else:
        assert "MemoryError" in str(lost)
