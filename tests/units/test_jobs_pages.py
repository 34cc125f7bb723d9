"""Pages of jobs: list, overview, runs, Run now, pause, delete, state; dashboard and search."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
import time_machine
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs import presence, queries
from jobs.definition import AttachmentData, JobData
from jobs.models import Job, Run, StateEntry, Worker
from jobs.services import create_job, set_state
from jobs.views import contributions
from secrets_vault.services import ensure_key_ring
from tests.fakes.server_rows import stdio_server
from tests.fakes.timelines import HOSTILE, run_of
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db
SCRIPT = "#!/usr/bin/env bash\ntrue\n"
SEARCH = reverse("accounts:search")


def make(name: str = "digest", **values: Any) -> Job:
    return create_job(actor=None, data=JobData(name=name, script=SCRIPT, **values))


def page(client: Client, url: str, **query: Any) -> str:
    response = client.get(url, query)
    assert response.status_code == 200
    return response.content.decode()


# The list


def test_an_empty_list_teaches_and_offers_one_button(member_client: Client) -> None:
    html = page(member_client, "/jobs/")
    assert "No jobs yet" in html
    assert 'href="/jobs/new/"' in html


def test_a_row_tells_schedule_next_run_and_servers(member_client: Client) -> None:
    ensure_key_ring()
    stdio_server("everything")
    make(cron="0 9 * * 1-5", timezone="Asia/Tokyo", attachments=(AttachmentData("everything"),))
    html = page(member_client, "/jobs/")
    assert "At 09:00 on Monday through Friday (Asia/Tokyo)" in html
    assert ">everything</span>" in html
    assert "data-ago" in html
    assert "Run now" in html


def test_a_paused_job_says_so_instead_of_a_next_run(member_client: Client) -> None:
    make(cron="0 9 * * *", enabled=False)
    assert "Paused" in page(member_client, "/jobs/")


def test_the_strip_shows_the_last_ten_runs_as_bars_and_words(member_client: Client) -> None:
    job = make()
    for number in range(1, 13):
        run_of(job, number, "failed" if number == 12 else "succeeded")
    html = page(member_client, "/jobs/")
    assert html.count('<rect class="bar-') == 10
    assert 'class="bar-failed"' in html
    assert "Last 10 runs, oldest first: succeeded, " in html
    assert "#12 failed" in html
    assert "#2 succeeded" not in html


def test_bars_are_as_high_as_runs_were_long() -> None:
    job = make()
    now = timezone.now()
    for number, seconds in enumerate((10, 100), 1):
        run_of(job, number, started_at=now, finished_at=now + timedelta(seconds=seconds))
    short, tall = queries.strip(queries.recent_runs([job])[job.pk], height=24)
    assert tall.height == 24
    assert 5 < short.height < 8
    assert short.y + short.height == tall.y + tall.height == 24
    assert (short.x, tall.x) == (0, 7)  # under the column's header, the newest at the right


def test_the_strip_is_as_wide_as_its_bars(member_client: Client) -> None:
    job = make()
    for number in (1, 2, 3):
        run_of(job, number)
    assert 'class="strip" width="19" height="24" viewBox="0 0 19 24"' in page(
        member_client, "/jobs/"
    )


def test_the_list_is_searched_by_name(member_client: Client) -> None:
    make("nightly digest")
    make("heartbeat")
    html = page(member_client, "/jobs/", q="DIGEST")
    assert "nightly digest" in html
    assert "heartbeat" not in html
    assert "No job matches" in page(member_client, "/jobs/", q="zzz")
    page(member_client, "/jobs/", q="\0zzz")


def test_the_list_costs_the_same_queries_for_every_length(
    member_client: Client, django_assert_num_queries: Any
) -> None:
    job = make("first")
    run_of(job)
    member_client.get("/jobs/")
    with django_assert_num_queries(7) as few:
        member_client.get("/jobs/")
    for number in range(12):
        other = make(f"job {number}")
        for count in range(1, 4):
            run_of(other, count)
    with django_assert_num_queries(len(few)):
        member_client.get("/jobs/")


@pytest.mark.parametrize("query", [{"page": "x"}, {"page": "99999999999"}, {"page": "-1"}])
def test_a_page_that_does_not_exist_is_the_nearest_one(
    member_client: Client, query: dict[str, str]
) -> None:
    make()
    assert "digest" in page(member_client, "/jobs/", **query)


# The job page


def test_the_overview_tells_what_the_job_is_and_did(member_client: Client) -> None:
    job = make(description="Collects things", cron="0 9 * * *")
    run_of(job, 3, "failed", error="exit code 3")
    html = page(member_client, f"/jobs/{job.pk}/")
    for words in ("Collects things", "At 09:00 every day", "#3", "exit code 3", "15 min", "true"):
        assert words in html


def test_the_runs_tab_shows_only_this_job(member_client: Client) -> None:
    job, other = make(), make("other")
    mine, theirs = run_of(job), run_of(other)
    html = page(member_client, f"/jobs/{job.pk}/runs/")
    assert str(mine.pk) in html
    assert str(theirs.pk) not in html


def test_a_job_that_never_ran_says_how_to_start_it(member_client: Client) -> None:
    job = make()
    assert "has not run yet" in page(member_client, f"/jobs/{job.pk}/runs/")
    assert "has not run yet" in page(member_client, f"/jobs/{job.pk}/")


def test_hostile_names_are_text_on_all_pages(member_client: Client) -> None:
    """I10, page titles included."""
    job = make(HOSTILE[:90], description=HOSTILE)
    run_of(job, status="failed", error=HOSTILE)
    set_state(job, HOSTILE, HOSTILE)
    urls = ["/", "/jobs/", "/runs/", f"{SEARCH}?q={HOSTILE[:10]}"]
    urls += [f"/jobs/{job.pk}/{tab}" for tab in ("", "runs/", "state/", "run/", "delete/")]
    for url in urls:
        html = member_client.get(url).content.decode()
        assert "<img src=x" not in html, url
        assert "<script>alert" not in html, url


# Run now


def test_a_plain_button_runs_the_job_without_input(member_client: Client, member: User) -> None:
    job = make()
    response = member_client.post(f"/jobs/{job.pk}/run/")
    run = Run.objects.get()
    assert response["Location"] == f"/runs/{run.pk}/"
    assert (run.trigger, run.trust, run.input) == ("manual", "creator", None)
    assert run.actor == member


def test_input_is_handed_on(member_client: Client) -> None:
    job = make()
    member_client.post(f"/jobs/{job.pk}/run/", {"input": '{"names": ["ä", 1]}'})
    assert Run.objects.get().input == {"names": ["ä", 1]}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{name: 1}", "not JSON"),
        ('{"a": 1', "line 1, column"),
        ("NaN", "NaN is no JSON number"),
        ("[" * 100_000, "nested too deeply"),
        ("[" * 201 + "]" * 201, "nested deeper than 200 levels"),
        ("9" * 5_000, "not JSON"),
        ('"' + "x" * 1_100_000 + '"', "larger than 1 MiB"),
    ],
)
def test_input_that_cannot_be_used_is_told_and_starts_nothing(
    member_client: Client, text: str, sentence: str
) -> None:
    """I17 among others"""
    job = make()
    response = member_client.post(f"/jobs/{job.pk}/run/", {"input": text})
    assert response.status_code == 422
    assert sentence in response.content.decode()
    assert not Run.objects.exists()


def test_input_that_a_database_refuses_is_cleaned(member_client: Client) -> None:
    """H16"""
    job = make()
    member_client.post(f"/jobs/{job.pk}/run/", {"input": r'{"a": "x\u0000y\ud800"}'})
    given: Any = Run.objects.get().input
    value = given["a"]
    assert value.startswith("xy")
    assert "\ud800" not in value


def test_the_dialog_warns_that_the_run_would_be_skipped(member_client: Client) -> None:
    job = make()
    run_of(job, 7, "running")
    html = page(member_client, f"/jobs/{job.pk}/run/")
    assert "#7" in html
    assert "recorded as skipped" in html


def test_a_skipped_run_is_shown_with_its_reason(member_client: Client) -> None:
    job = make()
    run_of(job, 7, "running")
    response = member_client.post(f"/jobs/{job.pk}/run/", follow=True)
    assert "Run #7 has not ended" in response.content.decode()


def test_the_dialog_is_a_fragment_and_a_page(member_client: Client) -> None:
    job = make()
    url = f"/jobs/{job.pk}/run/"
    assert "<html" in page(member_client, url)
    fragment = member_client.get(url, headers={"HX-Request": "true"}).content.decode()
    assert "<html" not in fragment
    assert "dialog-title" in fragment


# Pause


def test_the_switch_saves_at_once_without_script(member_client: Client) -> None:
    job = make(cron="0 9 * * *")
    url = f"/jobs/{job.pk}/enabled/"
    response = member_client.post(url, {"enabled": "", "from": "list"})
    job.refresh_from_db()
    assert response["Location"] == "/jobs/"
    assert (job.enabled, job.next_run_at) == (False, None)
    assert member_client.post(url, {"enabled": "1"})["Location"] == f"/jobs/{job.pk}/"
    job.refresh_from_db()
    assert job.enabled
    assert job.next_run_at is not None


def test_htmx_gets_the_switch_and_the_next_run(member_client: Client) -> None:
    job = make("täglich", cron="0 9 * * *")
    response = member_client.post(
        f"/jobs/{job.pk}/enabled/", {"enabled": ""}, headers={"HX-Request": "true"}
    )
    html = response.content.decode()
    assert 'aria-checked="false"' in html
    assert f'id="next-{job.pk}" hx-swap-oob="true"' in html
    assert "paused" in response["HX-Trigger"]


# Delete


def test_deleting_asks_first(member_client: Client) -> None:
    job = make()
    run_of(job)
    html = page(member_client, f"/jobs/{job.pk}/delete/")
    assert "Its runs with their timelines" in html
    assert Job.objects.exists()


def test_a_job_is_deleted_with_its_runs(member_client: Client) -> None:
    job = make()
    run_of(job)
    response = member_client.post(f"/jobs/{job.pk}/delete/")
    assert response["Location"] == "/jobs/"
    assert not Job.objects.exists()
    assert not Run.objects.exists()


def test_a_job_in_progress_is_not_deleted(member_client: Client) -> None:
    job = make()
    run_of(job, 4, "running")
    response = member_client.post(f"/jobs/{job.pk}/delete/")
    assert response.status_code == 422
    assert "Run #4 of this job is in progress" in response.content.decode()
    assert Job.objects.exists()


# State


def entry_url(job: Job, key: str = "") -> str:
    return f"/jobs/{job.pk}/state/entry/" + (f"?{urlencode({'key': key})}" if key else "")


def test_state_lists_keys_with_a_line_of_each_value(member_client: Client) -> None:
    job = make()
    set_state(job, "cursor", {"page": 3, "text": "x" * 5000})
    html = page(member_client, f"/jobs/{job.pk}/state/")
    assert "cursor" in html
    assert "&quot;page&quot;: 3" in html
    assert "x" * 300 not in html


def test_an_empty_memory_teaches(member_client: Client) -> None:
    assert "ump state set" in page(member_client, f"/jobs/{make().pk}/state/")


@pytest.mark.parametrize("key", ["cursor", "a/b?c=d&e", " spaces ", "ключ", '"<b>'])
def test_a_value_is_read_and_changed_under_any_key(member_client: Client, key: str) -> None:
    job = make()
    set_state(job, key, {"page": 3})
    assert "&quot;page&quot;: 3" in page(member_client, entry_url(job, key))
    response = member_client.post(entry_url(job, key), {"value": '{"page": 4}'})
    assert response.status_code == 303
    assert StateEntry.objects.get().value == {"page": 4}


def test_a_key_is_added(member_client: Client) -> None:
    job = make()
    member_client.post(entry_url(job), {"key": "cursor", "value": "null"})
    assert StateEntry.objects.get(key="cursor").value is None


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("k", "", "Type a JSON value"),
        ("k", "{", "not JSON"),
        ("k" * 201, "1", "at most 200"),
        ("", "1", "required"),
        ("k", '"' + "x" * 1_100_000 + '"', "at most 1 MiB"),
        ("k", "[" * 201 + "]" * 201, "at most 200 levels"),
    ],
)
def test_a_value_that_cannot_be_kept_is_told(
    member_client: Client, key: str, value: str, sentence: str
) -> None:
    job = make()
    response = member_client.post(entry_url(job), {"key": key, "value": value})
    assert response.status_code == 422
    assert sentence in response.content.decode()
    assert not StateEntry.objects.exists()


def test_a_key_that_is_gone_is_not_found(member_client: Client) -> None:
    job = make()
    assert member_client.get(entry_url(job, "gone")).status_code == 404
    assert member_client.post(entry_url(job, "gone"), {"value": "1"}).status_code == 404


def test_a_key_is_deleted_after_a_question(member_client: Client) -> None:
    job = make()
    set_state(job, "cursor", 1)
    url = f"/jobs/{job.pk}/state/delete/?key=cursor"
    assert "Delete cursor?" in page(member_client, url)
    assert StateEntry.objects.exists()
    member_client.post(url)
    assert not StateEntry.objects.exists()


# Dashboard, search, banner


def test_three_steps_tick_themselves_off(member_client: Client) -> None:
    html = page(member_client, "/")
    for words in ("Add a server", "Make a job", "Run it"):
        assert words in html
    ensure_key_ring()
    stdio_server("everything")
    job = make()
    html = page(member_client, "/")
    assert html.count('class="is-done"') == 2
    run_of(job)
    assert "First steps" not in page(member_client, "/")


def test_the_dashboard_tells_what_runs_what_failed_and_the_day(member_client: Client) -> None:
    job = make()
    now = timezone.now()
    run_of(job, 1, "running")
    run_of(job, 2, "failed", error="exit code 3")
    run_of(job, 3, "succeeded")
    run_of(job, 4, "failed", queued_at=now - timedelta(days=2), error="older")
    run_of(job, 5, "failed", queued_at=now - timedelta(days=8), error="forgotten")
    shown = queries.overview(now)
    assert [run.number for run in shown.running] == [1]
    assert [run.number for run in shown.failures] == [2, 4]
    assert (shown.failed, shown.counts["succeeded"]) == (1, 1)
    html = page(member_client, "/")
    assert "exit code 3" in html
    assert "forgotten" not in html


def hits(client: Client, words: str) -> str:
    return client.get(SEARCH, {"q": words}, headers={"HX-Request": "true"}).content.decode()


def test_search_finds_runs_by_number_and_by_name(member_client: Client) -> None:
    digest, other = make("nightly digest"), make("other")
    first, second = run_of(digest, 14), run_of(other, 14)
    assert str(first.pk) in hits(member_client, "#14")
    assert str(second.pk) in hits(member_client, "#14")
    named = hits(member_client, "digest #14")
    assert str(first.pk) in named
    assert str(second.pk) not in named
    for nonsense in ("#", "#x", "#99999999999999999999", "#٣", "\0#1"):
        assert member_client.get(SEARCH, {"q": nonsense}).status_code == 200


def test_search_finds_jobs_and_offers_to_run_them(member_client: Client) -> None:
    job = make("nightly digest")
    for words in ("digest", "run digest"):
        html = hits(member_client, words)
        assert f'href="/jobs/{job.pk}/"' in html
        assert f'href="/jobs/{job.pk}/run/" data-dialog' in html


def test_a_banner_says_that_no_worker_lives(member_client: Client) -> None:
    now = timezone.now()
    words = "No worker has been seen"
    assert words in page(member_client, "/jobs/")
    presence.report(now, slots=4, problem="")
    assert words not in page(member_client, "/jobs/")
    with time_machine.travel(now + timedelta(seconds=50), tick=False):
        assert contributions.no_worker(None) is None  # type: ignore[arg-type]
    with time_machine.travel(now + timedelta(seconds=70), tick=False):
        assert words in (contributions.no_worker(None) or "")  # type: ignore[arg-type]
    assert Worker.objects.count() == 1
