"""Which network addresses outbound requests may go to (P77, I01, I02, I05).

A name is judged by all addresses that it stands for, and an IPv6 address also by each IPv4 address
inside it. Addresses that hand out a machine's credentials in a cloud are refused whatever the
options say; private ones where `network.allow_private_targets` is false; and those of
`network.blocked_targets`. Nothing here imports Django or the HTTP client.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from umpteenth.core.config import get_options
from umpteenth.core.deadlines import timeout
from umpteenth.core.text import clean

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

RESOLVE_SECONDS: Final = 5.0
MAX_SHOWN_HOST: Final = 253  # characters; no name in the DNS is longer


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Private or of this machine, and what else leads to no host of the internet. Addresses for
# documentation (RFC 5737, 3849) are missing: they lead nowhere.
PRIVATE: Final = _networks(
    "0.0.0.0/8",  # this host, RFC 1122
    "10.0.0.0/8",
    "100.64.0.0/10",  # between a provider and its customers, RFC 6598
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",  # protocol assignments, RFC 6890
    "192.168.0.0/16",
    "198.18.0.0/15",  # measuring, RFC 2544
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and broadcast
    "::/128",
    "::1/128",
    "64:ff9b:1::/48",  # translation inside one network, RFC 8215
    "100::/64",  # discarded, RFC 6666
    "2001:2::/48",  # measuring, RFC 5180
    "2001:10::/28",  # no addresses but hashes, RFC 4843
    "5f00::/16",  # inside one network's routers, RFC 9602
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",  # what unique local addresses were before, RFC 3879
    "ff00::/8",
)
# Metadata services of the clouds. Two of them keep more services next to it.
METADATA: Final = _networks(
    "169.254.169.0/24",  # AWS, Azure, Google, OpenStack and most others
    "169.254.170.0/24",  # AWS containers: credentials of a task or a pod
    "169.254.0.23/32",  # Tencent
    "169.254.10.10/32",  # Tencent, classic
    "169.254.42.42/32",  # Scaleway
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure: the host's agent
    "192.0.0.192/32",  # Oracle
    "fd00:ec2::23/128",  # AWS containers
    "fd00:ec2::254/128",  # AWS
    "fd20:ce::254/128",  # Google
    "fd00:42::42/128",  # Scaleway
    "fd00:a9fe:a9fe::1/128",  # Akamai
    "fe80::a9fe:a9fe/128",  # OpenStack
)
# Known by name as well, for a proxy resolves names that mean nothing here.
METADATA_NAMES: Final = frozenset(
    {
        "api.metadata.cloud.ibm.com",
        "instance-data.ec2.internal",
        "metadata.goog",
        "metadata.google.internal",
        "metadata.packet.net",
        "metadata.platformequinix.com",
        "metadata.tencentyun.com",
    }
)
_MAPPED: Final = ipaddress.IPv6Network("::ffff:0:0/96")
# Prefixes whose last 32 bits are an IPv4 address.
_IPV4_AT_THE_END: Final = (
    _MAPPED,
    ipaddress.IPv6Network("::/96"),  # compatible, RFC 4291
    ipaddress.IPv6Network("::ffff:0:0:0/96"),  # translated, RFC 2765
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64, RFC 6052
)
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
_TEREDO: Final = ipaddress.IPv6Network("2001::/32")
_ISATAP: Final = (0x00005EFE, 0x02005EFE)  # RFC 5214, the first half of the interface's part


class TargetRefused(OSError):
    """No connection is made to this target; `message` and `hint` are for people."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Rules:
    """What the options say. Metadata addresses are refused by any rules."""

    allow_private: bool = True
    blocked: tuple[Network, ...] = ()

    @property
    def open(self) -> bool:
        """Whether nothing but metadata addresses is refused."""
        return self.allow_private and not self.blocked


def current_rules() -> Rules:
    network = get_options().network
    return _rules(network.allow_private_targets, network.blocked_targets)


@lru_cache(maxsize=8)
def _rules(allow_private: bool, blocked: tuple[str, ...]) -> Rules:
    return Rules(allow_private, tuple(_plain(ipaddress.ip_network(b, False)) for b in blocked))


