"""Add a server, edit a server."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from secrets_vault.errors import SecretError
from servers import checks, services
from servers.access import sockets_problem
from servers.forms.differences import differences, refresh_kept_rows
from servers.forms.policy import MAX_TICKED
from servers.forms.rows import Row
from servers.forms.server import ServerForm
from servers.models import Server, Tool
from servers.oauth import binding
from servers.oauth.types import OAuthError
from servers.private import Private
from servers.views.common import get_server_to_manage, hinted_tools, require_manager
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast


@require_http_methods(["GET", "POST"])
def create(request: Request) -> HttpResponse:
    require_manager(request)
    if request.method == "GET":
        return _page(request, ServerForm())
    form = ServerForm(request.POST)
    if not form.is_valid():
        return _page(request, form, status=422)
    try:
        server = services.create_server(actor=request.user, data=form.server_data())
    except services.InvalidServer as error:
        form.show_errors(error.errors)
        return _page(request, form, status=422)
    # P13: it is tested at once. With script the list opens the dialog of this check; without,
    # the check has a page of its own.
    check = checks.request_check(server, actor=request.user)
    toast(request, f"{server.name} is saved.")
    if request.htmx:
        # P37: where it wants a login, the dialog goes there by itself, once.
        return hx_redirect(request, f"{reverse('servers:list')}?check={check.pk}&new=1")
    return hx_redirect(request, reverse("servers:check", args=[check.pk]))


@require_http_methods(["GET", "POST"])
def edit(request: Request, pk: UUID) -> HttpResponse:
    server = get_server_to_manage(request, pk)
    private, unreadable = _read(server)
    tools = _policy_tools(server)
    if request.method == "GET":
        form = ServerForm(server=server, private=private, tools=tools)
        return _page(request, form, unreadable=unreadable)
    form = ServerForm(request.POST, server=server, private=private, tools=tools)
    if not form.is_valid():
        return _page(request, form, unreadable=unreadable, status=422)
    try:
        saved = _update(request, form, server)
    except services.InvalidServer as error:
        form.show_errors(error.errors)
        return _page(request, form, unreadable=unreadable, status=422)
    except services.RenameUnconfirmed as error:
        return _page(request, form, unreadable=unreadable, renaming=error, status=422)
    except services.OutdatedEdit as error:
        return _outdated(request, form, error)
    except services.ServerGone as error:
        toast(request, str(error), "error")
        return hx_redirect(request, reverse("servers:list"))
    words = ""
    if saved.connection_version != server.connection_version:
        words = " and being tested" if checks.is_under_way(saved) else "; test it again"
    toast(request, f"{saved.name} is saved{words}.")
    return hx_redirect(request, reverse("servers:detail", args=[saved.pk]))


def _update(request: Request, form: ServerForm, server: Server) -> Server:
    """The button that confirms a rename names what was confirmed: a third name asks again."""
    data = form.server_data()
    return services.update_server(
        server,
        actor=request.user,
        data=data,
        version=form.cleaned_data["version"] or 0,
        renaming_confirmed=request.POST.get("renaming_confirmed") == data.name,
    )


def _outdated(request: Request, form: ServerForm, error: services.OutdatedEdit) -> HttpResponse:
    """Show both values; saving again then overwrites knowingly."""
    stored, _ = _read(error.current)
    found = differences(form, error.current, stored)
    form = refresh_kept_rows(form, request.POST, error.current, stored)
    return _page(request, form, differences=found, outdated=str(error), status=422)


def _read(server: Server) -> tuple[Private, str]:
    """The private part, and why it cannot be read (E09: the page works all the same)."""
    try:
        return services.read_private(server), ""
    except SecretError as error:
        return Private(), str(error)


def _policy_tools(server: Server) -> list[Tool]:
    """What the policy is ticked from; where there are too many for that, one more than that."""
    return list(hinted_tools(server)[: MAX_TICKED + 1])


def _page(request: Request, form: ServerForm, *, status: int = 200, **more: Any) -> HttpResponse:
    """`more`: unreadable, outdated, differences, renaming; each shows a notice above the form."""
    context = {
        "form": form,
        "server": form.server,
        "sockets_problem": sockets_problem(),
        "blank_row": Row(),
        **_callback(request, form.server),
        **more,
    }
    return render_page(
        request, "servers/form.html", context, partial="servers/form_part.html", status=status
    )


def _callback(request: Request, server: Server | None) -> dict[str, str]:
    """The Callback URL of a server that exists (P56), and why a login begun at the address of
    this page would not come back to it (P40)."""
    if server is None:
        return {}
    here = f"{request.scheme}://{request.get_host()}"
    found = {"callback_url": binding.callback_url(settings.OPTIONS.app.url or here, server.pk)}
    try:
        binding.base_url(here)
    except OAuthError as error:
        found["callback_problem"] = f"{error.message} {error.hint}"
    return found
