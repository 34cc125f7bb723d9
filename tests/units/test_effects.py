"""The calls with side effects that a run made, kept on the run (P76)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.test import Client

from jobs import toolbox
from jobs.effects import MAX_ARGUMENTS, MAX_CALLS, MAX_TOOL, MORE_AT_ONCE, Effect, Effects
from jobs.models import Run
from jobs.payloads import LIMIT
from jobs.timeline import Recorder
from jobs.toolbox import ToolNotFound
from servers.mcp.types import CallResult, ConnectionLost
from tests.fakes.runs import FakeServers, make_job
from tests.fakes.timelines import run_of
from tests.fakes.toolboxes import CAP, Bench, OnABench, call
from umpteenth.core.masking import Masker

AT = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
SECRET = "s3cr3t-horse-battery"


def effect(key: str = "k", outcome: str = "unknown", **fields: Any) -> Effect:
    values: dict[str, Any] = {"server": "shop", "tool": "order", "arguments": {"n": 1}, "at": AT}
    return Effect(key, outcome=outcome, **(values | fields))


async def turns() -> None:
    """Let every task come to where it has to wait for something."""
    for _ in range(100):
        await asyncio.sleep(0)


def effects() -> Effects:
    return Effects(Masker({"TOKEN": SECRET}).mask)


class TestTheList:
    def test_a_call_is_there_as_it_is_sent_and_has_its_outcome_later(self) -> None:
        kept = effects()
        kept.take(effect())
        [call] = kept.value()["calls"]
        assert call == {
            "server": "shop",
            "tool": "order",
            "arguments": '{"n": 1}',
            "outcome": "unknown",
            "at": "2026-03-01T12:30:00.000+00:00",
        }
        kept.take(effect(outcome="succeeded"))
        assert [call["outcome"] for call in kept.value()["calls"]] == ["succeeded"]

    def test_names_and_arguments_are_cut(self) -> None:
        kept = effects()
        kept.take(effect(tool="t" * 1000, arguments={"text": "é" * 1000}))
        [call] = kept.value()["calls"]
        assert (len(call["tool"]), len(call["arguments"])) == (MAX_TOOL, MAX_ARGUMENTS)
        assert call["arguments"].startswith('{"text": "éé')
        assert call["arguments"].endswith("é…")

    @pytest.mark.parametrize("offset", range(270, 300, 3))
    def test_a_secret_is_masked_before_it_is_cut(self, offset: int) -> None:
        kept = effects()
        kept.take(effect(arguments={"text": "x" * offset + SECRET}))
        assert SECRET[:4] not in str(kept.value())

    def test_what_databases_and_terminals_refuse_is_cleaned(self) -> None:
        """H16"""
        kept = effects()
        kept.take(effect(tool="a\x1b[31mb\0", arguments={"text": "\ud800\x9b\0"}))
        kept.value()["calls"][0]["arguments"].encode()
        assert not {"\x1b", "\x9b", "\0"} & set(str(kept.value()))

    def test_beyond_the_limit_calls_are_counted(self) -> None:
        kept = effects()
        for number in range(MAX_CALLS + 3):
            kept.take(effect(str(number), arguments={"n": number}))
        for number in range(MAX_CALLS + 3):
            kept.take(effect(str(number), outcome="failed"))
        value = kept.value()
        assert (len(value["calls"]), value["more"]) == (MAX_CALLS, 3)
        assert {call["outcome"] for call in value["calls"]} == {"failed"}
        assert value["calls"][-1]["arguments"] == f'{{"n": {MAX_CALLS - 1}}}'

    def test_a_flood_is_not_written_with_each_call(self) -> None:
        kept = effects()
        for number in range(MAX_CALLS):
            kept.take(effect(str(number)))
        written = 0
        for number in range(MORE_AT_ONCE * 2):
            kept.is_new = False
            kept.take(effect(f"more {number}"))
            kept.take(effect(f"more {number}", outcome="succeeded"))
            written += kept.is_new
        assert written == 2
        kept.is_new = False
        kept.close()
        assert kept.is_new
        assert kept.value()["more"] == MORE_AT_ONCE * 2


class TestCallsOfTheToolbox(OnABench):
    @pytest.mark.parametrize(
        ("answer", "outcome"),
        [
            (CallResult(ok=True, text="done"), "succeeded"),
            (CallResult(ok=False, text="sold out", error="sold out"), "failed"),
        ],
    )
    async def test_the_servers_answer_is_the_outcome(
        self, bench: Bench, servers: FakeServers, answer: CallResult, outcome: str
    ) -> None:
        known_before: list[str] = []

        def reply(*_: Any) -> CallResult:
            known_before.extend(effect.outcome for effect in bench.recorder.effects)
            return answer

        servers["good"].answer = reply
        bench.attach("good")
        await call(bench)
        assert known_before == ["unknown"]
        first, second = bench.recorder.effects
        assert (first.server, first.tool, first.arguments) == ("good", "echo", {"message": "hi"})
        assert (second.key, second.outcome) == (first.key, outcome)

    @pytest.mark.parametrize(("in_doubt", "outcomes"), [(True, []), (False, ["failed"])])
    async def test_a_lost_answer_leaves_it_open_where_the_call_may_have_happened(
        self, bench: Bench, servers: FakeServers, in_doubt: bool, outcomes: list[str]
    ) -> None:
        error = ConnectionLost("The connection broke.")
        error.in_doubt = in_doubt

        async def breaks() -> CallResult:
            raise error

        servers["good"].answer = lambda *_: breaks()
        bench.attach("good")
        assert not (await call(bench)).ok
        assert [effect.outcome for effect in bench.recorder.effects] == ["unknown", *outcomes]

    async def test_a_script_that_goes_away_leaves_it_open(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        begun = asyncio.Event()

        async def hangs() -> CallResult:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

        servers["good"].answer = lambda *_: hangs()
        bench.attach("good")
        waiting = asyncio.create_task(call(bench))
        await asyncio.wait_for(begun.wait(), CAP)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert [effect.outcome for effect in bench.recorder.effects] == ["unknown"]

    async def test_nothing_is_sent_before_it_is_on_record(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.recorder.answer = None
        bench.attach("good")
        waiting = asyncio.create_task(call(bench))
        await asyncio.wait_for(bench.recorder.announced.wait(), CAP)
        await turns()
        assert servers["good"].calls == []
        bench.recorder.written.set_result(True)
        assert (await waiting).ok
        assert len(servers["good"].calls) == 1

    async def test_it_does_not_wait_for_ever(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A database that hangs keeps nobody from his tools."""
        monkeypatch.setattr(toolbox, "ON_RECORD_WITHIN", 0.01)
        bench.recorder.answer = None
        bench.attach("good")
        assert (await call(bench)).ok
        assert [effect.outcome for effect in bench.recorder.effects] == ["unknown", "succeeded"]

    async def test_a_run_of_somebody_else_sends_nothing(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.recorder.answer = False
        bench.attach("good")
        result = await call(bench)
        assert (result.ok, result.error) == (False, toolbox.NOT_OURS)
        assert servers["good"].calls == []
        await turns()
        assert bench.store.tickets == []

    async def test_a_script_that_goes_away_before_it_is_sent_leaves_no_doubt(
        self, bench: Bench, servers: FakeServers
    ) -> None:
        bench.recorder.answer = None
        bench.attach("good")
        waiting = asyncio.create_task(call(bench))
        await asyncio.wait_for(bench.recorder.announced.wait(), CAP)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert [effect.outcome for effect in bench.recorder.effects] == ["unknown", "failed"]
        assert servers["good"].calls == []
        await turns()
        assert bench.store.tickets == []

    async def test_what_only_reads_or_is_never_sent_is_no_side_effect(self, bench: Bench) -> None:
        """P73"""
        bench.attach("good", allowed=("look",))
        assert (await call(bench, "look")).ok
        with pytest.raises(ToolNotFound):
            await call(bench, "echo")
        assert bench.recorder.effects == []


@pytest.mark.django_db(transaction=True)
class TestOnTheRun:
    @pytest.fixture
    def run(self) -> Run:
        return run_of(make_job(), status="running", claim_token="t")

    @pytest.fixture
    def recorder(self, run: Run) -> Iterator[Recorder]:
        made = Recorder(run.pk, "t", Masker({"TOKEN": SECRET}))
        made.start()
        yield made
        made.close()

    def test_it_is_in_the_database_while_the_run_goes_on(
        self, run: Run, recorder: Recorder
    ) -> None:
        """A worker that is killed leaves it behind."""
        assert recorder.announce(effect(arguments={"key": SECRET})).result(CAP)
        [call] = self.reload(run)["calls"]
        assert (call["outcome"], call["arguments"]) == ("unknown", '{"key": "[secret TOKEN]"}')
        recorder.record_effect(effect(outcome="succeeded"))
        recorder.close()
        assert [call["outcome"] for call in self.reload(run)["calls"]] == ["succeeded"]

    def test_the_last_count_is_written_at_the_end(self, run: Run, recorder: Recorder) -> None:
        for number in range(MAX_CALLS + 7):
            recorder.announce(effect(str(number)))
        recorder.close()
        assert self.reload(run)["more"] == 7

    def test_nothing_is_written_to_a_run_that_somebody_else_ended(
        self, run: Run, recorder: Recorder
    ) -> None:
        Run.objects.update(claim_token="another")
        assert recorder.announce(effect()).result(CAP) is False
        recorder.close()
        assert self.reload(run) == {}
        assert recorder.lost.is_set()

    def test_it_does_not_wait_for_bodies_that_a_storage_takes_long_for(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is written before the next body, and not after those of two hundred events."""
        storing, go_on = threading.Event(), threading.Event()
        announced: list[Future[bool]] = []
        seen: list[bool] = []

        def save(name: str, content: Any) -> str:
            if not storing.is_set():
                storing.set()
                go_on.wait(CAP)
            else:
                seen.append(announced[0].done())
            return name

        monkeypatch.setattr(default_storage, "save", save)
        for _ in range(2):
            recorder.record("output", {"text": "x" * LIMIT * 2})
        assert storing.wait(CAP)
        announced.append(recorder.announce(effect()))
        go_on.set()
        recorder.close()
        assert seen == [True]

    def test_a_database_that_refuses_it_stops_no_run(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(_batch: Any) -> None:
            raise ValueError("a value that the database does not take")

        monkeypatch.setattr(recorder, "_store", refuse)
        assert recorder.announce(effect()).result(CAP)

    def reload(self, run: Run) -> dict[str, Any]:
        value: dict[str, Any] = Run.objects.values_list("side_effects", flat=True).get(pk=run.pk)
        return value


@pytest.mark.django_db
class TestOnThePage:
    def page(self, client: Client, run: Run) -> str:
        return client.get(f"/runs/{run.pk}/", {"tab": "outputs"}).content.decode()

    def test_calls_are_shown_with_their_outcome_among_the_outputs(
        self, member_client: Client
    ) -> None:
        kept = effects()
        kept.take(effect("a", arguments={"text": "<b>"}, outcome="succeeded"))
        kept.take(effect("b", outcome="failed"))
        kept.take(effect("c"))
        html = self.page(member_client, run_of(make_job(), side_effects=kept.value()))
        rows = html[html.index("Calls with side effects") :]
        words = [rows.index(word) for word in ("Succeeded", "Failed", "May have happened")]
        assert words == sorted(words)
        assert "{&quot;text&quot;: &quot;&lt;b&gt;&quot;}" in rows
        assert "2026-03-01T12:30:00" in rows
        assert "counted only" not in rows

    @pytest.mark.parametrize(
        ("more", "words"), [(1, "1 more such call was made"), (1200, "1,200 more such calls were")]
    )
    def test_those_left_out_are_said(self, member_client: Client, more: int, words: str) -> None:
        kept = effects()
        kept.take(effect())
        value = kept.value() | {"more": more}
        assert words in self.page(member_client, run_of(make_job(), side_effects=value))

    def test_a_run_without_any_says_nothing_of_them(self, member_client: Client) -> None:
        assert "side effects" not in self.page(member_client, run_of(make_job()))
