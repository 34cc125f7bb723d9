"""One call outside of any run: the server's policy, its own checks, secrets out of the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from secrets_vault.services import set_secret
from servers import calling, inflight
from servers.mcp.types import Answer, InvalidArguments, Question, ServerError
from servers.models import CallTicket
from servers.policy import Policy
from tests.fakes.mcp_http import FakeHttp, Reply, Request, running
from tests.fakes.mcp_server import Behaviour, object_schema
from tests.fakes.server_rows import http_server

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def fake() -> Iterator[FakeHttp]:
    with running(FakeHttp(Behaviour(), answer="sse")) as server:
        yield server


def call(fake: FakeHttp, tool: str, arguments: dict[str, Any], **options: Any) -> Any:
    policy = options.pop("policy", None)
    server = http_server("fake", options.pop("headers", None), url=fake.url, policy=policy)
    return asyncio.run(calling.call_once(server, tool, arguments, **options))


def test_a_blocked_tool_is_not_called(fake: FakeHttp) -> None:
    """A12-A15: the command line is bound by the server's policy like a run."""
    policy = Policy(blocked_tools=("count",))
    with pytest.raises(ServerError, match="count was not called: the server's policy blocks it"):
        call(fake, "count", {}, policy=policy)
    assert "tools/call" not in fake.rpcs()


def test_a_tool_that_is_not_allowed_is_not_called_even_unlisted(fake: FakeHttp) -> None:
    fake.fake.behaviour.list_error = -32603
    with pytest.raises(ServerError, match="not among the server's allowed tools"):
        call(fake, "count", {}, policy=Policy(allowed_tools=("echo",)))
    assert "tools/call" not in fake.rpcs()


def test_who_calls_from_the_command_line_is_a_creator(fake: FakeHttp) -> None:
    """A29-A31: what is risky is for people, and a person is there."""
    policy = Policy(trust="guarded")
    assert call(fake, "exit_not", {}, policy=policy).error.startswith("Unknown tool")
    with pytest.raises(ServerError, match="keeps it for runs started by public"):
        call_again(fake, Policy(trust="guarded", tool_levels={"echo": ("public",)}))


def call_again(fake: FakeHttp, policy: Policy) -> None:
    server = http_server("again", url=fake.url, policy=policy)
    asyncio.run(calling.call_once(server, "echo", {}))


def test_a_server_that_does_not_list_can_still_be_called(fake: FakeHttp) -> None:
    fake.fake.behaviour.list_error = -32603
    assert call(fake, "echo", {"a": 1}).structured == {"a": 1}


def test_arguments_are_checked_against_the_tools_schema(fake: FakeHttp) -> None:
    schema = {**object_schema(id={"type": "integer"}), "required": ["id"]}
    fake.fake.behaviour.tools = [{"name": "echo", "inputSchema": schema}]
    with pytest.raises(InvalidArguments, match="id"):
        call(fake, "echo", {})
    assert "tools/call" not in fake.rpcs()


def test_a_person_is_asked(fake: FakeHttp) -> None:
    """Issue 3, section 5."""

    async def ask(question: Question) -> Answer:
        return Answer("accept", {"name": "Ada"})

    params = {"message": "Who?", "requestedSchema": object_schema(name={"type": "string"})}
    arguments = {"method": "elicitation/create", "params": params}
    assert '"Ada"' in call(fake, "ask", arguments, ask=ask).text


def test_a_secret_never_comes_back(fake: FakeHttp) -> None:
    """E11: in no part of the answer, and in no error."""
    set_secret(actor=None, name="KEY", value="canary-value-1")
    headers = {"X-Api-Key": "{{secret:KEY}}"}
    result = call(fake, "headers", {}, headers=headers)
    assert "canary" not in repr(result)
    assert "KEY" in result.text


def test_a_secret_in_an_error_is_masked() -> None:
    set_secret(actor=None, name="KEY", value="canary-value-1")

    def script(request: Request) -> Any:
        return Reply(500, {"content-type": "text/plain"}, request.headers["x-key"].encode())

    with running(FakeHttp(script=script)) as server, pytest.raises(ServerError) as caught:
        call(server, "echo", {}, headers={"X-Key": "{{secret:KEY}}"})
    assert "500" in str(caught.value)
    assert "canary" not in f"{caught.value} {caught.value.message} {caught.value.hint}"


def test_a_busy_server_is_waited_for_within_the_calls_limit(fake: FakeHttp) -> None:
    """U5: the command line waits in the same line as runs."""
    server = http_server("busy", url=fake.url, options={"max_inflight_calls": 1})
    inflight.store().turn(server.pk, "a run", limit=1, take=1)
    with pytest.raises(ServerError, match=r"busy was busy with other calls.*nothing was sent"):
        asyncio.run(calling.call_once(server, "echo", {}, timeout=0.05))
    assert "tools/call" not in fake.rpcs()
    inflight.drop("a run")
    asyncio.run(calling.call_once(server, "echo", {}))
    assert not CallTicket.objects.exists()
