"""Runs whose servers want a login: tokens are renewed under way and shown nowhere (P43, P71)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from jobs.models import Attachment, Job, Run, RunEvent
from servers.mcp import client
from servers.models import Login, Server
from tests.fakes.executions import UMP, execute, without_a_machine
from tests.fakes.mcp_http import JSON, Reply, Request
from tests.fakes.oauth_logins import logged_in_at, login_of
from tests.fakes.oauth_server import OAuthServer, running
from tests.fakes.runs import make_job, output_of, payloads_of

pytestmark = pytest.mark.django_db(transaction=True)

OVER = timedelta(seconds=-1)
CALL = "ump mcp call hosted echo '{}' || echo failed\n"


@pytest.fixture(autouse=True)
def _real_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    real = client.connect
    without_a_machine(monkeypatch)
    monkeypatch.setattr(client, "connect", real)


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def job_with(server: Server, script: str = CALL) -> Job:
    job = make_job(script=UMP + script)
    Attachment.objects.create(job=job, server=server)
    return job


def reason_of(run: Run) -> str:
    [event] = payloads_of(run, "server.unavailable")
    assert event["message"] == "MCP server hosted is unavailable"
    return str(event["reason"])


def told(run: Run) -> str:
    """All that people can read of a run."""
    events = RunEvent.objects.filter(run=run).values_list("payload", flat=True)
    return json.dumps(list(events)) + run.error + run.summary


def test_a_run_after_the_access_token_has_expired_works(fake: OAuthServer) -> None:
    """P44."""
    run = execute(job_with(logged_in_at(fake, lasts=OVER)))
    assert (run.status, output_of(run)) == ("succeeded", "{}\n")
    assert fake.grants.outcomes == [("refresh_token", "ok")]


def test_a_login_that_is_over_is_named_and_the_run_goes_on(fake: OAuthServer) -> None:
    """P71."""
    run = execute(job_with(logged_in_at(fake, lasts=OVER, refresh=False)))
    assert reason_of(run) == "The OAuth login expired. Log in again under MCP Servers."
    assert (run.status, output_of(run)) == ("succeeded", "failed\n")
    assert fake.mcp.requests == []


def test_a_refresh_token_that_was_taken_back_is_told_in_the_same_words(fake: OAuthServer) -> None:
    """P47, P71: found out as the run connects."""
    server = logged_in_at(fake, lasts=OVER)
    fake.grants.revoke_all()
    run = execute(job_with(server))
    assert reason_of(run) == "The OAuth login expired. Log in again under MCP Servers."
    [event] = payloads_of(run, "server.unavailable")
    assert "The refresh token is revoked" in event["hint"]
    assert "(invalid_grant)" in event["hint"]
    server.refresh_from_db()
    assert server.state == Server.State.LOGIN_REQUIRED


def test_a_provider_that_is_away_is_told_with_its_reason(fake: OAuthServer) -> None:
    server = logged_in_at(fake, lasts=OVER)
    fake.variant.replies = {"/token": Reply(503)}
    run = execute(job_with(server))
    assert "could not be refreshed" in reason_of(run)
    assert "503" in reason_of(run)
    assert not login_of(server).row.ended


def test_a_server_that_refuses_every_token_costs_a_run_one_refresh(fake: OAuthServer) -> None:
    """A36."""
    server = logged_in_at(fake)
    fake.variant.refuses_every_token = True
    run = execute(job_with(server, CALL * 3))
    assert "refused the OAuth login: 401" in reason_of(run)
    assert fake.count("token") == 1
    assert login_of(server).row.ended == Login.Ended.REFUSED


def test_no_token_is_shown_even_where_the_server_sends_it_back(fake: OAuthServer) -> None:
    """P43: the first one, and the one that follows while the run is under way."""

    def betray(request: Request) -> Reply | None:
        if request.rpc != "tools/call" or fake.grants.family_of(bearer(request)) is None:
            return None
        said = f"{request.headers['authorization']} {fake.grants.families[0].refresh}"
        result = {"content": [{"type": "text", "text": said}]}
        answer = {"jsonrpc": "2.0", "id": request.message["id"], "result": result}
        if len(fake.grants.outcomes) == 0:
            fake.grants.expire_access_tokens()
        return Reply(200, {"content-type": JSON}, json.dumps(answer).encode())

    server = logged_in_at(fake)
    fake.variant.replies = {"/mcp": betray}
    run = execute(job_with(server, CALL * 2))
    assert fake.count("token") == 1
    shown = told(run) + output_of(run)
    assert shown.count("[secret access token of hosted]") >= 2
    assert "[secret refresh token of hosted]" in shown
    assert not [secret for secret in fake.grants.secrets if secret in shown]


def bearer(request: Request) -> str:
    return request.headers.get("authorization", "").partition(" ")[2]


def test_a_call_that_lacks_rights_fails_and_says_which(fake: OAuthServer) -> None:
    server = logged_in_at(fake)
    fake.variant.tool_scopes = {"echo": "mcp:write"}
    run = execute(job_with(server))
    assert (run.status, output_of(run)) == ("succeeded", "failed\n")
    [result] = payloads_of(run, "tool.result")
    assert not result["ok"]
    assert "Log in again for more rights under MCP Servers" in result["error"]
    assert "mcp:write" in result["error"]
    assert "may have happened" not in result["error"]
    server.refresh_from_db()
    assert server.oauth_wanted == "mcp:write"
    assert not login_of(server).row.ended
