"""Results on the run page: parts, warnings, refusals, progress, notices (D13-D15, A56)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs import queries
from jobs.media import NOT_BASE64
from jobs.models import Artifact, Run
from jobs.views.live import RunFeed
from tests.fakes.runs import make_job
from tests.fakes.timelines import HOSTILE, add, call, many_events, output, result, run_of

pytestmark = pytest.mark.django_db
FILE_ID = "0198c0de-0000-7000-8000-000000000001"


@pytest.fixture
def run() -> Run:
    return run_of(make_job())


@pytest.fixture
def running() -> Run:
    return run_of(make_job(), status="running")


def page(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def timeline(client: Client, run: Run, query: str = "") -> str:
    return page(client, f"/runs/{run.pk}/{query}")


def body(client: Client, run: Run, **payload: Any) -> str:
    """The open line of a call with this result."""
    number = call(run, "s1")
    result(run, "s1", payload.pop("text", "as text"), **payload)
    return page(client, f"/runs/{run.pk}/events/{number}/")


def kept(kind: str = "image", mime_type: str = "image/png", **more: Any) -> dict[str, Any]:
    return {"type": kind, "mime_type": mime_type, "size": 2048, "artifact": FILE_ID} | more


def lines(feed: RunFeed) -> str:
    return "".join(m.data for m in feed.read().messages if m.event == "lines")


class TestParts:
    def test_an_image_is_shown_and_can_be_downloaded(self, member_client: Client, run: Run) -> None:
        html = body(member_client, run, content=[kept()])
        address = f"/runs/{run.pk}/artifacts/{FILE_ID}/"
        assert f'<img src="{address}?inline=1"' in html
        assert f'href="{address}" download' in html
        assert "2.0 KB" in html

    def test_sound_is_played(self, member_client: Client, run: Run) -> None:
        html = body(member_client, run, content=[kept("audio", "audio/wav")])
        assert f'src="/runs/{run.pk}/artifacts/{FILE_ID}/?inline=1"></audio>' in html

    @pytest.mark.parametrize(
        "mime_type", ["text/plain", "image/svg+xml", "text/html", "application/pdf", ""]
    )
    def test_what_could_act_as_a_page_is_only_a_download(
        self, member_client: Client, run: Run, mime_type: str
    ) -> None:
        """I10"""
        html = body(member_client, run, content=[kept(mime_type=mime_type)])
        assert "<img" not in html
        assert "inline=1" not in html
        assert "Download" in html

    def test_parts_stand_in_the_order_of_the_server(self, member_client: Client, run: Run) -> None:
        texts = [{"type": "text", "text": f"part {n}"} for n in range(3)]
        html = body(member_client, run, content=[texts[0], kept(), texts[1], texts[2]])
        assert html.index("part 0") < html.index("<img") < html.index("part 1")
        assert "as text" not in html

    def test_an_address_is_shown_and_not_linked(self, member_client: Client, run: Run) -> None:
        link = {"type": "resource_link", "uri": "https://elsewhere.example/a", "name": "Report"}
        html = body(member_client, run, content=[link])
        assert "https://elsewhere.example/a" in html
        assert "Report" in html
        assert 'href="https://elsewhere' not in html

    def test_an_embedded_text_is_read_in_place(self, member_client: Client, run: Run) -> None:
        resource = {"uri": "file:///a.md", "mimeType": "text/markdown", "text": "# Title"}
        html = body(member_client, run, content=[{"type": "resource", "resource": resource}])
        for words in ("file:///a.md", "text/markdown", "# Title"):
            assert words in html

    def test_an_unknown_part_is_labelled_and_raw(self, member_client: Client, run: Run) -> None:
        """D15"""
        html = body(member_client, run, content=[{"type": "hologram", "depth": 3}])
        assert '<span class="part-label">hologram</span>' in html
        assert '<span class="json-key">depth</span>' in html

    def test_bad_base64_says_so(self, member_client: Client, run: Run) -> None:
        """D15"""
        html = body(member_client, run, content=[kept(artifact=None, problem=NOT_BASE64)])
        assert NOT_BASE64 in html
        assert "<img" not in html

    def test_a_false_type_is_told(self, member_client: Client, run: Run) -> None:
        html = body(
            member_client, run, content=[kept(mime_type="text/plain", declared="image/png")]
        )
        assert "The server calls it image/png." in html

    @pytest.mark.parametrize(
        "content",
        [
            [None, 7, "… 3 items left out …", []],
            [{}],
            [{"type": None}, {"type": {"a": 1}}, {"type": "text"}, {"type": "resource"}],
            [{"type": "resource", "resource": {"uri": 7, "text": None}}],
            [{"type": "image", "artifact": "../../etc", "mime_type": 7, "size": "big"}],
            [{"type": "image", "artifact": {"a": 1}}],
            [{"type": HOSTILE, "artifact": FILE_ID, "mime_type": HOSTILE, "problem": HOSTILE}],
            [{"type": "resource_link", "uri": HOSTILE, "name": HOSTILE, "description": 7}],
            [kept()] * 500,
            "cut to a text",
            {"a": 1},
        ],
    )
    def test_content_of_any_shape_is_shown(
        self, member_client: Client, run: Run, content: Any
    ) -> None:
        """D15: never a crash. I10: never anything but text."""
        html = body(member_client, run, content=content)
        assert "<h3>" in html
        assert "<img src=x" not in html
        assert html.count('<li class="part">') <= 201

    def test_text_that_repeats_the_structured_result_is_left_out(
        self, member_client: Client, run: Run
    ) -> None:
        content = [{"type": "text", "text": '{"sum": 5}'}, kept()]
        html = body(member_client, run, structured={"sum": 5}, content=content)
        assert "<h3>Result</h3>" in html
        assert "<h3>Content</h3>" in html
        assert html.count('<span class="json-key">sum</span>') == 1

    def test_a_failed_call_with_parts_shows_them_as_its_error(
        self, member_client: Client, run: Run
    ) -> None:
        """D13: the tool's own words."""
        content = [{"type": "text", "text": "token expired"}, kept()]
        html = body(member_client, run, text="token expired", ok=False, content=content)
        assert html.count("token expired") == 2  # once to read, once to copy
        assert "<h3>Error</h3>" in html

    def test_of_a_failure_the_words_of_the_tool_come_first(
        self, member_client: Client, run: Run
    ) -> None:
        """D13: an error with structured content beside it."""
        html = body(member_client, run, text="token expired", ok=False, structured={"error": {}})
        headings = re.findall(r"<h3>(\w+)</h3>", html)
        assert headings == ["Arguments", "Error", "Result"]
        assert html.index("token expired") < html.index("<h3>Result</h3>")


