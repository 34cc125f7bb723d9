"""What a person reads when a connection fails, and where credentials go."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

import httpx2
import pytest

from servers.mcp import errors
from servers.mcp.client import connect
from servers.mcp.exchange import foreign_redirect
from servers.mcp.types import (
    ConnectionSettings,
    LoginRequired,
    ServerError,
    ServerUnavailable,
)
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp, Reply, Request, Script
from tests.fakes.mcp_server import Behaviour

BEARER = (("Authorization", "Bearer canary-value"),)
TEXT = {"content-type": "text/plain"}


async def failure(settings: ConnectionSettings) -> ServerError:
    with pytest.raises(ServerError) as caught:
        async with connect(settings):
            pass
    return caught.value


async def failure_of(script: Script, **options: object) -> ServerError:
    async with FakeHttp(script=script) as server:
        return await failure(http_settings(server.url, **options))


def answering(reply: Reply | None) -> Script:
    return lambda request: reply


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_server_that_closes_without_an_answer_is_called_so() -> None:
    """B15: it may speak HTTP well enough, and has only gone away."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(http_settings(f"http://127.0.0.1:{port}/mcp"))
    assert (
        error.message
        == f"http://127.0.0.1:{port}/mcp closed the connection without an HTTP answer."
    )
    assert "check the port" in error.hint


async def test_a_refused_connection_names_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """P27, B13."""
    monkeypatch.setattr(errors, "CONTAINER_MARKS", ())
    port = unused_port()
    error = await failure(http_settings(f"http://127.0.0.1:{port}/mcp?key=K"))
    assert type(error) is ServerUnavailable
    assert error.message == f"127.0.0.1:{port} refused the connection."
    assert error.hint == (
        "Check that the server runs and that the port is right. 127.0.0.1 is the machine that "
        "Umpteenth runs on, not the one you sit at."
    )


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True),
        ("app.localhost.", True),
        ("127.1.2.3", True),
        ("127.1", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("localhost.example", False),
        ("192.168.1.1", False),
    ],
)
def test_a_person_is_told_whose_machine_localhost_is(
    host: str, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P27: a server on the person's own desk is somewhere else."""
    monkeypatch.setattr(errors, "CONTAINER_MARKS", ())
    error = httpx2.ConnectError("x")
    error.__cause__ = ConnectionRefusedError(111, "Connection refused")
    written = f"[{host}]" if ":" in host else host
    hint = errors.explain_http(error, f"http://{written}:9/", 30).hint
    assert ("the machine that Umpteenth runs on" in hint) is here


async def test_localhost_inside_a_container_gets_its_own_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(errors, "CONTAINER_MARKS", (os.devnull,))
    error = await failure(http_settings(f"http://localhost:{unused_port()}/mcp"))
    assert error.hint.startswith("Check that the server runs and that the port is right. ")
    assert "localhost is the container itself" in error.hint


async def test_an_unknown_host_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_host(*args: object, **options: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    monkeypatch.setenv("NO_PROXY", "*")
    error = await failure(http_settings("http://nowhere.test/mcp"))
    assert error.message == (
        "The host name nowhere.test cannot be resolved: Name or service not known."
    )


def test_a_name_service_that_does_not_answer_is_not_called_a_misspelling() -> None:
    error = httpx2.ConnectError("x")
    error.__cause__ = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    explained = errors.explain_http(error, "https://api.example/mcp", 30)
    assert explained.message == (
        "The host name api.example cannot be resolved: Temporary failure in name resolution."
    )
    assert "name service" in explained.hint


def test_a_refusal_of_the_proxy_is_told_from_one_of_the_server() -> None:
    explained = errors.explain_http(httpx2.ProxyError("403 Forbidden"), "https://h/p", 30)
    assert explained.message == "The proxy on the way to h refused: 403 Forbidden."
    assert "NO_PROXY" in explained.hint


async def test_plain_http_behind_https_is_explained() -> None:
    """P27, B13: the reason of TLS, and no word of another transport."""
    async with FakeHttp() as server:
        url = server.url.replace("http:", "https:")
        error = await failure(http_settings(url))
    assert error.message.startswith(f"TLS with 127.0.0.1:{server.port} failed: ")
    assert "plain http" in error.hint


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        (OSError(101, "x"), "h:9 is unreachable: Network is unreachable."),
        (OSError(113, "x"), "h:9 is unreachable: No route to host."),
        (ValueError("odd"), "The connection to http://h:9/p failed: odd"),
    ],
)
def test_causes_deep_in_a_chain_are_found(cause: Exception, message: str) -> None:
    group = ExceptionGroup("many", [cause])
    error = httpx2.ConnectError("odd")
    error.__cause__ = group
    assert errors.explain_http(error, "http://u:p@h:9/p?key=K", 30).message == message


