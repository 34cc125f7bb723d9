"""Server-sent events: line ends, cuts and limits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.mcp.events import MAX_ID, Event, EventParser, EventTooLarge

STREAM = (
    "\ufeff: comment\n\nevent: ping\n\ndata\n\nid: 1\nretry: 250\n\n"
    "event: message\ndata: ä\ndata:  two\n\nid: a\0b\ndata: x\n\n"
    "retry: soon\nunknown: field\ndata: last\n\ndata: never ended\n"
)
EVENTS = [
    Event("message", "", "", None),
    Event("message", "", "1", 250),
    Event("message", "ä\n two", "1", None),
    Event("message", "x", "1", None),
    Event("message", "last", "1", None),
]


def parse(chunks: list[bytes], limit: int = 1000) -> list[Event]:
    parser = EventParser(limit)
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_line_end_will_do(end: str) -> None:
    """B17, B18."""
    assert parse([STREAM.replace("\n", end).encode()]) == EVENTS


@given(st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(1, 200), max_size=20))
def test_cuts_at_any_place_change_nothing(end: str, places: list[int]) -> None:
    """B17."""
    data = STREAM.replace("\n", end).encode()
    bounds = sorted({0, len(data), *(place for place in places if place < len(data))})
    chunks = [data[a:b] for a, b in pairwise(bounds)]
    assert parse(chunks) == EVENTS


def test_a_return_at_the_end_of_a_chunk_ends_the_line_at_once() -> None:
    """B17: a standing stream would stand still otherwise."""
    assert parse([b"data: x\r\r"]) == [Event("message", "x", "", None)]


def test_an_event_over_the_limit_is_refused_before_it_ends() -> None:
    """B23: endless lines, and endless lines of one event."""
    with pytest.raises(EventTooLarge):
        parse([b"data: "] + [b"x" * 100] * 11)
    with pytest.raises(EventTooLarge):
        parse([b"data: 0123456789\n"] * 70)
    assert len(parse([b"data: 0123456789\n\n"] * 100)) == 100


def test_comments_without_end_count_like_one_event() -> None:
    """B23: each of them is small, and none of them is anything."""
    assert len(parse([b": ping\n\n" * 100, b"data: x\n\n"])) == 1
    with pytest.raises(EventTooLarge):
        parse([b": ping\n\n"] * 200)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_empty_lines_by_the_million_are_nothing(end: bytes) -> None:
    """B23."""
    found = parse([b"data: x" + end * 1_000_000] * 20)
    assert [event.data for event in found] == ["x"] * 20


def test_lines_that_are_no_utf8_are_read_in_the_charset_that_is_named() -> None:
    """C17: the standard knows UTF-8 only, servers know more."""
    parser = EventParser(1000, "iso-8859-1")
    assert [event.data for event in parser.feed("data: é\n\n".encode("latin-1"))] == ["é"]
    assert [event.data for event in parser.feed("data: é\n\n".encode())] == ["é"]
    assert parse([b"data: \xff\n\n"])[0].data == "\ufffd"


def test_an_id_that_no_header_holds_is_none() -> None:
    """What numbers a stream goes back to the server in a header."""
    events = parse(
        [b"id: " + b"x" * MAX_ID + b"\ndata: a\n\nid: " + b"y" * 2000 + b"\ndata: b\n\n"], 9000
    )
    assert [event.id for event in events] == ["x" * MAX_ID] * 2
