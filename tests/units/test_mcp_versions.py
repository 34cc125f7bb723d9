"""Agreeing on a protocol revision, and remembering how."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from servers.mcp.client import connect
from servers.mcp.session import Session
from servers.mcp.types import ServerUnavailable
from tests.fakes.mcp_helpers import http_settings, shell_settings, stdio_settings
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_server import HANDSHAKE_VERSIONS, Behaviour
from tests.fakes.spawner import BareSpawner


@pytest.mark.parametrize("era", ["modern", "both"])
async def test_the_newest_revision_is_taken_where_the_server_knows_it(era: str) -> None:
    """U19."""
    settings = stdio_settings(Behaviour(era=era, instructions="Be kind."))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.protocol_version == "2026-07-28"
        assert connection.remembered == {"transport": "stdio", "mode": "discover"}
        assert connection.instructions == "Be kind."
        assert (connection.server_name, connection.server_version) == ("fake", "1.2.3")
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
async def test_an_older_server_counters_with_its_own_revision(version: str) -> None:
    """U19."""
    settings = stdio_settings(Behaviour(versions=[version]))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.protocol_version == version


async def test_a_server_that_refuses_newer_revisions_is_asked_for_older_ones() -> None:
    """U19."""
    behaviour = Behaviour(versions=["2025-03-26"], refuse_unknown_version=True)
    async with FakeHttp(behaviour) as server:
        async with connect(http_settings(server.url)) as connection:
            assert connection.protocol_version == "2025-03-26"
        asked = [
            request.message["params"].get("protocolVersion")
            for request in server.requests
            if request.rpc == "initialize"
        ]
    assert asked == ["2025-11-25", "2025-06-18", "2025-03-26"]


async def test_at_last_no_revision_is_named() -> None:
    """U20."""
    settings = stdio_settings(Behaviour(only_unversioned=True, versions=["2024-11-05"]))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.protocol_version == "2024-11-05"
        assert (await connection.call_tool("echo", {})).ok


async def test_a_server_that_refuses_everything_is_quoted() -> None:
    """U20: the first refusal is shown, and the asking ends."""

    def script(request: Request) -> Reply | None:
        if request.rpc != "initialize":
            return None
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Bad version"}}'
        return Reply(200, {"content-type": "application/json"}, body)

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match=r"^Bad version$"):
            async with connect(http_settings(server.url)):
                pass
    assert server.rpcs().count("initialize") == 5


async def test_an_error_that_is_not_about_the_revision_is_not_argued_with() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc != "initialize":
            return None
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"Database is down"}}'
        return Reply(200, {"content-type": "application/json"}, body)

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match=r"^Database is down$"):
            async with connect(http_settings(server.url)):
                pass
    assert server.rpcs().count("initialize") == 1


async def test_an_unknown_revision_is_named() -> None:
    settings = stdio_settings(Behaviour(initialize_result={"protocolVersion": "3000-01-01"}))
    with pytest.raises(ServerUnavailable, match="revision 3000-01-01"):
        async with connect(settings, spawn=BareSpawner()):
            pass


@pytest.mark.parametrize("result", [{}, {"serverInfo": None, "capabilities": None}])
async def test_an_almost_empty_answer_to_the_handshake_will_do(result: dict[str, object]) -> None:
    """D17: without capabilities the server is simply asked."""
    settings = stdio_settings(Behaviour(initialize_result=result))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.server_name == ""
        assert (await connection.list_tools()).tools


async def test_a_server_that_ignores_the_probe_costs_two_seconds_not_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Feasibility 6: the SDK's own wait is ten seconds. Both requests are under way by then."""
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.2)
    start = time.monotonic()
    settings = stdio_settings(Behaviour(on_probe="ignore"))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert time.monotonic() - start < 5
        assert connection.mode == "handshake"


async def test_a_server_over_http_that_ignores_the_probe_gets_the_handshake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.1)
    async with (
        FakeHttp(Behaviour(on_probe="ignore")) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert connection.mode == "handshake"
        assert (await connection.list_tools()).tools


async def test_a_slow_modern_server_may_still_answer_the_probe_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.05)
    settings = stdio_settings(Behaviour(era="modern", delay=0.4))
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.protocol_version == "2026-07-28"