def test_a_bad_certificate_is_quoted() -> None:
    cause = ssl.SSLCertVerificationError()
    cause.verify_message = "certificate has expired"
    error = httpx2.ConnectError("x")
    error.__cause__ = cause
    explained = errors.explain_http(error, "https://h/p", 30)
    assert explained.message == "The TLS certificate of h is not accepted: certificate has expired."


def test_a_connection_that_takes_too_long_names_the_limit() -> None:
    """U39."""
    explained = errors.explain_http(httpx2.ConnectTimeout(""), "http://h:9/p", 30)
    assert explained.message == "No connection to h:9 within 30 seconds."


async def test_a_server_that_accepts_and_never_answers_ends_at_its_limit() -> None:
    """F01, F06, U40."""

    async def silence(request: Request) -> Reply | None:
        await asyncio.Event().wait()
        return None

    error = await failure_of(silence, request_timeout=0.3)
    assert type(error) is ServerUnavailable
    assert "within 0.3 seconds (request_timeout_secs)" in error.message


async def test_a_dead_server_delays_no_other() -> None:
    """F01, F13."""

    async def silence(request: Request) -> Reply | None:
        await asyncio.Event().wait()
        return None

    async with FakeHttp(script=silence) as mute, FakeHttp() as healthy:
        waiting = asyncio.create_task(failure(http_settings(mute.url, request_timeout=5)))
        async with connect(http_settings(healthy.url)) as connection:
            assert (await connection.list_tools()).tools
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_what_does_not_speak_http_is_explained() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        error = await failure(http_settings(f"http://127.0.0.1:{port}/mcp"))
    assert "closed the connection without an HTTP answer" in error.message


@pytest.mark.parametrize(
    ("reply", "message", "hint"),
    [
        (
            Reply(200, {"content-type": "text/html; charset=utf-8"}, b"<html></html>"),
            "answers with a web page, not as an MCP server.",
            "/mcp",
        ),
        (Reply(200, {"content-type": "image/png"}, b"x"), "answers with image/png", "address"),
        (Reply(200, {"content-type": "application/json"}, b""), "with an empty body", ""),
        (Reply(200, {"content-type": "application/json"}, b'{"a":1}'), "no JSON-RPC answer", ""),
        (Reply(202), "with an empty body", ""),
        (Reply(404), "answered 404 Not Found", "at /mcp, older ones at /sse"),
        (
            Reply(421, TEXT, b"Invalid Host header"),
            "answered 421 Misdirected Request: Invalid Host header",
            "become the Host header",
        ),
        (Reply(500, TEXT, b"boom"), "answered 500 Internal Server Error: boom", ""),
        (
            Reply(500, {"content-type": "text/html"}, b"<title>x</title><h1>Bad</h1> day &amp; q"),
            "answered 500 Internal Server Error: Bad day & q",
            "",
        ),
        (
            Reply(502, {"content-type": "application/json"}, b'{"detail":{"message":"m"}}'),
            "answered 502 Bad Gateway: m",
            "",
        ),
        (Reply(599), "answered 599.", ""),
    ],
)
async def test_what_is_no_mcp_server_is_told_apart(reply: Reply, message: str, hint: str) -> None:
    """P27."""
    error = await failure_of(lambda request: reply)
    assert isinstance(error, ServerUnavailable)
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_without_credentials_asks_for_a_login(status: int) -> None:
    """B13, P34: never a fall back to SSE."""
    async with FakeHttp(script=lambda request: Reply(status, TEXT, b"token missing")) as server:
        error = await failure(http_settings(server.url))
    assert isinstance(error, LoginRequired)
    assert error.message.startswith(f"The server requires a login: {status} ")
    assert error.message.endswith("token missing")
    assert [request.method for request in server.requests] == ["POST"]


