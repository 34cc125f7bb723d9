"""A small MCP server over Streamable HTTP that wants a bearer token.

Run it as `WEATHER_TOKEN=… python weather_http.py --port 8765`; its address is then
http://127.0.0.1:8765/mcp. The weather is made up, and the same each time.
"""

from __future__ import annotations

import argparse
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from pydantic import BaseModel

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
SKIES = ("sunny", "cloudy", "rainy", "windy")
CITIES = {"Berlin": 9, "Lagos": 29, "Lima": 19, "Osaka": 16, "Oslo": 4, "Perth": 24}

server = MCPServer(
    "weather",
    version="1.0",
    instructions="Made-up weather for six cities; list_cities names them.",
)


class Day(BaseModel):
    day: int
    sky: str
    celsius: int


class Forecast(BaseModel):
    city: str
    days: list[Day]


@server.tool(title="List cities", annotations=READ_ONLY)
def list_cities() -> list[str]:
    """The cities that forecast knows."""
    return sorted(CITIES)


@server.tool(title="Forecast", annotations=READ_ONLY)
def forecast(city: str, days: int = 3) -> Forecast:
    """The weather of a city for the next days, 1 to 7."""
    if city not in CITIES:
        raise ToolError(f"No weather for {city}; list_cities names the cities.")
    base = CITIES[city]
    rows = [
        Day(day=day, sky=SKIES[(base + day) % len(SKIES)], celsius=base + day % 3)
        for day in range(1, min(max(days, 1), 7) + 1)
    ]
    return Forecast(city=city, days=rows)


Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


def with_token(app: App, token: str) -> App:
    """Let only requests with the token through; others get 401."""
    expected = f"Bearer {token}".encode()

    async def guarded(scope: Scope, receive: Any, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if scope["type"] != "http" or hmac.compare_digest(
            headers.get(b"authorization", b""), expected
        ):
            await app(scope, receive, send)
            return
        refusal = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": refusal})
        await send({"type": "http.response.body", "body": b"A bearer token is needed.\n"})

    return guarded


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8765)
    port = parser.parse_args().port
    app = with_token(server.streamable_http_app(), os.environ["WEATHER_TOKEN"])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


if __name__ == "__main__":
    main()
