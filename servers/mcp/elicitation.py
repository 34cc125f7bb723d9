"""Questions that servers put while they work (elicitation; input required).

A person answers where one is there, and the answer must match the form that was asked for. Else a
form whose required fields all have defaults is accepted with them, and any other is declined. All
of it goes on the record. Spec 2025-11-25, client/elicitation; SEP-1034 for defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from servers.limits import KIB, STRICT
from servers.mcp.clocks import Clock
from servers.mcp.schema_cost import measure
from servers.mcp.schemas import check_arguments
from servers.mcp.types import Answer, Asker, Question
from umpteenth.core.text import clean, clean_json

ELICITATION: Final = "elicitation/create"
MAX_MESSAGE: Final = 2000  # characters of a question
MAX_FORM: Final = 64 * KIB  # of its schema as JSON
MAX_SHOWN: Final = 200  # of them in a notice
MAX_ADDRESS: Final = 2000
MAX_ADDRESSES: Final = 5
# A question is short; its form is held to the strict measure whatever the server's profile.
FORM_LIMITS: Final = STRICT
MAX_REFUSED: Final = 20  # methods that are not offered and told of
MAX_WAITING: Final = 20  # questions of one server that wait for a person; more are declined

DECLINE: Final = Answer("decline")
Notice = Callable[[str], None]


def capabilities(version: str | None) -> dict[str, Any]:
    """What a client declares to a server of this revision; None where none is named."""
    if version is None or version < "2025-06-18":
        return {}
    return {"elicitation": {} if version == "2025-06-18" else {"form": {}}}


class Questions:
    """The questions of one connection, put to the person one after the other."""

    def __init__(self, ask: Asker | None, notice: Notice) -> None:
        self._ask = ask
        self._notice = notice
        self._ignored = False
        self._refused: set[str] = set()
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def answer(self, params: Mapping[str, Any], clocks: Sequence[Clock]) -> dict[str, Any]:
        """The result of an `elicitation/create`; `clocks` stand still while a person thinks."""
        if is_too_large(params.get("requestedSchema")):
            self._notice("The server asked with a form that is too large; declined.")
            return {"action": DECLINE.action}
        question = read_question(params)
        answer = await self._answer_somehow(question, clocks)
        result: dict[str, Any] = {"action": answer.action}
        if answer.action == "accept" and not question.url:
            result["content"] = answer.content or {}
        return result

    def refused(self, method: str) -> None:
        """On the record once for each method: a server may ask thousands of times."""
        if method not in self._refused and len(self._refused) < MAX_REFUSED:
            self._refused.add(method)
            self._notice(f"The server asked for {method}, which Umpteenth does not offer.")

    def ignored(self, method: str) -> None:
        """From 2026-07-28 on servers ask within results only; once tells it all."""
        if not self._ignored:
            shown = clean(method, 100)
            self._notice(
                f"The server sent the request {shown}, for which its protocol revision has no "
                "place; it got no answer."
            )
        self._ignored = True

    async def _answer_somehow(self, question: Question, clocks: Sequence[Clock]) -> Answer:
        shown = clean(" ".join(question.message.split()), MAX_SHOWN) or "nothing in words"
        if self._ask is None:
            answer = default_answer(question)
            how = "accepted with its defaults" if answer.action == "accept" else "declined"
            how += ", since nobody could be asked"
        elif self._waiting >= MAX_WAITING:
            answer, how = DECLINE, "declined: too many questions wait"
        else:
            answer, how = await self._answer_of_person(self._ask, question, clocks)
        self._notice(f"The server asked “{shown}”; {how}.")
        return answer

    async def _answer_of_person(
        self, ask: Asker, question: Question, clocks: Sequence[Clock]
    ) -> tuple[Answer, str]:
        self._waiting += 1
        try:
            with _standing_still(clocks):
                async with self._turn:
                    answer = await ask(question)
        finally:
            self._waiting -= 1
        fault = fault_of_answer(answer, question)
        if fault:
            return DECLINE, f"declined, since the answer does not fit: {fault}"
        words = {"accept": "answered", "decline": "declined", "cancel": "left without an answer"}
        return answer, f"{words[answer.action]} by a person"


def read_question(params: Mapping[str, Any]) -> Question:
    """A question from its raw parameters, whatever shape they have."""
    message, schema, url = (params.get(key) for key in ("message", "requestedSchema", "url"))
    by_url = params.get("mode") == "url" or (isinstance(url, str) and not schema)
    return Question(
        message=clean(message, MAX_MESSAGE) if isinstance(message, str) else "",
        schema=clean_json(schema) if isinstance(schema, dict) and not by_url else {},
        url=clean(url, MAX_ADDRESS) if isinstance(url, str) and by_url else "",
    )


def is_too_large(form: Any) -> bool:
    size = measure(form, max_depth=FORM_LIMITS.depth, max_nodes=FORM_LIMITS.nodes)
    if size.depth > FORM_LIMITS.depth or size.nodes > FORM_LIMITS.nodes:
        return True
    return len(json.dumps(form)) > MAX_FORM


def addresses_in(data: Any) -> list[str]:
    """Where an error wants a person to go first (URL_ELICITATION_REQUIRED), as far as shown."""
    items = data.get("elicitations") if isinstance(data, dict) else None
    questions = [
        read_question(item)
        for item in (items[:MAX_WAITING] if isinstance(items, list) else ())
        if isinstance(item, dict) and not is_too_large(item)
    ]
    return [question.url for question in questions if question.url][:MAX_ADDRESSES]


def default_answer(question: Question) -> Answer:
    """Without a person: the form's own defaults where every required field has one, else no."""
    if question.url:
        return DECLINE
    defaults = {
        name: field["default"]
        for name, field in fields_of(question).items()
        if field.get("default") is not None
    }
    # Consent that the form itself does not hold is nobody's to give.
    complete = bool(defaults) and all(name in defaults for name in required_of(question))
    answer = Answer("accept", defaults)
    return answer if complete and not fault_of_answer(answer, question) else DECLINE


def fields_of(question: Question) -> dict[str, dict[str, Any]]:
    """The fields of the form by name, in the server's order."""
    properties = question.schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: field for name, field in properties.items() if isinstance(field, dict)}


def required_of(question: Question) -> list[str]:
    required = question.schema.get("required")
    return (
        [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    )


def fault_of_answer(answer: Answer, question: Question) -> str:
    """Why an accepted form does not match what was asked for; empty if it does."""
    if answer.action != "accept" or question.url:
        return ""
    return check_arguments(question.schema, answer.content or {}, FORM_LIMITS)


@contextlib.contextmanager
def _standing_still(clocks: Sequence[Clock]) -> Iterator[None]:
    for clock in clocks:
        clock.pause()
    try:
        yield
    finally:
        for clock in clocks:
            clock.resume()