class TestWarnings:
    def test_warnings_and_attempts_stand_on_the_line_and_in_it(
        self, member_client: Client, run: Run
    ) -> None:
        """D14: a result that does not match its schema is delivered, with a warning."""
        warning = "The result does not match the tool's output schema: /sum is no number."
        number = call(run, "s1")
        result(run, "s1", warnings=[warning, "And more."], attempts=3)
        html = timeline(member_client, run)
        assert "2 warnings</span>" in html
        assert "3 attempts</span>" in html
        assert "is-ok" in html
        opened = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "<h3>Warnings</h3>" in opened
        assert "/sum is no number." in opened

    def test_one_attempt_is_not_worth_a_word(self, member_client: Client, run: Run) -> None:
        call(run, "s1")
        result(run, "s1", attempts=1, warnings=[])
        html = timeline(member_client, run)
        assert "attempt" not in html
        assert "warning" not in html.partition('id="timeline"')[2]

    def test_warnings_of_a_list_of_tools_open_with_how_the_server_was_reached(
        self, member_client: Client, run: Run
    ) -> None:
        payload = {"server": "x", "tools": 2, "how": "It answered server/discover."}
        number = add(run, "server.connected", payload | {"warnings": ["Tool a was left out."]})
        assert "1 warning</span>" in timeline(member_client, run)
        html = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "It answered server/discover." in html
        assert "Tool a was left out." in html

    def test_a_server_that_is_connected_again_opens_with_the_reason(
        self, member_client: Client, run: Run
    ) -> None:
        """F10: what became of the call under way stands beside it."""
        number = add(run, "server.connected", {"server": "x", "tools": 2, "after": "It ended."})
        html = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "Connected again after" in html
        assert "It ended." in html


