"""`umpteenth mcp enable` and `disable`, and what a disabled server is still good for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from servers import calling
from servers.models import Server
from tests.fakes.mcp_http import FakeHttp, running
from tests.fakes.mcp_server import Behaviour
from tests.fakes.server_rows import http_server
from umpteenth.accounts.models import AuditEntry
from umpteenth.cli import mcp, mcp_call, mcp_switch

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _no_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mcp, mcp_call, mcp_switch):
        monkeypatch.setattr(module, "setup", lambda: None)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, arguments)


def test_a_server_is_switched_off_and_on_again() -> None:
    """P59: the same switch as on its page, with the same entry in the audit log."""
    http_server()
    assert run("disable", "github").stdout == "Disabled github.\n"
    assert not Server.objects.get().enabled
    assert run("disable", "github").stdout == "github was disabled already.\n"
    assert json.loads(run("enable", "github", "--json").stdout)["enabled"] is True
    assert Server.objects.get().enabled
    assert run("enable", "github").stdout == "github was enabled already.\n"
    actions = AuditEntry.objects.filter(action__in=("server.enable", "server.disable"))
    assert actions.count() == 2


@pytest.mark.parametrize("word", ["enable", "disable"])
def test_an_unknown_server_cannot_be_switched(word: str) -> None:
    result = run(word, "nowhere")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no MCP server named nowhere" in result.stderr


@pytest.mark.django_db(transaction=True)
def test_a_disabled_server_is_not_called_and_the_next_step_is_named() -> None:
    """A58: `mcp test` stays possible, nothing else contacts it."""
    with running(FakeHttp(Behaviour())) as fake:
        server = http_server("fake", url=fake.url)
        run("disable", "fake")
        result = run("call", "fake", "echo", "{}")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "fake is disabled; nothing was sent. Enable it with: umpteenth mcp enable fake" in (
            result.stderr
        )
        assert json.loads(run("call", "fake", "echo", "--json").stdout)["ok"] is False
        assert fake.rpcs() == []
        run("enable", "fake")
        server.refresh_from_db()
        assert _call(server).ok


def _call(server: Server) -> Any:
    return asyncio.run(calling.call_once(server, "echo", {}))
