"""Logging in to a server at its provider: begin, come back, log out (P38-P42, P52)."""

from __future__ import annotations

from uuid import UUID

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from servers.views.common import get_server_to_manage
from umpteenth.core.htmx import Request, hx_redirect, toast


@require_POST
def login(request: Request, pk: UUID) -> HttpResponse:
    """Go to the provider."""
    server = get_server_to_manage(request, pk)
    toast(request, f"Logging in to {server.name} is not possible yet.", "error")
    return hx_redirect(request, reverse("servers:list"))


@login_not_required
@require_GET
def callback(request: HttpRequest, pk: UUID) -> HttpResponse:
    """The person comes back from the provider."""
    raise Http404("No login was begun.")


@require_POST
def logout(request: Request, pk: UUID) -> HttpResponse:
    get_server_to_manage(request, pk)
    return hx_redirect(request, reverse("servers:list"))


@login_not_required
@require_GET
def client_document(request: HttpRequest, pk: UUID) -> HttpResponse:
    """What a provider reads of us, whose address is the client's ID."""
    raise Http404("There is no such client.")