class TestRefusals:
    REASON = "the server's policy blocks it"

    def refuse(self, run: Run, span: str = "") -> int:
        payload = {"server": "everything", "tool": "drop_all", "reason": self.REASON}
        return add(run, "tool.refused", payload, span=span)

    def test_a_refused_call_is_a_line_with_its_reason(
        self, member_client: Client, run: Run
    ) -> None:
        """A56"""
        number = self.refuse(run)
        html = timeline(member_client, run)
        assert f'<div class="line is-refused" id="e{number}"' in html
        assert "drop_all" in html
        assert "policy blocks it" in html
        assert "<span>Refused</span>" in html
        assert "1 refused" in html

    def test_one_that_was_refused_at_the_last_moment_is_the_line_of_its_call(
        self, member_client: Client, run: Run
    ) -> None:
        number = call(run, "s1", tool="drop_all")
        self.refuse(run, "s1")
        result(run, "s1", "tool 'drop_all' not found", ok=False)
        html = timeline(member_client, run)
        assert f'<details class="line is-refused" id="e{number}"' in html
        assert html.count('<span class="line-title') == 1
        assert "1 refused" in html
        assert "1 failed" not in html
        opened = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "<h3>Refused</h3>" in opened
        assert "not found" not in opened

    def test_one_that_was_refused_on_a_later_page_is_still_the_line_of_its_call(
        self, member_client: Client, run: Run
    ) -> None:
        number = call(run, "s1", tool="drop_all")
        many_events(run, 400)
        self.refuse(run, "s1")
        result(run, "s1", "tool 'drop_all' not found", ok=False)
        first = timeline(member_client, run, "?before=50")
        assert f'<details class="line is-refused" id="e{number}"' in first
        assert "policy blocks it" in first
        assert "drop_all" not in timeline(member_client, run)

    @pytest.mark.parametrize("reason", [None, "", 7, "It is blocked.", "x" * 400])
    def test_a_reason_of_any_shape_is_shown(
        self, member_client: Client, run: Run, reason: Any
    ) -> None:
        number = add(run, "tool.refused", {"server": "x", "tool": "y", "reason": reason})
        assert "is-refused" in timeline(member_client, run)
        page(member_client, f"/runs/{run.pk}/events/{number}/")

    def test_it_reads_the_same_while_the_run_goes_on(self, running: Run) -> None:
        number = call(running, "s1", tool="drop_all")
        feed = RunFeed(running.pk, 0)
        lines(feed)
        self.refuse(running, "s1")
        assert f'is-refused" id="e{number}"' in lines(feed)
        result(running, "s1", "not found", ok=False)
        assert f'is-refused" id="e{number}"' in lines(feed)


