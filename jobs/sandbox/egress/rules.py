"""Where a job's connections may go: names first, then every address that a name stands for.

The installation's own rules (`umpteenth.core.addresses`) hold in any case: cloud metadata and
`network.blocked_targets` are refused whatever the job allows, and private addresses too where
`network.allow_private_targets` is false. What was checked is what is dialled, so a name that
stands for another address a moment later leads nowhere new.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from jobs.network import DOMAINS, NetworkRules
from jobs.sandbox.egress.base import Refused
from umpteenth.core import addresses
from umpteenth.core.config import Options, get_options

# Where a URL of a database or of Redis names no port.
_DEFAULT_PORTS: Final = {"postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379}


@dataclass(frozen=True)
class Endpoint:
    """A service of the product itself; no `host` means one that listens on this machine."""

    host: str
    port: int


@dataclass(frozen=True)
class EgressRules:
    """The gate of a job with one of the guarded networks."""

    rules: NetworkRules
    own: frozenset[Endpoint] = frozenset()

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        """See `Gate`."""
        self.check_name(host)
        self._check(addresses.refusal(host, ()))  # some by their names alone
        found = await addresses.resolve(host, port)
        if not found:
            raise OSError("the name has no address")
        self._check(addresses.refusal(host, found))
        if not self.rules.allow_private and (bad := addresses.first_private(found)) is not None:
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
        if self.rules.mode == DOMAINS and addresses.literal(host) is not None:
            raise Refused(
                f"{host} is an IP address; under Allowed domains only the listed names can be"
                " reached."
            )
        if not self.rules.allows_name(host):
            raise Refused(f"{host} is not among the job's allowed domains.")

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


def rules_for(rules: NetworkRules) -> EgressRules:
    """The gate for a job's rules."""
    return EgressRules(rules, own_endpoints())
