"""A worker uses as many descriptors as it may (issue 5, section 3)."""

from __future__ import annotations

import resource

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
