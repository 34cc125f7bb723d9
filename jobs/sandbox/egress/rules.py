"""Where a job's connections may go: names first, then every address that a name stands for.

The installation's own rules (`umpteenth.core.addresses`) hold in any case: cloud metadata and
`network.blocked_targets` are refused whatever the job allows, and private addresses too where
`network.allow_private_targets` is false. What was checked is what is dialled, so a name that
stands for another address a moment later leads nowhere new.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import urlsplit

from jobs.sandbox.egress.base import Refused
from umpteenth.core import addresses
from umpteenth.core.config import Options, get_options

Mode = Literal["internet", "domains"]

MAX_DOMAINS: Final = 200
MAX_NAME: Final = 253
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
# Where a URL of a database or of Redis names no port.
_DEFAULT_PORTS: Final = {"postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379}


def canonical(host: str) -> str:
    """A name as names are compared: lower case, ASCII, without a final dot.

    Raises `ValueError` for what no name service would be asked for.
    """
    name = host.removesuffix(".").lower()
    if not name.isascii():
        try:
            name = name.encode("idna").decode("ascii")
        except UnicodeError:
            raise ValueError(f"{host!r} is not a host name.") from None
    if not name or len(name) > MAX_NAME or not all(map(_LABEL.fullmatch, name.split("."))):
        raise ValueError(f"{host!r} is not a host name.")
    return name


def domain_problem(text: str) -> str:
    """Why `text` cannot be one of a job's allowed domains; empty if it can."""
    try:
        canonical_domain(text)
    except ValueError as error:
        return str(error)
    return ""


def canonical_domain(text: str) -> str:
    """An allowed domain as it is kept: `example.com` or `*.example.com`. Raises `ValueError`."""
    name = text.strip()
    if "://" in name or "/" in name:
        raise ValueError(f"{text!r} is a URL; name only its host, such as example.com.")
    suffix = name.removeprefix("*.")
    if addresses.literal(suffix.strip("[]")) is not None:
        raise ValueError(f"{text!r} is an IP address; only names can be allowed.")
    if ":" in suffix:
        raise ValueError(f"{text!r} has a port; an allowed domain is open on every port.")
    if "*" in suffix:
        raise ValueError(f"{text!r}: a star stands only at the beginning, as in *.example.com.")
    try:
        found = canonical(suffix)
    except ValueError:
        raise ValueError(f"{text!r} is not a host name.") from None
    return found if suffix == name else f"*.{found}"


def covers(domain: str, name: str) -> bool:
    """Whether an allowed domain stands for a name; both canonical. A star is one or more labels."""
    if domain.startswith("*."):
        return name.endswith(domain[1:])
    return name == domain


@dataclass(frozen=True)
class Endpoint:
    """A service of the product itself; no `host` means one that listens on this machine."""

    host: str
    port: int


@dataclass(frozen=True)
class EgressRules:
    """The gate of a job. `domains` are canonical and count in the mode `domains` only."""

    mode: Mode = "internet"
    domains: tuple[str, ...] = ()
    allow_private: bool = False
    own: frozenset[Endpoint] = frozenset()

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        """See `Gate`."""
        self.check_name(host)
        self._check(addresses.refusal(host, ()))  # some by their names alone
        found = await addresses.resolve(host, port)
        if not found:
            raise OSError("the name has no address")
        self._check(addresses.refusal(host, found))
        if not self.allow_private and (bad := addresses.first_private(found)) is not None:
            shown = "" if bad == host else f" ({bad})"
            raise Refused(
                f"{host} points to a private or local network address{shown}. The job setting"
                " Allow private network opens such addresses."
            )
        if await self._is_own(found, port):
            raise Refused(
                f"{host}:{port} is a service of this installation itself, which no job may call."
            )
        return found

    def check_name(self, host: str) -> None:
        """The rules that need no address. Raises `Refused`."""
        address = addresses.literal(host)
        if address is not None:
            if self.mode == "domains":
                raise Refused(
                    f"{host} is an IP address; under Allowed domains only the listed names can"
                    " be reached."
                )
            return
        try:
            name = canonical(host)
        except ValueError as error:
            raise Refused(str(error)) from None
        if self.mode == "domains" and not any(covers(domain, name) for domain in self.domains):
            raise Refused(f"{name} is not among the job's allowed domains.")

    @staticmethod
    def _check(refused: addresses.TargetRefused | None) -> None:
        if refused is not None:
            raise Refused(f"{refused.message} {refused.hint}") from None

    async def _is_own(self, found: Iterable[str], port: int) -> bool:
        for endpoint in self.own:
            if endpoint.port != port:
                continue
            theirs: tuple[str, ...] = ()
            if endpoint.host:
                try:
                    theirs = await addresses.resolve(endpoint.host)
                except OSError:
                    continue
            local = not endpoint.host or any(map(is_of_this_machine, theirs))
            if any(text in theirs or (local and is_of_this_machine(text)) for text in found):
                return True
        return False


def is_of_this_machine(address: str) -> bool:
    """Whether a connection to the address ends here: nobody can bind an address of others."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.bind(socket.getaddrinfo(address, 0, family, socket.SOCK_DGRAM)[0][4])
        except OSError:
            return False
    return True


@lru_cache(maxsize=4)
def _endpoints(bind: str, urls: tuple[str, ...]) -> frozenset[Endpoint]:
    found = {Endpoint("", int(bind.rpartition(":")[2]))}
    for url in urls:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        if parts.hostname and port:
            found.add(Endpoint(parts.hostname, port))
    return frozenset(found)


def own_endpoints(options: Options | None = None) -> frozenset[Endpoint]:
    """The web process, the database and Redis of this installation."""
    options = options or get_options()
    secrets = (options.database.url, options.redis.url)
    urls = tuple(secret.get_secret_value() for secret in secrets if secret is not None)
    return _endpoints(options.app.bind, urls)


def rules_for(
    mode: Mode, domains: Iterable[str] = (), *, allow_private: bool = False
) -> EgressRules:
    """The gate for a job's settings; `domains` as they are kept (`canonical_domain`)."""
    return EgressRules(mode, tuple(domains), allow_private, own_endpoints())
