"""Pages of runs: the list, the run page with its tabs, cancel and retry."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from jobs import queries
from jobs.models import Job, Run
from jobs.shapes import event_shape, run_details
from tests.fakes.runs import make_job
from tests.fakes.timelines import HOSTILE, add, call, many_events, output, result, run_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    return make_job()


@pytest.fixture
def run(job: Job) -> Run:
    return run_of(job)


def page(client: Client, url: str, **query: Any) -> str:
    response = client.get(url, query)
    assert response.status_code == 200
    return response.content.decode()


def runs_in(html: str) -> list[str]:
    return [part.split('"')[0] for part in html.split('<tr id="run-')[1:]]


# The list


def test_the_list_shows_the_newest_run_first(member_client: Client, job: Job) -> None:
    old = run_of(job, 1, queued_at=timezone.now() - timedelta(hours=1))
    new = run_of(job, 2)
    assert runs_in(page(member_client, "/runs/")) == [str(new.pk), str(old.pk)]


def test_an_empty_list_says_where_runs_come_from(member_client: Client) -> None:
    html = page(member_client, "/runs/")
    assert "No runs yet" in html
    assert "Go to jobs" in html


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"status": "failed"}, [2]),
        ({"status": "unfinished"}, [3]),
        ({"trigger": "schedule"}, [1]),
        ({"since": "2026-01-02", "until": "2026-01-02"}, [2]),
        ({"until": "2026-01-01"}, [1]),
        ({"status": "failed", "trigger": "schedule"}, []),
    ],
)
def test_the_address_filters_the_list(
    member_client: Client, job: Job, query: dict[str, str], expected: list[int]
) -> None:
    day = datetime(2026, 1, 1, 12, tzinfo=UTC)
    runs = [
        run_of(job, 1, trigger="schedule", queued_at=day),
        run_of(job, 2, "failed", queued_at=day + timedelta(days=1)),
        run_of(job, 3, "running", queued_at=day + timedelta(days=2)),
    ]
    wanted = [str(run.pk) for run in runs if run.number in expected]
    assert runs_in(page(member_client, "/runs/", **query)) == wanted


def test_the_list_can_be_narrowed_to_one_job(member_client: Client, job: Job) -> None:
    run_of(make_job("another"))
    mine = run_of(job)
    assert runs_in(page(member_client, "/runs/", job=str(job.pk))) == [str(mine.pk)]


@pytest.mark.parametrize(
    "query",
    [
        {"status": "nonsense"},
        {"job": "x' OR 1=1"},
        {"since": "yesterday"},
        {"until": "9999-12-31"},
        {"since": "0001-01-01"},
        {"since": "2026-02-01", "until": "2026-01-01"},
        {"before": "nonsense", "after": "\0", "top": "7"},
        {"before": str(uuid4())},
    ],
)
def test_an_address_that_makes_no_sense_still_shows_the_list(
    member_client: Client, run: Run, query: dict[str, str]
) -> None:
    assert str(run.pk) in page(member_client, "/runs/", **query)


def test_a_filter_that_finds_nothing_says_so(member_client: Client, run: Run) -> None:
    assert "No run matches" in page(member_client, "/runs/", status="failed")


def test_pages_follow_each_other_without_gaps(job: Job) -> None:
    now = timezone.now()
    # Two share a moment: the id decides then.
    ages = [0, 1, 1, 2, 3, 4, 5]
    for number, age in enumerate(ages, 1):
        run_of(job, number, queued_at=now - timedelta(minutes=age))
    runs = queries.runs_for_list()
    everything = list(runs)
    first = queries.run_page(runs, size=3)
    second = queries.run_page(runs, before=first.older, size=3)
    third = queries.run_page(runs, before=second.older, size=3)
    assert first.runs + second.runs + third.runs == everything
    assert (first.is_first, second.is_first, third.older) == (True, False, None)
    back = queries.run_page(runs, after=third.newer, size=3)
    assert back.runs == second.runs
    assert queries.run_page(runs, after=back.newer, size=3).runs == first.runs


def test_a_later_page_tells_how_many_runs_came_meanwhile(member_client: Client, job: Job) -> None:
    now = timezone.now()
    for number in range(1, 53):
        run_of(job, number, queued_at=now - timedelta(minutes=number))
    top = Run.objects.get(number=1)
    cursor = Run.objects.get(number=50)
    run_of(job, 60)
    html = page(member_client, "/runs/", before=str(cursor.pk), top=str(top.pk))
    assert "1 new run<" in html
    assert len(runs_in(html)) == 2


def test_htmx_gets_the_table_alone(member_client: Client, run: Run) -> None:
    response = member_client.get("/runs/", headers={"HX-Request": "true"})
    html = response.content.decode()
    assert html.lstrip().startswith('<div id="runs"')
    assert "HX-Request" in response["Vary"]


def test_the_list_costs_the_same_queries_for_every_length(
    member_client: Client, job: Job, django_assert_num_queries: Any
) -> None:
    run_of(job, 1)
    member_client.get("/runs/")
    with django_assert_num_queries(5) as few:
        member_client.get("/runs/")
    for number in range(2, 42):
        run_of(job, number)
    with django_assert_num_queries(len(few)):
        member_client.get("/runs/")


def test_the_list_does_not_load_the_bodies(member_client: Client, job: Job) -> None:
    """I17"""
    run_of(job, outputs={"big": "x" * 100_000}, summary="y" * 100_000)
    html = page(member_client, "/runs/")
    assert len(html) < 60_000


# The run page


def test_the_head_tells_status_trigger_and_figures(member_client: Client, job: Job) -> None:
    run = run_of(job, 14, "failed", actor_name="ada", error="exit code 3")
    call(run, "s1")
    result(run, "s1", "boom", ok=False)
    html = page(member_client, f"/runs/{run.pk}/")
    for words in ("digest", "#14", "Failed", "Run now by ada", "exit code 3", "1 failed", "Retry"):
        assert words in html


def test_the_figures_count_a_server_once_as_it_stood_at_last(run: Run) -> None:
    """One that ended is connected again; one that was not there may come, or not come back."""
    for server, story in {"a": "cuc", "b": "uc", "c": "cu", "d": "u", "e": "c"}.items():
        for step in story:
            kind = "server.connected" if step == "c" else "server.unavailable"
            add(run, kind, {"server": server})
    found = queries.figures(run)
    assert (found.servers, found.unavailable) == (3, 2)


def test_the_outputs_begin_with_the_input_if_there_is_one(member_client: Client, job: Job) -> None:
    without = run_of(job, 1, outputs={"n": 1})
    assert ">Input<" not in page(member_client, f"/runs/{without.pk}/", tab="outputs")
    given = run_of(job, 2, input={"city": HOSTILE}, outputs={"n": 1})
    html = page(member_client, f"/runs/{given.pk}/", tab="outputs")
    assert 0 < html.index(">Input<") < html.index(">Values<")
    assert "city" in html
    assert HOSTILE not in html
    nothing = run_of(job, 3, input=False)
    html = page(member_client, f"/runs/{nothing.pk}/", tab="outputs")
    assert html.index(">Input<") < html.index("This run left no outputs")


def test_a_call_and_its_result_are_one_line(member_client: Client, run: Run) -> None:
    number = call(run, "s1")
    result(run, "s1")
    html = page(member_client, f"/runs/{run.pk}/")
    assert html.count('<details class="line') == 1
    assert f'<details class="line is-ok" id="e{number}"' in html
    assert "12 ms" in html


def test_an_error_opens_by_itself_with_arguments_and_error(member_client: Client, run: Run) -> None:
    call(run, "s1", arguments={"message": "needle"})
    result(run, "s1", "the reason", ok=False)
    html = page(member_client, f"/runs/{run.pk}/")
    assert "is-error" in html
    assert " open>" in html
    assert "Arguments" in html
    assert "the reason" in html


def test_an_unavailable_server_reads_as_required(member_client: Client, run: Run) -> None:
    """P71"""
    message = "MCP server github is unavailable"
    add(run, "server.unavailable", {"server": "github", "message": message, "reason": "401"})
    html = page(member_client, f"/runs/{run.pk}/")
    assert message in html
    assert "401" in html


def test_output_that_follows_output_is_one_console(member_client: Client, run: Run) -> None:
    output(run, "one\n")
    output(run, "two\n", "stderr")
    call(run, "s1")
    output(run, "three\n")
    html = page(member_client, f"/runs/{run.pk}/")
    assert html.count('<pre class="console"') == 2
    assert '<span class="stderr">two' in html


def test_a_long_console_keeps_its_end_and_offers_the_whole(member_client: Client, run: Run) -> None:
    """I17"""
    for number in range(40):
        output(run, f"line {number} " + "x" * 4000 + "\n")
    html = page(member_client, f"/runs/{run.pk}/")
    assert "line 39" in html
    assert "line 2 " not in html
    assert f"/runs/{run.pk}/output.txt" in html
    assert len(html) < 120_000
    response = member_client.get(f"/runs/{run.pk}/output.txt")
    text = response.getvalue().decode()
    assert text.startswith("line 0 ")
    assert text.count("\n") == 40


def test_what_follows_a_step_stands_under_it(member_client: Client, run: Run) -> None:
    step = add(run, "step", {"name": "Fetch the issues"})
    inside = add(run, "log", {"message": "inside"})
    html = page(member_client, f"/runs/{run.pk}/")
    group = html.split(f'<details class="step" id="e{step}" open>')[1]
    assert "Fetch the issues" in group
    assert f'id="e{inside}" data-into="{step}"' in group


def test_a_long_timeline_shows_its_end_and_leads_to_what_came_before(
    member_client: Client, run: Run
) -> None:
    """I17: 10,000 events do not make a page of 10,000 lines."""
    many_events(run, 700)
    html = page(member_client, f"/runs/{run.pk}/")
    assert "event 699" in html
    assert html.count('class="line"') == queries.EVENTS_A_PAGE
    assert "400 earlier events" in html
    earlier = page(member_client, f"/runs/{run.pk}/", before=401)
    assert "event 399" in earlier
    assert "event 400" not in earlier
    assert "Show the newest" in earlier


def test_a_linked_event_is_found_however_old_it_is(member_client: Client, run: Run) -> None:
    call(run, "s1", arguments={"message": "needle"})
    many_events(run, 700)
    html = page(member_client, f"/runs/{run.pk}/", event=1)
    assert 'is-selected" id="e1"' in html
    assert "needle" in html


def test_a_link_to_a_result_opens_the_line_of_its_call(member_client: Client, run: Run) -> None:
    number = call(run, "s1", arguments={"message": "needle"})
    html = page(member_client, f"/runs/{run.pk}/", event=result(run, "s1"))
    assert f'is-selected" id="e{number}"' in html
    assert "needle" in html


def test_a_result_on_a_later_page_completes_its_call_on_the_earlier_one(
    member_client: Client, run: Run
) -> None:
    call(run, "s1")
    many_events(run, 400)
    result(run, "s1")
    first = page(member_client, f"/runs/{run.pk}/", before=50)
    assert "is-ok" in first
    last = page(member_client, f"/runs/{run.pk}/")
    assert '<details class="line' not in last


def test_a_page_in_the_middle_of_a_step_says_that_it_goes_on(
    member_client: Client, run: Run
) -> None:
    add(run, "step", {"name": "The long one"})
    many_events(run, 400)
    html = page(member_client, f"/runs/{run.pk}/")
    assert "The long one" in html
    assert "continued" in html


def test_the_timeline_costs_the_same_queries_for_every_length(
    member_client: Client, run: Run, django_assert_num_queries: Any
) -> None:
    call(run, "s1")
    result(run, "s1")
    member_client.get(f"/runs/{run.pk}/")
    with django_assert_num_queries(10) as few:
        member_client.get(f"/runs/{run.pk}/")
    for number in range(40):
        call(run, f"t{number}")
        result(run, f"t{number}")
    with django_assert_num_queries(len(few)):
        member_client.get(f"/runs/{run.pk}/")


def test_only_a_live_run_is_followed(member_client: Client, job: Job) -> None:
    """I14: no stream at the terminal state."""
    live, done = run_of(job, 1, "running"), run_of(job, 2)
    add(live, "step", {"name": "x"})
    add(done, "step", {"name": "x"})
    assert f'data-stream="/runs/{live.pk}/events/"' in page(member_client, f"/runs/{live.pk}/")
    assert "data-stream" not in page(member_client, f"/runs/{done.pk}/")


def test_a_call_without_result_in_a_finished_run_does_not_seem_to_run(
    member_client: Client, run: Run
) -> None:
    call(run, "s1")
    html = page(member_client, f"/runs/{run.pk}/")
    assert "No result" in html
    assert "is-running" not in html


@pytest.mark.parametrize("query", ["tab=nonsense", "event=x", "before=-1", "event=99999999999999"])
def test_an_address_that_makes_no_sense_shows_the_timeline(
    member_client: Client, run: Run, query: str
) -> None:
    add(run, "step", {"name": "visible"})
    assert "visible" in page(member_client, f"/runs/{run.pk}/?{query}")


def test_hostile_text_is_text_on_every_tab(member_client: Client, job: Job) -> None:
    """I10"""
    Job.objects.filter(pk=job.pk).update(name=HOSTILE[:100])
    run = run_of(job, status="failed", error=HOSTILE, summary=HOSTILE, outputs={HOSTILE: HOSTILE})
    for kind in ("step", "log", "error", "fail", "summary", "outputs.set", "server.connected"):
        add(run, kind, dict.fromkeys(("name", "message", "reason", "text", "server"), HOSTILE))
    call(run, "s1", tool=HOSTILE, arguments={HOSTILE: [HOSTILE]})
    result(run, "s1", HOSTILE, ok=False)
    output(run, HOSTILE)
    run.artifacts.create(name=HOSTILE, media_type="text/html", size=1, path="x")
    for tab in ("timeline", "outputs", "raw"):
        html = page(member_client, f"/runs/{run.pk}/", tab=tab)
        assert escape(HOSTILE[:20]) in html
        assert "<img src=x" not in html
        assert "<script>alert" not in html


def test_payloads_of_any_shape_are_shown(member_client: Client, run: Run) -> None:
    deep: Any = "end"
    for _ in range(200):
        deep = [deep]
    shapes: list[Any] = [{}, {"text": None}, {"tools": "many"}, {"arguments": deep}, {"code": {}}]
    for kind in ("tool.call", "tool.result", "script.exit", "broker.call", "unheard.of", "output"):
        for number, shape in enumerate(shapes):
            add(run, kind, shape, span=f"{kind}{number}")
    html = page(member_client, f"/runs/{run.pk}/")
    assert "unheard.of" in html


# Bodies


def test_the_body_of_a_line_is_a_fragment(member_client: Client, run: Run) -> None:
    number = call(run, "s1")
    result(run, "s1", '{"a": {"b": [1, 2]}}')
    html = page(member_client, f"/runs/{run.pk}/events/{number}/")
    assert "<html" not in html
    assert "Arguments" in html
    assert '<span class="json-key">b</span>' in html


def test_a_large_field_leads_to_its_whole(member_client: Client, run: Run) -> None:
    blob = run.blobs.create(path="nowhere", size=5_000_000)
    blobs = {"text": {"id": str(blob.pk), "size": 5_000_000}}
    number = call(run, "s1")
    result(run, "s1", "head … tail", _blobs=blobs)
    html = page(member_client, f"/runs/{run.pk}/events/{number}/")
    assert f"/runs/{run.pk}/blobs/{blob.pk}/" in html
    assert "Show all" in html


def test_an_event_of_another_run_is_not_found(member_client: Client, run: Run, job: Job) -> None:
    number = add(run, "step", {"name": "x"})
    other = run_of(job, 2)
    assert member_client.get(f"/runs/{other.pk}/events/{number}/").status_code == 404


# Raw


def test_the_download_holds_the_run_and_all_events(member_client: Client, run: Run) -> None:
    many_events(run, 450)
    response = member_client.get(f"/runs/{run.pk}/raw.json")
    document = json.loads(response.getvalue())
    assert document["run"]["id"] == str(run.pk)
    assert [event["seq"] for event in document["events"]] == list(range(1, 451))
    assert response["Content-Disposition"].startswith("attachment")


def test_the_download_speaks_as_the_command_line_does(member_client: Client, run: Run) -> None:
    add(run, "step", {"name": "x"})
    document = json.loads(member_client.get(f"/runs/{run.pk}/raw.json").getvalue())
    run.refresh_from_db()
    assert document["run"] == {**run_details(run), "input": run.input}
    assert document["events"] == [event_shape(event) for event in run.events.all()]


# Cancel and retry


def test_a_queued_run_is_cancelled_at_once(member_client: Client, job: Job) -> None:
    run = run_of(job, status="queued")
    response = member_client.post(f"/runs/{run.pk}/cancel/")
    run.refresh_from_db()
    assert (response.status_code, run.status) == (303, "cancelled")


def test_a_live_run_is_asked_to_end(member_client: Client, job: Job) -> None:
    run = run_of(job, status="running", heartbeat_at=timezone.now())
    response = member_client.post(f"/runs/{run.pk}/cancel/", follow=True)
    run.refresh_from_db()
    assert run.cancel_requested_at is not None
    assert "Cancelling" in response.content.decode()


def test_cancelling_a_finished_run_says_so(member_client: Client, run: Run) -> None:
    response = member_client.post(f"/runs/{run.pk}/cancel/", follow=True)
    assert "already ended" in response.content.decode()


def test_retry_starts_a_new_run_with_the_same_input(member_client: Client, job: Job) -> None:
    run = run_of(job, status="failed", input={"n": 1})
    response = member_client.post(f"/runs/{run.pk}/retry/")
    again = Run.objects.get(retry_of=run)
    assert again.input == {"n": 1}
    assert response["Location"] == f"/runs/{again.pk}/"


def test_an_unfinished_run_cannot_be_retried(member_client: Client, job: Job) -> None:
    run = run_of(job, status="running", heartbeat_at=timezone.now())
    response = member_client.post(f"/runs/{run.pk}/retry/", follow=True)
    assert "has not ended yet" in response.content.decode()
    assert Run.objects.count() == 1


def test_cancel_and_retry_take_only_a_post(member_client: Client, run: Run) -> None:
    for action in ("cancel", "retry"):
        assert member_client.get(f"/runs/{run.pk}/{action}/").status_code == 405
