"""A script's output: every byte or a note of what is missing, masked, in small pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import streams
from jobs.streams import Budget, OutputStream
from tests.fakes.runs import ListRecorder
from umpteenth.core.masking import Masker


async def record(
    chunks: Iterable[bytes], *, budget: int = streams.HEAD, secret: str = ""
) -> ListRecorder:
    recorder = ListRecorder(masker=Masker({"TOKEN": secret} if secret else {}))

    async def room() -> None:
        return

    reader = asyncio.StreamReader()
    stream = OutputStream("stdout", recorder, Budget(budget), room)  # type: ignore[arg-type]
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    await asyncio.wait_for(stream.follow(reader), 5)
    return recorder


def text_of(recorder: ListRecorder) -> str:
    return "".join(payload["text"] for payload in recorder.of("output"))


@given(
    st.lists(
        st.sampled_from(
            ["\r\n", "\r", "\n", "\x1b[31;1m", "\x1b]0;title\x07", "\x1b", "\x9b0m", "é"]
        )
        | st.text(max_size=5),
        max_size=40,
    ).map("".join),
    st.integers(1, 7),
)
def test_text_arrives_whole_however_it_is_cut(text: str, size: int) -> None:
    from umpteenth.core.text import clean

    data = text.encode("utf-8", "replace")
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    recorder = asyncio.run(record(chunks))
    assert text_of(recorder) == clean(data.decode())


async def test_what_was_written_before_anybody_read_is_recorded_before_a_call() -> None:
    """A script may print and call before its run has begun to read."""
    recorder = ListRecorder()

    async def room() -> None:
        return

    reader = asyncio.StreamReader()
    reader.feed_data(b"1\n")
    stream = OutputStream("stdout", recorder, Budget(), room)  # type: ignore[arg-type]
    call = asyncio.create_task(streams.catch_up([stream]))
    for _ in range(2 * streams._ROUNDS):
        await asyncio.sleep(0)
    assert not call.done()
    following = asyncio.create_task(stream.follow(reader))
    await asyncio.wait_for(call, 5)
    assert text_of(recorder) == "1\n"
    reader.feed_eof()
    await following


async def test_bad_bytes_are_replaced_and_control_characters_go() -> None:
    """H16, and C17 for scripts."""
    recorder = await record([b"a\xff\xfeb\0c\n"])
    assert text_of(recorder) == "a\ufffd\ufffdbc\n"


async def test_a_secret_cut_by_two_writes_is_masked() -> None:
    recorder = ListRecorder(masker=Masker({"TOKEN": "hunter2-hunter2"}))

    async def room() -> None:
        return

    reader = asyncio.StreamReader()
    stream = OutputStream("stdout", recorder, Budget(), room)  # type: ignore[arg-type]
    following = asyncio.create_task(stream.follow(reader))
    reader.feed_data(b"token: hunter2-")
    await asyncio.sleep(streams.PAUSE + 0.1)  # the pause after which waiting text is written
    reader.feed_data(b"hunter2!\n")
    reader.feed_eof()
    await asyncio.wait_for(following, 5)
    assert text_of(recorder) == "token: [secret TOKEN]!\n"
    # What cannot be the beginning of a secret was shown at once.
    assert recorder.of("output")[0]["text"].startswith("token")


async def test_pieces_stay_below_the_limit_and_end_at_lines() -> None:
    data = b"".join(b"line %d\n" % number for number in range(10_000))
    recorder = await record([data])
    texts = [payload["text"] for payload in recorder.of("output")]
    assert "".join(texts) == data.decode()
    assert all(len(text.encode()) <= streams.PIECE for text in texts)
    assert all(text.endswith("\n") for text in texts)


@pytest.mark.parametrize("character", ["x", "é", "漢", "🙂"])
async def test_one_endless_line_is_cut(character: str) -> None:
    """I17"""
    data = (character * 50_000).encode()
    recorder = await record([data])
    assert text_of(recorder) == data.decode()
    assert all(len(p["text"].encode()) <= streams.PIECE for p in recorder.of("output"))


async def test_above_the_budget_the_tail_is_kept_and_the_gap_is_named() -> None:
    lines = [b"line %06d\n" % number for number in range(40_000)]
    recorder = await record(lines, budget=100_000)
    text = text_of(recorder)
    assert text.startswith("line 000000\n")
    assert text.endswith("line 039999\n")
    [note] = recorder.of("log")
    missing = len(b"".join(lines)) - len(text.encode())
    assert note["message"] == f"{missing:,} bytes of stdout are left out here"


async def test_a_cancelled_reader_still_writes_what_it_has() -> None:
    recorder = ListRecorder()

    async def room() -> None:
        return

    reader = asyncio.StreamReader()
    stream = OutputStream("stderr", recorder, Budget(), room)  # type: ignore[arg-type]
    following = asyncio.create_task(stream.follow(reader))
    reader.feed_data(b"last words")
    await asyncio.sleep(0.01)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert text_of(recorder) == "last words"


async def test_it_waits_for_room_before_it_reads_on() -> None:
    recorder = ListRecorder()
    free = asyncio.Event()
    reader = asyncio.StreamReader()
    stream = OutputStream("stdout", recorder, Budget(), free.wait)  # type: ignore[arg-type]
    following = asyncio.create_task(stream.follow(reader))
    reader.feed_data(b"x" * 100_000)
    reader.feed_eof()
    await asyncio.sleep(0.01)
    assert recorder.events == []
    free.set()
    await asyncio.wait_for(following, 5)
    assert len(text_of(recorder)) == 100_000
