"""What the views of this room share."""

from __future__ import annotations

from uuid import UUID

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404

from servers.access import NotAllowed, may_manage
from servers.models import Server, Tool
from umpteenth.core.htmx import Request


def get_server(pk: UUID) -> Server:
    """Any signed-in person may see any server."""
    server = Server.objects.select_related("updated_by").filter(pk=pk).first()
    if server is None:
        raise Http404("There is no such server. Somebody may have deleted it.")
    return server


def get_server_to_manage(request: Request, pk: UUID) -> Server:
    """The server, for those who may change it."""
    require_manager(request)
    return get_server(pk)


def require_manager(request: Request) -> None:
    """403 with the sentence that says who may."""
    from servers.access import require_manager as check

    try:
        check(request.user)
    except NotAllowed as error:
        raise PermissionDenied(str(error)) from None


def can_manage(request: Request) -> bool:
    return may_manage(request.user)


def hinted_tools(server: Server) -> QuerySet[Tool]:
    """What a policy is judged by. The reference to the server must be read with it: else Django
    asks for it row by row."""
    return server.tools.only("server", "name", "title", "read_only", "destructive", "open_world")
