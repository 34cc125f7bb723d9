"""The client under test: the product's engine, driven as one scenario of the suite wants it.

    python -m tests.conformance.driver URL

Scenarios of logins get the whole product (`logins`), all others the engine alone.

The suite names the scenario in MCP_CONFORMANCE_SCENARIO and hands over what else it needs as JSON
in MCP_CONFORMANCE_CONTEXT. Exit status 1 where the engine reports an error.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from servers.mcp.client import Connection, connect
from servers.mcp.types import ConnectionSettings, ServerError
from tests.conformance import logins

Drive = Callable[[Connection, dict[str, Any]], Awaitable[None]]


async def list_only(connection: Connection, context: dict[str, Any]) -> None:
    await connection.list_tools()


async def call_every_tool(connection: Connection, context: dict[str, Any]) -> None:
    """Each listed tool once, with an argument for each required property."""
    for tool in (await connection.list_tools()).tools:
        await connection.call_tool(tool.name, _arguments(tool.input_schema))


async def call_as_told(connection: Connection, context: dict[str, Any]) -> None:
    """A null where the schema allows none is left out: the engine would refuse to send it."""
    await connection.list_tools()
    for call in context["toolCalls"]:
        given = {name: value for name, value in call["arguments"].items() if value is not None}
        await connection.call_tool(call["name"], given)


async def echo_schema(connection: Connection, context: dict[str, Any]) -> None:
    """Send back the first tool's schema, through the second tool, as it was understood."""
    focal, echo = (await connection.list_tools()).tools
    await connection.call_tool(echo.name, {"schema": focal.input_schema})


SCENARIOS: dict[str, Drive] = {
    "http-custom-headers": call_as_told,
    "json-schema-2020-12-preservation": echo_schema,
    "json-schema-ref-no-deref": list_only,
}


def _arguments(schema: dict[str, Any]) -> dict[str, Any]:
    samples = {"string": "text", "number": 5, "integer": 5, "boolean": True, "object": {}}
    properties = schema.get("properties", {})
    return {
        name: samples.get(properties.get(name, {}).get("type"), [])
        for name in schema.get("required", [])
    }


def main(url: str) -> int:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    drive = SCENARIOS.get(scenario, call_every_tool)
    try:
        if scenario.startswith(logins.PREFIX):
            logins.run(scenario, url, context, lambda connection: drive(connection, context))
        else:
            asyncio.run(without_login(scenario, url, context, drive))
    except (ServerError, logins.LoginFailed) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


async def without_login(scenario: str, url: str, context: dict[str, Any], drive: Drive) -> None:
    settings = ConnectionSettings(name=scenario or "suite", transport="http", url=url)
    async with connect(settings) as connection:
        await drive(connection, context)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
