"""Redirects: followed within the server's origin, never beyond it, and always named."""

from __future__ import annotations

import pytest

from servers.mcp.client import connect
from servers.mcp.types import ServerError, ServerUnavailable
from tests.fakes.http_calls import connected, on_get, settings_for
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import EVENTS, FakeHttp, Reply, Request, Script

SECRETS = (("Authorization", "Bearer canary"), ("X-Team", "canary"), ("Cookie", "canary"))


def hops(*places: str, status: int = 307) -> Script:
    """Each place leads to the next; the last one is the server's own."""
    following = dict(zip(places, [*places[1:], "/mcp"], strict=True))

    def script(request: Request) -> Reply | None:
        place = following.get(request.path.partition("?")[0])
        return Reply(status, {"location": place}, b"moved") if place else None

    return script


async def failure(server: FakeHttp, path: str = "/old", **options: object) -> ServerError:
    url = server.url.replace("/mcp", path)
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(http_settings(url, **options)):
            pass
    return caught.value


@pytest.mark.parametrize("places", [("/old",), ("/old", "/older/", "/a?b=1", "/z")])
async def test_every_message_takes_the_same_way_and_nothing_is_lost(
    places: tuple[str, ...],
) -> None:
    """B10: method, body and credentials stay, over several hops."""
    async with FakeHttp(script=hops(*(place.partition("?")[0] for place in places))) as server:
        settings = http_settings(server.url.replace("/mcp", "/old"), headers=SECRETS)
        async with connect(settings) as connection:
            assert (await connection.call_tool("echo", {"a": 1})).ok
    arrived = [request for request in server.requests if request.path == "/mcp"]
    assert {request.method for request in arrived} == {"POST", "DELETE", "GET"} - (
        set() if server.gets() else {"GET"}
    )
    assert {request.headers["authorization"] for request in arrived} == {"Bearer canary"}
    assert all(request.body for request in arrived if request.method == "POST")


async def test_the_address_at_the_end_is_suggested_without_what_may_be_secret() -> None:
    """B10: each message makes a detour."""
    async with FakeHttp(script=hops("/old", "/older")) as server:
        settings = http_settings(server.url.replace("/mcp", "/old?key=K"))
        async with connect(settings) as connection:
            warnings = (await connection.list_tools()).warnings
    old = server.url.replace("/mcp", "/old")
    assert warnings == [f"The server redirects {old} to {server.url}; enter that as the URL."]


async def test_without_a_redirect_nothing_is_suggested() -> None:
    async with connected() as (_, connection):
        assert (await connection.list_tools()).warnings == []


async def test_a_connection_is_used_again_after_a_redirect() -> None:
    async with FakeHttp(script=hops("/old")) as server:
        settings = http_settings(server.url.replace("/mcp", "/old"))
        async with connect(settings) as connection:
            for _ in range(5):
                assert (await connection.call_tool("echo", {})).ok
    assert server.connections <= 3


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_turns_a_message_into_a_question_names_the_right_address(
    status: int,
) -> None:
    """B12."""
    async with FakeHttp(script=hops("/old", status=status)) as server:
        error = await failure(server)
    assert f"redirects to {server.url} with status {status}" in error.message
    assert error.hint == f"If that is the right address, enter {server.url} as the URL."
    assert {request.path for request in server.requests} == {"/old"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_stream_may_be_fetched_from_elsewhere_in_the_origin(status: int) -> None:
    """B10: a GET loses nothing."""

    def script(request: Request) -> Reply | None:
        if request.method != "GET":
            return None
        if request.path == "/stream":
            return Reply(200, {"content-type": EVENTS}, b": here\n\n")
        return Reply(status, {"location": "/stream"})

    async with connected(script) as (server, _):
        await server.until(lambda: len(server.gets()) == 2)
    assert server.gets()[1].headers["accept"] == EVENTS


@pytest.mark.parametrize("hop", [0, 1, 2])
@pytest.mark.parametrize("headers", [SECRETS, ()])
async def test_nothing_leaves_the_origin_at_any_hop_with_or_without_credentials(
    hop: int, headers: tuple[tuple[str, str], ...]
) -> None:
    """B12: a message may hold secrets of its own."""
    places = ["/old", "/older", "/oldest"]
    async with FakeHttp() as other:
        follow = hops(*places)

        def script(request: Request) -> Reply | None:
            if request.path == places[hop]:
                return Reply(307, {"location": f"{other.url}?leak=1"})
            return follow(request)  # type: ignore[return-value]

        async with FakeHttp(script=script) as server:
            error = await failure(server, headers=headers)
        assert other.connections == 0
    assert f"redirects to {other.url}, which is another origin" in error.message
    assert "leak" not in error.message + error.hint


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("http://localhost:{port}/mcp", "another origin"),
        ("https://127.0.0.1:{port}/mcp", "another origin"),
        ("//localhost:{port}/mcp", "another origin"),
        ("http://127.0.0.1:1/mcp", "another origin"),
        ("ftp://127.0.0.1/mcp", "no web address"),
        ("javascript:alert(1)", "no web address"),
    ],
)
async def test_another_scheme_host_or_port_is_not_followed(place: str, words: str) -> None:
    """B12: and nothing but http leads anywhere."""
    async with FakeHttp() as server:
        target = place.format(port=server.port)
        server.script = lambda request: Reply(307, {"location": target})
        error = await failure(server, headers=SECRETS)
        assert len(server.requests) == 1
    assert words in error.message


