"""What a worker takes of the machine, and gives back (issue 5, section 3)."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from umpteenth.core.process import DESCRIPTORS, take_descriptors

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "taken"),
    [
        ((1024, 524_288), (DESCRIPTORS, 524_288)),
        ((1024, 4096), (4096, 4096)),
        ((1024, INFINITY), (DESCRIPTORS, INFINITY)),
        ((100_000, 524_288), None),
        ((4096, 4096), None),
        ((INFINITY, INFINITY), None),
    ],
)
def test_a_worker_takes_the_descriptors_that_it_may_have(
    limits: tuple[int, int], taken: tuple[int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 connections of one sandbox would use up half of the usual 1024."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: asked.append(new))
    take_descriptors()
    assert asked == ([] if taken is None else [taken])


HOLDER = """
import sys
from umpteenth.core.process import give_memory_back
if sys.argv[1] == "yes":
    give_memory_back()
large = bytearray(30 * 2**20)
del large  # from now on glibc keeps what is of this size
held = [bytearray(2 * 2**20) for _ in range(60)]
del held[:-1]
print(int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20)
"""


def test_a_worker_gives_the_memory_of_large_messages_back() -> None:
    """What one hostile server sent must not be missing for all runs that follow."""

    def left(give_back: str) -> int:
        command = [sys.executable, "-c", HOLDER, give_back]
        return int(subprocess.check_output(command, text=True))

    assert left("yes") < 60
    assert left("no") > 100  # or the call has become needless
