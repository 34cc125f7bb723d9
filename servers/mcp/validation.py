"""Settings that cannot work are refused before anything is sent or started."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from typing import Final
from urllib.parse import urlsplit

from servers.mcp.types import ConnectionSettings, ServerUnavailable

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# Set by the client for each message; a fixed value would break the exchange.
_RESERVED: Final = frozenset(
    {"connection", "content-length", "expect", "te", "trailer", "transfer-encoding", "upgrade"}
)
# What the kernel's address of a Unix socket holds, without the final NUL.
MAX_SOCKET_PATH: Final = 107


def check_settings(settings: ConnectionSettings) -> ConnectionSettings:
    """The settings with trimmed header values. Raises `ServerUnavailable` naming the field."""
    if settings.transport != "stdio":
        _check_url(settings.url)
        if settings.transport == "unix":
            _check_socket_path(settings.socket_path)
        return _with_headers(settings, check_headers(settings.headers))
    _check_command(settings)
    return settings


def check_headers(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Trimmed headers. A fault names the header, never its value (E01)."""
    seen: set[str] = set()
    for name, value in headers:
        fault = header_fault(name, value)
        if fault:
            raise ServerUnavailable(fault, "Edit the server's headers.")
        if name.lower() in seen:
            raise ServerUnavailable(f"Header {name} is given twice.", "Keep one of them.")
        seen.add(name.lower())
    return tuple((name, value.strip(" ")) for name, value in headers)


def header_fault(name: str, value: str) -> str:
    """Why a header cannot be sent, as a sentence without its value; empty if it can."""
    if not _TOKEN.fullmatch(name):
        return f"{name!r} is no name of a header."
    if name.lower() in _RESERVED:
        return f"Header {name} is set by Umpteenth itself."
    if "\n" in value or "\r" in value:
        return f"The value of header {name} contains a line break."
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        return f"The value of header {name} contains a control character."
    if any(ord(character) > 255 for character in value):
        return f"The value of header {name} contains a character outside of Latin-1."
    return ""


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ServerUnavailable("The URL cannot be read.", "Check host and port.") from None
    if parts.scheme not in ("http", "https"):
        raise ServerUnavailable("The URL must begin with http:// or https://.")
    if not parts.hostname:
        raise ServerUnavailable("The URL names no host.")
    if parts.username is not None or parts.password is not None:
        raise ServerUnavailable(
            "The URL contains a user name or password.",
            "Send them in an Authorization header instead.",
        )


def _check_socket_path(path: str) -> None:
    """U12."""
    if not hasattr(socket, "AF_UNIX"):
        raise ServerUnavailable("This system has no Unix sockets.")
    if not path.startswith("/"):
        raise ServerUnavailable(
            "The socket's path must be absolute.", "Enter it from / on; ~ is not expanded."
        )
    if "\0" in path:
        raise ServerUnavailable("The socket's path cannot contain NUL characters.")
    if len(path.encode("utf-8", errors="surrogateescape")) > MAX_SOCKET_PATH:
        raise ServerUnavailable(
            f"The socket's path is longer than the {MAX_SOCKET_PATH} bytes that a path of a "
            "Unix socket can have.",
            "Use a shorter path, or a symbolic link to its directory.",
        )


def _check_command(settings: ConnectionSettings) -> None:
    if not settings.command.strip():
        raise ServerUnavailable("The server has no command.", "Enter the program to start.")
    values = [settings.command, *settings.args, *settings.env, *settings.env.values()]
    if any("\0" in value for value in values):
        raise ServerUnavailable("Command, arguments and environment cannot contain NUL characters.")
    for name in settings.env:
        if not name or "=" in name:
            raise ServerUnavailable(f"{name!r} is no name of an environment variable.")


def _with_headers(
    settings: ConnectionSettings, headers: tuple[tuple[str, str], ...]
) -> ConnectionSettings:
    # A fragment never goes to a server.
    return replace(settings, headers=headers, url=settings.url.partition("#")[0])
