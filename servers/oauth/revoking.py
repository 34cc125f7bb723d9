"""Gives back to a provider what it gave out (RFC 7009), without anybody waiting for that."""

from __future__ import annotations

import asyncio
import logging
from threading import Thread

from servers.oauth.grants import revoke
from servers.oauth.types import Client, LoginSecrets, OAuthError
from umpteenth.core.deadlines import timeout

logger = logging.getLogger(__name__)

REVOKED_WITHIN = 10.0  # seconds; a process that is to end waits no longer for it


def revoke_later(login: LoginSecrets, client: Client) -> Thread:
    """In a thread of its own, which a process that ends waits for."""
    thread = Thread(target=_revoke, args=(login, client), name="revoke-login")
    thread.start()
    return thread


def _revoke(login: LoginSecrets, client: Client) -> None:
    async def bounded() -> None:
        async with timeout(REVOKED_WITHIN):
            await revoke(login, client)

    issuer = login.provider.issuer
    try:
        asyncio.run(bounded())
        logger.info("The tokens of a login at %s are revoked.", issuer)
    except TimeoutError:
        logger.info("%s did not revoke the tokens of a login in time.", issuer)
    except OAuthError as error:
        logger.info("%s did not revoke the tokens of a login: %s", issuer, error)
