"""Questions that servers put while they work, in every revision."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.mcp import calls
from servers.mcp.client import connect
from servers.mcp.elicitation import (
    MAX_FORM,
    MAX_MESSAGE,
    MAX_REFUSED,
    MAX_WAITING,
    Questions,
    capabilities,
    default_answer,
    fault_of_answer,
    read_question,
)
from servers.mcp.types import Answer, CallTimedOut, Question
from tests.fakes.mcp_helpers import Recorder, http_settings, reached
from tests.fakes.mcp_http import FakeHttp
from tests.fakes.mcp_server import Behaviour, Message

ASKING = ("stdio", "events", "sse")  # where a legacy server can ask in the middle of a call
MODERN = ("stdio modern", "json modern", "events modern")
NAME = {"type": "string", "title": "Your name"}


def form(properties: Message, required: list[str] | None = None) -> Message:
    schema: Message = {"type": "object", "properties": properties}
    if required is not None:
        schema["required"] = required
    return {"message": "Who are you?", "requestedSchema": schema}


def question(params: Message) -> Message:
    return {"method": "elicitation/create", "params": params}


async def answer_of(connection: Any, way: str, params: Message, **options: Any) -> Message:
    """What the server got for an answer, whichever way it asks in its revision."""
    if "modern" in way:
        arguments = {"requests": {"q": question(params)}}
        found = json.loads((await connection.call_tool("form", arguments, **options)).text)
        return dict(found[0]["q"])
    asked = await connection.call_tool("ask", question(params), **options)
    return dict(json.loads(asked.text))


class Person:
    """Gives the same answer to every question."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.mark.parametrize("way", [*ASKING, *MODERN])
async def test_nobody_answers_with_the_defaults_where_all_required_fields_have_one(
    way: str,
) -> None:
    """Conformance `elicitation-sep1034-client-defaults`; P5."""
    observer = Recorder()
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive"], "default": "active"},
        "verified": {"type": "boolean", "default": False},
        "nickname": {"type": "string"},
    }
    async with reached(way, observer=observer) as connection:
        answer = await answer_of(connection, way, form(fields, ["name", "verified"]))
    assert answer == {
        "action": "accept",
        "content": {
            "name": "John Doe",
            "age": 30,
            "score": 95.5,
            "status": "active",
            "verified": False,
        },
    }
    assert observer.notices == [
        "The server asked “Who are you?”; accepted with its defaults, since nobody could be asked."
    ]


@pytest.mark.parametrize(
    "params",
    [
        form({"name": NAME}, ["name"]),
        form({"name": {**NAME, "default": None}}, ["name"]),
        form({"name": {**NAME, "default": 5}}),
        form({"age": {"type": "integer", "default": 30, "maximum": 20}}),
        form({"name": NAME}),
        form({}),
        form({"a": {"type": "string", "default": "x"}}, ["a", "missing"]),
        {"message": "Delete everything?"},
        {},
        {"message": 5, "requestedSchema": "no"},
    ],
)
@pytest.mark.parametrize("way", ["stdio", "stdio modern"])
async def test_everything_else_is_declined_when_nobody_is_there(way: str, params: Message) -> None:
    """Consent that the form itself does not hold is nobody's to give."""
    observer = Recorder()
    async with reached(way, observer=observer) as connection:
        assert await answer_of(connection, way, params) == {"action": "decline"}
    assert len(observer.notices) == 1
    assert observer.notices[0].endswith("; declined, since nobody could be asked.")


@pytest.mark.parametrize("way", [*ASKING, *MODERN])
async def test_a_person_answers(way: str) -> None:
    """Issue 3, section 5."""
    observer = Recorder()
    person = Person(Answer("accept", {"name": "Ada"}))
    async with reached(way, observer=observer, ask=person) as connection:
        answer = await answer_of(connection, way, form({"name": NAME}, ["name"]))
    assert answer == {"action": "accept", "content": {"name": "Ada"}}
    assert person.asked[0].message == "Who are you?"
    assert person.asked[0].schema["properties"] == {"name": NAME}
    assert observer.notices == ["The server asked “Who are you?”; answered by a person."]


@pytest.mark.parametrize(
    ("action", "words"), [("decline", "declined"), ("cancel", "left without an answer")]
)
@pytest.mark.parametrize("way", ["stdio", "stdio modern"])
async def test_a_person_may_say_no(way: str, action: Any, words: str) -> None:
    observer = Recorder()
    async with reached(way, observer=observer, ask=Person(Answer(action))) as connection:
        fields = {"name": {**NAME, "default": "x"}}
        assert await answer_of(connection, way, form(fields)) == {"action": action}
    assert observer.notices == [f"The server asked “Who are you?”; {words} by a person."]


