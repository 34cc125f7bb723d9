"""Who may do what with servers. Services ask here, so that no page, command or import can forget.

Members see and test servers; whoever may write a command chooses what runs (I19), so
only administrators create, change, duplicate, switch, delete and log in. That holds for Unix
sockets too, which lead into whatever listens on this machine (U12).
"""

from __future__ import annotations

import socket

from django.conf import settings

from umpteenth.accounts.models import User


class NotAllowed(Exception):
    """The person may not do this; the message says who may."""


def may_manage(person: User | None) -> bool:
    """None is the operator at the command line, who owns the machine."""
    return person is None or person.is_administrator


def require_manager(person: User | None) -> None:
    if not may_manage(person):
        raise NotAllowed("Only administrators can change MCP servers. Ask one of them.")


def require_to_log_in(person: User | None) -> None:
    """A login is the server's: all jobs use it, so that it is made by who may change the server."""
    if not may_manage(person):
        raise NotAllowed(
            "Only administrators can log in to MCP servers, for everybody's jobs. "
            "Ask an administrator to log in."
        )


def sockets_problem() -> str:
    """Why no Unix socket can be used here; empty if they can. Asked at save and at connect."""
    if not hasattr(socket, "AF_UNIX"):
        return "This machine has no Unix sockets; choose HTTP or stdio."
    if not settings.OPTIONS.network.allow_private_targets:
        return (
            "Unix sockets are switched off here, because network.allow_private_targets is false "
            "in the configuration."
        )
    return ""
