"""What somebody inside a sandbox may try at the proxy (issue 5, sections 3 and 6; I01, I02)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.network import NetworkRules
from jobs.sandbox.egress import proxy as proxy_module
from jobs.sandbox.egress import requests
from jobs.sandbox.egress.dial import CHUNK, Streams
from jobs.sandbox.egress.requests import BadRequest, parse_head
from jobs.sandbox.egress.rules import EgressRules
from tests.fakes.egress import FakeEgress, echo, target, turns_until
from tests.fakes.names import Names

OPEN = EgressRules(NetworkRules("internet", allow_private=True))
AT_ONCE = 200
# 169.254.169.254 and its fellows, as a resolver, a kernel or a translator may take them.
METADATA = [
    "169.254.169.254",
    "169.254.169.254.",
    "2852039166",
    "0xA9FEA9FE",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "169.254.43518",
    "169.16689662",
    "%31%36%39.254.169.254",
    "METADATA.google.internal.",
    "metadata.goog",
    "sneaky.test",
    "both.test",
]
METADATA_V6 = [
    "::ffff:169.254.169.254",
    "::ffff:a9fe:a9fe",
    "0:0:0:0:0:FFFF:A9FE:A9FE",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "fd00:ec2::254",
    "fe80::a9fe:a9fe%25eth0",
]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names)
    return names


def guarded_by(rules: EgressRules) -> FakeEgress:
    fake = FakeEgress()
    fake.proxy._egress.gate = rules
    return fake


@pytest.mark.parametrize("host", [*METADATA, *(f"[{host}]" for host in METADATA_V6)])
async def test_metadata_is_out_of_reach_in_every_form(host: str, names: Names) -> None:
    names.set("sneaky.test", "169.254.169.254")
    names.set("both.test", "93.184.216.34", "::ffff:169.254.169.254")
    egress = guarded_by(OPEN)
    for request in (f"CONNECT {host}:80", f"GET http://{host}/latest/meta-data/"):
        assert b" 403 " in await egress.ask(f"{request} HTTP/1.1\r\n\r\n".encode())
    name = host.strip("[]").encode()
    wish = b"\x05\x01\x00\x03" + bytes([len(name)]) + name + b"\0\x50"
    assert (await egress.ask(b"\x05\x01\x00" + wish))[2:4] == b"\x05\x02"
    assert egress.kinds == ["refused"] * 3
    assert "metadata" in egress.events[0].reason
    egress.proxy.close()


async def test_metadata_is_out_of_reach_by_the_addresses_of_socks() -> None:
    egress = guarded_by(OPEN)
    for kind, address in ((1, "169.254.169.254"), (4, "::ffff:169.254.169.254")):
        family = socket.AF_INET if kind == 1 else socket.AF_INET6
        wish = bytes([5, 1, 0, kind]) + socket.inet_pton(family, address) + b"\0\x50"
        assert (await egress.ask(b"\x05\x01\x00" + wish))[2:4] == b"\x05\x02"
    egress.proxy.close()


async def test_a_name_is_looked_up_once_and_dialled_by_what_was_found(names: Names) -> None:
    """I02: what a name stands for a moment later does not count."""
    names.set_in_turn("rebind.test", ("127.0.0.1",), ("169.254.169.254",))
    egress = guarded_by(OPEN)

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")

    async with target(greet) as port:
        found = await egress.ask(b"CONNECT rebind.test:%d HTTP/1.1\r\n\r\n" % port)
        assert found.endswith(b"hello")
        assert names.asked == ["rebind.test"]
        assert b" 403 " in await egress.ask(b"CONNECT rebind.test:%d HTTP/1.1\r\n\r\n" % port)
    egress.proxy.close()


@pytest.mark.parametrize(
    "fields",
    [
        b"Transfer-Encoding : chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: Content-Length\r\n",
        b"X: y\r\n Transfer-Encoding: chunked\r\n",
        b"X: y\rTransfer-Encoding: chunked\r\n",
        b"X: y\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: 5,5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length: 9999999999999999999999\r\n",
        b": no name\r\n",
    ],
)
def test_where_a_request_ends_is_never_in_doubt(fields: bytes) -> None:
    """RFC 9112, section 11.2: what two readers may see in two ways is not passed on."""
    with pytest.raises(BadRequest):
        parse_head(b"POST http://site.test/ HTTP/1.1\r\n" + fields + b"\r\n")


def test_chunks_are_not_of_http_1_0() -> None:
    request = b"POST http://site.test/ HTTP/1.%d\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parse_head(request % 1)[2] is not None
    with pytest.raises(BadRequest):
        parse_head(request % 0)


def test_no_header_of_a_client_names_another_host() -> None:
    found, head, _ = parse_head(
        b"GET http://user@site.test:81\\@other.test/?x#@evil.test HTTP/1.1\r\n"
        b"Host: evil.test\r\nhost: evil.test\r\nConnection: host\r\n\r\n"
    )
    assert (found.host, found.port) == ("other.test", 80)
    assert head.split(b"\r\n")[:2] == [b"GET /?x HTTP/1.1", b"Host: other.test"]
    assert b"evil" not in head


@given(st.binary(max_size=300))
def test_any_request_is_refused_or_has_one_head(data: bytes) -> None:
    for begin in (b"", b"CONNECT ", b"GET http://a", b"GET http://a/ HTTP/1.1\r\nA: "):
        try:
            found, head, _ = parse_head(begin + data)
        except BadRequest:
            continue
        assert requests._HOST.fullmatch(found.host)
        assert 0 < found.port < 65536
        lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        assert not any(b"\r" in line or b"\n" in line or not line for line in lines if head)


@pytest.mark.parametrize("seed", range(8))
async def test_odd_bytes_never_break_the_proxy(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Every beginning of what a SOCKS client may send, whole and cut off, and noise."""
    egress = FakeEgress(head_seconds=5)
    whole = b"\x05\x02\x00\x02" + b"\x05\x01\x00\x03\x09site.test\x01\xbb"
    noise = bytes((seed * 37 + at * at * 11) % 256 for at in range(64))
    tries = [whole[:at] + noise[:seed] for at in range(1, len(whole))]
    tries += [b"\x05" + noise, b"\x04\x01" + noise, b"\x16\x03\x01" + noise, noise]
    with caplog.at_level(logging.ERROR):
        for data in tries:
            reader, writer = await egress.connect()
            writer.write(data)
            writer.write_eof()
            assert len(await reader.read()) < 1000
            writer.close()
    assert caplog.records == []
    egress.proxy.close()