class TestProgress:
    def report(self, run: Run, done: Any, total: Any = 10, message: Any = "Indexing") -> int:
        payload = {"server": "everything", "tool": "echo"}
        payload |= {"progress": done, "total": total, "message": message}
        return add(run, "tool.progress", payload, span="s1")

    def test_the_running_line_shows_the_newest(self, member_client: Client, running: Run) -> None:
        call(running, "s1")
        self.report(running, 3)
        self.report(running, 7)
        html = timeline(member_client, running)
        assert "Indexing · 7 of 10" in html
        assert "3 of 10" not in html
        assert "70 %" in html
        assert html.count('<span class="line-title') == 1

    @pytest.mark.parametrize(
        ("done", "total", "message", "words"),
        [
            (3, None, None, "3 so far"),
            (3, 0, "Reading", "Reading · 3 so far"),
            (1500.5, 2000, "", "1,500.5 of 2,000"),
            (20, 10, "", "20 of 10"),
            (-1, 10, "", "-1 of 10"),
            (None, None, "Still there", "Still there"),
            ("nan", "many", ["odd"], "odd"),
            (True, 10**400, HOSTILE, "&lt;img src=x"),
        ],
    )
    def test_numbers_of_any_kind_become_words(
        self,
        member_client: Client,
        running: Run,
        done: Any,
        total: Any,
        message: Any,
        words: str,
    ) -> None:
        call(running, "s1")
        self.report(running, done, total, message)
        assert words in timeline(member_client, running)

    def test_the_result_takes_its_place(self, member_client: Client, run: Run) -> None:
        call(run, "s1")
        self.report(run, 3)
        result(run, "s1")
        assert "Indexing" not in timeline(member_client, run)

    def test_a_flood_of_progress_pushes_nothing_off_the_page(
        self, member_client: Client, running: Run
    ) -> None:
        add(running, "step", {"name": "The first step"})
        call(running, "s1")
        for number in range(queries.EVENTS_A_PAGE + 20):
            self.report(running, number, 1000)
        html = timeline(member_client, running)
        assert "The first step" in html
        assert "Indexing · 319 of 1,000" in html
        assert "data-stream" in html
        assert f'data-after="{queries.EVENTS_A_PAGE + 22}"' in html

    def test_of_many_reports_only_the_newest_of_each_call_is_read(self, running: Run) -> None:
        first = call(running, "s1")
        call(running, "s2")
        for number in range(5):
            self.report(running, number)
            add(running, "tool.progress", {"progress": number}, span="s2")
        ended = result(running, "s2")
        news = queries.news_of_calls(running.pk, ["s1", "s2"], first)
        assert [event.seq for event in news] == [ended - 2, ended - 1, ended]
        assert queries.news_of_calls(running.pk, [""], first) == []

    def test_it_does_not_break_a_block_of_output(self, member_client: Client, running: Run) -> None:
        call(running, "s1")
        output(running, "one\n")
        self.report(running, 3)
        seen = output(running, "two\n")
        assert timeline(member_client, running).count('<pre class="console"') == 1
        output(running, "three\n")
        assert 'id="e2"' in lines(RunFeed(running.pk, seen))

    def test_a_live_page_hears_of_it_as_an_update_of_the_line(self, running: Run) -> None:
        number = call(running, "s1")
        feed = RunFeed(running.pk, 0)
        assert "data-update" not in lines(feed)
        self.report(running, 3)
        html = lines(feed)
        assert f'is-running" id="e{number}"' in html
        assert "data-update" in html
        assert "3 of 10" in html

    def test_what_belongs_to_no_call_is_no_line(self, member_client: Client, running: Run) -> None:
        self.report(running, 3)
        assert "Indexing" not in timeline(member_client, running)
        assert "Indexing" not in lines(RunFeed(running.pk, 0))

    def test_a_report_by_itself_can_be_opened_and_linked(
        self, member_client: Client, running: Run
    ) -> None:
        call(running, "s1")
        number = self.report(running, 3)
        assert "Indexing" in page(member_client, f"/runs/{running.pk}/events/{number}/")
        assert "Indexing · 3 of 10" in timeline(member_client, running, f"?event={number}")

    def test_a_call_that_failed_tells_how_far_it_had_got(
        self, member_client: Client, run: Run
    ) -> None:
        number = call(run, "s1")
        self.report(run, 3)
        self.report(run, 8)
        result(run, "s1", "no answer within 120 seconds", ok=False)
        html = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "<h3>Last progress</h3>" in html
        assert '<span class="json-number">8</span>' in html

    def test_the_page_costs_the_same_queries_with_and_without(
        self, member_client: Client, running: Run, django_assert_num_queries: Any
    ) -> None:
        call(running, "s1")
        self.report(running, 1)
        timeline(member_client, running)
        with django_assert_num_queries(13) as few:
            timeline(member_client, running)
        for number in range(40):
            call(running, f"t{number}")
            self.report(running, number)
        with django_assert_num_queries(len(few)):
            timeline(member_client, running)