@pytest.mark.parametrize("headers", [BEARER, (("X-Api-Key", "canary-value"),)])
async def test_a_refusal_of_credentials_says_so_in_the_servers_words(
    headers: tuple[tuple[str, str], ...],
) -> None:
    """E14, E11: and never quotes them."""
    body = b'{"error":"invalid_token","error_description":"The key has expired"}'
    reply = Reply(401, {"content-type": "application/json"}, body)
    async with FakeHttp(script=lambda request: reply) as server:
        error = await failure(http_settings(server.url, headers=headers))
    assert not isinstance(error, LoginRequired)
    assert error.message == (
        "The server refused the credentials: 401 Unauthorized: The key has expired"
    )
    assert server.requests[0].headers[headers[0][0].lower()] == headers[0][1]


async def test_headers_are_sent_with_every_request() -> None:
    """U23, P12, E14."""
    async with (
        FakeHttp(Behaviour()) as server,
        connect(http_settings(server.url, headers=(*BEARER, ("X-Team", "ö")))) as connection,
    ):
        await connection.call_tool("echo", {})
    assert {request.headers["authorization"] for request in server.requests} == {
        "Bearer canary-value"
    }
    assert server.requests[0].headers["x-team"] == "ö"


async def test_a_query_in_the_url_is_sent_and_never_shown() -> None:
    """U8, U60."""
    async with FakeHttp() as server:
        async with connect(http_settings(f"{server.url}?apiKey=K#part")) as connection:
            assert (await connection.list_tools()).tools
        assert server.requests[0].path == "/mcp?apiKey=K"
        html = Reply(200, {"content-type": "text/html"}, b"x")
        server.script = lambda request: html
        error = await failure(http_settings(f"{server.url}?apiKey=K"))
    assert "apiKey" not in error.message + error.hint


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("absolute", [True, False])
async def test_a_redirect_within_the_origin_keeps_everything(status: int, absolute: bool) -> None:
    """B10."""

    def script(request: Request) -> Reply | None:
        if request.path == "/old":
            place = server.url if absolute else "/mcp"
            return Reply(status, {"location": place})
        return None

    async with FakeHttp(script=script) as server:
        settings = http_settings(server.url.replace("/mcp", "/old"), headers=BEARER)
        async with connect(settings) as connection:
            assert (await connection.call_tool("echo", {"a": 1})).ok
    followed = [request for request in server.requests if request.path == "/mcp"]
    assert all(request.headers["authorization"] == BEARER[0][1] for request in followed)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_another_origin_is_refused_and_gets_nothing(status: int) -> None:
    """B12."""
    async with FakeHttp() as other:
        place = f"{other.url}?leak=1"
        reply = Reply(status, {"location": place})
        error = await failure_of(lambda request: reply, headers=BEARER)
        assert other.connections == 0
    assert f"redirects to {other.url}, which is another origin" in error.message
    assert f"enter {other.url} as the URL" in error.hint


def test_a_redirect_that_would_give_up_encryption_is_refused() -> None:
    """B10."""
    error = foreign_redirect("https://h/mcp", "http://h/mcp/?k=1")
    assert error.message.startswith("The server redirects to http://h/mcp/, which would give up")
    assert "over https" in error.hint


@pytest.mark.parametrize("target", ["file:///etc/passwd", "javascript:alert(1)", "gopher://h/"])
def test_a_redirect_to_what_is_no_web_address_is_not_suggested(target: str) -> None:
    """B12: its neighbours that no URL of a server can be."""
    error = foreign_redirect("https://h/mcp", target)
    assert "which is no web address" in error.message
    assert "enter" not in error.hint


async def test_a_redirect_that_would_lose_the_message_is_refused() -> None:
    """B12."""
    error = await failure_of(lambda request: Reply(302, {"location": "/other"}))
    assert "with status 302, which would lose the message" in error.message


async def test_redirects_in_a_circle_end() -> None:
    """B12."""
    async with FakeHttp(script=lambda request: Reply(307, {"location": "/mcp"})) as server:
        error = await failure(http_settings(server.url))
    assert "redirects again and again" in error.message
    assert len(server.requests) == 6


