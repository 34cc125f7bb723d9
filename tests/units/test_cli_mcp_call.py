"""`umpteenth mcp call`: what happens on the way appears on standard error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from servers.policy import Policy
from tests.fakes.mcp_http import FakeHttp, running
from tests.fakes.mcp_server import Behaviour, object_schema
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.server_rows import http_server
from umpteenth.cli import mcp, mcp_call
from umpteenth.cli.mcp_call import ProgressLine

pytestmark = pytest.mark.django_db(transaction=True)

STEPS = '{"steps": 2, "interval": 0}'


@pytest.fixture(autouse=True)
def _no_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_call, "setup", lambda: None)


@pytest.fixture
def fake() -> Iterator[FakeHttp]:
    with running(FakeHttp(Behaviour(), answer="sse")) as server:
        yield server


def call(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, ("call", "fake", *arguments))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ech", "The server lists no tool 'ech'. Near it: echo."),
        ("ECHO\x1b[2J", "The server lists no tool"),
        ("zzz", "The server lists no tool 'zzz'. It lists echo,"),
    ],
)
def test_an_unknown_tool_is_answered_with_those_that_there_are(
    fake: FakeHttp, name: str, words: str
) -> None:
    """It is sent all the same: a server need not list all that it has."""
    http_server("fake", url=fake.url)
    result = call(name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Warning: {words}" in result.stderr
    assert "\x1b" not in result.stderr
    assert len(result.stderr) < 500
    assert "tools/call" in fake.rpcs()


def test_a_listed_tool_that_fails_is_not_looked_for(fake: FakeHttp) -> None:
    http_server("fake", url=fake.url)
    assert "lists no tool" not in call("fail").stderr


def test_a_question_that_nobody_could_be_asked_is_noted(fake: FakeHttp) -> None:
    """Issue 3, section 5: standard output holds the answer alone."""
    http_server("fake", url=fake.url)
    params = {"message": "Who?", "requestedSchema": object_schema(name={"type": "string"})}
    asked = json.dumps({"method": "elicitation/create", "params": params})
    result = call("ask", asked, "--json")
    assert result.stderr == (
        "Note: The server asked “Who?”; declined, since nobody could be asked.\n"
    )
    assert json.loads(result.stdout)["ok"] is True


def test_a_token_that_cannot_be_sent_is_noted(fake: FakeHttp) -> None:
    """U27."""
    http_server("fake", url=fake.url, options={"token_ref": "@NOWHERE"})
    result = call("echo")
    assert result.exit_code == 0
    assert "Note: token_ref @NOWHERE is left out" in result.stderr


def test_a_tool_that_the_policy_keeps_is_refused_with_a_way_out(fake: FakeHttp) -> None:
    http_server("fake", url=fake.url, policy=Policy(blocked_tools=("echo",)))
    assert "the tool policy on the server's page" in call("echo").stderr


def test_a_login_that_is_missing_is_told_in_sentences() -> None:
    """P71."""
    with running(OAuthServer(Variant())) as provider:
        http_server("fake", url=provider.url)
        words = call("echo").stderr
    assert "401 Unauthorized: invalid_token. Log in under MCP Servers, add an" in words


def test_progress_is_shown_on_a_terminal_only(
    fake: FakeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    http_server("fake", url=fake.url)
    assert "step" not in call("progress", STEPS).stderr
    shown: list[Any] = []

    async def show(self: ProgressLine, progress: float, total: Any, message: Any) -> None:
        shown.append((progress, total, message))

    monkeypatch.setattr(mcp_call, "is_screen", lambda: True)
    monkeypatch.setattr(ProgressLine, "show", show)
    assert call("progress", STEPS).exit_code == 0
    assert (1.0, None, "step 1") in shown or (2.0, None, "step 2") in shown


def test_each_progress_takes_the_place_of_the_last(capsys: pytest.CaptureFixture[str]) -> None:
    """In plain characters, whatever the server wrote, and gone before the answer."""
    line = ProgressLine()
    asyncio.run(line.show(1.0, None, None))
    asyncio.run(line.show(2.5, 10.0, "half\nway\x1b]0;title\x07"))
    line.note("The server asked “Who?”; declined.")
    line.clear()
    assert capsys.readouterr().err == (
        "\r\x1b[K1\r\x1b[K2.5 of 10: half way\r\x1b[KNote: The server asked “Who?”; declined.\n"
    )
