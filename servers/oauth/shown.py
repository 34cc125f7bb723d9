"""What pages say of a server's login, from stored facts alone: no request, no decryption."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from servers.models import Login, Server
from servers.oauth.clients import document_url, why_client
from servers.oauth.registration import NO_REGISTRATION
from servers.oauth.scopes import scopes_to_request
from servers.oauth.state import LoginState, login_state, login_warning
from servers.oauth.types import Advertised, ClientKind
from servers.oauth.words import EXPIRED, NO_REFRESH, NOT_LOGGED_IN
from servers.status import Auth, auth_status, login_of
from umpteenth.core.config import get_options
from umpteenth.core.http import public_url, shown_host
from umpteenth.core.text import with_full_stop

_KINDS: Final[dict[str, ClientKind]] = {
    "operator": "operator",
    "document": "document",
    "registered": "registered",
}

# Where requests carry a login, or would.
_OF_LOGINS: Final = (Auth.OAUTH, Auth.NOT_LOGGED_IN, Auth.LOGIN_EXPIRED)


@dataclass(frozen=True)
class ShownLogin:
    """The login of one server at one moment."""

    server: Server
    login: Login | None
    state: LoginState
    auth: Auth
    now: datetime
    warning: str
    advertised: Advertised | None = None

    @property
    def is_by_person(self) -> bool:
        return self.server.oauth_kind == Server.LoginKind.PERSON

    @property
    def can_log_in(self) -> bool:
        """Whether a login in the browser leads anywhere: no header beats it, and there is a
        provider to go to (P35, P38)."""
        return self.auth in _OF_LOGINS and self.is_by_person

    @property
    def wants_login(self) -> bool:
        """Whether nothing works without one: `Log in` stands where `Test` would (P47, P48). A
        login that works may lack rights that the server wants."""
        is_refused = self.server.state == Server.State.LOGIN_REQUIRED
        return self.can_log_in and (is_refused or self.state != LoginState.USABLE)

    @property
    def verb(self) -> str:
        return "Log in again" if self.state == LoginState.USABLE else "Log in"

    @property
    def is_over(self) -> bool:
        return self.state in (LoginState.EXPIRED, LoginState.REFUSED)

    @property
    def short_warning(self) -> str:
        """The warning where there is little room; when it ends stands behind `Login ends`."""
        if not self.warning or self.login is None:
            return ""
        return "Login cannot be refreshed" if self.login.refresh_failures else "Login ends"

    @property
    def is_advertised(self) -> bool:
        """Whether any document says where logins happen; else the address is only the usual one,
        and a server that takes nothing but a key may have none (P37 asks for the former)."""
        found = self.advertised
        return found is not None and bool(
            found.resource_metadata_url or found.provider.metadata_url
        )

    @property
    def leads_somewhere(self) -> bool:
        """Whether nobody is sent away for nothing (P37)."""
        return self.is_advertised and not self.lacks_client

    @property
    def host(self) -> str:
        """Where `Log in` leads, for people to see before they go (I06)."""
        if self.advertised is not None:
            return shown_host(self.advertised.provider.authorization_endpoint)
        return shown_host(self.login.issuer) if self.login is not None else ""

    @property
    def is_worth_a_section(self) -> bool:
        """Whether the sheet has anything to tell of logins."""
        return bool(self.login or self.advertised or self.server.oauth_error)

    @property
    def client_kind(self) -> ClientKind | None:
        """The client of the login, or the one that the next login will use; None: there is none
        to be had (P55)."""
        if self.login is not None:
            return _KINDS.get(self.login.client_kind)
        if self.server.oauth_client_id:
            return "operator"
        if self.advertised is None:
            return None
        provider = self.advertised.provider
        if provider.takes_client_documents and _serves_document(self.server):
            return "document"
        return "registered" if provider.registration_endpoint else None

    @property
    def why_client(self) -> str:
        """Which client it is, and why (issue 4, section 2)."""
        kind, provider = self.client_kind, self.advertised.provider if self.advertised else None
        if kind == "registered" and self.login is None:
            return "At the login Umpteenth registers itself: no Client ID is in the settings."
        return why_client(kind, provider) if kind else ""

    @property
    def lacks_client(self) -> str:
        """P55, told before somebody tries; empty where a client is to be had."""
        lacks = self.can_log_in and self.advertised is not None and self.client_kind is None
        return NO_REGISTRATION if lacks else ""

    @property
    def why_failed(self) -> str:
        """What became of the last attempt to log in, unless it is told as what is lacking."""
        return self.server.oauth_failure if self.can_log_in and not self.lacks_client else ""

    @property
    def can_register_again(self) -> bool:
        """The provider may have forgotten the client that it registered (A29)."""
        if self.login is None or self.login.client_kind != "registered":
            return False
        return self.can_log_in and (self.is_over or self.login.refresh_failures > 0)

    @property
    def asks_for(self) -> str:
        """The scopes of the next login."""
        if self.advertised is None or not self.is_by_person:
            return self.server.oauth_scopes
        given = {"operator": self.server.oauth_scopes, "wanted": self.server.oauth_wanted}
        return " ".join(scopes_to_request(self.advertised, **given))

    @property
    def why_over(self) -> str:
        """In the words of whoever ended it."""
        if self.login is None or not self.is_over:
            return ""
        return with_full_stop(self.login.ended_reason or NO_REFRESH)

    @property
    def over_since(self) -> datetime | None:
        if self.login is None:
            return None
        return self.login.ended_at or self.login.expires_at

    @property
    def token_is_over(self) -> bool:
        """The access token alone: a refresh token brings another one."""
        ends = self.login.expires_at if self.login is not None else None
        return ends is not None and ends <= self.now

    @property
    def found_in(self) -> list[str]:
        """The documents that led to the provider, as they may be shown (U60)."""
        if self.advertised is None:
            return []
        found = (self.advertised.resource_metadata_url, self.advertised.provider.metadata_url)
        return [public_url(url) for url in found if url]

    @property
    def login_address(self) -> str:
        found = self.advertised
        return public_url(found.provider.authorization_endpoint) if found else ""

    @property
    def missing_rights(self) -> str:
        """Scopes for the lack of which calls were refused, and which the login does not have."""
        granted = self.login.scopes.split() if self.login is not None else []
        wanted = self.server.oauth_wanted.split()
        return " ".join(scope for scope in wanted if scope not in granted)


def shown_login(server: Server, now: datetime, *, with_provider: bool = True) -> ShownLogin:
    """`with_provider` reads what the server advertises, which lists leave in the database."""
    login = login_of(server)
    auth = auth_status(server)
    return ShownLogin(
        server=server,
        login=login,
        state=login_state(login, now),
        auth=auth,
        now=now,
        warning=login_warning(login, now) if auth in _OF_LOGINS else "",
        advertised=read_advertised(server) if with_provider else None,
    )


def login_problem(server: Server, now: datetime) -> str:
    """Why runs cannot use the login of a server, or soon cannot; empty where all is well."""
    shown = shown_login(server, now, with_provider=False)
    if shown.warning:
        return shown.warning
    if shown.auth == Auth.LOGIN_EXPIRED:
        return EXPIRED
    wants = shown.is_over or server.state == Server.State.LOGIN_REQUIRED
    if shown.auth == Auth.NOT_LOGGED_IN and wants and shown.is_by_person:
        return NOT_LOGGED_IN
    return ""


def read_advertised(server: Server) -> Advertised | None:
    """What was found; None where nothing was, or another version wrote it."""
    if not server.oauth_found:
        return None
    try:
        return Advertised.from_json(server.oauth_found)
    except (KeyError, TypeError, AttributeError):
        return None


def _serves_document(server: Server) -> bool:
    return document_url(get_options().app.url or "", server.pk) is not None
