"""The list, the switch, duplicate, delete, and the question before a log-out."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django.core.paginator import Paginator
from django.http import HttpResponse
from django.urls import reverse
from django.utils.text import Truncator
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from secrets_vault.errors import SecretError
from servers import services
from servers.forms.lists import ServerFilter, SinceForm
from servers.models import Server
from servers.oauth.shown import ShownLogin, shown_login
from servers.queries import changed_servers, find_servers
from servers.status import login_of
from servers.usage import usages
from servers.views.common import (
    can_manage,
    get_server,
    get_server_to_manage,
    let_forms_leave,
    no_such_server,
    require_manager,
    watch,
)
from umpteenth.core import clock
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast

PER_PAGE = 25
_LOGGED_OUT = "Its tokens are deleted here, and revoked at the provider where that is possible."
_AFTER_LOG_OUT = {
    Server.LoginKind.PERSON.value: "Runs that use the server fail until somebody logs in again.",
    Server.LoginKind.MACHINE.value: "The client logs in anew when the server is used next.",
}
MAX_WHY = 100  # characters of the last error below a row's state


@require_GET
def list_servers(request: Request) -> HttpResponse:
    form = ServerFilter(request.GET)
    values = form.values()
    page = Paginator(find_servers(**values), PER_PAGE).get_page(request.GET.get("page"))
    rows = [_row(server) for server in page.object_list]
    context = {
        "form": form,
        "filters": [form["transport"], form["auth"], form["state"]],
        "is_filtered": any(values.values()),
        "page_obj": page,
        "rows": rows,
        "can_manage": can_manage(request),
        **watch(),
        "open_check": _uuid(request.GET.get("check", "")),
    }
    target = request.htmx.target if request.htmx else None
    partial = "servers/list_part.html" if target == "server-list" else "servers/list.html"
    response = render_page(request, "servers/list.html", context, partial=partial)
    leads_out = can_manage(request) and any(row["login"].can_log_in for row in rows)
    return let_forms_leave(response) if leads_out else response


@require_GET
def row(request: Request, pk: UUID) -> HttpResponse:
    """One row of the list, which fetches itself while and after its server is tested."""
    return _row_page(request, pk)


@require_GET
def changes(request: Request) -> HttpResponse:
    """Which servers health checks and other people changed: their rows fetch themselves again.

    One question for the whole list; without a usable moment nothing has changed.
    """
    form = SinceForm(request.GET)
    since = form.cleaned_data["since"] if form.is_valid() else None
    found = changed_servers(since, limit=PER_PAGE + 1) if since else []
    events = [f"row-{pk}" for pk in found]
    if len(events) > PER_PAGE:  # hundreds of names fit into no header
        events = ["rows"]
    response = render_page(request, "servers/watch.html", watch())
    response["HX-Trigger"] = json.dumps(dict.fromkeys(events, ""))
    return response


def _row_page(request: Request, pk: UUID) -> HttpResponse:
    server = find_servers().filter(pk=pk).first()
    if server is None:
        raise no_such_server()
    context = {"row": _row(server), "can_manage": can_manage(request)}
    return render_page(request, "servers/row.html", context, partial="servers/row.html")


@require_POST
def switch(request: Request, pk: UUID) -> HttpResponse:
    server = get_server_to_manage(request, pk)
    enabled = request.POST.get("enabled") == "on"
    services.set_enabled(server, actor=request.user, enabled=enabled)
    words = "enabled" if enabled else "disabled; jobs skip it until it is enabled again"
    if request.htmx:
        response = _row_page(request, pk)
        response["HX-Trigger"] = json.dumps({"announce": f"{server.name} is {words}."})
        return response
    toast(request, f"{server.name} is {words}.")
    return hx_redirect(request, reverse("servers:list"))


@require_POST
def duplicate(request: Request, pk: UUID) -> HttpResponse:
    server = get_server_to_manage(request, pk)
    try:
        copy = services.duplicate_server(server, actor=request.user)
    except SecretError as error:
        toast(request, str(error), "error")
        return hx_redirect(request, reverse("servers:list"))
    toast(request, f"{copy.name} is a disabled copy of {server.name}.")
    return hx_redirect(request, reverse("servers:edit", args=[copy.pk]))


@require_http_methods(["GET", "POST"])
def delete(request: Request, pk: UUID) -> HttpResponse:
    server = get_server_to_manage(request, pk)
    if request.method == "POST":
        services.delete_server(server, actor=request.user)
        toast(request, f"{server.name} is deleted.")
        return hx_redirect(request, reverse("servers:list"))
    context = {
        "title": f"Delete {server.name}?",
        "text": "Its tools and tests go with it, and jobs lose it. This cannot be undone.",
        "uses": usages(server),
        "action": request.path,
        "verb": "Delete server",
        "cancel_url": reverse("servers:list"),
        "server": server,
    }
    return render_page(request, "servers/delete.html", context, partial="partials/confirm.html")


@require_GET
def log_out(request: Request, pk: UUID) -> HttpResponse:
    """Ask first (P52); the answer goes where logins begin and end."""
    require_manager(request)
    server = get_server(pk, with_login=True)
    if login_of(server) is None:
        toast(request, f"Nobody is logged in to {server.name}.", "info")
        return hx_redirect(request, reverse("servers:detail", args=[pk]))
    context = {
        "title": f"Log out of {server.name}?",
        "text": f"{_LOGGED_OUT} {_AFTER_LOG_OUT[server.oauth_kind]}",
        "uses": usages(server),
        "action": reverse("servers_api:oauth_logout", args=[pk]),
        "verb": "Log out",
        "cancel_url": reverse("servers:detail", args=[pk]),
        "server": server,
    }
    return render_page(request, "servers/log_out.html", context, partial="partials/confirm.html")


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _row(server: Server) -> dict[str, Any]:
    login = shown_login(server, clock.now(), with_provider=False)
    return {
        "server": server,
        "login": login,
        "shows_state": _shows_state(server, login),
        "check": getattr(server, "check_under_way", None),
        "hover": _hover(server),
        "endpoint": _short_endpoint(server),
        "why": _why(server),
        "tools": f"{server.tool_count:,}",
    }


def _shows_state(server: Server, login: ShownLogin) -> bool:
    """Whether it is news: the lamp tells the rest, and a warning needs the room."""
    if server.state == Server.State.CONNECTED:
        return not login.short_warning
    return server.state != Server.State.UNTESTED or server.tested_at is not None


def _short_endpoint(server: Server) -> str:
    """Without the scheme, whichever it is: that leaves room for what tells them apart."""
    if server.transport == Server.Transport.UNIX:
        return server.socket_path
    if server.transport == Server.Transport.HTTP:
        return server.url.partition("://")[2]
    return server.endpoint


def _why(server: Server) -> str:
    """The first words of the reason, for screens on which no pointer can rest."""
    if server.state not in Server.TROUBLED:
        return ""
    return Truncator(" ".join(server.last_error[:1000].split())).chars(MAX_WHY)


def _hover(server: Server) -> str:
    """The state's reason and what comes next, for whoever rests the pointer on it."""
    words = [str(server.get_state_display())]
    if server.failures > 1:
        words.append(f"{server.failures} times in a row")
    if server.last_error:
        words.append(Truncator(server.last_error).chars(200))
    if server.enabled and server.next_check_at:
        due = server.next_check_at <= clock.now()
        words.append("A check is due" if due else f"Next check at {server.next_check_at:%H:%M} UTC")
    return "\n".join(words)
