"""What this room tells lower ones: which servers use a secret, search hits, a first step,
which servers are in trouble, and which logins are about to end."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import reduce
from operator import or_
from typing import Any

from django.db.models import Q
from django.urls import reverse

from secrets_vault.services import Usage
from servers.models import Server
from servers.oauth.shown import shown_login
from servers.queries import (
    find_servers,
    logins_about_to_end,
    servers_in_trouble,
    waiting_for_login,
)
from umpteenth.accounts.models import User
from umpteenth.accounts.search import Hit, matches
from umpteenth.core import clock
from umpteenth.core.htmx import Request

MOST_HITS = 10
# What people have typed by the time that they mean it.
LOG_IN = {"log", "logi", "login"}


def servers_using_secrets(names: Collection[str]) -> dict[str, list[Usage]]:
    """In one query: names stand quoted in the column's text on every database."""
    found: dict[str, list[Usage]] = {name: [] for name in names}
    if not found:
        return found
    likely = reduce(or_, (Q(secret_names__icontains=f'"{name}"') for name in found))
    likely |= Q(token_name__in=list(found))
    for server in Server.objects.filter(likely).only("name", "secret_names", "token_name"):
        usage = Usage("server", server.name, reverse("servers:detail", args=[server.pk]))
        for name in found.keys() & {*server.secret_names, server.token_name}:
            found[name].append(usage)
    return found


def search_servers(user: User, words: str) -> Iterator[Hit]:
    for server in find_servers(q=words)[:MOST_HITS] if words.strip() else ():
        yield Hit(
            "Server", server.name, server.description, reverse("servers:detail", args=[server.pk])
        )
    if words.strip() and user.is_administrator and matches(words, "Add MCP server"):
        yield Hit("Action", "Add MCP server", "", reverse("servers:create"))


def search_logins(user: User, words: str) -> Iterator[Hit]:
    """`Log in` for servers that wait for somebody to do so; other words name the server."""
    typed = words.lower().split()
    if not user.is_administrator or not LOG_IN.intersection(typed):
        return
    names = " ".join(word for word in typed if word not in LOG_IN | {"in", "to"})
    for server in waiting_for_login(q=names)[:MOST_HITS]:
        yield Hit(
            "Action",
            f"Log in to {server.name}",
            server.description,
            reverse("servers:detail", args=[server.pk]),
        )


def first_step(request: Request) -> dict[str, Any]:
    return {
        "title": "Add a server",
        "text": "Register an MCP server and see its tools.",
        "url": reverse("servers:create" if request.user.is_administrator else "servers:list"),
        "action": "Add server" if request.user.is_administrator else "See servers",
        "done": Server.objects.exists(),
    }


def ending_logins(request: Request) -> dict[str, Any] | None:
    """The dashboard's panel of logins that work and may not do so for long."""
    now = clock.now()
    servers, count = logins_about_to_end(now)
    if not servers:
        return None
    rows = [shown_login(server, now, with_provider=False) for server in servers]
    return {
        "template": "servers/ending_logins.html",
        "wide": True,
        "logins": rows,
        "count": count,
    }


def trouble(request: Request) -> dict[str, Any] | None:
    """The dashboard's panel of enabled servers that cannot be used; nothing where all can."""
    servers, count = servers_in_trouble()
    if not servers:
        return None
    return {"template": "servers/trouble.html", "wide": True, "servers": servers, "count": count}
