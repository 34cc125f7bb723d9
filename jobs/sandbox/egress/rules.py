"""Where a job's connections may go: names first, then every address that a name stands for.

The installation's own rules (`umpteenth.core.addresses`) hold in any case: cloud metadata and
`network.blocked_targets` are refused whatever the job allows, and private addresses too where
`network.allow_private_targets` is false. What was checked is what is dialled, by an upstream proxy
too, so a name that stands for another address a moment later leads nowhere new.
`network.sandbox_proxy_resolves` gives that up for names that the upstream is left.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from jobs.network import DOMAINS, NetworkRules
from jobs.sandbox.egress.base import Proxied, Refused
from jobs.sandbox.egress.upstream import Upstream
from umpteenth.core import addresses
from umpteenth.core.config import Options, get_options
from umpteenth.core.deadlines import timeout

# Where a URL names no port.
_DEFAULT_PORTS: Final = {
    **{"postgres": 5432, "postgresql": 5432, "redis": 6379, "rediss": 6379},
    **{"http": 80, "https": 443},
}
# Of the addresses of a name; what is not looked at is not dialled. Thousands in one answer, which
# whoever owns the name may give, would each time take the worker a second.
MAX_LOOKED_AT: Final = 64
# A name that an upstream proxy is to resolve may mean nothing here; nobody waits for it for long.
PROXIED_RESOLVE_SECONDS: Final = 1.0
_ONLY_ITS_PROXY: Final = (
    "this machine does not know its name; if only its proxy does, see"
    " network.sandbox_proxy_resolves"
)


@dataclass(frozen=True)
class Endpoint:
    """A service of the product itself; no `host` means one that listens on this machine."""

    host: str
    port: int


@dataclass(frozen=True)
class EgressRules:
    """The gate of a job with one of the guarded networks.

    `upstream`: there is a proxy that connects to everything but the local network; `by_name`: it
    is to resolve names itself.
    """

    rules: NetworkRules
    own: frozenset[Endpoint] = frozenset()
    upstream: bool = False
    by_name: bool = False

    async def __call__(self, host: str, port: int) -> tuple[str, ...] | Proxied:
        """See `Gate`."""
        self.check_name(host)
        self._check(addresses.refusal(host, ()))  # some by their names alone
        found = (await self._resolve(host, port))[:MAX_LOOKED_AT]
        self._check(addresses.refusal(host, found))
        # Behind a public address of this machine are services that its firewall keeps from all.
        private = addresses.first_private(found) or next(filter(is_of_this_machine, found), None)
        if not self.rules.allow_private and (bad := private) is not None:
            shown = "" if bad == host else f" ({bad})"
            raise Refused(
                f"{host} points to a private or local network address{shown}. The job setting"
                " Allow private network opens such addresses."
            )
        if await self._is_own(found, port):
            raise Refused(
                f"{host}:{port} is a service of this installation itself, which no job may call."
            )
        if not self.upstream or private is not None:
            return found
        if self.by_name:
            self._check_form(host)
            return Proxied()
        return Proxied(found)

    async def _resolve(self, host: str, port: int) -> tuple[str, ...]:
        """The addresses of the name; none where only the upstream proxy may know it."""
        if not self.by_name:
            try:
                found = await addresses.resolve(host, port)
            except socket.gaierror as error:
                if self.upstream:
                    raise OSError(_ONLY_ITS_PROXY) from error
                raise
            if not found:
                raise OSError("the name has no address")
            return found
        with contextlib.suppress(OSError):
            async with timeout(PROXIED_RESOLVE_SECONDS):
                return await addresses.resolve(host, port)
        if not addresses.current_rules().open:
            raise Refused(
                f"The name {host} is not known here, so that its address cannot be held against"
                " network.blocked_targets and network.allow_private_targets."
            )
        return ()

    def check_name(self, host: str) -> None:
        """The rules that need no address. Raises `Refused`."""
        if self.rules.mode == DOMAINS and addresses.literal(host) is not None:
            raise Refused(
                f"{host} is an IP address; under Allowed domains only the listed names can be"
                " reached."
            )
        if not self.rules.allows_name(host):
            raise Refused(
                f"{host} is not among the job's allowed domains (Network in the job's settings)."
            )

    @staticmethod
    def _check_form(host: str) -> None:
        """Nothing goes to another proxy that may read it otherwise: 010.0.0.1 is 8.0.0.1 here."""
        address = addresses.literal(host)
        if addresses.is_this_machine(host) or (
            "%" in host if address is None else str(address) != host
        ):
            raise Refused(f"{host} is written in a way that other proxies may read otherwise.")

    @staticmethod
    def _check(refused: addresses.TargetRefused | None) -> None:
        if refused is not None:
            raise Refused(f"{refused.message} {refused.hint}") from None

    async def _is_own(self, found: Iterable[str], port: int) -> bool:
        seen = _faces(found)
        for endpoint in self.own:
            if endpoint.port != port:
                continue
            theirs: set[str] = set()
            if endpoint.host:
                try:
                    theirs = _faces(await addresses.resolve(endpoint.host))
                except OSError:
                    continue
            if not seen.isdisjoint(theirs):
                return True
            local = not endpoint.host or any(map(is_of_this_machine, theirs))
            if local and any(map(is_of_this_machine, seen)):
                return True
        return False


def _faces(found: Iterable[str]) -> set[str]:
    """The addresses, and each IPv4 address inside them: ::ffff:10.0.0.9 is 10.0.0.9 to the
    kernel, and a translator may make it of other forms."""
    plain = {ipaddress.ip_address(text.partition("%")[0]) for text in found}
    return {*found, *(str(face) for address in plain for face in addresses.faces(address))}


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
def _endpoints(bind: str, urls: tuple[str, ...], named: tuple[str, ...]) -> frozenset[Endpoint]:
    found = {Endpoint("", int(bind.rpartition(":")[2]))}
    for url in (*urls, *(f"tcp://{text}" for text in named)):
        found |= _endpoints_of(url)
    return frozenset(found - {Endpoint("", 0)})


def _endpoints_of(url: str) -> set[Endpoint]:
    """Where the URL leads; nowhere if that is no host and port, but a socket or a file say."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))  # libpq takes them from there, too, and several of them
    default = _DEFAULT_PORTS.get(parts.scheme, 0)
    hosts = [query.get("host") or parts.hostname or "", query.get("hostaddr", "")]
    ports = [
        int(port or default) for port in (query.get("port") or str(parts.port or "")).split(",")
    ]
    return {
        Endpoint(host, port)
        for names in hosts
        # One port is for all hosts.
        for host, port in zip(names.split(","), cycle(ports))
        if host and port and not host.startswith("/")
    }


def own_endpoints(options: Options | None = None) -> frozenset[Endpoint]:
    """The web process, the database and Redis of this installation, its proxy, and what the
    operator names besides.

    `app.url` counts where it has a port of its own: behind 80 and 443 is a reverse proxy, at
    whose address others may be served, too.
    """
    options = options or get_options()
    secrets = (options.database.url, options.redis.url, options.network.sandbox_proxy)
    urls = tuple(secret.get_secret_value() for secret in secrets if secret is not None)
    if options.app.url and urlsplit(options.app.url).port:
        urls = (*urls, options.app.url)
    return _endpoints(options.app.bind, urls, options.network.own_targets)


def rules_for(rules: NetworkRules) -> EgressRules:
    """The gate for a job's rules."""
    network = get_options().network
    upstream = network.sandbox_proxy is not None
    by_name = upstream and network.sandbox_proxy_resolves
    return EgressRules(rules, own_endpoints(), upstream, by_name)


def upstream_proxy() -> Upstream | None:
    """The proxy that this machine itself needs to get out."""
    url = get_options().network.sandbox_proxy
    return None if url is None else Upstream.at(url.get_secret_value())
