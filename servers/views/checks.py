"""Start a test, follow it, cancel it."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

from django.http import Http404, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from servers import checks
from servers.models import Check, Server
from servers.oauth.shown import shown_login
from servers.status import is_about_secret, login_of
from servers.views.common import can_manage, get_server, let_forms_leave, no_such_server
from servers.views.tools import tools_of
from umpteenth.core import clock
from umpteenth.core.config import get_options
from umpteenth.core.htmx import Request, hx_redirect, render_page

# Between an added server and the test that comes with it lie milliseconds; a test ends within
# three minutes, and somebody looks at its dialog.
ADDED_WITHIN, ADDED_LATELY = timedelta(minutes=1), timedelta(minutes=10)


@require_POST
def test(request: Request, pk: UUID) -> HttpResponse:
    """Anyone signed in may test; a second click joins the test under way."""
    try:
        check = checks.request_check(get_server(pk), actor=request.user)
    except Server.DoesNotExist:  # deleted in this very moment
        raise no_such_server() from None
    if not request.htmx:
        return hx_redirect(request, reverse("servers:check", args=[check.pk]))
    response = _page(request, check)
    response["HX-Trigger"] = json.dumps({f"server-{pk}": ""})
    return response


@require_GET
def show(request: Request, pk: UUID) -> HttpResponse:
    """The check's page, its dialog, or (`?seen=…`) the part of it that polls.

    Polling ends by the answer: that of a finished check replaces the whole dialog.
    """
    check = _get_check(pk)
    seen = request.GET.get("seen")
    if seen is None or not request.htmx:
        return _page(request, check)
    if check.is_done:
        response = _page(request, check)
        response["HX-Retarget"] = "#check"
        response["HX-Reswap"] = "outerHTML"
        words = f"{check.get_outcome_display()}: {check.server.name}"
        events = {f"server-{check.server_id}": "", "announce": words}
        response["HX-Trigger"] = json.dumps(events)
        return response
    response = render_page(
        request,
        "servers/check.html",
        _context(request, check),
        partial="servers/check_progress.html",
    )
    if check.steps and seen != str(len(check.steps)):
        response["HX-Trigger"] = json.dumps({"announce": check.steps[-1]["label"]})
    return response


@require_POST
def cancel(request: Request, pk: UUID) -> HttpResponse:
    check = _get_check(pk)
    checks.cancel_check(check)
    if not request.htmx:
        return hx_redirect(request, reverse("servers:check", args=[pk]))
    return _page(request, _get_check(pk))


def _get_check(pk: UUID) -> Check:
    related = ("server", "server__login", "requested_by")
    found = Check.objects.select_related(*related).defer("server__login__private")
    check = found.filter(pk=pk).first()
    if check is None:
        raise Http404("There is no such test. Its server may have been deleted.")
    return check


def _page(request: Request, check: Check) -> HttpResponse:
    context = _context(request, check)
    partial = "servers/check_part.html"
    response = render_page(request, "servers/check.html", context, partial=partial)
    return let_forms_leave(response) if context["offers_login"] else response


def _context(request: Request, check: Check) -> dict[str, object]:
    end = check.finished_at or clock.now()
    found = check.outcome == Check.Outcome.CONNECTED
    login = shown_login(check.server, clock.now())
    wants = check.outcome == Check.Outcome.LOGIN_REQUIRED and login.can_log_in
    offers = wants and can_manage(request)
    return {
        "check": check,
        "server": check.server,
        "login": login,
        "wants_login": wants,
        "offers_login": offers,
        "goes_to_login": offers and login.leads_somewhere and _has_just_added(request, check),
        "seconds": max(0.0, (end - check.created_at).total_seconds()),
        "step_seconds": _step_seconds(check),
        "tools": tools_of(check.server, news=check) if found else None,
        "is_current": check.connection_version == check.server.connection_version,
        "can_manage": can_manage(request),
        "reaches_private": get_options().network.allow_private_targets,
        "wants_secret": is_about_secret(check.error),
    }


def _has_just_added(request: Request, check: Check) -> bool:
    """P37: whether this is the first test of a server that this very person has added a moment
    ago. The page in which the form was sent asks besides; no link can bring it about."""
    server = check.server
    is_first = server.version == 1 and login_of(server) is None
    is_fresh = check.created_at - server.created_at < ADDED_WITHIN
    has_just_ended = clock.now() - check.created_at < ADDED_LATELY
    return is_first and is_fresh and has_just_ended and check.requested_by == request.user


def _step_seconds(check: Check) -> float:
    """How long the step under way has lasted."""
    begun = check.started_at or check.created_at
    past = sum(step["ms"] or 0 for step in check.steps) / 1000
    return max(0.0, (clock.now() - begun).total_seconds() - past)
