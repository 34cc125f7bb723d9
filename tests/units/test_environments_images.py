"""Environments as images of an engine (issue 5, section 1)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.environments import builds
from jobs.environments.build import BuildFailed, Stopped
from jobs.environments.definition import parse_definition
from jobs.environments.log import BuildLog
from jobs.environments.services import create_environment
from jobs.models import EnvironmentBuild
from jobs.sandbox import base as sandbox
from jobs.sandbox.base import SandboxError
from jobs.sandbox.engine import images as engine
from jobs.sandbox.engine.adapter import Engine
from jobs.sandbox.places import Places
from umpteenth import celery

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "name: tools\ndockerfile: |\n  FROM debian:12\n"
DIGEST = parse_definition(TEXT).digest


class FakeEngine:
    """The images of an engine, by name."""

    name = "engine"

    def __init__(self) -> None:
        self.images: list[str] = ["ump-environment:somebody-else", "debian:12"]
        self.wishes: list[dict[str, Any]] = []
        self.used: set[str] = set()
        self.error = ""

    def make(
        self, *, tag: str, say: Callable[[str], None], stopping: Callable[[], bool], **wish: str
    ) -> int:
        say("Step 1/1 : FROM debian:12")
        self.wishes.append(wish)
        if self.error or stopping():
            raise SandboxError(self.error or "The making of the image was stopped.")
        self.images.append(tag)
        return 4096

    def remove(self, tag: str) -> None:
        if tag in self.used:
            raise SandboxError("image is in use by a container")
        self.images.remove(tag)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    found = FakeEngine()
    monkeypatch.setattr(sandbox, "adapter", lambda: found)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    monkeypatch.setattr(builds, "_stopping", threading.Event())
    monkeypatch.setattr(celery, "send_hint", lambda *words: True)
    monkeypatch.setattr(engine, "image_ready", lambda tag: tag in found.images)
    monkeypatch.setattr(engine, "make_image", found.make)
    monkeypatch.setattr(engine, "remove_image", found.remove)
    monkeypatch.setattr(engine, "images_of_environments", lambda: list(found.images))
    return found


def build(text: str = TEXT) -> EnvironmentBuild:
    row = builds.request_here(text, parse_definition(text).digest)
    token = builds.claim(row)
    assert token is not None
    builds.build(row, token)
    row.refresh_from_db()
    return row


def test_a_dockerfile_becomes_an_image_that_runs_hold(fake: FakeEngine) -> None:
    with builds.hold(DIGEST) as base:
        assert base is None
    row = build()
    assert (row.status, row.size) == ("ready", 4096)
    assert row.log == "== Image\nStep 1/1 : FROM debian:12"
    assert fake.wishes == [{"image": "", "dockerfile": "FROM debian:12\n"}]
    with builds.hold(DIGEST) as base:
        assert base == fake.images[-1]
        assert base.startswith("ump-environment:")


def test_lists_of_packages_are_refused_with_what_to_write_instead(fake: FakeEngine) -> None:
    row = build("name: x\npython: [a]\n")
    assert row.status == "failed"
    assert "name an image or write a dockerfile instead" in row.error


def test_the_engines_words_are_the_reason(fake: FakeEngine) -> None:
    fake.error = "The engine could not make the image: no such image."
    assert build().error == fake.error


def test_a_worker_that_is_stopped_says_so(fake: FakeEngine) -> None:
    row = builds.request_here(TEXT, DIGEST)
    token = builds.claim(row)
    assert token is not None
    builds.stop_all()
    builds.build(row, token)
    row.refresh_from_db()
    assert row.error == str(Stopped())


def test_one_that_takes_too_much_is_removed_again(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.environments.build._size_limit", lambda: 4095)
    before = list(fake.images)
    row = build()
    assert row.status == "failed"
    assert "sandbox.environment_size" in row.error
    assert fake.images == before


def test_one_that_takes_too_long_says_so(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1801.0, 1801.0])
    monkeypatch.setattr(builds, "time", SimpleNamespace(monotonic=lambda: next(times)))
    with pytest.raises(BuildFailed, match="not built within 1,800 seconds"):
        builds._make_image(parse_definition(TEXT), BuildLog())


def test_only_images_of_this_machine_that_nobody_names_are_removed(fake: FakeEngine) -> None:
    environment = create_environment(actor=None, text=TEXT)
    build()
    builds.tidy()  # whatever directories other tests left
    assert builds.tidy() == 0
    name = fake.images[-1]
    environment.delete()
    fake.used.add(name)
    assert builds.tidy() == 0
    fake.used.clear()
    assert builds.tidy() == 1
    assert fake.images == ["ump-environment:somebody-else", "debian:12"]


def test_images_are_asked_for_over_the_adapters_own_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Engine(Places(Path("/nonexistent")), url="unix:///nonexistent", image="an-image")
    monkeypatch.setattr(engine, "adapter", lambda: made)
    monkeypatch.setattr(made.client, "call", lambda work: None)
    assert engine.image_ready("tools")