async def test_a_server_that_exits_on_the_probe_is_started_again_without_it() -> None:
    """Feasibility 6b."""
    spawn = BareSpawner()
    async with connect(stdio_settings(Behaviour(on_probe="exit")), spawn=spawn) as connection:
        assert (await connection.call_tool("echo", {})).ok
        remembered = connection.remembered
    assert len(spawn.started) == 2
    settings = stdio_settings(Behaviour(on_probe="exit"), remembered=remembered)
    async with connect(settings, spawn=spawn):
        pass
    assert len(spawn.started) == 3
    assert spawn.alive() == []


async def test_what_worked_is_remembered_and_saves_the_probe() -> None:
    async with FakeHttp() as server:
        async with connect(http_settings(server.url)) as connection:
            remembered = connection.remembered
        assert "server/discover" in server.rpcs()
        server.requests.clear()
        async with connect(http_settings(server.url, remembered=remembered)):
            pass
        assert "server/discover" not in server.rpcs()


async def test_a_memory_that_does_not_hold_any_more_is_given_up() -> None:
    """The server has been upgraded to a revision without a handshake."""
    settings = stdio_settings(Behaviour(era="modern"), remembered={"mode": "handshake"})
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.remembered["mode"] == "discover"
    settings = stdio_settings(Behaviour(), remembered={"mode": "discover"})
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert connection.remembered["mode"] == "handshake"


@pytest.mark.parametrize("status", [400, 404, 405, 406, 410, 411])
async def test_an_old_server_is_reached_over_sse(status: int) -> None:
    """Cases "Decided", P5."""

    def script(request: Request) -> Reply | None:
        is_first_post = request.method == "POST" and request.path == "/sse"
        return Reply(status) if is_first_post else None

    async with (
        FakeHttp(Behaviour(versions=["2024-11-05"]), transport="sse", script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert connection.remembered == {"transport": "sse", "mode": "handshake"}
        assert (await connection.list_tools()).tools
        assert (await connection.call_tool("echo", {})).ok


async def test_a_remembered_sse_server_is_reached_without_a_detour() -> None:
    async with FakeHttp(transport="sse") as server:
        settings = http_settings(server.url, remembered={"transport": "sse"})
        async with connect(settings) as connection:
            assert connection.transport == "sse"
    assert (server.requests[0].method, server.requests[1].path[:9]) == ("GET", "/messages")


async def test_a_remembered_sse_server_that_moved_on_is_found_again() -> None:
    async with FakeHttp() as server:
        settings = http_settings(server.url, remembered={"transport": "sse"})
        async with connect(settings) as connection:
            assert connection.transport == "http"


@pytest.mark.parametrize("status", [429, 500, 502])
async def test_other_refusals_are_shown_and_not_hidden_by_sse(status: int) -> None:
    """B13."""

    def script(request: Request) -> Reply | None:
        headers = {"content-type": "text/plain", "retry-after": "0"}
        return Reply(status, headers, b"the disk is full")

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match=f"answered {status} .*: the disk is full"):
            async with connect(http_settings(server.url)):
                pass
    assert all(request.method == "POST" for request in server.requests)


async def test_when_both_transports_fail_the_first_error_is_shown() -> None:
    """B13."""

    def script(request: Request) -> Reply | None:
        words = b"no POST here" if request.method == "POST" else b"no GET here"
        return Reply(404, {"content-type": "text/plain"}, words)

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match="404 Not Found: no POST here") as caught:
            async with connect(http_settings(server.url)):
                pass
    assert caught.value.hint.endswith(
        "Legacy SSE was tried too: The server answered 404 Not Found: no GET here."
    )
    assert {request.method for request in server.requests} == {"POST", "GET"}


async def test_a_remembered_handshake_that_fails_for_its_own_reason_is_quoted() -> None:
    def script(request: Request) -> Reply | None:
        body = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"Database is down"}}'
        return Reply(200, {"content-type": "application/json"}, body)

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match=r"^Database is down$"):
            async with connect(http_settings(server.url, remembered={"mode": "handshake"})):
                pass


def rpc(body: str) -> Reply:
    return Reply(200, {"content-type": "application/json"}, f'{{"jsonrpc":"2.0",{body}}}'.encode())


