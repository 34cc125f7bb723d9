"""The hub of server-sent events: woken, resumed, checked, ended; and what a run's stream says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError
from django.test import AsyncClient, Client, RequestFactory
from redis import RedisError

from jobs import lifecycle, queries, triggers
from jobs.models import Run, RunEvent
from jobs.views.live import RunFeed, hub, session_check
from tests.fakes.runs import make_job
from tests.fakes.timelines import HOSTILE, add, call, output, result, run_of
from umpteenth.accounts.models import User
from umpteenth.core import live
from umpteenth.core.live import Batch, Hub, Message, resume_after, stream

pytestmark = pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume:Warning")
QUICK = 0.01


class Rows:
    """What the database would say: a number per key."""

    def __init__(self) -> None:
        self.marks: dict[str, int] = {}
        self.asked: list[set[str]] = []
        self.fails = 0

    def read(self, keys: Collection[str]) -> dict[str, Hashable]:
        self.asked.append(set(keys))
        if self.fails:
            self.fails -= 1
            raise OSError("the database is locked")
        return {key: self.marks.get(key, 0) for key in keys}


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def quick_hub(rows: Rows) -> Hub:
    return Hub("things", rows.read, interval=QUICK)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (what is awaited has no event)
            await asyncio.sleep(QUICK)


async def next_of(body: AsyncIterator[bytes]) -> str:
    async with asyncio.timeout(5):
        return (await anext(body)).decode()


class Reader:
    """Hands out the batches that were put in, and counts how often it was asked."""

    def __init__(self, *batches: Batch) -> None:
        self.batches = list(batches)
        self.reads = 0

    def __call__(self) -> Batch:
        self.reads += 1
        return self.batches.pop(0) if self.batches else Batch()


def yes() -> bool:
    return True


def test_a_message_puts_every_line_of_its_data_behind_a_field_name() -> None:
    text = Message("lines", "a\r\nb\rc\nevent: forged\u2028d", "7").encode().decode()
    assert text == (
        "id: 7\nevent: lines\ndata: a\ndata: b\ndata: c\ndata: event: forged\u2028d\n\n"
    )


def test_half_a_character_does_not_break_the_stream() -> None:
    assert b"data: ?" in Message("lines", "\ud800").encode()


async def test_a_stream_reads_until_the_reader_says_end_and_then_stops_polling(
    quick_hub: Hub,
) -> None:
    reader = Reader(Batch([Message("lines", "one", "1")], more=True), Batch([], end=True))
    parts = [part async for part in stream(quick_hub, "a", reader, yes)]
    assert b"data: one\n" in parts[1]
    assert reader.reads == 2
    assert not quick_hub.is_running
    assert quick_hub.stream_count == 0


async def test_a_change_of_the_row_makes_the_stream_read_again(quick_hub: Hub, rows: Rows) -> None:
    reader = Reader()
    body = stream(quick_hub, "a", reader, yes)
    await next_of(body)
    waiting = asyncio.ensure_future(next_of(body))
    await until(lambda: reader.reads >= 2)  # the first look of the poller also counts as news
    reader.batches.append(Batch([Message("lines", "late", "2")]))
    rows.marks["a"] = 1
    assert "data: late" in await waiting
    await body.aclose()  # type: ignore[attr-defined]


async def test_one_query_asks_for_all_watched_rows(quick_hub: Hub, rows: Rows) -> None:
    async with quick_hub.watch("a"), quick_hub.watch("b"), quick_hub.watch("a"):
        await until(lambda: {"a", "b"} in rows.asked)
        assert quick_hub.stream_count == 3


async def test_nothing_is_asked_while_nobody_watches(quick_hub: Hub, rows: Rows) -> None:
    async with quick_hub.watch("a"):
        await until(lambda: bool(rows.asked))
    asked = len(rows.asked)
    await asyncio.sleep(5 * QUICK)
    assert len(rows.asked) <= asked + 1
    assert not quick_hub.is_running


async def test_a_database_that_fails_once_is_asked_again(
    quick_hub: Hub, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "SAFETY_POLL_SECONDS", QUICK)
    rows.fails = 1
    async with quick_hub.watch("a") as wake:
        async with asyncio.timeout(5):
            await wake.wait()
    assert len(rows.asked) >= 2


async def test_a_person_who_may_no_longer_read_is_sent_away(quick_hub: Hub) -> None:
    """I14: permission is asked again while the stream is open."""
    answers = [True, False]
    body = stream(quick_hub, "a", Reader(), lambda: answers.pop(0), permission=QUICK)
    parts = [part async for part in body]
    assert parts[-1].startswith(b"event: denied")
    assert not answers


async def test_a_silent_stream_is_kept_open_by_comments(quick_hub: Hub) -> None:
    """I13: proxies close a connection that is silent for a minute."""
    body = stream(quick_hub, "a", Reader(), yes, keep_alive=QUICK)
    await next_of(body)
    assert await next_of(body) == ": keep-alive\n\n"
    await body.aclose()  # type: ignore[attr-defined]


async def test_a_stream_holds_no_connection_of_the_view_that_opened_it(
    monkeypatch: pytest.MonkeyPatch, quick_hub: Hub
) -> None:
    """Fifty open tabs would else take every connection that Postgres has for this process."""
    given: list[str] = []
    monkeypatch.setattr(live, "give_back", lambda: given.append("back"))
    body = stream(quick_hub, "a", Reader(), yes)
    await next_of(body)
    assert given == ["back"]
    await body.aclose()  # type: ignore[attr-defined]


async def test_a_stream_without_a_database_ends_so_that_the_browser_comes_back(
    quick_hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    def unreachable() -> Batch:
        raise OperationalError("no connection within 20 s")

    parts = [part async for part in stream(quick_hub, "a", unreachable, yes)]
    assert parts == [b"retry: 3000\n\n"]
    assert quick_hub.stream_count == 0
    [record] = caplog.records
    assert "no connection within 20 s" in record.getMessage()
    assert record.exc_info is None


def test_the_last_event_id_goes_before_the_address() -> None:
    get = RequestFactory().get
    assert resume_after(get("/?after=5")) == 5
    assert resume_after(get("/?after=5", headers={"last-event-id": "9"})) == 9
    for nonsense in ("-1", "x", "٣", "9" * 30, ""):
        assert resume_after(get("/", {"after": nonsense})) == 0


def test_without_redis_a_wake_up_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_publisher", lambda url: pytest.fail("asked for Redis"))
    live.wake("runs", "a")


def test_a_redis_that_is_down_is_asked_once_and_then_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Down:
        def publish(self, channel: str, message: str) -> None:
            asked.append((channel, message))
            raise RedisError("connection refused")

    monkeypatch.setattr(live, "redis_url", lambda: "redis://localhost:1")
    monkeypatch.setattr(live, "_publisher", lambda url: Down())
    monkeypatch.setattr(live, "_quiet_until", 0.0)
    live.wake("runs", "a")
    live.wake("runs", "b")
    assert asked == [("umpteenth:live:runs", "a")]


# What the stream of a run says


def said(batch: Batch, event: str) -> str:
    return "".join(message.data for message in batch.messages if message.event == event)


def offsets(html: str) -> list[str]:
    return re.findall(r'<span class="line-offset">(.*?)</span>', html)


@pytest.fixture
def running(db: None) -> Run:
    return run_of(make_job(), status="running")


def test_new_lines_come_once_with_the_number_of_the_last_event(running: Run) -> None:
    call(running, "s1")
    last = output(running, "hello\n")
    feed = RunFeed(running.pk, 0)
    first = feed.read()
    assert "hello" in said(first, "lines")
    assert [m.id for m in first.messages if m.event == "lines"] == [str(last)]
    assert said(feed.read(), "lines") == ""


def test_a_result_completes_the_line_of_its_call(running: Run) -> None:
    number = call(running, "s1")
    feed = RunFeed(running.pk, 0)
    feed.read()
    result(running, "s1")
    html = said(feed.read(), "lines")
    assert f'id="e{number}"' in html
    assert "is-ok" in html


def test_output_goes_on_in_the_block_that_the_page_shows(running: Run) -> None:
    first = output(running, "one\n")
    result(running, "unrelated")
    seen = output(running, "two\n")
    output(running, "three\n")
    html = said(RunFeed(running.pk, seen, first).read(), "lines")
    assert f'id="e{first}"' in html
    assert "three" in html
    assert "two" not in html


def test_lines_say_which_step_they_belong_to(running: Run) -> None:
    step = add(running, "step", {"name": "Fetch"})
    add(running, "log", {"message": "inside"})
    assert f'data-into="{step}"' in said(RunFeed(running.pk, step).read(), "lines")


def test_the_page_hears_what_the_run_waits_for(running: Run) -> None:
    call(running, "s1", tool="slow")
    feed = RunFeed(running.pk, 0)
    assert "slow" in said(feed.read(), "now")
    assert said(feed.read(), "now") == ""  # unchanged: the page counts on by itself
    result(running, "s1")
    assert "The script is running" in said(feed.read(), "now")


def test_offsets_are_the_same_live_and_after_a_reload(
    db: None, monkeypatch: pytest.MonkeyPatch, member_client: Client
) -> None:
    """Also where the run starts between the reading of its row and of its events."""
    monkeypatch.setattr(triggers, "hint_run", lambda run_id: None)
    run = triggers.start_run(job=make_job(), trigger="manual", trust="creator")
    earlier = run.queued_at - timedelta(seconds=5)
    Run.objects.update(queued_at=earlier)
    RunEvent.objects.update(at=earlier)
    feed = RunFeed(run.pk, 0)
    shown = said(feed.read(), "lines")
    events_after = queries.events_after

    def started_meanwhile(*place: Any) -> list[RunEvent]:
        lifecycle.claim(run.pk, "worker")
        return events_after(*place)

    monkeypatch.setattr(queries, "events_after", started_meanwhile)
    shown += said(feed.read(), "lines")
    reloaded = member_client.get(f"/runs/{run.pk}/").content.decode()
    assert offsets(shown) == offsets(reloaded) == ["0 ms", "0 ms"]


def test_the_head_counts_the_outputs_for_the_tab(running: Run) -> None:
    feed = RunFeed(running.pk, 0)
    assert 'data-outputs="0"' in said(feed.read(), "head")
    Run.objects.filter(pk=running.pk).update(status="succeeded", outputs={"a": 1, "b": 2})
    add(running, "run.status", {"status": "succeeded"})
    assert 'data-outputs="2"' in said(feed.read(), "head")


def test_a_run_that_ends_says_so_after_its_last_event(running: Run) -> None:
    feed = RunFeed(running.pk, 0)
    feed.read()
    Run.objects.filter(pk=running.pk).update(status="failed", error="exit code 3")
    add(running, "run.status", {"status": "failed"})
    batch = feed.read()
    assert batch.end
    assert [message.event for message in batch.messages] == ["lines", "head", "now", "end"]
    assert said(batch, "end") == "failed"
    assert "exit code 3" in said(batch, "head")


def test_a_reader_that_is_far_behind_gets_bounded_batches(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.views.live.BATCH", 2)
    for number in range(3):
        add(running, "log", {"message": f"event {number}"})
    feed = RunFeed(running.pk, 0)
    first = feed.read()
    assert first.more
    assert "event 2" not in said(first, "lines")
    assert "event 2" in said(feed.read(), "lines")


def test_a_deleted_run_ends_its_stream(running: Run) -> None:
    feed = RunFeed(running.pk, 0)
    running.delete()
    batch = feed.read()
    assert batch.end
    assert said(batch, "end") == "deleted"


def test_live_lines_show_hostile_text_as_text(running: Run) -> None:
    """I10"""
    call(running, "s1", tool=HOSTILE, arguments={HOSTILE: HOSTILE})
    result(running, "s1", HOSTILE, ok=False)
    output(running, HOSTILE)
    add(running, HOSTILE, {HOSTILE: HOSTILE})
    for message in RunFeed(running.pk, 0).read().messages:
        assert "<img" not in message.data
        assert "<script" not in message.data


def test_a_stream_costs_the_same_queries_for_every_length_of_the_run(
    running: Run, django_assert_max_num_queries: Any
) -> None:
    for number in range(60):
        call(running, f"s{number}")
        result(running, f"s{number}")
    with django_assert_max_num_queries(11):
        RunFeed(running.pk, 0).read()


def test_a_run_that_does_not_exist_is_not_found_before_anything_streams(
    member_client: Client,
) -> None:
    url = "/runs/00000000-0000-7000-8000-000000000000/events/"
    assert member_client.get(url).status_code == 404


@pytest.mark.django_db
def test_a_finished_run_is_streamed_to_its_end_with_headers_for_proxies(
    member_client: Client,
) -> None:
    """I13"""
    run = run_of(make_job())
    response = member_client.get(f"/runs/{run.pk}/events/")
    assert response["Content-Type"] == "text/event-stream"
    assert response["Cache-Control"] == "no-cache, no-transform"
    assert response["X-Accel-Buffering"] == "no"


@pytest.mark.django_db
def test_more_streams_than_the_process_can_hold_are_refused(
    member_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 0)
    run = run_of(make_job(), status="running")
    assert member_client.get(f"/runs/{run.pk}/events/").status_code == 503


@pytest.mark.django_db(transaction=True)
async def test_a_browser_reads_a_run_through_the_real_hub(member: User) -> None:
    run = await sync_to_async(lambda: run_of(make_job(), status="running"))()
    client = AsyncClient()
    await client.aforce_login(member)
    response: Any = await client.get(f"/runs/{run.pk}/events/")
    body = response.streaming_content
    text = ""
    async with asyncio.timeout(10):
        await sync_to_async(lambda: output(run, "first words\n"))()
        async for part in body:
            text += part.decode()
            if "first words" in text and "event: end" not in text:
                await sync_to_async(
                    lambda: Run.objects.filter(pk=run.pk).update(status="cancelled")
                )()
    assert text.rstrip().endswith("event: end\ndata: cancelled")
    assert hub.stream_count == 0


def _request(client: Client, user: User) -> Any:
    request = RequestFactory().get("/")
    request.session = client.session
    request.user = user
    return request


def test_a_session_is_good_while_its_person_is_active(member_client: Client, member: User) -> None:
    allowed = session_check(_request(member_client, member))
    assert allowed()
    User.objects.filter(pk=member.pk).update(is_active=False)
    assert not allowed()


def test_a_session_that_was_signed_out_or_got_a_new_password_is_refused(
    member_client: Client, member: User
) -> None:
    allowed = session_check(_request(member_client, member))
    member.set_password("another phrase entirely")
    member.save()
    assert not allowed()
    member_client.logout()
    assert not allowed()
