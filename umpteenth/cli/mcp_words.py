"""What the commands of `umpteenth mcp` say about a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli.output import fail

if TYPE_CHECKING:
    from servers.models import Server


def get_server(name: str) -> Server:
    from servers.models import Server

    server = Server.objects.filter(name=name).first()
    if server is None:
        fail(f"There is no MCP server named {name}. See: umpteenth mcp list")
    return server


def summary(server: Server) -> dict[str, Any]:
    """One entry of `mcp list --json`."""
    # Here and not above: commands load Django when they run.
    from servers import facts

    return facts.summary(server)


def tools_of(server: Server) -> list[dict[str, Any]]:
    from servers import facts

    return facts.tools_of(server)


def print_tools(tools: list[dict[str, Any]]) -> None:
    for tool in tools:
        marks = _marks(tool)
        marks += [tool["restricted"]] if tool.get("restricted") else []
        head = f"  {tool['name']}" + (f" [{', '.join(marks)}]" if marks else "")
        first_line = (tool["description"] or "").strip().partition("\n")[0]
        click.echo(head + (f": {first_line}" if first_line else ""))


def _marks(tool: dict[str, Any]) -> list[str]:
    """What a server says of a tool, as far as a policy acts on it or calls are repeated for it."""
    from servers.models import Tool

    shown = Tool(**{hint: tool[hint] for hint in ("read_only", "destructive", "open_world")})
    words = {
        "read-only": shown.shows_read_only,
        "destructive": shown.shows_destructive,
        "open world": shown.open_world,
    }
    return [word for word, holds in words.items() if holds]


def cut(text: str, limit: int = 60) -> str:
    """Cut in the middle: both ends of an address matter."""
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]}…{text[-(limit // 3) + 1 :]}"


def word(value: Any) -> str:
    if value is None:
        return "not tested"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(word, value)) or "none"
    if isinstance(value, dict):
        return "; ".join(f"{key}: {word(item)}" for key, item in value.items())
    return str(value)
