"""A person logs in to a server: to the provider, and back with tokens (P37-P42, P54-P58).

`begin_login` finds the provider and a client to be there, and says where the browser goes.
`finish_login` takes the answer that the browser brings back. Between them lies `PendingLogin`.
No transaction is open while the provider is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from django.conf import settings
from django.db import IntegrityError, transaction

from secrets_vault.crypto import CryptoError
from secrets_vault.errors import SecretError
from servers.access import require_to_log_in
from servers.definition import HTTP, MACHINE
from servers.mcp.types import Challenge
from servers.models import Server
from servers.oauth import binding, clients, pending, registered
from servers.oauth.answer import Answer
from servers.oauth.discovery import discover
from servers.oauth.ending import found_anew
from servers.oauth.grants import (
    authorization_url,
    check_issuer,
    exchange_code,
    new_state,
    new_verifier,
)
from servers.oauth.operator import operator_secret, require_its_issuer, with_secret
from servers.oauth.pending import AGAIN, Begun
from servers.oauth.registration import register
from servers.oauth.revoking import revoke_later
from servers.oauth.scopes import scopes_to_request
from servers.oauth.store import MAX_REASON, put_login, read_login
from servers.oauth.types import (
    Advertised,
    Client,
    DiscoveryFailed,
    LoginSecrets,
    Looked,
    OAuthError,
    Provider,
    ProviderRefusal,
    Tokens,
)
from servers.results import store_looked
from servers.status import Auth, auth_status
from umpteenth.accounts.models import User
from umpteenth.accounts.services import record_audit
from umpteenth.core.clock import database_now
from umpteenth.core.connections import give_back
from umpteenth.core.text import clean

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """How the answer was taken. `again`: the browser goes to the provider once more."""

    server: Server
    again: str = ""


def setup_problem(server: Server) -> str:
    """Why nobody can log in to the server as it is set up; empty if somebody can (P35, P49)."""
    if server.transport != HTTP:
        return "Only servers over HTTP have logins."
    if auth_status(server) == Auth.BEARER_TOKEN:
        return (
            f"By its settings, requests to {server.name} carry an Authorization header or the "
            "token of token_ref, which wins over a login. Take it out first."
        )
    if server.oauth_kind == MACHINE:
        return f"The client of {server.name} logs in by itself; nobody has to do it."
    return ""


def begin_login(
    server: Server,
    *,
    person: User,
    session_key: str,
    base_url: str,
    register_again: bool = False,
) -> str:
    """Where the browser goes: the provider's page.

    `base_url` is `binding.base_url()` of the browser. With `register_again` the client that was
    registered before is forgotten first (A29). Raises `NotAllowed` and `OAuthError`.
    """
    require_to_log_in(person)
    if problem := setup_problem(server):
        raise OAuthError(problem)
    found = _discover(server)  # the sheet tells why it failed, address by address
    with _failure_kept(server):
        begun = _prepare(server, found, base_url, register_again)
        return _go(server, person, session_key, begun)


def _prepare(server: Server, found: Advertised, base_url: str, register_again: bool) -> Begun:
    redirect_uri = binding.callback_url(base_url, server.pk)
    scopes = scopes_to_request(found, operator=server.oauth_scopes, wanted=_wanted(server))
    if register_again:
        registered.forget_at(found.provider.issuer, redirect_uri)
    client = _known_client(server, found.provider, redirect_uri)
    is_new = client is None
    if client is None:
        client = _register(found.provider, redirect_uri, scopes)
    return Begun(
        verifier=new_verifier(),
        provider=found.provider,
        client=clients.storable(client),
        redirect_uri=redirect_uri,
        resource=found.resource,
        scopes=scopes,
        scopes_are_found=not server.oauth_scopes,
        client_is_new=is_new,
    )


def finish_login(
    server_id: UUID, *, person: User, session_key: str, params: Mapping[str, Sequence[str]]
) -> Outcome:
    """Take the provider's answer, all of whose parameters are given with all their values.

    Raises `NotAllowed` and `OAuthError`. Nothing is consumed by an answer that does not name a
    login which this person began in this session; nothing is exchanged before all is checked.
    """
    require_to_log_in(person)
    answer = Answer.read(params)
    row = pending.find(server_id, state=answer.state, person=person, session_key=session_key)
    server = row.server
    try:
        begun = pending.take(row)
        with _failure_kept(server):
            # First of all: nothing else of an answer from elsewhere may be used, or shown
            # (RFC 9207).
            check_issuer(begun.provider, answer.iss)
            try:
                answer.raise_error(begun.provider)
                login = _exchange(server, begun, answer.code)
            except ProviderRefusal as refusal:
                begun = _begun_again(begun, refusal)
                return Outcome(server, again=_go(server, person, session_key, begun))
            _save(server, person, row.settings_hash, login)
    except SecretError as error:
        raise OAuthError(str(error)) from None
    return Outcome(server)


@contextmanager
def _failure_kept(server: Server) -> Iterator[None]:
    """A toast is soon gone: the sheet tells the reason until somebody has logged in."""
    try:
        yield
    except (OAuthError, SecretError) as error:
        reason = error.words if isinstance(error, OAuthError) else str(error)
        Server.objects.filter(pk=server.pk).update(
            oauth_failure=clean(reason, MAX_REASON), oauth_failed_at=database_now()
        )
        raise


def _go(server: Server, person: User, session_key: str, begun: Begun) -> str:
    state = new_state()
    try:
        pending.keep(server, person=person, session_key=session_key, state=state, begun=begun)
    except SecretError as error:
        raise OAuthError(str(error)) from None
    except IntegrityError:
        raise OAuthError(f"{server.name} was deleted meanwhile.") from None
    return authorization_url(
        begun.provider,
        begun.client,
        redirect_uri=begun.redirect_uri,
        state=state,
        verifier=begun.verifier,
        resource=begun.resource,
        scopes=begun.scopes,
    )


def _discover(server: Server) -> Advertised:
    """Anew, from what the server said last: endpoints change, and so does what they can."""
    try:
        found = _wait_for(discover(server.url, _last_challenge(server)))
    except DiscoveryFailed as failure:
        store_looked(server, Looked(failure=failure))
        raise
    if found is None:
        raise OAuthError(f"{server.name} does not say how to log in.", "Test it first.")
    store_looked(server, Looked(found))
    return found


def _last_challenge(server: Server) -> Challenge:
    try:
        found = Advertised.from_json(server.oauth_found)
    except (KeyError, TypeError):  # nothing was found yet
        return Challenge()
    scopes = found.challenge_scopes
    return Challenge(
        resource_metadata=found.resource_metadata_url,
        scope=None if scopes is None else " ".join(scopes),
    )


def _wanted(server: Server) -> str:
    """What calls lacked, together with what the login had asked for: a login with more rights
    keeps those that it has."""
    if not server.oauth_wanted:
        return ""
    try:
        stored = read_login(server.pk)
    except CryptoError:  # it is lost anyway
        stored = None
    asked = stored.secrets.scopes if stored else ()
    return " ".join([*asked, *server.oauth_wanted.split()])


def _known_client(server: Server, provider: Provider, redirect_uri: str) -> Client | None:
    require_its_issuer(server, provider)
    try:
        secret = operator_secret(server, provider.token_endpoint) if server.oauth_client_id else ""
    except SecretError as error:
        raise OAuthError(str(error)) from None
    return clients.choose_client(
        provider,
        operator_id=server.oauth_client_id,
        operator_secret=secret,
        document_url=clients.document_url(settings.OPTIONS.app.url or "", server.pk),
        registered=registered.find(provider.issuer, redirect_uri),
    )


def _register(provider: Provider, redirect_uri: str, scopes: tuple[str, ...]) -> Client:
    client = _wait_for(register(provider, redirect_uri=redirect_uri, scopes=scopes))
    registered.keep(provider.issuer, redirect_uri, client)
    return client


def _exchange(server: Server, begun: Begun, code: str) -> LoginSecrets:
    client = with_secret(begun.client, server, begun.provider.token_endpoint)
    exchange = exchange_code(
        begun.provider,
        client,
        code=code,
        redirect_uri=begun.redirect_uri,
        verifier=begun.verifier,
        resource=begun.resource,
    )
    answer: tuple[Tokens, Client] = _wait_for(exchange)
    tokens, client = answer
    if client.kind == "registered" and client != begun.client:
        # The method that worked is tried first next time (A16).
        registered.keep(begun.provider.issuer, begun.redirect_uri, client)
    return LoginSecrets(tokens, begun.provider, client, begun.resource, begun.scopes)


def _begun_again(begun: Begun, refusal: ProviderRefusal) -> Begun:
    """The same login in another way, each way once; raises the refusal where there is none."""
    is_registered = begun.client.kind == "registered"
    # Some say `invalid_request` for it (RFC 6749, 4.1.2.1).
    blames_scopes = refusal.error in ("invalid_scope", "invalid_request") and bool(begun.scopes)
    if refusal.error == "invalid_client" and is_registered:
        registered.forget(begun.provider.issuer, begun.client.client_id)
        if not begun.registered_again:
            return _with_new_client(begun)
    if blames_scopes and is_registered and not begun.client_is_new:
        return _with_new_client(begun)
    # What a person has asked for is not left out without a word (P58).
    if blames_scopes and begun.scopes_are_found:
        return replace(begun, verifier=new_verifier(), scopes=())
    raise refusal


def _with_new_client(begun: Begun) -> Begun:
    return replace(
        begun,
        verifier=new_verifier(),
        client=_register(begun.provider, begun.redirect_uri, begun.scopes),
        client_is_new=True,
        registered_again=True,
    )


def _save(server: Server, person: User, settings_hash: str, login: LoginSecrets) -> None:
    """Only for the server that it was begun for: it may have been changed meanwhile (P53)."""
    with transaction.atomic():
        current = Server.objects.select_for_update().filter(pk=server.pk).first()
        is_same = current is not None and binding.hash_of_settings(current) == settings_hash
        if is_same:
            put_login(server.pk, login, person=person, now=database_now())
            found_anew(server, oauth_failure="", oauth_failed_at=None)
            record_audit(
                actor=person,
                action="server.login",
                kind="server",
                object_id=str(server.pk),
                object_name=server.name,
                details={"issuer": login.provider.issuer, "client": login.client.kind},
            )
    if not is_same:
        revoke_later(login, login.client)
        raise OAuthError(f"{server.name} was changed during the login.", AGAIN)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """What the provider answers, without a connection to the database in hand."""
    give_back()
    return asyncio.run(work)
