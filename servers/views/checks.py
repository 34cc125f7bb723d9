"""Start a test, follow it, cancel it."""

from __future__ import annotations

import json
from uuid import UUID

from django.http import Http404, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from servers import checks
from servers.models import Check, Server
from servers.status import is_about_secret
from servers.views.common import can_manage, get_server, no_such_server
from servers.views.tools import tools_of
from umpteenth.core import clock
from umpteenth.core.htmx import Request, hx_redirect, render_page


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
    check = Check.objects.select_related("server", "requested_by").filter(pk=pk).first()
    if check is None:
        raise Http404("There is no such test. Its server may have been deleted.")
    return check


def _page(request: Request, check: Check) -> HttpResponse:
    return render_page(
        request,
        "servers/check.html",
        _context(request, check),
        partial="servers/check_part.html",
    )


def _context(request: Request, check: Check) -> dict[str, object]:
    end = check.finished_at or clock.now()
    found = check.outcome == Check.Outcome.CONNECTED
    return {
        "check": check,
        "server": check.server,
        "seconds": max(0.0, (end - check.created_at).total_seconds()),
        "step_seconds": _step_seconds(check),
        "tools": tools_of(check.server, news=check) if found else None,
        "is_current": check.connection_version == check.server.connection_version,
        "can_manage": can_manage(request),
        "wants_secret": is_about_secret(check.error),
    }


def _step_seconds(check: Check) -> float:
    """How long the step under way has lasted."""
    begun = check.started_at or check.created_at
    past = sum(step["ms"] or 0 for step in check.steps) / 1000
    return max(0.0, (clock.now() - begun).total_seconds() - past)