async def test_an_sse_server_that_sends_messages_elsewhere_is_refused() -> None:
    """Reference, "Connection": credentials go only to the server's own origin."""
    async with FakeHttp() as other:
        body = f"event: endpoint\ndata: {other.url}\n\n".encode()
        reply = Reply(200, {"content-type": "text/event-stream"}, body)
        async with FakeHttp(script=lambda r: reply if r.method == "GET" else None) as server:
            settings = http_settings(
                f"http://127.0.0.1:{server.port}/sse",
                headers=BEARER,
                remembered={"transport": "sse"},
            )
            error = await failure(settings)
        assert other.connections == 0
    assert "another origin" in error.message


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (("Authorization", "Bearer canary\n"), "Authorization contains a line break"),
        (("Authorization", "Bearer canary\r\nX: y"), "Authorization contains a line break"),
        (("X-Key", "can\tary"), "X-Key contains a control character"),
        (("X-Key", "canary\x00"), "X-Key contains a control character"),
        (("X-Key", "canary€"), "X-Key contains a character outside of Latin-1"),
        (("X Key", "canary"), "'X Key' is no name of a header"),
        (("Content-Length", "canary"), "Content-Length is set by Umpteenth itself"),
    ],
)
async def test_headers_that_cannot_be_sent_are_named_without_their_value(
    header: tuple[str, str], message: str
) -> None:
    """E01: before any request."""
    async with FakeHttp() as server:
        error = await failure(http_settings(server.url, headers=(header,)))
        assert server.connections == 0
    assert message in error.message
    assert "canary" not in error.message + error.hint


async def test_two_authorization_headers_are_never_sent() -> None:
    """E15."""
    error = await failure(http_settings("http://h/", headers=(*BEARER, ("authorization", "x"))))
    assert error.message == "Header authorization is given twice."


async def test_spaces_around_a_value_are_trimmed() -> None:
    """E01."""
    async with (
        FakeHttp() as server,
        connect(http_settings(server.url, headers=(("X-Key", "  k "),))),
    ):
        pass
    assert server.requests[0].headers["x-key"] == "k"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (http_settings("example.org/mcp"), "must begin with http:// or https://"),
        (http_settings("file:///etc/passwd"), "must begin with http:// or https://"),
        (http_settings("http:///mcp"), "names no host"),
        (http_settings("http://h:99999/"), "cannot be read"),
        (http_settings("http://user:pw@h/"), "contains a user name or password"),
        (ConnectionSettings(name="x", transport="stdio"), "has no command"),
        (
            ConnectionSettings(name="x", transport="stdio", command="a", args=("\0",)),
            "cannot contain NUL",
        ),
        (
            ConnectionSettings(name="x", transport="stdio", command="a", env={"A=B": "c"}),
            "'A=B' is no name of an environment variable",
        ),
        (
            ConnectionSettings(name="x", transport="stdio", command="a"),
            "nothing can start it here",
        ),
    ],
)
async def test_settings_that_cannot_work_are_refused_with_the_field(
    settings: ConnectionSettings, message: str
) -> None:
    error = await failure(settings)
    assert message in error.message
    assert "pw" not in error.message


async def test_no_log_line_and_no_error_quotes_a_credential(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """E11: at the most talkative level, whatever goes wrong."""
    caplog.set_level(1)
    headers = (*BEARER, ("X-Key", "canary-value"))
    replies = [
        None,
        Reply(401),
        Reply(500),
        Reply(200, {"content-type": "application/json"}, b"{"),
        Reply(307, {"location": "http://127.0.0.1:1/"}),
    ]
    words = []
    for reply in replies:
        async with FakeHttp(script=answering(reply)) as server:
            settings = http_settings(f"{server.url}?key=canary-value", headers=headers)
            try:
                async with connect(settings) as connection:
                    await connection.call_tool("echo", {})
            except ServerError as error:
                words += [error.message, error.hint, repr(error)]
    refused = await failure(http_settings("http://127.0.0.1:1/?key=canary-value", headers=headers))
    words += [refused.message, refused.hint]
    assert len(words) == 14
    assert "canary" not in caplog.text + "".join(words)


def test_an_exception_group_becomes_one_error() -> None:
    """F15."""
    inner = LoginRequired("log in")
    group = BaseExceptionGroup("a", [ExceptionGroup("b", [ValueError("x"), inner])])
    assert errors.flatten(group, "fake") is inner
    flat = errors.flatten(ExceptionGroup("b", [ValueError("the words")]), "fake")
    assert flat.message == "The connection to fake failed: the words"
    assert errors.flatten(KeyboardInterrupt(), "fake").message == "The connection to fake failed."
