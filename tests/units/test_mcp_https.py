"""Servers behind TLS: certificates, and redirects that would give up encryption."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from servers.mcp.client import connect
from servers.mcp.types import ServerError, ServerUnavailable
from tests.fakes.mcp_helpers import http_settings
from tests.fakes.mcp_http import FakeHttp, Reply, Request
from tests.fakes.mcp_https import TlsHttp, certificate
from umpteenth.core import http

BEARER = (("Authorization", "Bearer canary"),)


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    return certificate(tmp_path)


@pytest.fixture
def serving(pem: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.fixture
def trusted(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is one that this machine trusts."""
    context = ssl.create_default_context(cafile=str(pem))
    monkeypatch.setattr(http, "_ssl_context", lambda: context)


async def failure(url: str) -> ServerError:
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(http_settings(url, headers=BEARER)):
            pass
    return caught.value


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_an_encrypted_origin_is_followed(
    serving: ssl.SSLContext, status: int
) -> None:
    """B10."""

    def script(request: Request) -> Reply | None:
        return Reply(status, {"location": "/mcp"}) if request.path == "/old" else None

    async with TlsHttp(serving, script) as server:
        settings = http_settings(server.url.replace("/mcp", "/old"), headers=BEARER)
        async with connect(settings) as connection:
            assert (await connection.call_tool("echo", {"a": 1})).ok
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer canary"}


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("same_port", [True, False])
async def test_a_redirect_that_gives_up_encryption_is_refused(
    serving: ssl.SSLContext, same_port: bool
) -> None:
    """B10: an absolute address with http:// though we came over https; nothing goes there."""
    async with FakeHttp() as plain:
        target = plain.url

        def script(request: Request) -> Reply | None:
            return Reply(307, {"location": target})

        async with TlsHttp(serving, script) as server:
            if same_port:
                target = server.url.replace("https:", "http:")
            error = await failure(server.url)
        assert plain.connections == 0
    assert f"redirects to {target}, which would give up" in error.message
    assert "over https" in error.hint
    assert len(server.requests) == 1


async def test_a_certificate_that_nobody_trusts_is_the_error_that_is_shown(
    serving: ssl.SSLContext,
) -> None:
    """B13: no other transport is tried behind it."""
    async with TlsHttp(serving) as server:
        error = await failure(server.url)
    assert error.message == (
        f"The TLS certificate of 127.0.0.1:{server.port} is not accepted: self-signed certificate."
    )
    assert server.requests == []
    assert "SSE" not in error.message + error.hint
