"""Events: numbered without gaps, masked before they are cut, large bodies kept whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from django.core.files.storage import default_storage
from django.db import DatabaseError, InterfaceError, OperationalError
from hypothesis import given
from hypothesis import strategies as st

from jobs import lifecycle, payloads, timeline, triggers
from jobs.models import Blob, Run, RunEvent
from jobs.timeline import Event, LostClaim, Recorder
from tests.fakes.runs import kinds, make_job, make_run, payloads_of
from umpteenth.core.masking import Masker

SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)


@pytest.fixture
def run(transactional_db: None) -> Run:
    """A claimed run; its recorder's thread has a connection of its own."""
    made = make_run(make_job())
    token = lifecycle.claim(made.pk, "w")
    assert token
    made.refresh_from_db()
    return made


@pytest.fixture
def recorder(run: Run) -> Iterator[Recorder]:
    made = Recorder(run.pk, run.claim_token, Masker({"TOKEN": SECRET}))
    made.start()
    yield made
    made.close(10)


class TestAppend:
    def test_numbers_go_on_without_a_gap(self, run: Run) -> None:
        first = timeline.append(run.pk, [Event("step", {"name": "a"})] * 3, token=run.claim_token)
        last = timeline.append(run.pk, [Event("step", {"name": "b"})])
        assert (first, last) == (5, 6)
        assert list(RunEvent.objects.values_list("seq", flat=True)) == [1, 2, 3, 4, 5, 6]

    def test_a_lost_claim_writes_nothing(self, run: Run) -> None:
        with pytest.raises(LostClaim):
            timeline.append(run.pk, [Event("step")], token="another")
        assert kinds(run) == ["run.status"] * 2

    def test_listeners_are_woken_after_the_commit(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        woken: list[UUID] = []

        def broken(_run_id: UUID) -> None:
            raise RuntimeError("a page went away")

        monkeypatch.setattr(timeline, "_listeners", [broken, woken.append])
        timeline.append(run.pk, [Event("step")])
        assert woken == [run.pk]

    def test_a_listener_is_registered_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(timeline, "_listeners", [])
        timeline.register_listener(print)
        timeline.register_listener(print)
        assert timeline._listeners == [print]


class TestRecorder:
    def test_events_come_in_order(self, run: Run, recorder: Recorder) -> None:
        for number in range(500):
            recorder.record("step", {"name": str(number)})
        recorder.close()
        names = [payload["name"] for payload in payloads_of(run, "step")]
        assert names == [str(number) for number in range(500)]
        run.refresh_from_db()
        assert run.last_seq == 502

    def test_secrets_are_masked_also_those_that_come_later(
        self, run: Run, recorder: Recorder
    ) -> None:
        recorder.add_secrets({"LATER": "a-later-secret"})
        recorder.record("step", {"name": f"{SECRET} and a-later-secret", SECRET: [SECRET]})
        recorder.close()
        assert payloads_of(run, "step") == [
            {"name": "[secret TOKEN] and [secret LATER]", "[secret TOKEN]": ["[secret TOKEN]"]}
        ]

    def test_a_secret_at_the_cut_is_masked_first(self, run: Run, recorder: Recorder) -> None:
        """A value cut in two would not be recognised any more."""
        for offset in range(0, 60, 7):
            text = "x" * (10_000 + offset) + SECRET + "y" * 10_000
            recorder.record("tool.result", {"text": text})
        recorder.close()
        stored = json.dumps(payloads_of(run, "tool.result"))
        bodies = "".join(read(blob) for blob in Blob.objects.all())
        for size in range(8, len(SECRET) + 1):
            assert SECRET[:size] not in stored + bodies
            assert SECRET[-size:] not in stored + bodies

    def test_a_large_body_is_kept_whole(self, run: Run, recorder: Recorder) -> None:
        text = "".join(f"line {number}\n" for number in range(20_000))
        recorder.record("tool.result", {"ok": True, "text": text, "structured": {"rows": [text]}})
        recorder.close()
        [payload] = payloads_of(run, "tool.result")
        assert payload["ok"] is True
        assert payload["text"].startswith("line 0\n")
        assert payload["text"].endswith("line 19999\n")
        assert list(payload["structured"]) == ["rows"]
        assert len(payloads.encode(payload)) <= payloads.LIMIT
        note = payload["_blobs"]["text"]
        blob = Blob.objects.get(pk=note["id"])
        assert read(blob) == text
        assert note["size"] == blob.size == len(text)
        run.refresh_from_db()
        assert run.blob_bytes == sum(found.size for found in Blob.objects.all())

    def test_above_the_space_of_a_run_head_and_tail_stay(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(timeline, "MAX_BLOB_BYTES", 50_000)
        for _ in range(2):
            recorder.record("tool.result", {"text": "x" * 40_000})
        recorder.close()
        first, second = payloads_of(run, "tool.result")
        assert first["_blobs"]["text"]["id"] is not None
        assert second["_blobs"]["text"] == {"id": None, "size": 40_000}
        assert "characters left out" in second["text"]

    def test_a_full_disk_does_not_stop_the_record(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_args: Any, **_kwargs: Any) -> str:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(type(default_storage._wrapped), "save", full)  # type: ignore[attr-defined]
        recorder.record("tool.result", {"text": "x" * 40_000})
        recorder.record("step", {"name": "after"})
        recorder.close()
        assert payloads_of(run, "tool.result")[0]["_blobs"]["text"]["id"] is None
        assert payloads_of(run, "step") == [{"name": "after"}]

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "\x1b[31mred", "é" * 10])
    def test_what_databases_refuse_is_cleaned(
        self, run: Run, recorder: Recorder, text: str
    ) -> None:
        """H16"""
        recorder.record("output", {"text": text, "n": float("nan"), text: 1})
        recorder.close()
        [payload] = payloads_of(run, "output")
        assert "\0" not in json.dumps(payload)
        assert lifecycle.finish(run.pk, run.claim_token, lifecycle.Outcome("failed", text))

    def test_one_bad_event_does_not_take_its_neighbours_with_it(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """H16: what could not be stored is named."""
        append = timeline.append

        def picky(run_id: UUID, events: Any, **options: Any) -> int:
            if any(event.payload.get("name") == "bad" for event in events):
                raise DatabaseError("invalid byte sequence")
            return append(run_id, events, **options)

        monkeypatch.setattr(timeline, "append", picky)
        for name in ("good", "bad", "fine"):
            recorder.record("step", {"name": name})
        recorder.close()
        assert [payload["name"] for payload in payloads_of(run, "step")] == ["good", "fine"]
        assert payloads_of(run, "error") == [
            {"message": "An event of kind step could not be stored: DatabaseError."}
        ]

    def test_events_wait_for_a_database_that_is_away(
        self,
        run: Run,
        recorder: Recorder,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Nothing of a run is lost while Postgres is started again."""
        append, away = timeline.append, [OperationalError("gone"), InterfaceError("closed")]

        def shaky(run_id: UUID, events: Any, **options: Any) -> int:
            if away:
                raise away.pop()
            return append(run_id, events, **options)

        monkeypatch.setattr(Recorder, "RETRY", 0.01)
        monkeypatch.setattr(timeline, "append", shaky)
        recorder.record("step", {"name": "one"})
        recorder.close()
        assert [payload["name"] for payload in payloads_of(run, "step")] == ["one"]
        assert payloads_of(run, "error") == []
        assert len(caplog.records) == 1

    def test_a_database_that_stays_away_holds_nobody_up_for_ever(
        self, run: Run, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def gone(*_: Any, **__: Any) -> int:
            raise OperationalError("gone")

        monkeypatch.setattr(Recorder, "RETRY", 0.01)
        monkeypatch.setattr(timeline, "append", gone)
        recorder.record("step", {"name": "one"})
        recorder.close(timeout=0.2)
        assert payloads_of(run, "step") == []
        assert not recorder._thread.is_alive()

    def test_a_lost_claim_ends_the_record_and_leaves_no_files(
        self, run: Run, recorder: Recorder
    ) -> None:
        Run.objects.update(status="failed")
        recorder.record("tool.result", {"text": "x" * 40_000})
        recorder.close()
        assert recorder.lost.is_set()
        assert not Blob.objects.exists()
        folder = f"runs/{run.pk}"
        assert not default_storage.exists(folder) or default_storage.listdir(folder)[1] == []

    def test_writers_learn_that_they_are_too_fast(self, run: Run) -> None:
        slow = Recorder(run.pk, run.claim_token, Masker({}))
        slow.MAX_WAITING = 100_000
        room: list[bool] = []
        for _ in range(20):
            slow.record("output", {"text": "x" * 10_000}, masked=True)
        was_full = slow.full
        slow.start(lambda: room.append(slow.full))
        slow.close()
        assert (was_full, slow.full) == (True, False)
        assert room[-1] is False
        assert len(payloads_of(run, "output")) == 20


def read(blob: Blob) -> str:
    with default_storage.open(blob.path) as file:
        return str(file.read().decode())


class TestPayloads:
    def test_a_small_one_stays_as_it_is(self) -> None:
        payload = {"text": "x" * 1000}
        assert payloads.fit(payload) == (payload, {})

    def test_a_cut_text_keeps_head_and_tail(self) -> None:
        assert payloads.cut_text("a" * 50 + "b" * 50, 30) == (
            "a" * 20 + "\n… 70 characters left out …\n" + "b" * 10
        )

    @given(
        st.dictionaries(
            st.text(max_size=10),
            st.recursive(
                st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3000),
                lambda inner: (
                    st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=9), inner)
                ),
                max_leaves=40,
            ),
            max_size=6,
        )
    )
    def test_whatever_comes_fits_and_keeps_its_keys(self, content: dict[str, Any]) -> None:
        grown = {key: [value] * 20 for key, value in content.items()}
        cut, bodies = payloads.fit(grown)
        assert len(payloads.encode(cut)) <= payloads.LIMIT
        assert list(cut) == list(grown)
        assert all(json.loads(body) == grown[key] for key, body in bodies.items())

    def test_deep_nesting_is_cut(self) -> None:
        value: Any = "x" * 40_000
        for _ in range(150):
            value = [value]
        cut, _ = payloads.fit({"structured": value})
        assert len(payloads.encode(cut)) <= payloads.LIMIT
