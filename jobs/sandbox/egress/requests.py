"""Reads what a client of the proxy asks for in HTTP/1.1 (RFC 9110, RFC 9112)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_HEAD = 64 * 1024
MAX_HEADERS = 200
MAX_HOST = 255

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_URL = re.compile(rb"[\x21-\x7e\x80-\xff]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_VERSION = re.compile(rb"HTTP/1\.[01]")
_HOST = re.compile(r"[A-Za-z0-9._:%-]+")
_REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
# Of one connection only (RFC 9110, section 7.6.1), or written anew.
_NOT_PASSED_ON = {
    *(b"connection", b"proxy-connection", b"proxy-authorization", b"proxy-authenticate"),
    *(b"keep-alive", b"te", b"host"),
}
HELP = (
    "This is the proxy of a sandbox. It takes CONNECT, requests with a whole URL that begins with"
    " http://, and SOCKS5."
)


def answer(status: int, words: str) -> bytes:
    """A whole answer in plain text, after which the connection ends."""
    body = words.encode("utf-8", "replace") + b"\n"
    head = (
        f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class BadRequest(Exception):
    """A request that cannot be served; `answer` is what the client gets."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.answer = answer(status, words)

    @classmethod
    def with_bytes(cls, data: bytes) -> BadRequest:
        """For protocols whose answers are no sentences."""
        error = cls(400, "The request cannot be served.")
        error.answer = data
        return error


