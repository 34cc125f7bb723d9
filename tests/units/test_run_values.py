"""Large values: text in pages that meet without a gap, JSON as a tree that opens further."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.test import Client
from django.utils.html import escape
from hypothesis import given
from hypothesis import strategies as st

from jobs import payloads
from jobs.models import Run
from jobs.views import values
from jobs.views.values import Held, follow, path_of, pointer_of, text_page
from tests.fakes.runs import make_job
from tests.fakes.timelines import HOSTILE, add, call, result, run_of


@pytest.fixture
def run(db: None) -> Run:
    return run_of(make_job())


def stored(run: Run, content: bytes, key: str = "text", shown: Any = "head … tail") -> int:
    """A result of which one field is kept whole beside the event; the event's number."""
    path = default_storage.save(f"runs/{run.pk}/v", ContentFile(content))
    blob = run.blobs.create(path=path, size=len(content))
    call(run, "s1")
    blobs = {key: {"id": str(blob.pk), "size": len(content)}}
    return result(run, "s1", **{key: shown}, _blobs=blobs)


def shown(client: Client, run: Run, seq: int, key: str = "text", **query: Any) -> str:
    response = client.get(f"/runs/{run.pk}/events/{seq}/{key}/", query)
    assert response.status_code == 200
    return response.content.decode()


def text_in(html: str) -> str:
    found = re.search(r'<pre class="value-text"[^>]*>(.*?)</pre>', html, re.DOTALL)
    assert found
    return found[1]


