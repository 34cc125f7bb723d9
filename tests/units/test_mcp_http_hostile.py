"""What answers in no proper HTTP, and what of us could leak on the way."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servers.mcp.client import connect
from servers.mcp.types import ServerError
from tests.fakes.http_calls import connected, on_rpc, settings_for
from tests.fakes.mcp_http import FakeHttp, Reply

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
RUBBISH = {
    "nothing": b"",
    "a greeting": b"220 mail.example ESMTP\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "a bad status": b"HTTP/1.1 2xx Fine\r\n\r\n",
    "an old version": b"HTTP/0.9 200 OK\r\n\r\n",
    "a header without colon": OK + b"oops\r\n\r\n{}",
    "a header with NUL": OK + b"x: a\0b\r\n\r\n{}",
    "a negative length": OK + b"content-length: -1\r\n\r\n{}",
    "two lengths": OK + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
    "a length that is not kept": OK + b"content-length: 99\r\n\r\n{}",
    "a length without end": OK + b"content-length: " + b"9" * 5000 + b"\r\n\r\n{}",
    "a bad chunk": OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk cut off": OK + b"transfer-encoding: chunked\r\n\r\nff\r\n{}",
    "an unknown transfer": OK + b"transfer-encoding: magic\r\n\r\n{}",
    "headers without end": OK + b"x: y\r\n" * 50_000,
    "one endless header": OK + b"x: " + b"y" * 500_000,
    "only promises": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "another protocol": b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n\0\0\0",
    "a TLS alert": b"\x15\x03\x01\x00\x02\x02\x50",
}


@pytest.mark.parametrize("raw", RUBBISH.values(), ids=RUBBISH)
async def test_rubbish_fails_its_call_and_no_other(raw: bytes) -> None:
    """P27, B15: an error, never a hang, and the call is in doubt."""
    async with connected() as (server, connection):
        server.script = on_rpc("tools/call", Reply(raw=raw, cut=True))
        with pytest.raises(ServerError, match=r"\S") as caught:
            await connection.call_tool("count", {}, timeout=20)
        assert "may have happened" in caught.value.message
        assert len(caught.value.message) < 3000
        server.script = None
        assert (await connection.call_tool("count", {})).text == "1"
    assert server.rpcs().count("tools/call") == 2


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from([b"", OK, OK + b"\r\n"]), st.binary(max_size=60))
async def test_bytes_of_any_kind_are_an_error_of_the_server(start: bytes, rest: bytes) -> None:
    async with FakeHttp(script=lambda request: Reply(raw=start + rest, cut=True)) as server:
        with pytest.raises(ServerError, match=r"\S"):
            async with connect(settings_for(server, request_timeout=20)):
                pass


ACCIDENTS = {
    "401": Reply(401),
    "500": Reply(500),
    "redirect": Reply(307, {"location": "http://elsewhere.example/"}),
    "reset": Reply(raw=b"", abort=True),
    "rubbish": Reply(raw=b"oops\r\n", cut=True),
    "no json": Reply(200, {"content-type": "application/json"}, b"<oops>"),
}


@pytest.mark.parametrize("reply", ACCIDENTS.values(), ids=ACCIDENTS)
async def test_credentials_show_up_in_no_log_and_no_error_whatever_happens(
    reply: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    """E11, U60: not even while everything is logged."""
    caplog.set_level(logging.DEBUG)
    headers = (("Authorization", "Bearer canary-token"), ("X-Team", "canary-team"))
    async with connected(settings={"headers": headers}) as (server, connection):
        url = f"{server.url}?key=canary-query"
        server.script = lambda request: reply
        with pytest.raises(ServerError) as caught:
            await connection.call_tool("echo", {})
        with pytest.raises(ServerError) as refused:
            async with connect(replace(settings_for(server, headers=headers), url=url)):
                pass
    for error in (caught.value, refused.value):
        assert "canary" not in f"{error.message}{error.hint}{error!r}"
    assert "canary" not in caplog.text
