"""The commands of the broker: arguments checked, cleaned and bounded, then handed on."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from jobs.broker.protocol import (
    FAILED,
    MAX_FAIL_REASON,
    MAX_NAME,
    MAX_OUTPUT_BYTES,
    MAX_OUTPUTS,
    MAX_STATE_KEY,
    MAX_STATE_VALUE,
    MAX_STEP_BYTES,
    MAX_STEPS,
    MAX_SUMMARY_BYTES,
    USAGE,
    BrokerError,
    BrokerHandler,
)
from umpteenth.core.text import MAX_JSON_DEPTH, clean, is_too_deep, storable_json

Args = Mapping[str, Any]


class Commands:
    """One run's commands, with what must be counted over the whole run."""

    def __init__(self, handler: BrokerHandler) -> None:
        self._handler = handler
        self._outputs: dict[str, int] = {}
        self._steps = 0
        self._table: dict[str, Callable[[Args], Awaitable[Any]]] = {
            "mcp_tools": self._mcp_tools,
            "mcp_call": self._mcp_call,
            "state_get": self._state_get,
            "state_set": self._state_set,
            "state_list": self._state_list,
            "output_set": self._output_set,
            "step": self._step,
            "summary": self._summary,
            "fail": self._fail,
        }

    async def run(self, command: object, args: object) -> Any:
        """Raises `BrokerError` with a sentence for the script's author."""
        action = self._table.get(command) if isinstance(command, str) else None
        if action is None:
            raise BrokerError(f"unknown command {clean(str(command), 40)!r}", USAGE)
        if not isinstance(args, dict):
            raise BrokerError("the arguments must be a JSON object", USAGE)
        try:
            return await action(args)
        except RecursionError:
            raise BrokerError("the arguments are nested too deeply", USAGE) from None

    async def _mcp_tools(self, args: Args) -> Any:
        server = args.get("server")
        if server is not None:
            server = _text(args, "server", MAX_NAME)
        return await self._handler.mcp_tools(server)

    async def _mcp_call(self, args: Args) -> Any:
        arguments = args.get("arguments", {})
        if not isinstance(arguments, dict):
            raise BrokerError("the tool's arguments must be a JSON object", USAGE)
        result = await self._handler.mcp_call(
            _text(args, "server", MAX_NAME), _text(args, "tool", 1024), _whole(arguments)
        )
        return {
            "ok": result.ok,
            "text": result.text,
            "structured": result.structured,
            "error": result.error,
        }

    async def _state_get(self, args: Args) -> Any:
        key = _text(args, "key", MAX_STATE_KEY)
        try:
            return await self._handler.state_get(key)
        except KeyError:
            raise BrokerError(f"the job's state has no key {key!r}") from None

    async def _state_set(self, args: Args) -> None:
        key = _text(args, "key", MAX_STATE_KEY)
        value, _size = _value(args, MAX_STATE_VALUE)
        # How much a job keeps in all is the handler's to check: other runs write too.
        await self._handler.state_set(key, value)

    async def _state_list(self, args: Args) -> list[str]:
        return await self._handler.state_list()

    async def _output_set(self, args: Args) -> None:
        name = _text(args, "name", MAX_NAME)
        value, size = _value(args, MAX_OUTPUT_BYTES)
        others = {key: held for key, held in self._outputs.items() if key != name}
        if len(others) >= MAX_OUTPUTS:
            raise BrokerError(f"a run has at most {MAX_OUTPUTS} outputs")
        if sum(others.values()) + size > MAX_OUTPUT_BYTES:
            raise BrokerError(
                "the outputs of a run hold at most 1 MiB together; write a file to /ump/outputs"
            )
        self._outputs[name] = size
        await self._handler.output_set(name, value)

    async def _step(self, args: Args) -> None:
        name = _text(args, "name")
        if len(name.encode()) > MAX_STEP_BYTES:
            raise BrokerError(f"a step's name has at most {MAX_STEP_BYTES} bytes", USAGE)
        if self._steps >= MAX_STEPS:
            raise BrokerError(f"a run has at most {MAX_STEPS} steps")
        self._steps += 1
        await self._handler.step(name)

    async def _summary(self, args: Args) -> None:
        text = _text(args, "text")
        if len(text.encode()) > MAX_SUMMARY_BYTES:
            raise BrokerError("a summary has at most 16 KiB", USAGE)
        await self._handler.summary(text)

    async def _fail(self, args: Args) -> None:
        await self._handler.fail(clean(_text(args, "reason"), MAX_FAIL_REASON))


def _text(args: Args, name: str, limit: int | None = None) -> str:
    """A required text; `limit` in characters."""
    value = args.get(name)
    if not isinstance(value, str):
        raise BrokerError(f"{name} is missing", USAGE)
    value = clean(value).strip()
    if not value:
        raise BrokerError(f"{name} is empty", USAGE)
    if limit is not None and len(value) > limit:
        raise BrokerError(f"{name} has at most {limit} characters", USAGE)
    return value


def _whole(value: Any) -> Any:
    """The value itself: a tool must not act on anything else.

    What is nested too deeply is refused, not cut: a tool or a later run would act on half of it.
    """
    if is_too_deep(value):
        raise BrokerError(f"the JSON is nested deeper than {MAX_JSON_DEPTH} levels", USAGE)
    return value


def _value(args: Args, limit: int) -> tuple[Any, int]:
    """A required JSON value and its size as JSON in bytes."""
    if "value" not in args:
        raise BrokerError("the value is missing", USAGE)
    value = storable_json(_whole(args["value"]))
    try:
        size = len(json.dumps(value, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, RecursionError):
        raise BrokerError("the value is not JSON that can be stored", USAGE) from None
    if size > limit:
        raise BrokerError(f"the value is larger than {limit // (1024 * 1024)} MiB", FAILED)
    return value, size
