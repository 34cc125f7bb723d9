"""Facts about a server as plain values: what the REST API and `umpteenth mcp` tell of it.

No secret is among them: of headers and variables they tell nothing, of secrets the names.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from servers.effective import in_force
from servers.models import Server
from servers.oauth.shown import read_advertised, shown_login
from servers.policy import OPEN, Policy
from servers.status import auth_status, credentials_words
from umpteenth.core import clock

_OF_TOOLS = ("name", "title", "description", "read_only", "destructive", "open_world")


def summary(server: Server) -> dict[str, Any]:
    """One entry of a list."""
    return {
        "id": str(server.pk),
        "name": server.name,
        "transport": server.transport,
        "endpoint": server.endpoint,
        "enabled": server.enabled,
        "auth": auth_status(server).value,
        "tools": server.tool_count if server.tested_at else None,
        "tested_at": _moment(server.tested_at),
        "state": server.state,
    }


def details(server: Server) -> dict[str, Any]:
    """What comes beside the summary where one server is looked at."""
    tools = _restricted_tools(server)
    return {
        "description": server.description,
        "socket_path": server.socket_path,
        "secrets": sorted({*server.secret_names, *filter(None, [server.token_name])}),
        "credentials": credentials_words(server),
        "oauth": _oauth(server),
        "login": _login(server),
        "options": server.options,
        "limits": _limits(server),
        "policy": {"trust": OPEN, **server.policy},
        "restricted_tools": sum(bool(tool["restricted"]) for tool in tools),
        **_health(server),
        "found_how": server.found_how,
        "found_transport": str(server.remembered.get("transport", "")),
        "protocol_version": server.protocol_version,
        "server_name": server.server_name,
        "server_version": server.server_version,
        "instructions": server.instructions,
        "tool_list": tools,
    }


def _oauth(server: Server) -> dict[str, Any]:
    """What the server says of logins, and the operator's own client (P56-P58)."""
    found = read_advertised(server)
    facts = {
        "advertised": server.oauth_advertised,
        "issuer": found.provider.issuer if found else "",
        "error": server.oauth_error,
        "kind": server.oauth_kind if server.oauth_client_id else "",
        "client_id": server.oauth_client_id,
        "scopes": server.oauth_scopes,
        "missing_scopes": server.oauth_wanted,
        "login_failure": server.oauth_failure,
    }
    return _filled(facts)


def _login(server: Server) -> dict[str, Any]:
    """The login, without its tokens; empty where there is none."""
    shown = shown_login(server, clock.now(), with_provider=False)
    login = shown.login
    if login is None:
        return {}
    facts = {
        "state": shown.state.value,
        "issuer": login.issuer,
        "client": login.client_kind,
        "scopes": login.scopes,
        "since": _moment(login.logged_in_at),
        "by": login.logged_in_by.username if login.logged_in_by else "",
        "expires_at": _moment(login.expires_at),
        "refreshes": login.can_refresh,
        "refreshed_at": _moment(login.refreshed_at),
        "ended_at": _moment(login.ended_at),
        "ended_reason": login.ended_reason,
        "warning": shown.warning,
    }
    return _filled(facts)


def _filled(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in ("", None)}


def tools_of(server: Server) -> list[dict[str, Any]]:
    """The tools that the last success listed, without their schemas, which fill megabytes."""
    return list(server.tools.values(*_OF_TOOLS))


def _restricted_tools(server: Server) -> list[dict[str, Any]]:
    """A56: each with what the policy says of it; empty where every run may use it."""
    policy = Policy.from_json(server.policy)
    light = server.tools.defer("input_schema", "output_schema")
    restrictions = {tool.name: policy.restriction(tool) for tool in light}
    return [{**tool, "restricted": restrictions[tool["name"]]} for tool in tools_of(server)]


def _limits(server: Server) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "value": one.value, "words": one.words, "source": one.source}
        for one in in_force(server.options, server.transport)
    ]


def _health(server: Server) -> dict[str, Any]:
    """Last success and last try, the error in the server's words, and when health looks again."""
    return {
        "checked_at": _moment(server.checked_at),
        "last_error": server.last_error,
        "failures": server.failures,
        "next_check_at": _moment(server.next_check_at) if server.enabled else None,
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None
