"""Scenarios of logins: the product's own database, services and pages, and a person's browser.

Each scenario has a data directory of its own, copied from the migrated one that the tests name in
CONFORMANCE_TEMPLATE. The server is added and tested as from the page; whenever the engine says
that a login or more rights are required, the person logs in through the product's addresses and
the provider's. Web server, worker and broker are left out: views and services run right here.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from servers.mcp.client import Connection, connect
from servers.mcp.types import LoginRequired, MoreRightsRequired

if TYPE_CHECKING:
    from django.test import Client

    from servers.models import Server

Work = Callable[[Connection], Awaitable[None]]

PREFIX = "auth/"
# How often the person may be asked to log in: once, but where a scenario takes something back.
MOST_LOGINS = {
    "auth/scope-step-up": 2,
    "auth/scope-retry-limit": 2,
    "auth/authorization-server-migration": 2,
    "auth/client-credentials-basic": 0,
    "auth/client-credentials-jwt": 0,
}
# The suite expects one literal address of the client's document, and that it is not fetched.
DOCUMENT = "https://conformance-test.local/client-metadata.json"
BY_DOCUMENT = {"auth/basic-cimd"}


class LoginFailed(Exception):
    """The product did not go on with a login; its own words."""


def run(scenario: str, url: str, context: dict[str, Any], work: Work) -> None:
    """Raises what the product reports in the end."""
    data_dir = Path(tempfile.mkdtemp(prefix="ump-conformance-"))
    try:
        _set_up(scenario, data_dir)
        _meet(scenario, url, context, work)
    finally:
        shutil.rmtree(data_dir, ignore_errors=True)


def _set_up(scenario: str, data_dir: Path) -> None:
    shutil.copytree(os.environ["CONFORMANCE_TEMPLATE"], data_dir, dirs_exist_ok=True)
    os.environ["UMPTEENTH_DATA_DIR"] = str(data_dir)
    os.environ["DJANGO_SETTINGS_MODULE"] = "umpteenth.settings"
    if scenario in BY_DOCUMENT:
        parts = urlsplit(DOCUMENT)
        os.environ["UMPTEENTH_APP__URL"] = f"{parts.scheme}://{parts.netloc}"
    import django

    django.setup()
    if scenario in BY_DOCUMENT:
        from servers.oauth import clients

        clients.document_url = lambda app_url, server_id: DOCUMENT


def _meet(scenario: str, url: str, context: dict[str, Any], work: Work) -> None:
    from servers.checks import request_check, run_check

    server = _add(url, context)
    browser = _Browser(server)
    run_check(request_check(server, actor=None, hinted=False).pk)
    most = MOST_LOGINS.get(scenario, 1)
    for logins in range(most + 1):
        server.refresh_from_db()
        try:
            asyncio.run(_use(server, work))
        except (LoginRequired, MoreRightsRequired):
            if logins == most:
                raise
            browser.log_in()
        else:
            return


def _add(url: str, context: dict[str, Any]) -> Server:
    """With the operator's client where the suite hands one over."""
    from servers.definition import OAuthClientData, ServerData
    from servers.services import create_server

    client = None
    if "client_id" in context:
        kind = "person" if "issuer" in context else "machine"
        secret = context.get("private_key_pem") or context["client_secret"]
        client = OAuthClientData(kind=kind, client_id=context["client_id"], secret=secret)
    data = ServerData(name="suite", transport="http", url=url, oauth=client)
    return create_server(actor=None, data=data)


async def _use(server: Server, work: Work) -> None:
    from servers.connecting import connection_settings

    settings, _ = await asyncio.to_thread(connection_settings, server)
    async with connect(settings) as connection:
        await work(connection)


class _Browser:
    """Of an administrator who is signed in and says yes to everything."""

    def __init__(self, server: Server) -> None:
        from django.conf import settings
        from django.test import Client

        from umpteenth.accounts.models import User

        self.server = server
        own = urlsplit(settings.OPTIONS.app_url)
        self.secure = own.scheme == "https"
        self.client: Client = Client(headers={"host": own.netloc})
        role = User.Role.ADMINISTRATOR
        self.client.force_login(User.objects.create_user("alice", password="x" * 12, role=role))

    def log_in(self) -> None:
        begin = f"/api/mcp-servers/{self.server.pk}/oauth/login"
        begun = self.client.post(begin, secure=self.secure)
        place = str(begun.headers.get("Location", ""))
        if begun.status_code != 303 or not place.startswith("http"):
            raise LoginFailed(f"{begun.status_code} {place} {self._said(begun)}")
        back = urlsplit(_where_it_leads(place))
        done = self.client.get(f"{back.path}?{back.query}", secure=self.secure)
        place = str(done.headers.get("Location", ""))
        if done.status_code not in (302, 303) or "check=" not in place:
            raise LoginFailed(f"{done.status_code} {place} {self._said(done)}")

    def _said(self, response: Any) -> str:
        from django.contrib.messages import get_messages

        words = [str(message) for message in get_messages(response.wsgi_request)]
        return " ".join(words) or response.content.decode()[:2000]


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *arguments: Any, **keywords: Any) -> None:
        return None


def _where_it_leads(address: str) -> str:
    """The provider of the suite approves at once and sends the browser back."""
    try:
        with build_opener(_Stay).open(Request(address), timeout=20) as page:
            raise LoginFailed(f"The provider keeps the browser: {page.status}")
    except HTTPError as redirect:
        with redirect:
            return str(redirect.headers["Location"])
