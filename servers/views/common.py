"""What the views of this room share."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpResponse

from servers import access
from servers.models import Server, Tool
from umpteenth.core import clock
from umpteenth.core.htmx import Request

WATCH_OVERLAP = timedelta(seconds=5)


def get_server(pk: UUID, *, with_login: bool = False) -> Server:
    """Any signed-in person may see any server."""
    servers = Server.objects.select_related("updated_by")
    if with_login:
        servers = servers.select_related("login__logged_in_by").defer("login__private")
    server = servers.filter(pk=pk).first()
    if server is None:
        raise no_such_server()
    return server


def no_such_server() -> Http404:
    return Http404("There is no such server. Somebody may have deleted it.")


def get_server_to_manage(request: Request, pk: UUID) -> Server:
    """The server, for those who may change it."""
    require_manager(request)
    return get_server(pk)


def require_manager(request: Request) -> None:
    """403 with the sentence that says who may."""
    try:
        access.require_manager(request.user)
    except access.NotAllowed as error:
        raise PermissionDenied(str(error)) from None


def can_manage(request: Request) -> bool:
    return access.may_manage(request.user)


def let_forms_leave(response: HttpResponse) -> HttpResponse:
    """For pages with `Log in`: where no script sends the form, its answer leads to a provider
    that no page can name beforehand, and on from there. Nothing else of the policy changes."""
    response._csp_replace = {"form-action": None}  # type: ignore[attr-defined]
    return response


def watch() -> dict[str, str]:
    """For `servers/watch.html`: what changes from now on, its page tells by events."""
    # Clocks of several machines and what commits a moment later: rather twice than not at all.
    return {"since": f"{clock.now() - WATCH_OVERLAP:%Y-%m-%dT%H:%M:%S%z}"}


def hinted_tools(server: Server) -> QuerySet[Tool]:
    """What a policy is judged by. The reference to the server must be read with it: else Django
    asks for it row by row."""
    return server.tools.only("server", "name", "title", "read_only", "destructive", "open_world")