@pytest.mark.parametrize("content", [{}, {"name": 5}, None])
async def test_an_answer_that_does_not_fit_the_form_is_not_sent(content: Message | None) -> None:
    observer = Recorder()
    ask = Person(Answer("accept", content))
    async with reached("stdio", observer=observer, ask=ask) as connection:
        answer = await answer_of(connection, "stdio", form({"name": NAME}, ["name"]))
    assert answer == {"action": "decline"}
    assert "does not fit" in observer.notices[0]


@pytest.mark.parametrize("way", ["stdio", "events", "sse", "stdio modern", "events modern"])
async def test_a_persons_time_does_not_count_into_the_call(way: str) -> None:
    """The call's limit stands still while somebody thinks."""

    async def think(question: Question) -> Answer:
        await asyncio.sleep(0.6)
        return Answer("decline")

    async with reached(way, ask=think) as connection:
        answer = await answer_of(connection, way, form({"name": NAME}), timeout=0.4)
    assert answer == {"action": "decline"}


@pytest.mark.parametrize("way", ["stdio", "stdio modern"])
async def test_nobody_may_think_beyond_the_end_of_the_run(way: str) -> None:
    async def think(question: Question) -> Answer:
        await asyncio.Event().wait()
        return Answer("decline")

    deadline = asyncio.get_running_loop().time() + 0.5
    async with reached(way, ask=think) as connection:
        with pytest.raises(CallTimedOut, match="the time left of the run"):
            await answer_of(connection, way, form({"name": NAME}), deadline=deadline)


async def test_questions_are_put_one_after_the_other() -> None:
    """Two prompts at once would mix on a terminal."""
    at_once: list[int] = []
    open_questions = 0

    async def think(question: Question) -> Answer:
        nonlocal open_questions
        open_questions += 1
        at_once.append(open_questions)
        await asyncio.sleep(0)
        open_questions -= 1
        return Answer("decline")

    async with reached("stdio", ask=think) as connection:
        answers = await asyncio.gather(
            *(answer_of(connection, "stdio", form({"name": NAME})) for _ in range(5))
        )
    assert answers == [{"action": "decline"}] * 5
    assert at_once == [1] * 5


async def test_more_questions_than_anybody_answers_are_declined() -> None:
    """F06: a server cannot pile up questions without end."""
    everybody = asyncio.Event()

    async def think(question: Question) -> Answer:
        await everybody.wait()
        return Answer("cancel")

    notices: list[str] = []
    questions = Questions(think, notices.append)
    params = form({"name": NAME})
    waiting = [asyncio.create_task(questions.answer(params, [])) for _ in range(MAX_WAITING)]
    await asyncio.sleep(0)
    assert await questions.answer(params, []) == {"action": "decline"}
    assert notices == ["The server asked “Who are you?”; declined: too many questions wait."]
    everybody.set()
    assert await asyncio.gather(*waiting) == [{"action": "cancel"}] * MAX_WAITING


@pytest.mark.parametrize("method", ["sampling/createMessage", "roots/list"])
async def test_what_is_not_offered_is_refused_on_the_record(method: str) -> None:
    """Section 1 of issue 3."""
    observer = Recorder()
    async with reached("stdio", observer=observer) as connection:
        answer = json.loads((await connection.call_tool("ask", {"method": method})).text)
    assert "does not offer" in answer["error"]["message"]
    assert observer.notices == [f"The server asked for {method}, which Umpteenth does not offer."]


async def test_a_flood_of_what_is_not_offered_is_told_once() -> None:
    """F06's neighbour: each request is refused, the record stays short."""
    notices: list[str] = []
    questions = Questions(None, notices.append)
    for number in range(1000):
        questions.refused("sampling/createMessage")
        questions.refused(f"method {number}")
    assert notices.count(notices[0]) == 1
    assert len(notices) == MAX_REFUSED


async def test_a_ping_is_answered_without_a_word() -> None:
    observer = Recorder()
    async with reached("stdio", observer=observer) as connection:
        assert json.loads((await connection.call_tool("ask", {"method": "ping"})).text) == {}
    assert observer.notices == []


@pytest.mark.parametrize("way", MODERN)
async def test_a_tool_may_ask_in_several_rounds(way: str) -> None:
    """Spec 2026-07-28, input required: the state comes back as it was."""
    person = Person(Answer("accept", {"name": "a"}), Answer("accept", {"name": "b"}))
    arguments = {"rounds": 2, "requests": {"q": question(form({"name": NAME}))}}
    async with reached(way, ask=person) as connection:
        result = await connection.call_tool("form", arguments)
    assert [each["q"]["content"]["name"] for each in json.loads(result.text)] == ["a", "b"]


async def test_a_tool_that_only_wants_to_be_asked_again_is() -> None:
    """A state without requests."""
    async with reached("stdio modern") as connection:
        result = await connection.call_tool("form", {"rounds": 3, "requests": None})
    assert json.loads(result.text) == []