class TestNotices:
    def test_a_notice_names_its_server(self, member_client: Client, run: Run) -> None:
        add(run, "server.notice", {"server": "github", "message": "The session was renewed."})
        html = timeline(member_client, run)
        assert "Notice" in html
        assert '<span class="chip">github</span>' in html
        assert "The session was renewed." in html

    def test_a_long_one_opens(self, member_client: Client, run: Run) -> None:
        number = add(run, "server.notice", {"server": "x", "message": "word " * 100 + "needle"})
        assert "needle" not in timeline(member_client, run)
        assert "needle" in page(member_client, f"/runs/{run.pk}/events/{number}/")

    def test_changed_tools_are_counted_and_named(self, member_client: Client, run: Run) -> None:
        changes = {"added": ["plus", "minus"], "removed": [], "changed": ["echo"]}
        number = add(run, "server.tools_changed", {"server": "x", **changes})
        assert "2 added · 1 changed" in timeline(member_client, run)
        html = page(member_client, f"/runs/{run.pk}/events/{number}/")
        assert "<h3>Added</h3>" in html
        assert "plus\nminus" in html
        assert "<h3>Removed</h3>" not in html


class TestFiles:
    def test_files_of_results_stand_apart_with_their_call(
        self, member_client: Client, run: Run
    ) -> None:
        number = call(run, "s1", tool="draw")
        result(run, "s1", content=[kept()])
        own = run.artifacts.create(name="report.csv", media_type="text/csv", size=3, path="x")
        picture = run.artifacts.create(
            name="calls/s1-1.png", span="s1", media_type="image/png", size=2048, path="y"
        )
        html = page(member_client, f"/runs/{run.pk}/?tab=outputs")
        first, _, second = html.partition("Files from tool results")
        assert f"artifacts/{own.pk}/" in first
        assert f"artifacts/{picture.pk}/" in second
        assert f'href="/runs/{run.pk}/?event={number}#e{number}"' in second
        assert "draw" in second

    @pytest.mark.parametrize("tool", ["draw", "null", "1e3", '"quoted"', "[1]"])
    def test_of_their_calls_only_the_names_are_read(self, run: Run, tool: str) -> None:
        """A thousand files may come from as many calls with 16 KiB of arguments each."""
        number = call(run, "s1", tool=tool, arguments={"text": "x" * 10_000})
        with CaptureQueriesContext(connection) as captured:
            names = queries.names_of_calls(run.pk, {"s1", "gone"})
        assert names == {"s1": queries.CallName(number, "everything", tool)}
        assert not re.search(r'(SELECT|,) "jobs_runevent"."payload"', captured[0]["sql"])

    def test_a_script_may_use_the_same_names(self, run: Run) -> None:
        for span in ("", "s1"):
            run.artifacts.create(
                name="calls/s1-1.png", span=span, media_type="image/png", size=1, path="y"
            )
        assert run.artifacts.count() == 2

    def test_thousands_of_files_do_not_make_a_page_of_thousands(
        self, member_client: Client, run: Run, django_assert_max_num_queries: Any
    ) -> None:
        """I17"""
        many_events(run, 3)
        Artifact.objects.bulk_create(
            Artifact(run=run, name=f"{n}.txt", media_type="text/plain", size=1, path="x")
            for n in range(1100)
        )
        with django_assert_max_num_queries(12):
            html = page(member_client, f"/runs/{run.pk}/?tab=outputs")
        assert html.count('class="artifact-name"') == 1000
        assert "Only the first 1,000 files are shown." in html