class TestTextPages:
    @given(
        st.lists(st.text(st.sampled_from("aé€😀\n"), max_size=60), max_size=40),
        st.integers(16, 200),
        st.integers(4, 60),
    )
    def test_pages_make_the_whole_whatever_the_text(
        self, pieces: list[str], page: int, slack: int
    ) -> None:
        whole = "\n".join(pieces)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(values, "PAGE", page)
            patch.setattr(values, "SLACK", min(slack, page // 2))
            body = Held(whole.encode())
            first = text_page(body, 1)
            texts = [text_page(body, number).text for number in range(1, first.pages + 1)]
        assert "".join(texts) == whole
        assert "\ufffd" not in "".join(texts)
        assert all(texts) or whole == ""

    def test_a_page_ends_at_the_end_of_a_line(self) -> None:
        whole = "".join(f"line {number}\n" for number in range(20_000))
        page = text_page(Held(whole.encode()), 2)
        assert page.text.startswith("line ")
        assert page.text.endswith("\n")
        assert len(page.text) <= values.PAGE + values.SLACK

    def test_a_page_beyond_the_end_is_the_last(self) -> None:
        page = text_page(Held(b"x" * 200_000), 99)
        assert (page.number, page.pages, page.following) == (4, 4, 0)

    def test_an_empty_text_is_one_page(self) -> None:
        assert text_page(Held(b""), 1).pages == 1

    def test_a_large_result_is_read_page_by_page(self, member_client: Client, run: Run) -> None:
        lines = "".join(f"line {number}\n" for number in range(40_000))
        seq = stored(run, lines.encode())
        first = shown(member_client, run, seq)
        assert text_in(first).startswith("line 0\n")
        assert 'rel="next" href="?page=2"' in first
        assert 'rel="prev"' not in first
        assert len(first) < 90_000
        second = shown(member_client, run, seq, page=2)
        assert 'rel="prev" href="?page=1"' in second
        last_line = int(text_in(first).split("\n")[-2].split()[1])
        assert text_in(second).startswith(f"line {last_line + 1}\n")

    def test_only_the_page_is_read_from_the_storage(
        self, member_client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """16 MiB cost what one page costs."""
        read: list[int] = []
        plain = values.Stored.read

        def counted(self: values.Stored, start: int, length: int) -> bytes:
            found = plain(self, start, length)
            read.append(len(found))
            return found

        monkeypatch.setattr(values.Stored, "read", counted)
        seq = stored(run, b"x" * (16 * 1024 * 1024))
        html = shown(member_client, run, seq, page=100)
        assert "of 256" in html
        assert sum(read) < 4 * values.PAGE

    def test_hostile_text_is_text(self, member_client: Client, run: Run) -> None:
        """I10"""
        html = shown(member_client, run, stored(run, HOSTILE.encode()))
        assert escape(HOSTILE) in html
        assert "<img src=x" not in html


class TestTrees:
    def test_a_structured_result_opens_as_a_tree(self, member_client: Client, run: Run) -> None:
        content = {"rows": [{"id": n, "name": f"row {n}"} for n in range(5000)]}
        seq = stored(run, json.dumps(content).encode(), "structured", {"rows": ["…"]})
        html = shown(member_client, run, seq, "structured")
        assert '<span class="json-key">rows</span>' in html
        assert "5,000 items" in html
        assert "more</a>" in html
        rows = shown(member_client, run, seq, "structured", at="/rows", start=400)
        assert "401 to 600 of 5,000" in rows
        assert "row 400" in rows
        assert "row 600<" not in rows

    def test_every_link_of_a_tree_leads_to_what_it_promises(
        self, member_client: Client, run: Run
    ) -> None:
        deep: Any = {"end/of~it": "x" * 9000}
        for level in range(30):
            deep = {f"level {level}": deep, "wide": list(range(300))}
        seq = stored(run, json.dumps(deep).encode(), "structured", {"…": "1 more"})
        seen: set[str] = set()
        waiting = ["?"]
        while waiting and len(seen) < 60:
            query = waiting.pop()
            seen.add(query)
            html = member_client.get(f"/runs/{run.pk}/events/{seq}/structured/{query}")
            assert html.status_code == 200, query
            links = re.findall(r'class="json-more" href="([^"]+)"', html.content.decode())
            waiting += [link for link in map(unescape, links) if link not in seen]
        pointers = [parse_qs(urlsplit(query).query).get("at", [""])[0] for query in seen]
        assert any(pointer.endswith("/end~1of~0it") for pointer in pointers)

    def test_a_long_text_inside_is_paged_as_text(self, member_client: Client, run: Run) -> None:
        content = {"log": "word " * 50_000}
        seq = stored(run, json.dumps(content).encode(), "structured", {"log": "…"})
        html = shown(member_client, run, seq, "structured", at="/log", page=2)
        assert "word word" in text_in(html)
        assert "of 4" in html
        assert 'aria-current="true">log' in html

    def test_json_in_a_text_is_a_tree_with_its_text_beside(
        self, member_client: Client, run: Run
    ) -> None:
        seq = stored(run, json.dumps({"rows": list(range(90_000))}).encode())
        assert '<span class="json-key">rows</span>' in shown(member_client, run, seq)
        assert text_in(shown(member_client, run, seq, view="text")).startswith("{&quot;rows")

    def test_what_is_too_large_for_a_tree_is_text(
        self, member_client: Client, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(values, "MAX_TREE", 1000)
        seq = stored(run, json.dumps(list(range(900))).encode(), "structured", [1])
        html = shown(member_client, run, seq, "structured")
        assert "too large for a tree" in html
        assert text_in(html).startswith("[0, 1,")

    @pytest.mark.parametrize("text", ["{not json", "[" * 100_000, '{"a": 1} and more', "{"])
    def test_what_only_begins_like_json_is_text(
        self, member_client: Client, run: Run, text: str
    ) -> None:
        html = shown(member_client, run, stored(run, text.encode()))
        assert text_in(html)[:9] == escape(text)[:9]

    @pytest.mark.parametrize("at", ["/missing", "/rows/7", "/rows/x", "/rows/0/deeper", "/rows/-9"])
    def test_a_place_that_is_not_there_is_not_found(
        self, member_client: Client, run: Run, at: str
    ) -> None:
        seq = stored(run, b'{"rows": [1, 2]}', "structured", {"rows": []})
        url = f"/runs/{run.pk}/events/{seq}/structured/"
        assert member_client.get(url, {"at": at}).status_code == 404

    @pytest.mark.parametrize(
        "query", [{"start": "x"}, {"start": "-1"}, {"start": "99999"}, {"page": "0"}, {"view": "y"}]
    )
    def test_an_address_that_makes_no_sense_shows_the_value(
        self, member_client: Client, run: Run, query: dict[str, str]
    ) -> None:
        seq = stored(run, b'{"rows": [1, 2]}', "structured", {"rows": []})
        assert "rows" in shown(member_client, run, seq, "structured", **query)

    @given(st.lists(st.text(max_size=8), max_size=5))
    def test_a_pointer_leads_back_to_its_path(self, keys: list[str]) -> None:
        """RFC 6901: any key, `/` and `~` included."""
        value: Any = "found"
        for key in reversed(keys):
            value = {key: value}
        assert follow(value, path_of(pointer_of(tuple(keys)))) == "found"


class TestCutValues:
    """What the timeline itself keeps of a large value: counted and numbered as the whole was."""

    def body(self, client: Client, run: Run, whole: Any) -> str:
        cut, bodies = payloads.fit({"structured": whole})
        assert bodies
        seq = stored(run, bodies["structured"], "structured", cut["structured"])
        return client.get(f"/runs/{run.pk}/events/{seq - 1}/").content.decode()

    def test_a_list_keeps_its_count_and_the_numbers_of_its_end(
        self, member_client: Client, run: Run
    ) -> None:
        html = self.body(member_client, run, [f"item {n} " + "x" * 80 for n in range(5000)])
        assert "[ <span" in html
        assert "5,000 items" in html
        assert '<span class="json-key">4999</span> <span class="json-string">item 4999' in html
        assert re.search(r'<li class="json-more">… [\d,]+ more</li>', html)
        assert "items left out" not in html.replace("&quot;", "").partition("<pre")[0]

    def test_an_object_keeps_its_count(self, member_client: Client, run: Run) -> None:
        html = self.body(member_client, run, {f"key {n}": "x" * 50 for n in range(900)})
        assert "900 keys" in html

    def test_a_text_that_only_looks_like_a_mark_is_a_text(
        self, member_client: Client, run: Run
    ) -> None:
        seq = call(run, "s1", arguments={"…": "7 more", "list": ["… 3 items left out …"]})
        html = member_client.get(f"/runs/{run.pk}/events/{seq}/").content.decode()
        assert "2 keys" in html
        assert "1 item<" in html

    def test_a_text_that_repeats_a_large_structured_result_is_only_offered(
        self, member_client: Client, run: Run
    ) -> None:
        seq = call(run, "s1")
        blobs = {name: {"id": str(run.pk), "size": 99_000} for name in ("text", "structured")}
        result(run, "s1", '{"rows": [ …', structured={"rows": ["…"]}, _blobs=blobs)
        html = member_client.get(f"/runs/{run.pk}/events/{seq}/").content.decode()
        assert "<h3>Result as text</h3>" in html
        assert "pane-text" not in html


class TestAccess:
    def test_a_small_value_has_a_page_too(self, member_client: Client, run: Run) -> None:
        seq = call(run, "s1", arguments={"wide": list(range(700))})
        assert "wide" in shown(member_client, run, seq, "arguments")

    def test_the_open_line_leads_to_the_whole(self, member_client: Client, run: Run) -> None:
        seq = stored(run, b"x" * 50_000)
        html = member_client.get(f"/runs/{run.pk}/events/{seq - 1}/").content.decode()
        assert f'href="/runs/{run.pk}/events/{seq}/text/">Show all</a>' in html
        assert " download>Download</a>" in html

    def test_a_tree_that_was_cut_leads_to_the_whole(self, member_client: Client, run: Run) -> None:
        seq = call(run, "s1", arguments={"wide": [0] * 3000})
        html = member_client.get(f"/runs/{run.pk}/events/{seq}/").content.decode()
        assert f'href="/runs/{run.pk}/events/{seq}/arguments/">Show all</a>' in html

    def test_where_only_head_and_tail_were_kept_the_page_says_so(
        self, member_client: Client, run: Run
    ) -> None:
        call(run, "s1")
        seq = result(run, "s1", "head … tail", _blobs={"text": {"id": None, "size": 5_000_000}})
        assert "Only the head and the tail" in shown(member_client, run, seq)

    def test_a_leaf_of_a_tree_can_be_linked(self, member_client: Client, run: Run) -> None:
        seq = stored(run, b'{"total": 4711}', "structured", {"total": 1})
        html = shown(member_client, run, seq, "structured", at="/total")
        assert '<span class="json-number">4711</span>' in html

    def test_a_value_of_any_event_has_its_name(self, member_client: Client, run: Run) -> None:
        seq = add(run, "error", {"message": "word " * 9000})
        assert "<title>Message · Umpteenth" in shown(member_client, run, seq, "message")

    @pytest.mark.parametrize("key", ["missing", "_blobs"])
    def test_what_the_event_does_not_hold_is_not_found(
        self, member_client: Client, run: Run, key: str
    ) -> None:
        seq = stored(run, b"x")
        assert member_client.get(f"/runs/{run.pk}/events/{seq}/{key}/").status_code == 404

    def test_a_body_that_is_gone_or_of_another_run_is_not_found(
        self, member_client: Client, run: Run
    ) -> None:
        seq = stored(run, b"x" * 50_000)
        blob = run.blobs.get()
        other = run_of(run.job, 2)
        foreign = result(other, "s1", _blobs={"text": {"id": str(blob.pk), "size": 1}})
        assert member_client.get(f"/runs/{other.pk}/events/{foreign}/text/").status_code == 404
        default_storage.delete(blob.path)
        assert member_client.get(f"/runs/{run.pk}/events/{seq}/text/").status_code == 404


def unescape(address: str) -> str:
    return address.replace("&amp;", "&")
