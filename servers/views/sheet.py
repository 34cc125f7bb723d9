"""A server's sheet: what it is, how it goes and why, what holds for it, its tools and checks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from servers.effective import InForce, in_force
from servers.forms.options import LABELS
from servers.models import Check, Server
from servers.oauth.pending import unfinished
from servers.oauth.shown import ShownLogin, shown_login
from servers.policy import Policy
from servers.queries import latest_news, recent_checks
from servers.status import credentials_words, is_about_secret, login_of, token_problem
from servers.usage import usages
from servers.views.common import can_manage, get_server, let_forms_leave, watch
from servers.views.tools import tools_of
from umpteenth.core import clock
from umpteenth.core.config import get_options
from umpteenth.core.htmx import Request, render_page

STRIP_FOR = timedelta(days=7)
MOST_BARS = 60
BAR_STEP, STRIP_HEIGHT, GOOD_HEIGHT = 7, 20, 8


@dataclass(frozen=True)
class Bar:
    """A check in the strip; one that did not succeed is higher, so that colour is not alone."""

    check: Check
    x: int
    y: int
    height: int


@dataclass
class Line:
    """The newest of checks that found the same one after the other, and how many there are."""

    check: Check
    count: int = 1
    oldest: Check | None = None


@dataclass(frozen=True)
class Limit:
    """One line of what holds."""

    label: str
    limit: InForce
    source: str


@require_GET
def detail(request: Request, pk: UUID) -> HttpResponse:
    server = get_server(pk, with_login=True)
    now = clock.now()
    checks = recent_checks(pk)
    login = shown_login(server, now)
    context = {
        "server": server,
        **_connection(server),
        "login": login,
        "auth": login.auth,
        "unfinished": _unfinished(login, now),
        **_health(server, checks),
        **_limits(server),
        "now": now,
        "tools": tools_of(server, news=latest_news(pk, now)),
        "policy": Policy.from_json(server.policy),
        "lines": _lines(checks),
        "bars": _strip(pk),
        "usages": usages(server),
        "can_manage": can_manage(request),
        "seen": _seen(server),
        **watch(),
    }
    partial = "servers/detail_part.html"
    response = render_page(request, "servers/detail.html", context, partial=partial)
    leads_out = login.can_log_in and context["can_manage"]
    return let_forms_leave(response) if leads_out else response


def _unfinished(login: ShownLogin, now: datetime) -> datetime | None:
    """When a login was begun that did not come back; nobody asks where none can be begun."""
    begun = unfinished(login.server.pk, now) if login.can_log_in else None
    return begun.created_at if begun else None


@require_GET
def news(request: Request, pk: UUID) -> HttpResponse:
    """The place of the sheet that offers to renew it once it is out of date (`seen`).

    It asks when `pages.changes` names the server. Nothing else of the sheet moves by itself.
    """
    server = get_server(pk, with_login=True)
    seen = request.GET.get("seen", "")
    is_new = seen != _seen(server)
    context = {"server": server, "seen": seen, "is_new": is_new}
    response = render_page(request, "servers/news.html", context)
    if is_new:
        response["HX-Trigger"] = json.dumps({"announce": f"There is a new result of {server.name}"})
    return response


def _seen(server: Server) -> str:
    """What the sheet shows, in a word: it differs after an edit, a switch, a check and whatever
    becomes of the login."""
    checked = server.checked_at.timestamp() if server.checked_at else 0
    login = login_of(server)
    told = f"{login.pk}.{login.version}" if login else "none"
    return f"{server.version}-{server.enabled:d}-{checked:.6f}-{told}"


def _connection(server: Server) -> dict[str, Any]:
    return {
        "credentials": credentials_words(server),
        "token_problem": token_problem(server),
        "found_transport": str(server.remembered.get("transport", "")),
    }


def _health(server: Server, checks: list[Check]) -> dict[str, Any]:
    """What the last check knew beyond the server's own columns, and what comes next."""
    done = [check for check in checks if check.is_done]
    troubled = server.state in Server.TROUBLED
    # Cancelled tests say nothing of it, and a run's start may have met another error since.
    said = (check for check in done if check.error and check.error == server.last_error)
    success = next((check for check in done if check.outcome == Check.Outcome.CONNECTED), None)
    return {
        "under_way": next((check for check in checks if not check.is_done), None),
        "is_in_trouble": troubled,
        "trouble": next(said, None) if troubled else None,
        "wants_secret": is_about_secret(server.last_error),
        "warnings": success.warnings if success and not troubled else [],
        "was_tested": bool(checks),
        "checks_itself": get_options().mcp.auto_connect,
    }


def _limits(server: Server) -> dict[str, Any]:
    rows = [
        Limit(LABELS.get(limit.name, limit.name), limit, _source(server, limit))
        for limit in in_force(server.options, server.transport)
    ]
    return {
        "limits": rows,
        "limits_set": sum(1 for row in rows if row.limit.source == "set here"),
    }


def _source(server: Server, limit: InForce) -> str:
    if limit.source == "profile":
        return f"Profile {server.options.get('limits_profile', '')}"
    return limit.source.capitalize()


def _lines(checks: list[Check]) -> list[Line]:
    """Newest first. Health checks that fail all day would fill the sheet with one sentence."""
    lines: list[Line] = []
    for check in checks:
        if lines and _found_the_same(lines[-1].check, check):
            lines[-1].count += 1
            lines[-1].oldest = check
        else:
            lines.append(Line(check))
    return lines


def _found_the_same(newer: Check, older: Check) -> bool:
    if not (newer.is_done and older.is_done) or newer.outcome == Check.Outcome.CONNECTED:
        return False
    mine, other = [(c.kind, c.outcome, c.error) for c in (newer, older)]
    return mine == other and newer.kind != Check.Kind.PERSON


def _strip(server_id: UUID) -> list[Bar]:
    """The checks of the last days, oldest first."""
    recent = Check.objects.filter(
        server_id=server_id,
        status=Check.Status.DONE,
        created_at__gt=clock.now() - STRIP_FOR,
    )
    columns = ("outcome", "kind", "created_at")
    newest = list(recent.order_by("-created_at").only(*columns)[:MOST_BARS])
    return [_bar(index * BAR_STEP, check) for index, check in enumerate(reversed(newest))]


def _bar(x: int, check: Check) -> Bar:
    height = GOOD_HEIGHT if check.outcome == Check.Outcome.CONNECTED else STRIP_HEIGHT
    return Bar(check, x, STRIP_HEIGHT - height, height)