@pytest.mark.parametrize("hello", [b"\x16\x03\x01\x02", b"\x04\x01\x00\x50", b"\0", b"\r\n"])
async def test_who_speaks_another_protocol_is_told_at_once(hello: bytes) -> None:
    """Such a client waits for an answer, and would wait for a minute."""
    egress = FakeEgress()
    reader, writer = await egress.connect()
    writer.write(hello)
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 400 ")
    writer.close()
    egress.proxy.close()


def test_headers_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long Connection beside many headers took a second of the worker's time."""
    looks = []

    def named(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
        looks.append(headers)
        return set()

    monkeypatch.setattr(requests, "_named", named)
    words = b",".join(b"%d" % number for number in range(10_000))
    parse_head(
        b"GET http://a/ HTTP/1.1\r\nConnection: " + words + b"\r\n" + b"A: b\r\n" * 150 + b"\r\n"
    )
    assert len(looks) == 1


async def test_two_hundred_connections_at_once_are_served() -> None:
    egress = FakeEgress()
    egress.gate.known["site.test"] = ("127.0.0.1",)
    together = asyncio.Barrier(AT_ONCE)

    async def one(number: int, port: int) -> bytes:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % port)
        await reader.readuntil(b"\r\n\r\n")
        await together.wait()  # all of them stand now
        writer.write(b"%d" % number * 10_000)
        writer.write_eof()
        found = await reader.read()
        writer.close()
        return found

    async with target(echo) as port:
        found = await asyncio.gather(*(one(number, port) for number in range(AT_ONCE)))
    assert found == [b"%d" % number * 10_000 for number in range(AT_ONCE)]
    assert egress.kinds == ["opened"]
    egress.proxy.close()


async def test_a_flood_of_connections_takes_neither_the_loop_nor_its_descriptors() -> None:
    egress = FakeEgress(max_connections=4)
    before = len(os.listdir("/proc/self/fd"))
    flood = [socket.create_connection(("127.0.0.1", egress.port)) for _ in range(60)]
    held = 4 + proxy_module.MAX_TURNED_AWAY
    # The loop goes on beside it.
    assert await turns_until(lambda: len(egress.proxy._tasks) == held) > 4
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) - before - len(flood) <= held
    for sock in flood:
        sock.close()
    # Those that waited behind it have gone by themselves.
    answers = [await egress.ask(b"CONNECT other.test:1 HTTP/1.1\r\n\r\n") for _ in flood]
    assert b" 403 " in answers[-1]
    egress.proxy.close()


