"""Clients that log in by themselves (RFC 6749, 4.4): at the first request that is refused."""

from __future__ import annotations

from django.db import transaction

from secrets_vault.errors import SecretError
from servers.mcp.types import Challenge, LoginRequired, ServerError, ServerUnavailable
from servers.models import Server
from servers.oauth import refresh, store
from servers.oauth.binding import hash_of_settings
from servers.oauth.clients import choose_client
from servers.oauth.operator import operator_secret, require_its_issuer
from servers.oauth.refresh import Place
from servers.oauth.revoking import revoke_later
from servers.oauth.store import Stored
from servers.oauth.types import (
    DiscoveryFailed,
    LoginSecrets,
    OAuthError,
    ProviderUnreachable,
)
from umpteenth.core.clock import database_now
from umpteenth.core.connections import give_back

CHECK_CLIENT = "Check the OAuth client in the server's settings."


def log_in(place: Place, challenge: Challenge) -> Stored:
    """The login that is there by now, or a new one. Raises `LoginRequired`, `ServerUnavailable`."""
    stored = refresh.read(place)
    if stored is not None:
        return stored
    server = Server.objects.filter(pk=place.server_id, url=place.url).first()
    if server is None:
        raise LoginRequired("The server was edited meanwhile.", "Start again.")
    try:
        settings = hash_of_settings(server)
        secrets = _ask(server, challenge)
    except SecretError as error:
        raise ServerUnavailable(str(error)) from None
    except OAuthError as error:
        raise _as_server_error(error) from None
    except TimeoutError:
        raise ServerUnavailable("The provider of the OAuth login did not answer in time.") from None
    refresh.remember(refresh.secrets_of(place.name, secrets))
    stored = refresh.read(place) if _put(server, settings, secrets) else None
    if stored is None:
        raise LoginRequired("The server was edited meanwhile.", "Start again.")
    return stored


def _put(server: Server, settings: str, secrets: LoginSecrets) -> bool:
    """False where it is for what was entered before an edit: then the tokens go again (P53)."""
    with transaction.atomic():
        current = Server.objects.select_for_update().filter(pk=server.pk).first()
        is_same = current is not None and hash_of_settings(current) == settings
        if is_same:
            store.put_login(server.pk, secrets, person=None, now=database_now())
    if not is_same:
        revoke_later(secrets, secrets.client)
    return is_same


def _ask(server: Server, challenge: Challenge) -> LoginSecrets:
    from servers.oauth.discovery import discover
    from servers.oauth.grants import client_credentials
    from servers.oauth.scopes import scopes_to_request

    give_back()
    found = refresh.wait_for(discover(server.url, challenge))
    assert found is not None, "the server has asked for a login"
    provider = found.provider
    require_its_issuer(server, provider)
    client = choose_client(
        provider,
        operator_id=server.oauth_client_id,
        operator_secret=operator_secret(server, provider.token_endpoint),
        document_url=None,
        registered=None,
    )
    if client is None:
        raise OAuthError("A client that logs in by itself needs a Client ID.", CHECK_CLIENT)
    scopes = scopes_to_request(found, operator=server.oauth_scopes, wanted=server.oauth_wanted)
    give_back()
    tokens, client = refresh.wait_for(
        client_credentials(provider, client, resource=found.resource, scopes=scopes)
    )
    return LoginSecrets(tokens, provider, client, found.resource, scopes, machine=True)


def _as_server_error(error: OAuthError) -> ServerError:
    if isinstance(error, ProviderUnreachable | DiscoveryFailed):
        return ServerUnavailable(f"The client could not log in: {error.message}", error.hint)
    return LoginRequired(
        f"The client could not log in: {error.message}", error.hint or CHECK_CLIENT
    )
