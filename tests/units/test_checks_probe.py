"""The thread that connects; no database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from servers.mcp import client
from servers.mcp.types import (
    Answer,
    Asker,
    ConnectionSettings,
    Observer,
    Question,
    ServerUnavailable,
)
from servers.probe import Found, Probe, Stopped
from tests.fakes.mcp_helpers import shell_settings, stdio_settings
from tests.fakes.mcp_server import TOOLS, Behaviour
from tests.fakes.spawner import BareProcess, BareSpawner

PATIENCE = 20.0  # seconds; only a hung probe uses them up


def test_it_finds_tools_and_leaves_no_process() -> None:
    spawner = BareSpawner()
    probe = Probe(stdio_settings(), spawner)
    probe.start()
    assert probe.wait(PATIENCE)
    assert isinstance(probe.outcome, Found)
    assert len(probe.outcome.tools.tools) == len(TOOLS)
    assert all(step["ms"] is not None for step in probe.progress().steps)
    assert spawner.alive() == []


def test_a_step_after_which_another_attempt_began_has_failed() -> None:
    spawner = BareSpawner()
    probe = Probe(shell_settings("exit 7"), spawner)
    probe.start()
    assert probe.wait(PATIENCE)
    steps = [(step["label"], step.get("failed", False)) for step in probe.progress().steps]
    starting = steps[0][0]
    assert steps == [
        (starting, False),
        ("Connecting", True),
        (starting, False),
        ("Connecting", False),
    ]


def test_stopping_a_mute_server_ends_its_processes() -> None:
    """C24: the tree is gone when `wait` returns."""
    spawner = BareSpawner()
    probe = Probe(shell_settings("echo still thinking >&2; sleep 100 & wait"), spawner)
    probe.start()
    deadline = time.monotonic() + PATIENCE
    while not probe.progress().last_stderr and time.monotonic() < deadline:
        assert not probe.wait(0.02)
    probe.stop()
    assert probe.wait(PATIENCE)
    assert isinstance(probe.outcome, Stopped)
    assert "still thinking" in probe.stderr_tail
    assert spawner.alive() == []


def test_stopping_before_anything_has_begun_works_too() -> None:
    probe = Probe(stdio_settings(Behaviour(start="mute")), BareSpawner())
    probe.start()
    probe.stop()
    probe.stop()
    assert probe.wait(PATIENCE)
    assert isinstance(probe.outcome, Stopped)


def test_stopping_after_the_end_changes_nothing() -> None:
    probe = Probe(stdio_settings(), BareSpawner())
    probe.start()
    assert probe.wait(PATIENCE)
    probe.stop()
    assert isinstance(probe.outcome, Found)


def test_the_end_of_a_long_stderr_is_kept() -> None:
    """C03."""
    script = "yes a line of noise | head -c 300000 >&2; echo the end >&2; exit 1"
    probe = Probe(shell_settings(script), BareSpawner())
    probe.start()
    assert probe.wait(PATIENCE)
    assert probe.progress().last_stderr == "the end"
    assert len(probe.stderr_tail) <= 8192
    assert isinstance(probe.outcome, ServerUnavailable)
    assert probe.outcome.exit_code == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_nobody_foresaw_is_an_outcome_too() -> None:
    async def broken(argv: Sequence[str], env: Mapping[str, str]) -> BareProcess:
        await asyncio.sleep(0)
        raise ZeroDivisionError("who would have thought")

    probe = Probe(stdio_settings(), broken)
    probe.start()
    assert probe.wait(PATIENCE)
    assert isinstance(probe.outcome, ServerUnavailable)
    assert "who would have thought" in probe.outcome.message


def give_up() -> None:
    raise ServerUnavailable("That is all.")


@pytest.mark.parametrize("has_asker", [True, False])
def test_questions_go_to_the_asker_and_notices_onto_the_record(
    has_asker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Test from a terminal is answered by the person; any other has nobody to ask."""
    asked: list[Question] = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        return Answer("decline")

    @asynccontextmanager
    async def connect(
        settings: ConnectionSettings, *, spawn: Any, observer: Observer, ask: Asker | None
    ) -> AsyncIterator[Any]:
        answer = await ask(Question("Your name?")) if ask is not None else None
        observer.notice("It was answered." if answer else "Nobody was there.")
        give_up()
        yield

    monkeypatch.setattr(client, "connect", connect)
    probe = Probe(stdio_settings(), BareSpawner(), ask if has_asker else None)
    probe.start()
    assert probe.wait(PATIENCE)
    assert asked == ([Question("Your name?")] if has_asker else [])
    words = "It was answered." if has_asker else "Nobody was there."
    assert probe.progress().notices == [words]


def test_a_server_that_never_stops_talking_fills_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @asynccontextmanager
    async def connect(
        settings: ConnectionSettings, *, spawn: Any, observer: Observer, ask: Asker | None
    ) -> AsyncIterator[Any]:
        for number in range(1000):
            observer.step(f"step {number}")
            observer.notice(f"notice {number}")
            observer.stderr("x" * 10_000)
        give_up()
        yield

    monkeypatch.setattr(client, "connect", connect)
    probe = Probe(stdio_settings(), BareSpawner())
    probe.start()
    assert probe.wait(PATIENCE)
    shown = probe.progress()
    assert (len(shown.steps), len(shown.notices)) == (50, 50)
    assert (len(shown.last_stderr), len(probe.stderr_tail)) == (500, 8192)