async def test_names_that_nobody_answers_hold_a_bounded_number_of_threads() -> None:
    egress = FakeEgress()
    asked, most = 0, proxy_module.MAX_DIALS

    async def silent(host: str, port: int) -> tuple[str, ...]:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return ()

    egress.proxy._egress.gate = silent
    writers = [(await egress.connect())[1] for _ in range(most + 20)]
    for writer in writers:
        writer.write(b"CONNECT a.test:443 HTTP/1.1\r\n\r\n")
    await turns_until(lambda: asked == most)
    for _ in range(50):
        await asyncio.sleep(0)
    assert asked == most
    for writer in writers:
        writer.close()
    egress.proxy.close()


async def test_who_does_not_read_stops_the_far_side() -> None:
    """What waits for one connection is bounded, most of it in the kernel's own buffers."""
    egress = FakeEgress()
    egress.gate.known["site.test"] = ("127.0.0.1",)
    sent = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        while True:
            writer.write(bytes(64 * 1024))
            sent += 64 * 1024
            await writer.drain()

    async with target(pour) as port:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % port)
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.1)
        [waiting] = [task for task in egress.proxy._tasks if not task.done()]
        assert sent < 64 * 1024**2
        writer.transport.abort()
        await asyncio.wait([waiting], timeout=5)
        assert waiting.done()
    egress.proxy.close()


@pytest.mark.parametrize("behind", [b"", b"GET http://other.test/ HTTP/1.1\r\n\r\n"])
async def test_a_client_that_goes_away_frees_its_place(behind: bytes) -> None:
    """However silent the far side of its request is."""
    egress = FakeEgress()
    egress.gate.known["site.test"] = ("127.0.0.1",)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with target(silent) as port:
        _, writer = await egress.connect()
        writer.write(b"GET http://site.test:%d/ HTTP/1.1\r\n\r\n%s" % (port, behind))
        await turns_until(lambda: "opened" in egress.kinds)
        writer.close()
        await asyncio.wait(egress.proxy._tasks, timeout=5)
        assert not egress.proxy._tasks
    egress.proxy.close()


async def test_a_tunnel_whose_client_has_ended_may_not_be_silent_for_ever() -> None:
    egress = FakeEgress(half_open_seconds=0.3)
    egress.gate.known["site.test"] = ("127.0.0.1",)

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        for _ in range(4):  # longer in all, but never silent for so long
            writer.write(b".")
            await asyncio.sleep(0.1)
        await asyncio.Event().wait()

    async with target(slow) as port:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % port)
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"....")
        writer.close()
    egress.proxy.close()


async def test_many_connections_have_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What 256 of them hold in the worker's memory stays under 100 MB."""
    egress = FakeEgress()
    egress.gate.known["site.test"] = ("127.0.0.1",)
    limits: list[int] = []

    async def dial(addresses: object, port: int, limit: int) -> Streams:
        limits.append(limit)
        raise OSError

    monkeypatch.setattr(proxy_module, "dial", dial)
    held = [await egress.connect() for _ in range(proxy_module.FEW + 1)]
    for _, writer in held:
        writer.write(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n")
    for reader, writer in held:
        await reader.read()
        writer.close()
    assert set(limits) <= {proxy_module.SMALL_CHUNK, CHUNK}
    assert proxy_module.SMALL_CHUNK in limits
    await turns_until(lambda: not egress.proxy._tasks)
    await egress.ask(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n")
    assert limits[-1] == CHUNK
    egress.proxy.close()


async def test_a_connection_that_breaks_off_breaks_the_other_half() -> None:
    egress = FakeEgress()
    egress.gate.known["site.test"] = ("127.0.0.1",)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        over.set()

    async with target(serve) as port:
        reader, writer = await egress.connect()
        writer.write(b"CONNECT site.test:%d HTTP/1.1\r\n\r\n" % port)
        await reader.readuntil(b"\r\n\r\n")
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        await asyncio.wait_for(over.wait(), 5)
    egress.proxy.close()
