"""Rows of this product's MCP servers, made by the services as people make them."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from servers.checks import request_check, run_check
from servers.definition import HTTP, STDIO, UNIX, Entry, ServerData
from servers.mcp.types import Tool, ToolList
from servers.models import Check, Server
from servers.services import create_server, store_success
from tests.fakes.mcp_server import Behaviour


def http_data(name: str = "github", **values: Any) -> ServerData:
    values = {"url": "https://api.example.org/mcp", **values}
    return ServerData(name=name, transport=HTTP, **values)


def stdio_data(name: str = "everything", **values: Any) -> ServerData:
    values = {"command": "npx", "args": ("-y", "server-everything"), **values}
    return ServerData(name=name, transport=STDIO, **values)


def unix_data(name: str = "engine", **values: Any) -> ServerData:
    values = {"url": "http://localhost/mcp", "socket_path": "/run/engine/mcp.sock", **values}
    return ServerData(name=name, transport=UNIX, **values)


def http_server(
    name: str = "github", headers: dict[str, str] | None = None, **values: Any
) -> Server:
    entries = tuple(Entry(*pair) for pair in (headers or {}).items())
    return create_server(actor=None, data=http_data(name, headers=entries, **values))


def stdio_server(
    name: str = "everything", env: dict[str, str] | None = None, **values: Any
) -> Server:
    entries = tuple(Entry(*pair) for pair in (env or {}).items())
    return create_server(actor=None, data=stdio_data(name, env=entries, **values))


def unix_server(
    name: str = "engine", headers: dict[str, str] | None = None, **values: Any
) -> Server:
    entries = tuple(Entry(*pair) for pair in (headers or {}).items())
    return create_server(actor=None, data=unix_data(name, headers=entries, **values))


def changed(server: Server, **columns: Any) -> Server:
    """As something else than a service may have left it."""
    Server.objects.filter(pk=server.pk).update(**columns)
    server.refresh_from_db()
    return server


def after_test(server: Server) -> Check:
    """What a person's test finds, done here and now."""
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    server.refresh_from_db()
    return check


def behaviour_argument(behaviour: Behaviour | None = None) -> str:
    """The fake server's argument: what differs from the default, since an argument is bounded."""
    usual = asdict(Behaviour())
    given = asdict(behaviour or Behaviour())
    return json.dumps({name: value for name, value in given.items() if value != usual[name]})


class FoundServer:
    """What a connection found, for storing."""

    transport = "http"
    protocol_version = "2025-11-25"
    server_name = "Example"
    server_version = "1.0"
    instructions = "Be gentle."
    how = ""

    def __init__(self, **values: Any) -> None:
        self.remembered: dict[str, Any] = {"transport": "http", "mode": "handshake"}
        for name, value in values.items():
            setattr(self, name, value)


def tool_list(*names: str) -> ToolList:
    return ToolList([Tool(name, description=f"About {name}") for name in names])


def after_success(server: Server, *names: str) -> Server:
    """The server after a success that listed tools of these names."""
    store_success(server, FoundServer(), tool_list(*names))
    server.refresh_from_db()
    return server
