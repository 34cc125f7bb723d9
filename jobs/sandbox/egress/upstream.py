"""The proxy through which this machine itself gets out, where it needs one.

It is asked with CONNECT for an address that was checked, plain HTTP included: given a URL with an
address it would write that into the Host header, and given a name it would look that up again and
may find another address. Names, such as those of certificates, are inside the tunnel.

Where it is to resolve names, it is given these: in a CONNECT, and plain HTTP as the whole URL,
since many proxies allow CONNECT to port 443 alone. What turns into a tunnel needs CONNECT as
well: the connection itself must never be a sandbox's to write to, for the next request on it may
be for another host.

Standard library only, as in the rest of the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from urllib.parse import unquote, urlsplit

from jobs.sandbox.egress.dial import CHUNK, Streams, first_of
from jobs.sandbox.egress.requests import Target

MAX_TRIED = 4  # addresses of a name; a proxy that refuses one refuses most of them


@dataclass(frozen=True)
class Upstream:
    """An HTTP proxy; `secure`: spoken to over TLS."""

    host: str
    port: int
    secure: bool = False
    authorization: str = field(default="", repr=False)

    @classmethod
    def at(cls, url: str) -> Upstream:
        """The one of a URL such as http://user:password@proxy.example.org:3128."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        said = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        words = f"Basic {base64.b64encode(said.encode()).decode()}" if parts.username else ""
        return cls(parts.hostname or "", parts.port or (443 if secure else 80), secure, words)

    async def connect(
        self, target: Target, addresses: Sequence[str], *, tunnel: bool, limit: int = CHUNK
    ) -> Streams:
        """A connection that leads to the target, at one of the addresses if there are any.

        Without them and without a tunnel it is one to the proxy itself, for a request that `ask`
        makes. Raises `OSError`.
        """
        if addresses:
            connect = partial(self._connect, port=target.port, limit=limit)
            return await first_of(addresses[:MAX_TRIED], connect)
        return await self._connect(target.host if tunnel else None, target.port, limit)

    async def _connect(self, host: str | None, port: int, limit: int) -> Streams:
        """With a host: a tunnel to it."""
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=_context() if self.secure else None, limit=limit
        )
        try:
            if host is not None:
                await self._tunnel(host, port, reader, writer)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer

    def ask(self, head: bytes, target: Target) -> bytes:
        """The head of a plain request as a proxy wants it."""
        line, rest = head.split(b"\r\n", 1)
        method, path, version = line.split(b" ")
        where = f"http://{target.authority}".encode() + path
        return b"%s %s %s\r\n%s%s" % (method, where, version, self._credentials(), rest)

    async def _tunnel(
        self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        head = f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n".encode()
        writer.write(head + self._credentials() + b"\r\n")
        try:
            answer = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            raise ConnectionResetError("the proxy of this installation gave no answer") from None
        status = answer.split(b"\r\n")[0].split(b" ")[1:2]
        if not status or not status[0].isdigit():
            raise ConnectionResetError("the proxy of this installation gave no answer")
        if not status[0].startswith(b"2"):
            code = status[0].decode()[:3]
            raise ConnectionRefusedError(f"the proxy of this installation answered {code}")

    def _credentials(self) -> bytes:
        return f"Proxy-Authorization: {self.authorization}\r\n".encode() * bool(self.authorization)


@lru_cache(maxsize=1)
def _context() -> ssl.SSLContext:
    return ssl.create_default_context()
