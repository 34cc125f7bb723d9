"""Where the connections of a job may go (issue 5, section 3; P77, I01, I02)."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from jobs.network import NetworkRules
from jobs.sandbox.egress import rules
from jobs.sandbox.egress.base import (
    MAX_FAILURES,
    MAX_HOSTS,
    MAX_REFUSALS,
    Egress,
    EgressEvent,
    Refused,
)
from jobs.sandbox.egress.rules import (
    MAX_LOOKED_AT,
    EgressRules,
    Endpoint,
    is_of_this_machine,
    own_endpoints,
    rules_for,
)
from tests.fakes.names import Names
from umpteenth.core import addresses
from umpteenth.core.config import Options

NAMES = ("example.com", "*.example.org")
INTERNET = EgressRules(NetworkRules("internet"))
DOMAINS = EgressRules(NetworkRules("domains", NAMES))
PRIVATE = NetworkRules("internet", allow_private=True)
OPEN = EgressRules(PRIVATE)

PUBLIC = "93.184.216.34"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def stand_for(**found: tuple[str, ...]) -> None:
        async def resolve(host: str, port: int = 0) -> tuple[str, ...]:
            if (address := addresses.literal(host)) is not None:
                return (str(address),)
            if host not in found:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return found[host]

        monkeypatch.setattr(addresses, "resolve", resolve)

    return stand_for


async def why_not(gate: EgressRules, host: str, port: int = 443) -> str:
    with pytest.raises(Refused) as caught:
        await gate(host, port)
    return str(caught.value)


async def test_the_internet_is_every_public_address(names: Callable[..., None]) -> None:
    names(**{"example.com": (PUBLIC, "2606:2800::1")})
    assert await INTERNET("example.com", 443) == (PUBLIC, "2606:2800::1")
    assert await INTERNET(PUBLIC, 22) == (PUBLIC,)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "0x7f.1", "2130706433", "10.1.2.3", "::1", "::ffff:10.0.0.1", "fd00::1"]
)
async def test_private_addresses_need_the_jobs_setting(host: str) -> None:
    words = await why_not(INTERNET, host)
    assert words.startswith(f"{host} points to a private or local network address")
    assert "Allow private network" in words
    assert await OPEN(host, 443)


async def test_a_public_address_of_this_machine_is_a_local_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A firewall before it does not see what the proxy itself connects to."""
    monkeypatch.setattr(rules, "is_of_this_machine", lambda address: address == PUBLIC)
    assert "local network address" in await why_not(INTERNET, PUBLIC)
    assert await OPEN(PUBLIC, 443) == (PUBLIC,)


async def test_of_thousands_of_addresses_those_are_dialled_that_were_looked_at(
    names: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    monkeypatch.setattr(rules, "is_of_this_machine", looks.append)
    found = tuple(f"93.184.{number // 256}.{number % 256}" for number in range(4000))
    names(**{"many.test": (*found, "10.0.0.1")})
    assert await INTERNET("many.test", 443) == found[:MAX_LOOKED_AT] == tuple(looks)


async def test_one_private_address_among_public_ones_is_enough(names: Callable[..., None]) -> None:
    """I02."""
    names(**{"two.example": (PUBLIC, "192.168.1.7")})
    assert "(192.168.1.7)" in await why_not(INTERNET, "two.example")


@pytest.mark.parametrize(
    "host", ["169.254.169.254", "0xa9fea9fe", "fd00:ec2::254", "metadata.google.internal"]
)
async def test_cloud_metadata_is_never_reached(host: str) -> None:
    assert "cloud metadata" in await why_not(OPEN, host)


async def test_a_name_that_stands_for_metadata_is_refused(names: Callable[..., None]) -> None:
    names(**{"rebound.example": ("169.254.169.254",)})
    assert "cloud metadata" in await why_not(OPEN, "rebound.example")


async def test_the_options_of_the_installation_hold_for_every_job(
    set_network: Callable[..., None],
) -> None:
    """P77."""
    set_network(allow_private_targets=False, blocked_targets=["198.51.100.0/24"])
    assert "network.allow_private_targets is false" in await why_not(OPEN, "10.0.0.1")
    assert "network.blocked_targets" in await why_not(OPEN, "198.51.100.7")


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.com", True),
        ("EXAMPLE.com.", True),
        ("www.example.com", False),
        ("example.com.evil.test", False),
        ("notexample.com", False),
        ("a.example.org", True),
        ("a.b.example.org", True),
        ("example.org", False),
        ("badexample.org", False),
        (".example.org", False),
        ("a..example.org", False),
        ("a%2eexample.org", False),
        ("a/.example.org", False),
    ],
)
def test_names_match_exactly_or_below_a_star(host: str, allowed: bool) -> None:
    try:
        DOMAINS.check_name(host)
    except Refused:
        assert not allowed
    else:
        assert allowed


@pytest.mark.parametrize(
    "host", [PUBLIC, "1572395042", "0x5db8d822", "93.12114978", "2606:2800::1"]
)
async def test_allowed_domains_are_no_addresses(host: str) -> None:
    assert "is an IP address" in await why_not(DOMAINS, host)


async def test_an_allowed_domain_may_not_lead_inside(names: Callable[..., None]) -> None:
    names(**{"example.com": ("10.0.0.1",)})
    assert "private" in await why_not(DOMAINS, "example.com")
    opened = EgressRules(NetworkRules("domains", NAMES, allow_private=True))
    assert await opened("example.com", 443) == ("10.0.0.1",)