@dataclass(frozen=True)
class Target:
    """Where a client wants to go. `tunnel`: bytes both ways; otherwise one request of HTTP."""

    host: str
    port: int
    tunnel: bool = True
    socks: bool = False

    @classmethod
    def checked(
        cls, host: str, port: int | None, *, tunnel: bool = True, socks: bool = False
    ) -> Target:
        """Raises `BadRequest` for what is neither a name nor an address."""
        name = host.removesuffix(".").lower()
        if not name or len(name) > MAX_HOST or not _HOST.fullmatch(name):
            raise BadRequest(400, "The request names no host, or one that no host can be called.")
        if not port or not 0 < port < 65536:
            raise BadRequest(400, "The request names no port between 1 and 65535.")
        return cls(name, port, tunnel, socks)

    @property
    def authority(self) -> str:
        """As it stands in an http URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == 80 else f"{host}:{self.port}"


class Body:
    """Lets pass what belongs to one request, by its length or in chunks; nothing behind it."""

    def __init__(self, length: int | None) -> None:
        self._left = length or 0
        self._chunked = length is None
        self._line = b""
        # What comes next: a chunk's size, data, the end of a chunk, trailers, nothing.
        self._state = "size" if self._chunked else "data" if length else "over"

    def take(self, data: bytes) -> bytes:
        """The beginning of it that belongs to the request. Raises `OSError` for broken chunks."""
        at = 0
        while at < len(data) and self._state != "over":
            at = self._step(data, at)
        return data[:at]

    def _step(self, data: bytes, at: int) -> int:
        if self._state == "data":
            taken = min(self._left, len(data) - at)
            self._left -= taken
            if self._left == 0:
                self._state = "end" if self._chunked else "over"
            return at + taken
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        self._line += data[at:stop]
        if len(self._line) > MAX_HEAD:
            raise ConnectionAbortedError("a line of a chunk is too long")
        if end >= 0:
            line, self._line = self._line, b""
            if not line.endswith(b"\r\n"):  # where such a line ends readers do not agree
                raise ConnectionAbortedError("a line of a chunk does not end as it should")
            self._next(line.removesuffix(b"\r\n"))
        return stop

    def _next(self, line: bytes) -> None:
        if self._state == "end":
            if line:
                raise ConnectionAbortedError("a chunk is longer than its size")
            self._state = "size"
        elif self._state == "size":
            size = line.partition(b";")[0].strip(b" \t")
            if not re.fullmatch(rb"[0-9A-Fa-f]{1,15}", size):
                raise ConnectionAbortedError("a chunk has no size")
            self._left = int(size, 16)
            self._state = "data" if self._left else "trailers"
        elif not line:
            self._state = "over"


def is_word(data: bytes) -> bool:
    """Whether the method of a request may begin so."""
    return _TOKEN.fullmatch(data) is not None


def parse_head(head: bytes) -> tuple[Target, bytes, Body | None]:
    """Where to go, what to send there first, and the body that follows (None: all that comes).

    Raises `BadRequest`.
    """
    lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3:
        raise BadRequest(400, HELP)
    method, where, version = parts
    # Parsers of URLs drop line ends and tabs without a word.
    if not (_TOKEN.fullmatch(method) and _URL.fullmatch(where) and _VERSION.fullmatch(version)):
        raise BadRequest(400, HELP)
    if method == b"CONNECT":
        return _authority(where.decode("latin-1")), b"", None
    return _plain_request(method, where.decode("latin-1"), version, lines[1:])


def _authority(text: str) -> Target:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or len(port) > 5:
        raise BadRequest(400, "CONNECT names a host and a port, such as example.com:443.")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadRequest(400, "An IPv6 address stands in brackets, such as [2001:db8::1]:443.")
    return Target.checked(host, int(port))


def _plain_request(
    method: bytes, url: str, version: bytes, lines: list[bytes]
) -> tuple[Target, bytes, Body | None]:
    if not url.lower().startswith("http://"):
        raise BadRequest(400, HELP)
    try:
        parts = urlsplit(url)
        port = parts.port if parts.port is not None else 80
    except ValueError:
        raise BadRequest(400, "The URL of the request cannot be read.") from None
    target = Target.checked(parts.hostname or "", port, tunnel=False)
    headers = _headers(lines)
    # As it was written, for a fragment or an empty query must not be made up or lost.
    rest = url[len("http://") :].split("#")[0]
    at = min((rest.find(mark) for mark in "/?" if mark in rest), default=len(rest))
    path = rest[at:] if rest[at:].startswith("/") else f"/{rest[at:]}"
    upgrade = [value for name, value in headers if name.lower() == b"upgrade"]
    dropped = _NOT_PASSED_ON | _named(headers)
    passed = [(name, value) for name, value in headers if name.lower() not in dropped]
    passed.insert(0, (b"Host", target.authority.encode()))
    passed.append((b"Connection", b"Upgrade" if upgrade else b"close"))
    if upgrade:
        passed.append((b"Upgrade", upgrade[0]))
    body = None if upgrade else Body(_length(headers, version))
    lines = [b"%s %s %s" % (method, path.encode("latin-1"), version)]
    lines += [b"%s: %s" % header for header in passed]
    return target, b"\r\n".join(lines) + b"\r\n\r\n", body


def _headers(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    if len(lines) > MAX_HEADERS:
        raise BadRequest(431, f"The request has more than {MAX_HEADERS} header lines.")
    found = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise BadRequest(400, "A header line of the request cannot be read.")
        found.append((name, value.strip(b" \t")))
    return found


def _named(headers: list[tuple[bytes, bytes]]) -> set[bytes]:
    """Headers of this connection only, by the words of Connection; never what frames the body."""
    words = {
        word.strip().lower()
        for name, value in headers
        if name.lower() in (b"connection", b"proxy-connection")
        for word in value.split(b",")
    }
    return (words | {b"upgrade"}) - {b"content-length", b"transfer-encoding"}


def _length(headers: list[tuple[bytes, bytes]], version: bytes) -> int | None:
    """How long the body is; None: it comes in chunks. Raises `BadRequest` where that is open."""
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    codings = [value for name, value in headers if name.lower() == b"transfer-encoding"]
    if codings:
        doubtful = lengths or len(codings) > 1 or codings[0].lower() != b"chunked"
        if doubtful or version == b"HTTP/1.0":  # which knows no chunks: readers do not agree
            raise BadRequest(400, "The request says in more than one way how long it is.")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,15}", next(iter(lengths))):
        raise BadRequest(400, "The Content-Length of the request is not one number.")
    return int(next(iter(lengths)))
