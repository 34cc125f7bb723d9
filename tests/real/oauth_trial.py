"""One process of `test_oauth_processes`: says that it is ready, waits for a line on standard input,
calls a tool of the server, and prints how that went.

Argument: the server's name. With `put` in its place a server is added that somebody has logged in
to; what that needs comes as JSON on standard input. With `age` nothing was refreshed lately,
and the lease of a process that died is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any


async def call(name: str) -> dict[str, Any]:
    from servers.connecting import connection_settings
    from servers.mcp.client import connect
    from servers.mcp.types import ServerError
    from servers.models import Server

    server = await asyncio.to_thread(Server.objects.get, name=name)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    settings, _ = await asyncio.to_thread(connection_settings, server)
    try:
        async with connect(settings) as connection:
            result = await connection.call_tool("echo", {"from": os.getpid()})
    except ServerError as error:
        return {"ok": False, "text": error.message}
    return {"ok": result.ok, "text": result.text}


def put(given: dict[str, Any]) -> None:
    from servers.definition import OAuthClientData, ServerData
    from servers.oauth import store
    from servers.oauth.types import Client, LoginSecrets, Provider, Tokens
    from servers.services import create_server
    from umpteenth.core.clock import database_now

    secrets = LoginSecrets(
        tokens=Tokens(**given["tokens"]),
        provider=Provider(**given["provider"]),
        client=Client("ours", "operator"),
        resource=given["resource"],
    )
    own = OAuthClientData(client_id="ours")
    data = ServerData(name=given["server"], transport="http", url=given["url"], oauth=own)
    server = create_server(actor=None, data=data)
    store.put_login(server.pk, secrets, person=None, now=database_now())


def age() -> None:
    """A token that is refused right after it was refreshed ends the login (A36)."""
    from datetime import timedelta

    from servers.models import Login
    from umpteenth.core.clock import database_now

    long_ago = database_now() - timedelta(minutes=1)
    Login.objects.exclude(refreshed_at=None).update(refreshed_at=long_ago)
    Login.objects.exclude(lease_until=None).update(lease_until=long_ago)


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
    import django

    django.setup()
    if sys.argv[1] == "put":
        put(json.load(sys.stdin))
    elif sys.argv[1] == "age":
        age()
    else:
        print(json.dumps(asyncio.run(call(sys.argv[1]))), flush=True)
