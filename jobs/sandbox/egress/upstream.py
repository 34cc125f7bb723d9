"""The proxy through which this machine itself gets out, where it needs one.

Tunnels are asked of it with CONNECT, and plain HTTP with the whole URL, since many proxies allow
CONNECT to port 443 alone. What turns into a tunnel needs CONNECT as well: the connection itself
must never be a sandbox's to write to, for the next request on it may be for another host.

Standard library only, as in the rest of the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote, urlsplit

from jobs.sandbox.egress.dial import CHUNK, Streams
from jobs.sandbox.egress.requests import Target


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

    async def connect(self, target: Target, *, tunnel: bool, limit: int = CHUNK) -> Streams:
        """A connection that leads to the target, or for one plain request to the proxy itself.

        Raises `OSError`.
        """
        reader, writer = await asyncio.open_connection(
            self.host, self.port, ssl=_context() if self.secure else None, limit=limit
        )
        try:
            if tunnel:
                await self._tunnel(target, reader, writer)
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
        self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        where = f"[{target.host}]" if ":" in target.host else target.host
        where = f"{where}:{target.port}"
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
