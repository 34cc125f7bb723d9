"""How a transport and a revision were found, in words (issue 3, section 1)."""

from __future__ import annotations

from typing import Any

import pytest

from servers.mcp.client import connect
from tests.fakes.mcp_helpers import http_settings, stdio_settings
from tests.fakes.mcp_http import FakeHttp, Reply, Request, Script
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareSpawner


def rpc(body: str) -> Reply:
    return Reply(200, {"content-type": "application/json"}, f'{{"jsonrpc":"2.0",{body}}}'.encode())


def refusing_the_probe(reply: Reply) -> Script:
    return lambda request: reply if request.rpc == "server/discover" else None


async def how_over_stdio(behaviour: Behaviour, **options: Any) -> str:
    settings = stdio_settings(behaviour, **options)
    async with connect(settings, spawn=BareSpawner()) as connection:
        return connection.how


@pytest.mark.parametrize(
    ("behaviour", "remembered", "how"),
    [
        (Behaviour(era="modern"), {}, "Newest protocol: it answered server/discover."),
        (
            Behaviour(),
            {},
            "It does not know server/discover (-32601); initialize succeeded.",
        ),
        (Behaviour(), {"mode": "handshake"}, "Initialize succeeded."),
        (
            Behaviour(versions=["2024-11-05"]),
            {"mode": "handshake"},
            "Initialize succeeded; it answered with its own revision 2024-11-05.",
        ),
        (
            Behaviour(versions=["2025-06-18"], refuse_unknown_version=True),
            {"mode": "handshake"},
            "Initialize succeeded after 1 newer revision was refused.",
        ),
        (
            Behaviour(only_unversioned=True),
            {"mode": "handshake"},
            "Initialize succeeded once no revision was named.",
        ),
        (
            Behaviour(era="modern"),
            {"mode": "handshake"},
            "It refused initialize (-32022); newest protocol: it answered server/discover.",
        ),
        (
            Behaviour(on_probe="exit"),
            {},
            "It ended on server/discover and was started again without it. Initialize succeeded.",
        ),
    ],
)
async def test_how_the_revision_was_found_is_told(
    behaviour: Behaviour, remembered: dict[str, str], how: str
) -> None:
    """Issue 3, section 1; U19, U20."""
    assert await how_over_stdio(behaviour, remembered=remembered) == how


async def test_a_silent_probe_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.1)
    assert await how_over_stdio(Behaviour(on_probe="ignore")) == (
        "It was silent on server/discover for 0.1 seconds; initialize succeeded."
    )


@pytest.mark.parametrize(
    ("reply", "how"),
    [
        (Reply(400, {}, b"Bad Request"), "It answered server/discover with 400"),
        (Reply(404), "It answered server/discover with 404"),
        (Reply(500), "It answered server/discover with 500"),
        (rpc('"id":1,"error":{"code":-32600,"message":"No"}'), "It refused server/discover"),
        (Reply(200, {"content-type": "text/html"}), "It did not answer server/discover in the"),
        (Reply(cut=True, body=b""), "It did not answer server/discover in the protocol"),
    ],
)
async def test_a_refused_probe_over_http_leads_to_the_handshake(reply: Reply, how: str) -> None:
    """U19: a connection that is dropped on the unknown message is a refusal too."""
    async with (
        FakeHttp(script=refusing_the_probe(reply)) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert connection.mode == "handshake"
        assert connection.how.startswith(how)
        assert connection.how.endswith("; initialize succeeded.")


async def test_how_an_old_transport_was_found_is_told() -> None:
    def script(request: Request) -> Reply | None:
        is_first_post = request.method == "POST" and request.path == "/sse"
        return Reply(405) if is_first_post else None

    async with (
        FakeHttp(transport="sse", script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        remembered = connection.remembered
        assert connection.how == (
            "The first POST was answered with 405, so legacy SSE was tried. Initialize succeeded."
        )
    async with (
        FakeHttp(transport="sse") as server,
        connect(http_settings(server.url, remembered=remembered)) as connection,
    ):
        assert connection.how == "Legacy SSE worked the last time. Initialize succeeded."
