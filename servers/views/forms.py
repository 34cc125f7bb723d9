"""Add a server, edit a server."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from secrets_vault.errors import SecretError
from servers import checks, services
from servers.forms import Row, ServerForm, differences, refresh_kept_rows
from servers.models import Server
from servers.private import Private
from servers.views.common import get_server_to_manage, require_manager
from umpteenth.core.edits import Difference
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
        return hx_redirect(request, f"{reverse('servers:list')}?check={check.pk}")
    return hx_redirect(request, reverse("servers:check", args=[check.pk]))


@require_http_methods(["GET", "POST"])
def edit(request: Request, pk: UUID) -> HttpResponse:
    server = get_server_to_manage(request, pk)
    private, unreadable = _read(server)
    if request.method == "GET":
        return _page(request, ServerForm(server=server, private=private), unreadable=unreadable)
    form = ServerForm(request.POST, server=server, private=private)
    if not form.is_valid():
        return _page(request, form, unreadable=unreadable, status=422)
    try:
        saved = services.update_server(
            server,
            actor=request.user,
            data=form.server_data(),
            version=form.cleaned_data["version"] or 0,
        )
    except services.InvalidServer as error:
        form.show_errors(error.errors)
        return _page(request, form, unreadable=unreadable, status=422)
    except services.OutdatedEdit as error:
        return _outdated(request, form, error)
    except services.ServerGone as error:
        toast(request, str(error), "error")
        return hx_redirect(request, reverse("servers:list"))
    untested = saved.connection_version != server.connection_version
    toast(request, f"{saved.name} is saved{'; test it again' if untested else ''}.")
    return hx_redirect(request, reverse("servers:detail", args=[saved.pk]))


def _outdated(request: Request, form: ServerForm, error: services.OutdatedEdit) -> HttpResponse:
    """Show both values; saving again then overwrites knowingly."""
    stored, _ = _read(error.current)
    found = differences(form, error.current, stored)
    form = refresh_kept_rows(form, request.POST, error.current, stored)
    return _page(request, form, found=found, outdated=str(error), status=422)


def _read(server: Server) -> tuple[Private, str]:
    """The private part, and why it cannot be read (E09: the page works all the same)."""
    try:
        return services.read_private(server), ""
    except SecretError as error:
        return Private(), str(error)


def _page(
    request: Request,
    form: ServerForm,
    *,
    unreadable: str = "",
    outdated: str = "",
    found: list[Difference] | None = None,
    status: int = 200,
) -> HttpResponse:
    context = {
        "form": form,
        "server": form.server,
        "unreadable": unreadable,
        "outdated": outdated,
        "differences": found or [],
        "blank_row": Row(),
    }
    return render_page(
        request, "servers/form.html", context, partial="servers/form_part.html", status=status
    )
