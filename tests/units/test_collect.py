"""What is kept of /ump/outputs, and what a hostile script cannot make of it (I17)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jobs import collect, lifecycle
from jobs.models import Artifact
from tests.fakes.runs import ListRecorder, make_job, make_run

pytestmark = pytest.mark.django_db


def kept(folder: Path, recorder: ListRecorder) -> list[str]:
    """The names of the artifacts of a run that left this folder."""
    run = make_run(make_job())
    token = lifecycle.claim(run.pk, "worker")
    assert token is not None
    collect.collect(run.pk, token, folder, recorder)  # type: ignore[arg-type]
    return list(Artifact.objects.order_by("name").values_list("name", flat=True))


def errors(recorder: ListRecorder) -> list[str]:
    return [event.payload["message"] for event in recorder.events if event.kind == "error"]


def test_a_file_of_holes_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.fdopen

    class Unread:
        def __init__(self, handle: int, mode: str) -> None:
            self.file = real(handle, mode)

        def __enter__(self) -> Unread:
            opened.append(self)
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def read(self, size: int) -> bytes:
            raise AssertionError(f"{size} bytes were asked for")

    with (tmp_path / "holes").open("wb") as file:
        file.truncate(collect.MAX_TOTAL + 1)
    monkeypatch.setattr("jobs.collect.os.fdopen", Unread)
    recorder = ListRecorder()
    assert kept(tmp_path, recorder) == []
    assert len(opened) == 1
    assert "'holes' in /ump/outputs was not kept" in errors(recorder)[0]


def test_many_files_that_do_not_fit_are_counted_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_FILES", 2)
    for number in range(2 + collect.MAX_NAMED + 5):
        (tmp_path / f"{number:03}").write_text("x")
    recorder = ListRecorder()
    assert kept(tmp_path, recorder) == ["000", "001"]
    said = errors(recorder)
    assert len(said) == collect.MAX_NAMED + 1
    assert said[-1] == "5 more files in /ump/outputs were not kept."


def test_what_lies_too_deep_is_missed_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_DEPTH", 1)
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    for folder in ("a", "a/b", "a/b/c"):
        (tmp_path / folder / "file").write_text("x")
    recorder = ListRecorder()
    assert kept(tmp_path, recorder) == ["a/file"]
    [below, file] = errors(recorder)
    assert "'a/b/c/' in /ump/outputs was not kept" in below
    assert "'a/b/file' in /ump/outputs was not kept" in file