async def test_what_is_dialled_is_what_was_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """I02: the name stands for another address a moment later."""
    answers = Names()
    answers.set_in_turn("rebinding.example", [PUBLIC], ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", answers)
    assert await INTERNET("rebinding.example", 443) == (PUBLIC,)
    assert answers.asked == ["rebinding.example"]
    assert "(127.0.0.1)" in await why_not(INTERNET, "rebinding.example")


async def test_a_name_that_nobody_knows_is_no_refusal(names: Callable[..., None]) -> None:
    names()
    with pytest.raises(OSError, match="unknown"):
        await INTERNET("example.com", 443)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::ffff:127.0.0.1"])
async def test_the_products_own_ports_are_never_reached(host: str) -> None:
    rules = EgressRules(PRIVATE, own=frozenset({Endpoint("", 8080)}))
    assert "this installation itself" in await why_not(rules, host, 8080)
    assert await rules(host, 8081)
    assert await rules("10.255.255.1", 8080)


async def test_a_database_elsewhere_is_an_own_port_too(names: Callable[..., None]) -> None:
    names(**{"db.internal": ("10.0.0.9",), "alias.internal": ("10.0.0.9",)})
    rules = EgressRules(PRIVATE, own=frozenset({Endpoint("db.internal", 5432)}))
    assert "this installation itself" in await why_not(rules, "alias.internal", 5432)
    assert await rules("10.0.0.10", 5432)


@pytest.mark.parametrize(
    "host",
    ["10.0.0.9", "::ffff:10.0.0.9", "::ffff:a00:9", "64:ff9b::a00:9", "167772169", "012.0.0.9"],
)
async def test_a_service_of_ours_is_known_in_every_form_of_its_address(host: str) -> None:
    rules = EgressRules(PRIVATE, own=frozenset({Endpoint("10.0.0.9", 5432)}))
    assert "this installation itself" in await why_not(rules, host, 5432)
    assert await rules(host, 5433)


async def test_a_database_named_by_this_machine_is_found_by_every_address_of_it() -> None:
    rules = EgressRules(PRIVATE, own=frozenset({Endpoint("127.0.0.1", 5432)}))
    assert "this installation itself" in await why_not(rules, "127.0.0.2", 5432)


def test_own_ports_come_from_the_options() -> None:
    options = Options.model_validate(
        {
            "data_dir": "/data",
            "app": {"bind": "127.0.0.1:9000"},
            "database": {"url": "postgresql://user:word@db.internal/ump"},
            "redis": {"url": "redis://cache.internal:7000/0"},
        }
    )
    assert own_endpoints(options) == {
        Endpoint("", 9000),
        Endpoint("db.internal", 5432),
        Endpoint("cache.internal", 7000),
    }


@pytest.mark.parametrize(
    ("section", "url", "found"),
    [
        ("redis", "unix:///run/redis.sock", set()),
        ("database", "sqlite:////data/db", set()),
        ("database", "postgresql:///ump?host=/run/postgresql", set()),
        (
            "database",
            "postgresql:///ump?host=db.internal&port=6000",
            {Endpoint("db.internal", 6000)},
        ),
        (
            "database",
            "postgresql:///ump?host=one.internal,two.internal,/run/x&port=6000,6001,6002",
            {Endpoint("one.internal", 6000), Endpoint("two.internal", 6001)},
        ),
        (
            "database",
            "postgresql://one.internal,two.internal/ump?hostaddr=10.0.0.8,",
            {
                *(Endpoint("one.internal", 5432), Endpoint("two.internal", 5432)),
                Endpoint("10.0.0.8", 5432),
            },
        ),
        # Behind the default ports is a reverse proxy, which may serve others, too.
        ("app", "https://ump.example.org", set()),
        ("app", "http://ump.lan:8000", {Endpoint("ump.lan", 8000)}),
    ],
)
def test_own_ports_are_read_from_urls(section: str, url: str, found: set[Endpoint]) -> None:
    options = Options.model_validate({"data_dir": "/data", section: {"url": url}})
    assert own_endpoints(options) == {Endpoint("", 8080)} | found


def test_rules_for_a_job_know_the_own_ports() -> None:
    rules = rules_for(PRIVATE)
    assert rules.rules == PRIVATE
    assert rules.own == own_endpoints()


def test_addresses_of_others_are_not_of_this_machine() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert not is_of_this_machine("203.0.113.1")
    assert not is_of_this_machine("2001:db8::1")


def test_the_journal_names_each_host_once() -> None:
    events: list[EgressEvent] = []
    egress = Egress(INTERNET, events.append)
    for port in (443, 80, 443):
        egress.opened("example.com", port)
    egress.failed("example.com", 25, "no")
    egress.failed("example.com", 25, "no")
    egress.refused("10.0.0.1", 1, "no")
    egress.refused("10.0.0.1", 1, "no")
    assert [event.kind for event in events] == ["opened", "failed", "refused", "refused"]


def test_the_journal_has_an_end_and_says_so_once() -> None:
    events: list[EgressEvent] = []
    egress = Egress(INTERNET, events.append)
    for number in range(1000):
        egress.opened(f"{number}.example", 443)
        egress.refused("10.0.0.1", number, "no")
        egress.failed("example.com", number, "no")
    counts = {
        kind: sum(event.kind == kind for event in events)
        for kind in ("opened", "refused", "failed", "more")
    }
    assert counts == {
        "opened": MAX_HOSTS,
        "refused": MAX_REFUSALS,
        "failed": MAX_FAILURES,
        "more": 3,
    }


def test_a_journal_that_cannot_be_kept_costs_no_connection() -> None:
    def broken(event: EgressEvent) -> None:
        raise RuntimeError("full")

    Egress(INTERNET, broken).opened("example.com", 443)