@pytest.mark.parametrize("requests", [None, {"q": question(form({"name": NAME}))}])
async def test_a_tool_that_asks_for_ever_is_left(
    requests: Message | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_PAUSE", 0)
    async with reached("stdio modern") as connection:
        result = await connection.call_tool("form", {"rounds": 99, "requests": requests})
        assert json.loads((await connection.call_tool("calls", {})).text)["form"] == 11
    assert not result.ok
    assert result.error == "The tool asked for input more than 10 times; it was left."


@pytest.mark.parametrize(
    ("request_", "shown"),
    [
        ({"method": "sampling/createMessage", "params": {}}, "sampling/createMessage"),
        ({"method": "roots/list"}, "roots/list"),
        ({}, "None"),
        ("odd", "None"),
    ],
)
async def test_input_that_is_not_offered_ends_the_call(request_: Any, shown: str) -> None:
    observer = Recorder()
    async with reached("stdio modern", observer=observer) as connection:
        result = await connection.call_tool("form", {"requests": {"q": request_}})
    assert (result.ok, result.error) == (
        False,
        f"The tool asks for {shown}, which Umpteenth does not offer.",
    )
    assert len(observer.notices) == 1


async def test_servers_are_told_what_is_offered_in_the_shape_of_their_revision() -> None:
    """Spec 2025-06-18 and 2025-11-25, client/elicitation, "Capabilities"."""
    behaviour = Behaviour(versions=["2024-11-05"], refuse_unknown_version=True)
    async with FakeHttp(behaviour) as server:
        async with connect(http_settings(server.url)):
            pass
        declared = {
            request.message["params"].get("protocolVersion"): request.message["params"][
                "capabilities"
            ]
            for request in server.requests
            if request.rpc == "initialize"
        }
    assert declared == {
        "2025-11-25": {"elicitation": {"form": {}}},
        "2025-06-18": {"elicitation": {}},
        "2025-03-26": {},
        "2024-11-05": {},
    }
    assert capabilities(None) == {}
    assert capabilities("2026-07-28") == {"elicitation": {"form": {}}}


def test_a_question_is_cleaned_and_bounded() -> None:
    """A28: all of it is the server's own text."""
    found = read_question(
        {
            "message": "a\x1b[31mb" + "x" * 10_000,
            "requestedSchema": {"properties": {"n\x00": {"title": "\u202eevil"}}},
        }
    )
    assert found.message.startswith("abxx")
    assert len(found.message) == MAX_MESSAGE
    assert found.schema == {"properties": {"n": {"title": "evil"}}}


def test_a_question_with_an_address_has_no_form() -> None:
    """Spec 2025-11-25, URL mode."""
    found = read_question({"mode": "url", "url": "https://h/\x07x", "message": "m"})
    assert found == Question("m", {}, "https://h/x")
    assert default_answer(found) == Answer("decline")
    assert fault_of_answer(Answer("accept"), found) == ""


@pytest.mark.parametrize(
    ("data", "wish"),
    [
        (
            {"elicitations": [{"mode": "url", "url": "https://h/sign-in", "message": "m"}]},
            " It wants a person to open https://h/sign-in first.",
        ),
        ({"elicitations": [{"mode": "form"}, 5]}, ""),
        ({"elicitations": "x"}, ""),
        (None, ""),
    ],
)
async def test_a_tool_that_needs_a_visit_first_says_where(data: Any, wish: str) -> None:
    """Spec 2025-11-25, client/elicitation, "URL Elicitation Required Error"."""
    error = {"code": -32042, "message": "Sign in first", "data": data}
    async with reached("stdio") as connection:
        result = await connection.call_tool("rpc_error", error)
    assert result.error == f"Sign in first (-32042){wish}"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "properties", "required", "default", "enum", "a"]), inner
        )
    ),
    max_leaves=12,
)


@given(params=st.dictionaries(st.sampled_from(["message", "requestedSchema", "mode", "url"]), JSON))
def test_no_shape_of_a_question_breaks_the_answer(params: Message) -> None:
    """D08: an accepted form always fits what was asked for."""
    found = read_question(params)
    answer = default_answer(found)
    assert answer.action in ("accept", "decline")
    assert fault_of_answer(answer, found) == ""


@pytest.mark.parametrize("way", ["stdio", "events modern"])
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {f"p{number}": {} for number in range(20_000)}},
        {"description": "x" * MAX_FORM},
        {"properties": json.loads('{"a":' * 40 + "1" + "}" * 40)},
    ],
    ids=["values", "bytes", "depth"],
)
async def test_a_form_without_measure_is_declined_unread(way: str, schema: Message) -> None:
    """A43: the person is not bothered with it either."""
    observer, person = Recorder(), Person(Answer("accept", {}))
    async with reached(way, observer=observer, ask=person) as connection:
        asked = {"message": "?", "requestedSchema": schema}
        assert await answer_of(connection, way, asked) == {"action": "decline"}
    assert person.asked == []
    assert observer.notices == ["The server asked with a form that is too large; declined."]
