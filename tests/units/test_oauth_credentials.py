"""The token that a connection sends: of the stored login, refreshed in time, never elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pytest
from django.utils import timezone

from secrets_vault import services as vault
from servers.connecting import connection_settings
from servers.mcp.client import connect
from servers.mcp.types import (
    Challenge,
    ConnectionSettings,
    Credentials,
    LoginRequired,
    MoreRightsRequired,
    ServerUnavailable,
)
from servers.models import Login, Server
from servers.oauth import credentials, store
from servers.oauth.words import EXPIRED, NOT_LOGGED_IN
from servers.private import Private, private_columns
from tests.fakes.mcp_http import Reply, Request
from tests.fakes.oauth_logins import (
    CLIENT_ID,
    access_token,
    change,
    logged_in_at,
    login_of,
    server_at,
)
from tests.fakes.oauth_server import OAuthServer
from umpteenth.core.connections import closing
from umpteenth.core.masking import known_values

pytestmark = pytest.mark.django_db(transaction=True)

T = TypeVar("T")
OVER = timedelta(seconds=-1)
HOUR = timedelta(hours=1)


@pytest.fixture
async def fake() -> AsyncIterator[OAuthServer]:
    async with OAuthServer() as server:
        yield server


async def in_thread(work: partial[T]) -> T:
    """The database's calls, away from the event loop."""
    return await asyncio.to_thread(closing, work)


async def prepared(
    server: Server, *, testing: bool = False
) -> tuple[ConnectionSettings, dict[str, str]]:
    def read() -> tuple[ConnectionSettings, dict[str, str]]:
        return connection_settings(Server.objects.get(pk=server.pk), testing=testing)

    return await in_thread(partial(read))


async def credentials_of(server: Server) -> Credentials:
    settings, _ = await prepared(server)
    assert settings.credentials is not None
    return settings.credentials


async def logged_in(fake: OAuthServer, **values: object) -> Server:
    return await in_thread(partial(logged_in_at, fake, **values))  # type: ignore[arg-type]


async def use(settings: ConnectionSettings) -> str:
    async with connect(settings) as connected:
        await connected.list_tools()
        return (await connected.call_tool("echo", {})).text


async def test_an_expired_token_is_refreshed_before_the_first_request(fake: OAuthServer) -> None:
    """P44."""
    server = await logged_in(fake, lasts=OVER)
    settings, mask = await prepared(server)
    before = await in_thread(partial(login_of, server))
    assert mask["access token of hosted"] == before.tokens.access_token
    assert mask["refresh token of hosted"] == before.tokens.refresh_token
    assert await use(settings)
    assert fake.count("token") == 1
    assert fake.count("refused") == 0


async def test_a_token_that_the_server_takes_no_more_is_refreshed_in_mid_connection(
    fake: OAuthServer,
) -> None:
    """A23: of unknown lifetime, so that only the refusal tells."""
    server = await logged_in(fake, lasts=None)
    settings, _ = await prepared(server)
    async with connect(settings) as connected:
        await connected.list_tools()
        fake.grants.expire_access_tokens()
        calls = [connected.call_tool("echo", {}) for _ in range(4)]
        assert all(result.ok for result in await asyncio.gather(*calls))
    assert fake.grants.outcomes == [("refresh_token", "ok")]


async def test_new_tokens_are_told_to_whoever_masks_before_they_are_sent(
    fake: OAuthServer,
) -> None:
    """P43."""
    server = await logged_in(fake, lasts=OVER)
    found = await credentials_of(server)
    told: dict[str, str] = {}
    found.tell(told.update)
    token = await found.token()
    assert told["access token of hosted"] == token
    assert told["refresh token of hosted"] == fake.grants.families[0].refresh
    assert token not in known_values().mask(f"sent {token}")


async def test_a_server_that_refuses_every_token_costs_one_refresh(fake: OAuthServer) -> None:
    """A36: then the login is over, also for who comes next."""
    server = await logged_in(fake)
    fake.variant.refuses_every_token = True
    settings, _ = await prepared(server)
    for _ in range(3):
        with pytest.raises(LoginRequired):
            await use(settings)
    assert fake.count("token") == 1
    row = (await in_thread(partial(login_of, server))).row
    assert row.ended == Login.Ended.REFUSED
    assert row.ended_reason == "The server refuses the tokens of the login: invalid_token"
    with pytest.raises(LoginRequired, match=EXPIRED):
        await prepared(server)


async def test_a_refresh_goes_on_where_the_run_that_asked_for_it_is_cancelled(
    fake: OAuthServer,
) -> None:
    """The provider has rotated the refresh token: its successor is saved in any case."""
    server = await logged_in(fake, lasts=OVER)
    found = await credentials_of(server)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slowly(_: Request) -> None:
        asked.set()
        await answer.wait()

    fake.variant.replies = {"/token": slowly}
    run = asyncio.create_task(found.token())
    await asked.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    answer.set()
    successor = await (await credentials_of(server)).token()
    assert fake.count("token") == 1
    stored = await in_thread(partial(login_of, server))
    assert stored.tokens.refresh_token == fake.grants.families[0].refresh
    assert successor == stored.tokens.access_token


