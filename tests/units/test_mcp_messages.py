"""Messages as servers really write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from servers.mcp.messages import MAX_BATCH, MAX_CONTAINERS, decode_json, encode, read_messages

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10
)
envelopes = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("jsonrpc", "id", "method", "params", "result", "error"), values),
)


def read_one(value: Any) -> Any:
    messages = list(read_messages(value))
    assert len(messages) == 1
    return messages[0]


@given(envelopes | values)
def test_nothing_that_json_can_say_breaks_the_reader(value: Any) -> None:
    """C01, C17: what is no message is none."""
    for message in read_messages(value):
        assert message.jsonrpc == "2.0"


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {}, {"level": "info"}, {"id": 1}, {"result": {}}, [[]]]
)
def test_what_is_no_message_is_skipped(value: Any) -> None:
    """C01."""
    assert list(read_messages(value)) == []


def test_a_batch_is_read_message_by_message() -> None:
    """2025-03-26."""
    batch = [{"id": 1, "result": {}}, "noise", {"method": "a"}, {"id": 2, "method": "b"}]
    kinds = [type(message) for message in read_messages(batch)]
    assert kinds == [JSONRPCResponse, JSONRPCNotification, JSONRPCRequest]


def test_a_batch_without_measure_is_not_read() -> None:
    message = {"jsonrpc": "2.0", "method": "m"}
    assert len(list(read_messages([message] * MAX_BATCH))) == MAX_BATCH
    with pytest.raises(ValueError, match="a batch of more than 1,000 messages"):
        list(read_messages([message] * (MAX_BATCH + 1)))


@pytest.mark.parametrize(
    ("identity", "read"), [(1, 1), (1.0, 1), ("a", "a"), (True, None), (1.5, None), ([], None)]
)
def test_identifiers_are_numbers_or_texts(identity: Any, read: Any) -> None:
    message = read_one({"id": identity, "error": {"code": 1, "message": "m"}})
    assert message.id == read


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ({"code": -1, "message": "m"}, -1, "m"),
        ("words", -32603, "words"),
        ({"code": "E1", "message": "m"}, -32603, "m"),
        ({"code": True, "message": None}, -32603, '{"code": true, "message": null}'),
        ({"message": {"a": 1}}, -32603, '{"a": 1}'),
        ({"code": 1, "message": "\ud800"}, 1, "?"),
        ({"code": 10**4000, "message": "m"}, -32603, "m"),
    ],
)
def test_errors_of_odd_shapes_keep_their_words(error: Any, code: int, message: str) -> None:
    read = read_one({"jsonrpc": "2.0", "id": 1, "error": error})
    assert isinstance(read, JSONRPCError)
    assert (read.error.code, read.error.message) == (code, message)


@pytest.mark.parametrize("result", [5, "done", [], True])
def test_an_answer_that_is_no_object_fails_its_request(result: Any) -> None:
    """Skipped, it would leave the caller waiting for its whole limit."""
    read = read_one({"jsonrpc": "2.0", "id": 3, "result": result})
    assert isinstance(read, JSONRPCError)
    assert (read.id, read.error.message) == (3, "The server's answer is no object.")


def test_an_answer_of_null_is_an_empty_one() -> None:
    read = read_one({"jsonrpc": "2.0", "id": "a", "result": None})
    assert isinstance(read, JSONRPCResponse)
    assert (read.id, read.result) == ("a", {})


def test_null_as_the_error_is_none() -> None:
    read = read_one({"jsonrpc": "2.0", "id": 1, "error": None, "result": {"a": 1}})
    assert isinstance(read, JSONRPCResponse)


@pytest.mark.parametrize("text", ['\ufeff{"a": 1}', b'\xef\xbb\xbf{"a": 1}'])
def test_a_byte_order_mark_is_skipped(text: str | bytes) -> None:
    """C01: some systems write one before everything."""
    assert decode_json(text) == {"a": 1}


def test_invalid_bytes_and_numbers_are_replaced() -> None:
    """C17."""
    assert decode_json(b'{"a": "\xb1", "b": NaN}') == {"a": "\ufffd", "b": None}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 5000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    """I17: nested without end, or numbers without end."""
    with pytest.raises(ValueError, match=r"."):
        decode_json(text)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.booleans()))
def test_what_is_written_is_one_line_and_reads_back(params: dict[str, Any]) -> None:
    """C16."""
    line = encode(JSONRPCRequest(jsonrpc="2.0", id=1, method="m", params=params))
    assert b"\n" not in line
    assert json.loads(line) == {"jsonrpc": "2.0", "id": 1, "method": "m", "params": params}


@pytest.mark.parametrize("brackets", ["[],", '{"a":{}},'])
def test_a_message_that_would_take_a_gigabyte_of_memory_is_not_read(brackets: str) -> None:
    """A39, B23: decoded it is small, but each pair of brackets takes what a line of text does."""
    text = f'{{"id":1,"result":[{brackets * MAX_CONTAINERS}1]}}'
    with pytest.raises(ValueError, match="more than 1,000,000 lists and objects"):
        decode_json(text)
    assert decode_json(f"[{brackets * 1000}1]")[-1] == 1


def test_brackets_in_a_text_are_no_lists_and_objects() -> None:
    """Colours in the output of a terminal, JSON as text."""
    text = '\x1b[31m"{\\' * MAX_CONTAINERS
    assert decode_json(json.dumps({"text": text})) == {"text": text}