async def test_a_probe_that_offers_only_old_revisions_leads_to_the_handshake() -> None:
    def script(request: Request) -> Reply | None:
        offer = '"id":1,"result":{"supportedVersions":["2025-11-25"]}'
        return rpc(offer) if request.rpc == "server/discover" else None

    async with (
        FakeHttp(script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert connection.protocol_version == "2025-11-25"


async def test_an_ignored_probe_is_not_waited_for_once_the_handshake_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F06."""
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.05)

    def script(request: Request) -> Reply | None:
        error = '"id":1,"error":{"code":-32603,"message":"Database is down"}'
        return rpc(error) if request.rpc == "initialize" else None

    async with FakeHttp(Behaviour(on_probe="ignore"), script=script) as server:
        start = time.monotonic()
        with pytest.raises(ServerUnavailable, match="Database is down"):
            async with connect(http_settings(server.url)):
                pass
        assert time.monotonic() - start < 5


async def test_a_server_without_handshake_that_refuses_the_probe_is_quoted() -> None:
    def script(request: Request) -> Reply | None:
        if request.rpc == "server/discover":
            return rpc('"id":1,"error":{"code":-32603,"message":"No discovery"}')
        data = '{"supported":["2099-01-01"]}'
        error = f'{{"code":-32022,"message":"Only 2099","data":{data}}}'
        return rpc(f'"id":1,"error":{error}')

    async with FakeHttp(script=script) as server:
        with pytest.raises(ServerUnavailable, match="Only 2099"):
            async with connect(http_settings(server.url)):
                pass


async def test_a_failed_start_is_not_blamed_on_the_memory() -> None:
    settings = stdio_settings(Behaviour(start="die"), remembered={"mode": "handshake"})
    spawn = BareSpawner()
    with pytest.raises(ServerUnavailable):
        async with connect(replace(settings, start_timeout=5), spawn=spawn):
            pass
    assert len(spawn.started) == 1


async def test_a_revision_that_is_refused_with_400_in_plain_words_is_asked_for_older() -> None:
    """U19: gateways refuse before the server sees the message."""

    def script(request: Request) -> Reply | None:
        if request.rpc == "server/discover":
            return Reply(400, {"content-type": "text/plain"}, b"Unsupported protocol version")
        if request.rpc != "initialize":
            return None
        asked = request.message["params"].get("protocolVersion")
        refusal = Reply(400, {"content-type": "text/plain"}, b"Unsupported protocol version")
        return refusal if asked != "2025-03-26" else None

    async with (
        FakeHttp(Behaviour(versions=["2025-03-26"]), script=script) as server,
        connect(http_settings(server.url)) as connection,
    ):
        assert connection.protocol_version == "2025-03-26"
        assert connection.transport == "http"


@pytest.mark.parametrize("status", [400, 404, 405])
async def test_a_remembered_handshake_is_forgotten_when_the_server_moved_on(status: int) -> None:
    """The server was upgraded and refuses the old request by status."""

    def script(request: Request) -> Reply | None:
        return Reply(status, {}, b"gone") if request.rpc == "initialize" else None

    async with FakeHttp(Behaviour(era="modern"), script=script) as server:
        settings = http_settings(server.url, remembered={"mode": "handshake"})
        async with connect(settings) as connection:
            assert connection.remembered == {"transport": "http", "mode": "discover"}
            assert connection.how == (
                f"It answered initialize with {status}; "
                "newest protocol: it answered server/discover."
            )


async def test_a_server_that_dies_twice_shows_its_first_words() -> None:
    """C06: the second start was a guess."""
    spawn = BareSpawner()
    settings = shell_settings("read line; echo KEY is required >&2; exit 3")
    with pytest.raises(ServerUnavailable, match="exit code 3: KEY is required"):
        async with connect(settings, spawn=spawn):
            pass
    assert len(spawn.started) == 2
    assert spawn.alive() == []


async def test_a_second_start_that_ends_otherwise_shows_its_own_end(tmp_path: Path) -> None:
    """The first end may have been the probe's fault, the second was not."""
    script = f"[ -e {tmp_path}/b ] && exit 4; touch {tmp_path}/b; read line; exit 3"
    with pytest.raises(ServerUnavailable, match="exit code 4"):
        async with connect(shell_settings(script), spawn=BareSpawner()):
            pass


async def test_what_goes_wrong_while_closing_is_logged_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F15: the caller has what it came for."""
    stop = Session.stop

    async def fail(self: Session) -> None:
        await stop(self)
        raise RuntimeError("the pipe burst")

    monkeypatch.setattr(Session, "stop", fail)
    async with FakeHttp() as server, connect(http_settings(server.url)) as connection:
        assert (await connection.call_tool("echo", {})).ok
    assert "Closing fake: the pipe burst" in caplog.text