async def test_a_log_out_counts_for_a_run_that_is_under_way(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P52: after a few seconds at most."""
    server = await logged_in(fake)
    found = await credentials_of(server)
    await in_thread(partial(Login.objects.all().delete))
    assert await found.token()
    monkeypatch.setattr(credentials, "READ_AGAIN", 0.0)
    with pytest.raises(LoginRequired, match=NOT_LOGGED_IN):
        await found.token()


async def test_a_new_login_is_used_by_a_run_that_is_under_way(
    fake: OAuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await logged_in(fake)
    found = await credentials_of(server)
    await found.given_up(await found.token(), Challenge(error_description="no"))
    with pytest.raises(LoginRequired, match=EXPIRED):
        await found.token()
    monkeypatch.setattr(credentials, "READ_AGAIN", 0.0)

    def log_in_again() -> None:
        stored = login_of(server)
        access, _ = fake.tokens(CLIENT_ID)
        secrets = replace(stored.secrets, tokens=replace(stored.tokens, access_token=access))
        store.put_login(server.pk, secrets, person=None, now=timezone.now())

    await in_thread(partial(log_in_again))
    assert await found.token() == await in_thread(partial(access_token, server))


@pytest.mark.parametrize(("ended", "lasts"), [("refused", HOUR), ("expired", HOUR), ("", OVER)])
async def test_a_login_that_is_over_stops_runs_and_is_left_out_of_tests(
    fake: OAuthServer, ended: str, lasts: timedelta
) -> None:
    """P71; a test asks the server what it wants (P36)."""
    server = await logged_in(fake, lasts=lasts, refresh=False, ended=ended)
    with pytest.raises(LoginRequired) as caught:
        await prepared(server)
    assert caught.value.message == "The OAuth login expired. Log in again under MCP Servers."
    settings, _ = await prepared(server, testing=True)
    assert settings.credentials is None
    assert settings.looks_for_login


async def test_a_login_that_no_key_opens_stops_runs_and_is_left_out_of_tests(
    fake: OAuthServer,
) -> None:
    """E09."""
    server = await logged_in(fake, key_id="gone")
    with pytest.raises(ServerUnavailable, match="cannot be decrypted"):
        await prepared(server)
    settings, _ = await prepared(server, testing=True)
    assert settings.looks_for_login


async def test_a_login_as_no_version_keeps_it_is_told_as_such(fake: OAuthServer) -> None:
    server = await logged_in(fake)

    def spoil() -> None:
        row = Login.objects.get()
        row.private, row.key_id = vault.encrypt_json({}, kind=store.KIND, row_id=row.pk)
        row.save()

    await in_thread(partial(spoil))
    with pytest.raises(ServerUnavailable, match=r"cannot be read\."):
        await prepared(server)
    assert (await prepared(server, testing=True))[0].looks_for_login


async def test_a_server_without_a_login_is_asked_without_one(fake: OAuthServer) -> None:
    """Many need none; a test looks for one (P35)."""
    server = await in_thread(partial(server_at, fake))
    settings, _ = await prepared(server)
    assert settings.credentials is None
    assert settings.looks_for_login
    with pytest.raises(LoginRequired, match="requires a login") as caught:
        await use(settings)
    assert caught.value.challenge is not None
    assert caught.value.challenge.resource_metadata.startswith(fake.server_origin)


async def test_a_login_in_use_is_not_looked_for(fake: OAuthServer) -> None:
    settings, _ = await prepared(await logged_in(fake), testing=True)
    assert settings.credentials is not None
    assert not settings.looks_for_login


@pytest.mark.parametrize("own", ["header", "token_ref"])
async def test_what_somebody_has_written_beats_the_login(fake: OAuthServer, own: str) -> None:
    """P14, P49, U26: the login is not even read."""
    server = await logged_in(fake)

    def write() -> None:
        vault.create_secret(actor=None, name="TOKEN", data=vault.SecretData("written-token"))
        values: dict[str, object] = {"options": {"token_ref": "@TOKEN"}, "token_name": "TOKEN"}
        if own == "header":
            private = Private(headers=(("Authorization", "Bearer x"),))
            values = private_columns(private, server.pk)
        Server.objects.update(**values)

    await in_thread(partial(write))
    settings, mask = await prepared(server)
    assert settings.credentials is None
    assert not settings.looks_for_login
    assert "access token of hosted" not in mask


async def test_rights_that_are_missing_are_kept_for_the_next_login(fake: OAuthServer) -> None:
    """RFC 6750, 3.1: each named once, and nothing that is no scope."""
    server = await logged_in(fake)
    fake.variant.tool_scopes = {"echo": "mcp:write files"}
    settings, _ = await prepared(server)
    for scopes in ("mcp:write files", 'files more "quoted" \\'):
        fake.variant.tool_scopes = {"echo": scopes}
        with pytest.raises(MoreRightsRequired):
            await use(settings)
    await in_thread(partial(server.refresh_from_db))
    assert server.oauth_wanted == "mcp:write files more"
    assert (await in_thread(partial(login_of, server))).row.ended == ""
    assert settings.credentials is not None
    await settings.credentials.wants_scopes(Challenge(scope="x" * 1001))
    await settings.credentials.wants_scopes(Challenge(scope=None))
    await in_thread(partial(server.refresh_from_db))
    assert server.oauth_wanted == "mcp:write files more"


async def machine_at(fake: OAuthServer, secret: str = "so-very-secret", **values: str) -> Server:
    fake.add_client("robot", secret=secret)

    def make() -> Server:
        server = server_at(
            fake, oauth_kind=Server.LoginKind.MACHINE, oauth_client_id="robot", **values
        )
        private = private_columns(Private(client_secret="so-very-secret"), server.pk)
        Server.objects.filter(pk=server.pk).update(**private)
        return server

    return await in_thread(partial(make))


async def test_a_machine_logs_in_by_itself_when_it_is_asked_to(fake: OAuthServer) -> None:
    """RFC 6749, 4.4; at the first refusal, by what the challenge says."""
    server = await machine_at(fake, oauth_scopes="read write")
    settings, _ = await prepared(server)
    assert settings.looks_for_login
    assert await use(settings)
    assert [grant for grant, _ in fake.grants.outcomes] == ["client_credentials"]
    assert fake.sent("token")[0]["scope"] == "read write"
    stored = await in_thread(partial(login_of, server))
    assert stored.secrets.machine
    assert stored.row.can_refresh
    assert stored.secrets.client.secret == ""  # the operator's, resolved anew each time
    again, mask = await prepared(server)
    assert not again.looks_for_login
    assert stored.tokens.access_token in mask.values()
    assert await use(again)
    assert fake.count("token") == 1


async def test_a_machines_expired_token_is_followed_by_another_login(fake: OAuthServer) -> None:
    """RFC 6749, 4.4.3: there is no refresh token, and none is needed."""
    server = await machine_at(fake)
    await use((await prepared(server))[0])
    await in_thread(partial(change, server, expires_at=timezone.now(), refreshed_at=None))
    assert await use((await prepared(server))[0])
    assert fake.grants.outcomes == [("client_credentials", "ok")] * 2


async def test_a_machine_asks_for_the_rights_that_it_lacked_by_itself(fake: OAuthServer) -> None:
    """Scope Challenge Handling: those that it had, and those of the refusal."""
    server = await machine_at(fake, oauth_scopes="mcp:read")
    fake.variant.tool_scopes = {"echo": "mcp:write"}
    with pytest.raises(MoreRightsRequired):
        await use((await prepared(server))[0])
    assert await use((await prepared(server))[0])
    assert [form["scope"] for form in fake.sent("token")] == ["mcp:read", "mcp:read mcp:write"]


async def test_a_machine_is_not_over_by_a_refusal_of_the_provider(fake: OAuthServer) -> None:
    """Whatever it is, somebody may mend it there or in the settings."""
    server = await machine_at(fake)
    await use((await prepared(server))[0])
    await in_thread(partial(change, server, expires_at=timezone.now(), refreshed_at=None))
    refusal = Reply(400, {"content-type": "application/json"}, b'{"error": "invalid_grant"}')
    fake.variant.replies = {"/token": refusal}
    with pytest.raises(ServerUnavailable, match="could not be refreshed"):
        await use((await prepared(server))[0])
    assert (await in_thread(partial(login_of, server))).row.ended == ""


async def test_a_machine_whose_tokens_are_refused_stops_and_may_try_later(
    fake: OAuthServer,
) -> None:
    """A36: nobody could log in again in its stead."""
    server = await machine_at(fake)
    fake.variant.refuses_every_token = True
    settings, _ = await prepared(server)
    for _ in range(3):
        with pytest.raises(LoginRequired):
            await use(settings)
    assert fake.count("token") == 1
    row = (await in_thread(partial(login_of, server))).row
    assert row.ended == ""
    assert "refuses the tokens" in row.refresh_error


async def test_a_machine_that_the_provider_does_not_know_says_what_to_look_at(
    fake: OAuthServer,
) -> None:
    server = await machine_at(fake, "another")
    with pytest.raises(LoginRequired, match=r"The client could not log in: .*refused") as caught:
        await use((await prepared(server))[0])
    assert "Client ID" in caught.value.hint


async def test_a_machine_that_finds_no_provider_may_find_one_later(fake: OAuthServer) -> None:
    server = await machine_at(fake)
    fake.variant.resource_at = ()
    fake.variant.metadata_at = ()
    with pytest.raises(ServerUnavailable, match="The client could not log in"):
        await use((await prepared(server))[0])


async def test_connections_in_one_process_share_a_refresh(fake: OAuthServer) -> None:
    """A20."""
    server = await logged_in(fake, lasts=OVER)
    settings = [(await prepared(server))[0] for _ in range(10)]
    await asyncio.gather(*(use(each) for each in settings))
    assert fake.count("token") == 1
