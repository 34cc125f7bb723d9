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


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["a\x01", "a\x02", "a\x03"], ["a", "a (2)", "a (3)"]),
        (["r\x01.txt", "r\x02.txt"], ["r (2).txt", "r.txt"]),
        (["\x01", "\x02"], ["file", "file (2)"]),
        (["a\nb", "a b"], ["a b", "a b (2)"]),
        (["\x1b[31mred\x1b[0m"], ["red"]),
    ],
)
def test_names_that_look_the_same_are_numbered_and_cost_no_file(
    tmp_path: Path, names: list[str], shown: list[str]
) -> None:
    """Names are the script's to choose: they go into pages, headers and the terminal."""
    for name in names:
        (tmp_path / name).write_text("x")
    assert kept(tmp_path, ListRecorder()) == shown


def test_names_that_are_none_once_they_are_cleaned_cost_no_file(tmp_path: Path) -> None:
    for name in (". ", " .", ".. ", "\x01", "z"):
        (tmp_path / name).write_text(name)
    (tmp_path / "..\x02").mkdir()
    (tmp_path / "..\x02" / "inner").write_text("deep")
    recorder = ListRecorder()
    found = kept(tmp_path, recorder)
    assert errors(recorder) == []
    assert len(found) == 6
    assert {"file", "file (2)", "file (3)", "z"} <= set(found)
    assert not any(part in ("", ".", "..") for name in found for part in name.split("/"))


def test_a_name_that_masking_makes_longer_still_fits(tmp_path: Path) -> None:
    recorder = ListRecorder()
    for number in range(10):
        recorder.masker.add("A_RATHER_LONG_NAME", f"secret-{number}")
    for end in ("1", "2"):
        folder = tmp_path / "/".join([f"secret-{end}" * 20] * 3)
        folder.mkdir(parents=True)
        (folder / "f.txt").write_text("x")
    names = kept(tmp_path, recorder)
    assert len(set(names)) == 2
    assert max(map(len, names)) == collect.MAX_NAME


def test_nobody_looks_for_ever_at_what_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "MAX_FILES", 1)
    monkeypatch.setattr(collect, "MAX_REFUSED", 30)
    monkeypatch.setattr(collect, "MAX_LOOKED_AT", 31)
    for folder in ("", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for number in range(50):
            (tmp_path / folder / f"{number:02}").write_text("x")
    recorder = ListRecorder()
    assert len(kept(tmp_path, recorder)) == 1
    assert errors(recorder)[-1] == "At least 10 more files in /ump/outputs were not kept."
