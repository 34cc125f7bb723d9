"""One call of one tool: rounds of questions, repetitions, and what is left in doubt.

Spec 2026-07-28, "input required" for the rounds; requirements U49-U58 for the repetitions, A49 for
the doubt.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from mcp_types import URL_ELICITATION_REQUIRED

from servers.mcp.clocks import Clock
from servers.mcp.elicitation import ELICITATION, Questions, addresses_in
from servers.mcp.errors import HttpRefusal, NothingSent, NotMcp, RpcError, SessionExpired
from servers.mcp.ongoing import Ongoing
from servers.mcp.results import MANY_VALUES, failed_result, has_more_values, read_result
from servers.mcp.retries import wait_before_next
from servers.mcp.schemas import check_output
from servers.mcp.types import (
    CallResult,
    CallTimedOut,
    ConnectionSettings,
    LoginRequired,
    Observer,
    ServerError,
    ServerUnavailable,
    Tool,
)
from umpteenth.core.text import clean, with_full_stop

MAX_ROUNDS: Final = 10
# A server that only wants to be asked again is given a moment, as the SDK's own driver does.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.25
IN_DOUBT: Final = "The call may have happened."
NOT_HAPPENED: Final = "The call did not happen."


class Send(Protocol):
    """Sends one `tools/call` and gives its raw result."""

    async def __call__(self, params: dict[str, Any], ongoing: Ongoing) -> dict[str, Any]: ...


class NotOffered(Exception):
    """The tool wants something of the client that there is not; the message says what."""


@dataclass(frozen=True)
class Call:
    """What to call and how. `tool` is None where the server does not list it."""

    settings: ConnectionSettings
    name: str
    arguments: Mapping[str, Any]
    tool: Tool | None
    send: Send
    questions: Questions
    observer: Observer
    ongoing: Ongoing

    async def run(self) -> CallResult:
        """Raises `ServerError`; a tool that fails and an error of the protocol are results."""
        clock = self.ongoing.clock
        try:
            async with clock:
                return await self._attempts()
        except TimeoutError:
            in_doubt = self.ongoing.sent and not self._is_read_only
            raise timed_out(clock, in_doubt=in_doubt) from None
        except ServerError as error:
            raise self._with_its_doubt(error) from None

    async def _attempts(self) -> CallResult:
        start = time.monotonic()
        attempt = 1
        while True:
            try:
                result = await self._rounds()
                await self.ongoing.reported()
                return await self._read(result, _ms_since(start), attempt)
            except NotOffered as refusal:
                return replace(failed_result(str(refusal), _ms_since(start)), attempts=attempt)
            except RpcError as error:
                wait = self._wait_before_next(error, attempt)
                if wait is None:
                    failed = failed_result(_words_of(error), _ms_since(start))
                    return replace(failed, attempts=attempt)
            await asyncio.sleep(wait)
            attempt += 1

    def _wait_before_next(self, error: RpcError, attempt: int) -> float | None:
        if not self._is_read_only:
            return None  # it may have happened (A49)
        wait = wait_before_next(error, self.settings.retry, attempt)
        if wait is None or not self.ongoing.clock.allows(wait):
            return None
        self.observer.notice(
            f"{clean(self.name, 100)} is called again in {wait:.2f} seconds, as the server "
            f"asked: {error.message} ({error.code})"
        )
        return wait

    async def _rounds(self) -> dict[str, Any]:
        """The result, after the questions that the tool puts before it gives one."""
        params: dict[str, Any] = {"name": self.name, "arguments": dict(self.arguments)}
        pause = FIRST_PAUSE
        for _ in range(MAX_ROUNDS + 1):
            result = await self.send(params, self.ongoing)
            if result.get("resultType") != "input_required":
                return result
            requests = result.get("inputRequests")
            params = {"name": self.name, "arguments": dict(self.arguments)}
            if isinstance(requests, dict) and requests:
                params["inputResponses"] = await self._answers(requests)
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            if result.get("requestState") is not None:
                params["requestState"] = result["requestState"]
        raise NotOffered(f"The tool asked for input more than {MAX_ROUNDS} times; it was left.")

    async def _answers(self, requests: Mapping[str, Any]) -> dict[str, Any]:
        answers = {}
        for key, request in requests.items():
            request = request if isinstance(request, dict) else {}
            method = request.get("method")
            if method != ELICITATION:
                shown = clean(str(method), 100)
                self.questions.refused(shown)
                raise NotOffered(f"The tool asks for {shown}, which Umpteenth does not offer.")
            params = request.get("params")
            answers[key] = await self.questions.answer(
                params if isinstance(params, dict) else {}, [self.ongoing.clock]
            )
        return answers

    async def _read(self, result: dict[str, Any], duration_ms: float, attempt: int) -> CallResult:
        if has_more_values(result, MANY_VALUES):
            # Others in the same loop go on meanwhile.
            return await asyncio.to_thread(self._read_now, result, duration_ms, attempt)
        return self._read_now(result, duration_ms, attempt)

    def _read_now(self, result: dict[str, Any], duration_ms: float, attempt: int) -> CallResult:
        found = read_result(result, duration_ms, self.settings.limits)
        warnings = [*found.warnings, *self._output_warnings(found)]
        return replace(found, warnings=warnings, attempts=attempt)

    def _output_warnings(self, found: CallResult) -> Sequence[str]:
        """Output that does not match is delivered all the same (D14); errors need not (D13)."""
        schema = self.tool.output_schema if self.tool else None
        if schema is None or not found.ok:
            return []
        warning = check_output(schema, found.structured)
        return [warning] if warning else []

    @property
    def _is_read_only(self) -> bool:
        return self.tool is not None and self.tool.read_only is True

    def _with_its_doubt(self, error: ServerError) -> ServerError:
        """Whoever wants to repeat the call reads whether it may have happened (A49)."""
        if isinstance(error, NothingSent):
            words = NOT_HAPPENED
        elif self._is_read_only or not self.ongoing.sent or _surely_not_run(error):
            return error
        else:
            words = IN_DOUBT
            error.in_doubt = True
        error.message = f"{with_full_stop(error.message)} {words}"
        error.args = (error.message,)
        return error


def _words_of(error: RpcError) -> str:
    words = f"{error.message} ({error.code})"
    addresses = addresses_in(error.data) if error.code == URL_ELICITATION_REQUIRED else []
    wish = f" It wants a person to open {', '.join(addresses)} first." if addresses else ""
    return words + wish


def _surely_not_run(error: ServerError) -> bool:
    """A gateway that gives up says nothing of the server behind it, a refusal does."""
    if isinstance(error, HttpRefusal):
        return error.status < 500
    if isinstance(error, SessionExpired):
        return error.not_run
    # No connection came about; but what answers in no protocol may have done it all the same.
    never_reached = isinstance(error, ServerUnavailable) and not isinstance(error, NotMcp)
    return never_reached or isinstance(error, NothingSent | LoginRequired)


def timed_out(clock: Clock, *, in_doubt: bool) -> CallTimedOut:
    words = f"The call got no answer within {clock.words()}."
    error = CallTimedOut(
        f"{words} {IN_DOUBT}" if in_doubt else words,
        "Raise the limit if the server needs longer.",
    )
    error.in_doubt = in_doubt
    return error


def _ms_since(start: float) -> float:
    return (time.monotonic() - start) * 1000
