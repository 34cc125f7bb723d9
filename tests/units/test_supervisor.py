"""The supervisor keeps its children alive and leaves none behind (issue 2, section 1).

Its children here are small real processes; each writes a line when it starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from umpteenth import supervisor
from umpteenth.supervisor import Child

OBEDIENT = "import sys,time; print('started', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {OBEDIENT}"
# Ends with its parent, as web, worker and beat do.
LINKED = (
    f"import sys; from umpteenth.core import process; process.end_with_parent(PPID); {OBEDIENT}"
)


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it becomes true in time: for processes, which tell nobody that they ended."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


class Site:
    """A supervisor process with one child that runs `code`, and a log of the child's starts."""

    def __init__(self, tmp_path: Path, code: str, delay: float = 1.0) -> None:
        self.log = tmp_path / "pids"
        child = f"import os; open({str(self.log)!r}, 'a').write(f'{{os.getpid()}}\\n'); {code}"
        program = f"""
            import os, sys
            from umpteenth import supervisor
            supervisor.FIRST_DELAY = {delay}
            code = {child!r}.replace("PPID", str(os.getpid()))
            supervisor.Supervisor([supervisor.Child("child", [sys.executable, "-c", code])]).run()
        """
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def wait_for_start(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "started\n"
        return self.pids[-1]

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        for pid in self.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = []

    def _start(code: str, **options: float) -> Site:
        sites.append(Site(tmp_path, code, **options))
        return sites[-1]

    yield _start
    for site in sites:
        site.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_signal_ends_the_children_at_once(
    start: Callable[..., Site], number: signal.Signals
) -> None:
    site = start(OBEDIENT)
    child = site.wait_for_start()
    began = time.monotonic()
    site.process.send_signal(number)
    assert site.process.wait(10) == 0
    assert time.monotonic() - began < supervisor.STOP_TIMEOUT
    assert not is_alive(child)


def test_a_child_that_does_not_stop_is_killed_within_five_seconds(
    start: Callable[..., Site],
) -> None:
    site = start(STUBBORN)
    child = site.wait_for_start()
    began = time.monotonic()
    site.process.terminate()
    site.process.wait(10)
    assert time.monotonic() - began < 5
    assert not is_alive(child)


def test_a_second_signal_kills_at_once(start: Callable[..., Site]) -> None:
    site = start(STUBBORN)
    child = site.wait_for_start()
    began = time.monotonic()
    site.process.send_signal(signal.SIGINT)
    while site.process.poll() is None and time.monotonic() - began < 10:
        site.process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert time.monotonic() - began < supervisor.STOP_TIMEOUT
    assert not is_alive(child)


def test_children_end_when_the_supervisor_is_killed(start: Callable[..., Site]) -> None:
    site = start(LINKED)
    child = site.wait_for_start()
    site.process.kill()
    site.process.wait()
    assert eventually(lambda: not is_alive(child))


def test_a_child_whose_parent_died_before_it_could_ask_ends_itself() -> None:
    code = LINKED.replace("PPID", "1 << 30")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=10)
    assert done.returncode == 1
    assert done.stdout == b""


def test_a_child_that_dies_starts_again(start: Callable[..., Site]) -> None:
    site = start(OBEDIENT, delay=0.05)
    first = site.wait_for_start()
    os.kill(first, signal.SIGKILL)
    second = site.wait_for_start()
    assert second != first
    site.process.terminate()
    _, errors = site.process.communicate(timeout=10)
    assert errors == "umpteenth: child ended (killed by SIGKILL); it starts again in 0.05 s.\n"
    assert not is_alive(second)


def test_what_a_child_left_behind_ends_with_it(start: Callable[..., Site], tmp_path: Path) -> None:
    orphan = tmp_path / "orphan"
    code = (
        "import subprocess, sys; grandchild = subprocess.Popen(['sleep', '60']); "
        f"open({str(orphan)!r}, 'w').write(str(grandchild.pid)); {OBEDIENT}"
    )
    site = start(code)
    os.kill(site.wait_for_start(), signal.SIGKILL)
    assert eventually(lambda: not is_alive(int(orphan.read_text())))


def ended(status: int) -> Child:
    """A child that ended just now."""
    child = Child("worker", [sys.executable, "-c", f"raise SystemExit({status})"])
    child.start(now=0.0)
    assert child.process is not None
    child.process.wait()
    return child


def test_a_child_that_keeps_dying_is_started_ever_later(capsys: pytest.CaptureFixture[str]) -> None:
    delays = []
    child = ended(3)
    for _ in range(7):
        assert child.notice_death(now=5.0)
        assert child.due is not None
        delays.append(child.due - 5.0)
        child.process, child.started_at = ended(3).process, 0.0
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "umpteenth: worker ended (exit status 3); it starts again in 1 s."


def test_a_child_that_dies_all_night_is_still_started() -> None:
    child = ended(3)
    child.deaths = 5000
    assert child.notice_death(now=5.0)
    assert child.due == 5.0 + supervisor.LAST_DELAY


def test_a_child_that_had_been_well_starts_again_soon() -> None:
    child = ended(1)
    child.deaths = 6
    child.notice_death(now=supervisor.HEALTHY_AFTER)
    assert child.due == supervisor.HEALTHY_AFTER + supervisor.FIRST_DELAY


def test_a_child_that_lives_is_left_alone() -> None:
    child = Child("web", [sys.executable, "-c", OBEDIENT])
    child.start(now=0.0)
    assert not child.notice_death(now=1.0)
    assert child.due is None
    child.kill_group()
    assert child.process is not None
    assert child.process.wait() == -signal.SIGKILL


def test_a_child_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    child = Child("worker", ["true"])
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        child.start(100.0)
    said = "worker cannot start (Resource temporarily unavailable); it starts again in 1 s."
    assert capsys.readouterr().err == f"umpteenth: {said}\n"
    assert (child.process, child.due) == (None, 101.0)


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    assert supervisor._ending(-signal.SIGKILL) == "killed by SIGKILL"
    assert supervisor._ending(-40) == "killed by signal 40"
