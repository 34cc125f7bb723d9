"""JSON-RPC messages between bytes and the SDK's types, more tolerant than the SDK's own reader.

The SDK refuses a message for one lone surrogate or a missing `jsonrpc`; servers send both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from mcp_types import (
    INTERNAL_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)

from servers.mcp.types import ServerError

# Lists and objects of one message: read, each takes up to ninety bytes, and a message of brackets
# alone a gigabyte.
MAX_CONTAINERS: Final = 1_000_000
# One without an end goes to the end, so that nothing is ever tried twice.
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.?[^"\\]*)*(?:"|\Z)', re.DOTALL)
MAX_BATCH: Final = 1000  # messages; one revision had batches at all (2025-03-26)


def decode_json(text: str | bytes) -> Any:
    """The value of a JSON document; invalid UTF-8 is replaced and NaN becomes None.

    A byte order mark before it is skipped. Raises `ValueError` for anything that is no JSON, and
    for values nested too deeply to read, or too many of them.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", errors="replace")
    if _brackets(text) > MAX_CONTAINERS and _brackets(_STRING.sub("", text)) > MAX_CONTAINERS:
        raise ValueError(f"it holds more than {MAX_CONTAINERS:,} lists and objects")
    try:
        return json.loads(text.removeprefix("\ufeff"), parse_constant=lambda _name: None)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{") if len(text) > MAX_CONTAINERS else 0


def encode(message: JSONRPCMessage) -> bytes:
    """One line without its end. Lone surrogates leave as escapes. Raises `ServerError`."""
    try:
        value = message.model_dump(by_alias=True, exclude_unset=True)
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ServerError(f"The arguments cannot be sent as JSON: {error}.") from None


def read_messages(value: Any) -> Iterator[JSONRPCMessage]:
    """The messages in a decoded value: one, or those of a batch. Nothing for anything else.

    Raises `ValueError` for a batch without measure.
    """
    items = value if isinstance(value, list) else [value]
    if len(items) > MAX_BATCH:
        raise ValueError(f"it is a batch of more than {MAX_BATCH:,} messages")
    for item in items:
        message = _read_message(item)
        if message is not None:
            yield message


def _read_message(value: Any) -> JSONRPCMessage | None:
    if not isinstance(value, dict):
        return None
    identity = _identity(value.get("id"))
    method = value.get("method")
    if isinstance(method, str):
        return _read_call(method, identity, value.get("params"))
    if isinstance(value.get("error"), dict | str):
        return JSONRPCError(jsonrpc="2.0", id=identity, error=_read_error(value["error"]))
    if identity is not None and "result" in value:
        return _read_answer(identity, value["result"])
    return None


def _read_answer(identity: int | str, result: Any) -> JSONRPCMessage:
    """Whoever waits for it must hear of it, whatever it is."""
    if result is None:
        result = {}
    if isinstance(result, dict):
        return JSONRPCResponse(jsonrpc="2.0", id=identity, result=result)
    error = ErrorData(code=INTERNAL_ERROR, message="The server's answer is no object.")
    return JSONRPCError(jsonrpc="2.0", id=identity, error=error)


def _read_call(method: str, identity: int | str | None, params: Any) -> JSONRPCMessage:
    params = params if isinstance(params, dict) else {}
    method = _printable(method)
    if identity is None:
        return JSONRPCNotification(jsonrpc="2.0", method=method, params=params)
    return JSONRPCRequest(jsonrpc="2.0", id=identity, method=method, params=params)


def _read_error(value: Any) -> ErrorData:
    if isinstance(value, str):
        return ErrorData(code=INTERNAL_ERROR, message=_printable(value))
    code, message = value.get("code"), value.get("message")
    if not isinstance(message, str):
        message = json.dumps(value) if message is None else json.dumps(message)
    plain = isinstance(code, int) and not isinstance(code, bool) and abs(code) < 2**53
    return ErrorData(
        code=code if plain else INTERNAL_ERROR, message=_printable(message), data=value.get("data")
    )


def _identity(value: Any) -> int | str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int):
        return value
    return _printable(value) if isinstance(value, str) else None


def _printable(text: str) -> str:
    """Without lone surrogates, which the SDK's models refuse."""
    return text.encode("utf-8", errors="replace").decode()