def _plain(network: Network) -> Network:
    """A network of mapped addresses as the IPv4 network that it means."""
    if isinstance(network, ipaddress.IPv6Network) and network.subnet_of(_MAPPED):
        beginning = ipaddress.IPv4Address(_low(int(network.network_address)))
        return ipaddress.IPv4Network((beginning, network.prefixlen - _MAPPED.prefixlen))
    return network


def literal(host: str) -> Address | None:
    """The address that `host` writes out, in any form that a resolver, a browser or a proxy would
    take; zones dropped."""
    for written in (host.partition("%")[0], unquote(host)):
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(written.removesuffix("."))
    try:  # decimal, octal, hexadecimal and short forms of IPv4
        return ipaddress.IPv4Address(socket.inet_aton(unquote(host).removesuffix(".")))
    except (OSError, ValueError):
        return None


def is_this_machine(host: str) -> bool:
    """Whether `host` says so by itself, in whatever form; nobody is asked for a name."""
    address = literal(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    name = _canonical(host)
    return name == "localhost" or name.endswith(".localhost")


def faces(address: Address) -> Iterator[Address]:
    """The address, and each IPv4 address that a tunnel or translator may make of it."""
    value = int(address)
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    address = ipaddress.IPv6Address(value)  # without its zone
    yield address
    for number in _ipv4_inside(address, value):
        yield ipaddress.IPv4Address(number)


def _ipv4_inside(address: ipaddress.IPv6Address, value: int) -> Iterator[int]:
    if any(address in prefix for prefix in _IPV4_AT_THE_END):
        yield _low(value)
    if address in _LOCAL_NAT64:  # whose prefix may be 48, 56, 64 or 96 bits long, RFC 6052 2.2
        yield _low(value)
        yield _low(value >> 64) % 2**16 << 16 | (value >> 40) % 2**16
        yield (value >> 64) % 2**8 << 24 | (value >> 32) % 2**24
        yield _low(value >> 24)
    if address in _6TO4:
        yield _low(value >> 80)
    if address in _TEREDO:  # the server, and the client with its bits turned, RFC 4380 4
        yield _low(value >> 64)
        yield _low(~value)
    if _low(value >> 32) in _ISATAP:
        yield _low(value)


def _low(value: int) -> int:
    return value & 0xFFFFFFFF


def refusal(host: str, addresses: Iterable[str]) -> TargetRefused | None:
    """Why no connection may go to `host`, which stands for `addresses`; None if one may.

    One bad address among good ones is enough: which of them is dialled is a matter of luck (I02).
    """
    rules = current_rules()
    shown = clean(host, MAX_SHOWN_HOST)
    if _canonical(host) in METADATA_NAMES:
        return _metadata(shown)
    found = [(text, list(faces(_address(text)))) for text in addresses]
    for _, seen in found:
        if _any_within(seen, METADATA):
            return _metadata(shown)
    for _, seen in found:
        if _any_within(seen, rules.blocked):
            return TargetRefused(
                f"{shown} points to a blocked address.",
                "The operator has blocked it with network.blocked_targets in the configuration.",
            )
    for text, seen in found:
        if not rules.allow_private and _any_within(seen, PRIVATE):
            named = "" if text == shown else f" ({text})"
            return TargetRefused(
                f"{shown} points to a private or local network address{named}.",
                "Such targets are switched off here: network.allow_private_targets is false in "
                "the configuration.",
            )
    return None


def first_private(addresses: Iterable[str]) -> str | None:
    """The first of the addresses that is private or of this machine, in whatever disguise."""
    for text in addresses:
        if _any_within(list(faces(_address(text))), PRIVATE):
            return text
    return None


def _metadata(shown: str) -> TargetRefused:
    return TargetRefused(
        f"{shown} points to a cloud metadata address, which is never called.",
        "Such addresses hand out the credentials of the machine itself; no option allows them.",
    )


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


def _any_within(addresses: Sequence[Address], networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks for address in addresses)


def _canonical(host: str) -> str:
    return unquote(host).rstrip(".").lower()


async def resolve(host: str, port: int = 0) -> tuple[str, ...]:
    """All addresses of `host` in the order to try them, zones kept. Raises `OSError`."""
    if (written := _written_out(host)) is not None:
        return written
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

    def ask() -> None:
        found: tuple[str, ...] | OSError
        try:
            found = _resolve_now(host, port)
        except OSError as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
            loop.call_soon_threadsafe(_tell, answer, found)

    try:
        _start(ask)
    except RuntimeError as error:  # out of threads, for which a program may ask names on purpose
        raise OSError(errno.EAGAIN, "no thread could be started to resolve it") from error
    return await answer


def _tell(answer: asyncio.Future[tuple[str, ...]], found: tuple[str, ...] | OSError) -> None:
    if answer.done():  # nobody waits for it any more
        return
    if isinstance(found, OSError):
        answer.set_exception(found)
    else:
        answer.set_result(found)


def _start(ask: Callable[[], None]) -> threading.Thread:
    """The resolver of the C library cannot be interrupted, only left alone: an executor would be
    waited for at the end of its loop, and silent names would hold up all else in it."""
    thread = threading.Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    return thread


def _resolve_now(host: str, port: int = 0) -> tuple[str, ...]:
    if (written := _written_out(host)) is not None:
        return written
    try:
        return _numbers(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except ValueError as error:
        raise _no_name(error) from error


def _written_out(host: str) -> tuple[str, ...] | None:
    """No name service has to be asked for an address; in URLs a zone begins with %25 (RFC 6874)."""
    address = literal(host)
    if address is None:
        return None
    zone = host.partition("%")[2].removeprefix("25") if address.version == 6 else ""
    return (f"{address}%{zone}" if zone else str(address),)


def _numbers(
    found: Iterable[tuple[object, object, object, object, tuple[object, ...]]],
) -> tuple[str, ...]:
    """IPv6 and IPv4 in turns, as the first of them may be cut off (RFC 8305, section 4)."""
    by_family: dict[object, list[str]] = {}
    for family, _, _, _, place in found:
        text = str(place[0])
        if len(place) > 3 and place[3] and "%" not in text:
            text = f"{text}%{place[3]}"
        same = by_family.setdefault(family, [])
        if text not in same:
            same.append(text)
    longest = max(map(len, by_family.values()), default=0)
    turns = (same[turn : turn + 1] for turn in range(longest) for same in by_family.values())
    return tuple(text for turn in turns for text in turn)


def _no_name(error: ValueError) -> socket.gaierror:
    """Labels that are too long or empty fail before anybody is asked."""
    return socket.gaierror(socket.EAI_NONAME, "No name can look like this")


async def check_target(url: str, *, limit: float = RESOLVE_SECONDS) -> None:
    """Raise `TargetRefused` if no connection may go where `url` points.

    What cannot be resolved within `limit` seconds passes: the check is repeated with each
    connection, on the address that is dialled.
    """
    host = _host(url)
    try:
        async with timeout(limit):
            addresses = await resolve(host)
    except OSError:
        addresses = ()
    if (refused := refusal(host, addresses)) is not None:
        raise refused


def target_problem(url: str, limit: float = RESOLVE_SECONDS) -> str:
    """The same as a sentence, for threads that may wait; empty if nothing is known against it."""
    host = _host(url)
    refused = refusal(host, _within(host, limit))
    return f"{refused.message} {refused.hint}" if refused else ""


def _within(host: str, limit: float) -> tuple[str, ...]:
    """The addresses of `host` if they are known within `limit` seconds."""
    found: list[tuple[str, ...]] = []

    def ask() -> None:
        with contextlib.suppress(OSError):
            found.append(_resolve_now(host))

    if _written_out(host) is not None:
        return _resolve_now(host)
    _start(ask).join(limit)
    return found[0] if found else ()


async def is_private(host: str, *, limit: float = RESOLVE_SECONDS) -> bool:
    """Whether every address of `host` is private or of this machine, whatever the options say.

    False for what cannot be resolved, and for metadata addresses.
    """
    try:
        async with timeout(limit):
            addresses = [_address(text) for text in await resolve(host)]
    except OSError:
        return False
    if _canonical(host) in METADATA_NAMES or not addresses:
        return False
    return all(
        _any_within([_unmapped(address)], PRIVATE) and not _any_within([*faces(address)], METADATA)
        for address in addresses
    )


def _unmapped(address: Address) -> Address:
    """Tunnels lead out into the world, a mapped address is only another way to write IPv4."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return address if mapped is None else mapped


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
