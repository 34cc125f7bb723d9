"""The steps of a login as pages make them, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from servers.checks import request_check, run_check
from servers.definition import HTTP, OAuthClientData, ServerData
from servers.models import Check, Login, Server
from servers.oauth.login import Outcome, begin_login, finish_login
from servers.services import create_server
from tests.fakes.oauth_server import OAuthServer, Variant, running
from umpteenth.accounts.models import User

HERE = "http://127.0.0.1:8080"
SESSION = "session-of-alice"


def added_server(fake: OAuthServer, name: str = "notes", **client: Any) -> Server:
    """As somebody has added it; `client` are fields of its OAuth client."""
    oauth = OAuthClientData(**client)
    return create_server(actor=None, data=ServerData(name, HTTP, url=fake.url, oauth=oauth))


def begin(server: Server, person: User, **values: Any) -> str:
    values = {"session_key": SESSION, "base_url": HERE, **values}
    return begin_login(server, person=person, **values)


def finish(server: Server, person: User, back: str, **values: Any) -> Outcome:
    """`back` is where the provider sent the browser to."""
    values = {
        "session_key": SESSION,
        "params": parse_qs(urlsplit(back).query, keep_blank_values=True),
        **values,
    }
    return finish_login(server.pk, person=person, **values)


def log_in(fake: OAuthServer, server: Server, person: User, **values: Any) -> Login:
    finish(server, person, fake.visit(begin(server, person, **values)))
    return Login.objects.get(server=server)


def callback_path(server: Server) -> str:
    return f"/api/mcp-servers/{server.pk}/oauth/callback"


@dataclass
class Journey:
    """A server and its provider, from the first test on."""

    fake: OAuthServer
    server: Server
    person: User

    def test(self) -> Check:
        check = request_check(self.server, actor=self.person, hinted=False)
        assert run_check(check.pk)
        check.refresh_from_db()
        self.server.refresh_from_db()
        return check

    def begin(self) -> str:
        self.server.refresh_from_db()
        return begin(self.server, self.person)

    def finish(self, back: str) -> str:
        """Where the browser goes once more, if it does."""
        outcome = finish(self.server, self.person, back)
        self.server.refresh_from_db()
        return outcome.again

    def log_in(self) -> None:
        assert not self.finish(self.fake.visit(self.begin()))

    def expect_connected(self) -> None:
        check = self.test()
        assert check.outcome == "connected", (check.error, check.hint)
        assert check.tool_count


@contextmanager
def begun(variant: Variant, person: User) -> Iterator[Journey]:
    with running(OAuthServer(variant)) as fake:
        yield Journey(fake, added_server(fake), person)