async def test_a_name_and_password_in_a_redirect_are_not_sent() -> None:
    """B12: the HTTP library would put them into the place of our own credentials."""

    def script(request: Request) -> Reply | None:
        if request.path != "/old":
            return None
        return Reply(307, {"location": f"http://mallory:pw@127.0.0.1:{server.port}/mcp"})

    async with FakeHttp(script=script) as server:
        settings = http_settings(server.url.replace("/mcp", "/old"), headers=SECRETS)
        async with connect(settings) as connection:
            warnings = (await connection.list_tools()).warnings
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer canary"}
    assert "mallory" not in str(warnings)


@pytest.mark.parametrize("place", ["http://[broken/mcp", "http://h:port/mcp"])
async def test_a_redirect_that_cannot_be_read_says_so(place: str) -> None:
    async with FakeHttp(script=lambda request: Reply(307, {"location": place})) as server:
        error = await failure(server)
    assert "redirects to" in error.message


@pytest.mark.parametrize("length", [5, 6, 11])
async def test_the_number_of_hops_is_bounded(length: int) -> None:
    """B12: a loop of eleven hops."""
    places = [f"/hop{number}" for number in range(length)]
    async with FakeHttp(script=hops(*places)) as server:
        url = server.url.replace("/mcp", "/hop0")
        if length <= 5:
            async with connect(http_settings(url)) as connection:
                assert (await connection.call_tool("echo", {})).ok
            return
        error = await failure(server, "/hop0")
    assert "redirects again and again" in error.message


async def test_a_redirect_without_a_place_is_an_error_of_the_server() -> None:
    async with FakeHttp(script=lambda request: Reply(307)) as server:
        error = await failure(server)
    assert "answered 307 Temporary Redirect" in error.message


async def test_an_sse_address_in_the_origin_keeps_the_credentials() -> None:
    """B12, for the transport of 2024-11-05."""
    async with FakeHttp(transport="sse") as server:
        settings = settings_for(server, headers=SECRETS, remembered={"transport": "sse"})
        async with connect(settings) as connection:
            assert (await connection.call_tool("echo", {})).ok
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer canary"}


@pytest.mark.parametrize("endpoint", ["//localhost/m", "https://127.0.0.1/m", "http://[x/m"])
async def test_an_sse_address_elsewhere_is_refused(endpoint: str) -> None:
    """B12."""
    body = f"event: endpoint\ndata: {endpoint}\n\n".encode()
    script = on_get(Reply(200, {"content-type": EVENTS}, body))
    async with FakeHttp(transport="sse", script=script) as server:
        settings = settings_for(server, headers=SECRETS, remembered={"transport": "sse"})
        with pytest.raises(ServerUnavailable, match=r"another origin|cannot be read"):
            async with connect(settings):
                pass
    assert len(server.gets()) == 1
