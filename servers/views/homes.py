"""What a stdio server keeps on this machine: how much it is, and clearing it."""

from __future__ import annotations

from uuid import UUID

from django.http import HttpResponse
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from servers import homes
from servers.homes import CannotClear
from servers.models import Server
from servers.usage import usages
from servers.views.common import can_manage, get_server, get_server_to_manage
from umpteenth.core.htmx import Request, hx_redirect, render_page, toast

_CLEARED = (
    "Packages are fetched again at its next start; whatever else it keeps there is lost. A run "
    "that uses it at this moment may fail."
)


@require_GET
def home_size(request: Request, pk: UUID) -> HttpResponse:
    """A part of the server's page that comes after the rest: a large home takes a while."""
    server = get_server(pk)
    kept = homes.homes_for(server)
    context = {
        "server": server,
        "has_home": kept is not None,
        "size": homes.home_size(server),
        "limit": kept.limit if kept else 0,
        "can_manage": can_manage(request),
    }
    return render_page(request, "servers/home_size.html", context)


@require_http_methods(["GET", "POST"])
def clear(request: Request, pk: UUID) -> HttpResponse:
    """Ask first."""
    server = get_server_to_manage(request, pk)
    kept = homes.homes_for(server)
    back = reverse("servers:detail", args=[pk])
    if kept is None:
        toast(
            request, f"{server.name} has no home: only servers that are started have one.", "info"
        )
        return hx_redirect(request, back)
    if request.method == "POST":
        try:
            freed = homes.clear_home(server, actor=request.user)
        except CannotClear as error:
            toast(request, str(error), "error")
        else:
            held = "" if freed is None else f"; it held {filesizeformat(freed)}"
            toast(request, f"The home of {server.name} is cleared{held}.")
        return hx_redirect(request, back)
    context = {
        "title": f"Clear the home of {server.name}?",
        "text": f"{_size_words(server, kept.limit)} {_CLEARED}",
        "uses": usages(server),
        "action": request.path,
        "verb": "Clear home",
        "cancel_url": back,
        "server": server,
    }
    return render_page(request, "servers/clear_home.html", context, partial="partials/confirm.html")


def _size_words(server: Server, limit: int) -> str:
    size = homes.home_size(server)
    if size is None:
        return "What it holds on this machine is being counted."
    return f"It holds {filesizeformat(size)} of at most {filesizeformat(limit)} on this machine."
