"""What pages read."""

from __future__ import annotations

from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from servers.models import Check, Server
from servers.status import auth_condition, token_exists

RECENT_CHECKS = 20
LISTED = (
    "name",
    "description",
    "transport",
    "enabled",
    "url",
    "command",
    "args",
    "has_authorization",
    "token_name",
    "socket_path",
    "state",
    "tested_at",
    "checked_at",
    "tool_count",
    "last_error",
)


def find_servers(
    *, q: str = "", transport: str = "", auth: str = "", state: str = ""
) -> QuerySet[Server]:
    """Servers for the list, by name; each with `check_under_way`, the id of its running test."""
    servers = Server.objects.only(*LISTED).annotate(
        check_under_way=_check_under_way(), token_exists=token_exists()
    )
    for word in q.split()[:10]:
        servers = servers.filter(
            Q(name__icontains=word)
            | Q(description__icontains=word)
            | Q(url__icontains=word)
            | Q(command__icontains=word)
            | Q(args__icontains=word)
        )
    if transport:
        servers = servers.filter(transport=transport)
    if auth:
        servers = servers.filter(auth_condition(auth))
    if state == "disabled":
        servers = servers.filter(enabled=False)
    elif state:
        servers = servers.filter(state=state)
    return servers


def _check_under_way() -> Subquery:
    running = Check.objects.filter(server=OuterRef("pk")).exclude(status=Check.Status.DONE)
    return Subquery(running.order_by("-created_at").values("pk")[:1])


def recent_checks(server_id: UUID) -> list[Check]:
    """The newest checks, newest first."""
    checks = Check.objects.filter(server_id=server_id).select_related("requested_by")
    return list(checks.order_by("-created_at")[:RECENT_CHECKS])
