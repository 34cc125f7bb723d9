"""Which addresses may be called (P77, I01, I02, I05)."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest

from tests.fakes.names import Names
from umpteenth.core import addresses
from umpteenth.core.addresses import (
    TargetRefused,
    check_target,
    is_private,
    literal,
    refusal,
    resolve,
    target_problem,
)

SetNetwork = Callable[..., None]
PRIVATE_WORDS = "points to a private or local network address"
METADATA_WORDS = "points to a cloud metadata address"

# All the ways to write an address of this machine or the network around it.
PRIVATE_HOSTS = [
    "127.0.0.1",
    "127.1",
    "127.255.255.254",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "017700000001",
    "0177.0.0.1",
    "0",
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "192.168.257",
    "192.168.1.1.",
    "%31%32%37.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "169.254.1.1",
    "192.0.0.8",
    "198.18.0.1",
    "198.19.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "[::]",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::10.0.0.1]",
    "[64:ff9b::a00:1]",
    "[64:ff9b:1::8.8.8.8]",
    "[2002:7f00:1::]",
    "[2002:c0a8:101::1]",
    "[2001:0:808:808::80ff:fffe]",  # Teredo, the client is 127.0.0.1
    "[2001:0:a00:1::f7f7:f7f7]",  # Teredo, the server is 10.0.0.1
    "[2606:4700::5efe:10.0.0.1]",  # ISATAP
    "[2606:4700::200:5efe:a00:1]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[febf::1]",
    "[fec0::1]",
    "[fc00::1]",
    "[fdff::1]",
    "[ff02::1]",
    "[100::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    "[5f00::1]",
]
METADATA_HOSTS = [
    "169.254.169.254",
    "2852039166",
    "0xA9FEA9FE",
    "0xa9.0xfe.0xa9.0xfe",
    "0251.0376.0251.0376",
    "025177524776",
    "169.254.43518",
    "169.254.169.254.",  # a proxy may take it, and browsers do
    "%31%36%39.254.169.254",
    "0xA9FEA9FE.",
    "169.16689662",
    "169.254.169.253",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.42.42",
    "169.254.0.23",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "[::ffff:169.254.169.254]",
    "[::ffff:a9fe:a9fe]",
    "[::169.254.169.254]",
    "[::ffff:0:169.254.169.254]",
    "[64:ff9b::169.254.169.254]",
    "[64:ff9b:1::a9fe:a9fe]",
    "[64:ff9b:1:a9fe:a9:fe00::]",  # RFC 6052, 2.2 with a prefix of 48 bits
    "[64:ff9b:1:a9:fe:a9fe::]",  # of 56
    "[64:ff9b:1::a9:fea9:fe00:0]",  # of 64
    "[2002:a9fe:a9fe::1]",
    "[2001:0:808:808::5601:5601]",
    "[2001:db8::5efe:169.254.169.254]",
    "[fd00:ec2::254]",
    "[fd00:ec2::23]",
    "[fd00:ec2:0:0:0:0:0:254]",
    "[fd20:ce::254]",
    "[fe80::a9fe:a9fe%25eth0]",
    "metadata.google.internal",
    "METADATA.google.internal.",
    "met%61data.google.internal",
    "metadata.goog",
    "api.metadata.cloud.ibm.com",
]
PUBLIC_HOSTS = [
    "8.8.8.8",
    "134744072",
    "172.15.255.255",
    "172.32.0.1",
    "100.63.255.255",
    "100.128.0.1",
    "169.253.255.255",
    "192.0.1.1",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "11.0.0.1",
    "[2606:4700::1111]",
    "[::ffff:8.8.8.8]",
    "[64:ff9b::8.8.8.8]",
    "[2002:808:808::1]",
    "[2001:0:808:808::f7f7:f7f7]",
    "[2001:1::1]",
    "[101::1]",
]


def host_of(written: str) -> str:
    return written.removeprefix("[").removesuffix("]")


@pytest.mark.parametrize("host", PRIVATE_HOSTS)
async def test_every_way_to_write_a_private_address_is_refused_where_they_are_not_allowed(
    host: str, set_network: SetNetwork
) -> None:
    """I01, P77."""
    set_network(allow_private_targets=False)
    with pytest.raises(TargetRefused, match=PRIVATE_WORDS) as caught:
        await check_target(f"http://{host}:8000/mcp?key=K")
    assert caught.value.message.startswith(f"{host_of(host).lower()} points ")
    assert "network.allow_private_targets is false" in caught.value.hint
    assert target_problem(f"http://{host}/") == f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize("host", PRIVATE_HOSTS)
async def test_private_addresses_are_allowed_unless_the_operator_says_otherwise(host: str) -> None:
    """P77."""
    await check_target(f"http://{host}/mcp")
    assert target_problem(f"http://{host}/mcp") == ""


@pytest.mark.parametrize("host", METADATA_HOSTS)
async def test_every_way_to_write_a_metadata_address_is_refused_whatever_the_options_say(
    host: str,
) -> None:
    """I01, I05: with a message of its own."""
    with pytest.raises(TargetRefused, match=METADATA_WORDS) as caught:
        await check_target(f"http://{host}/latest/meta-data")
    assert "no option allows them" in caught.value.hint
    assert METADATA_WORDS in target_problem(f"https://{host}/")


@pytest.mark.parametrize("host", PUBLIC_HOSTS)
async def test_public_addresses_are_let_through_under_the_strictest_options(
    host: str, set_network: SetNetwork
) -> None:
    set_network(allow_private_targets=False)
    await check_target(f"https://{host}/mcp")
    assert target_problem(f"https://{host}/mcp") == ""


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://a@127.0.0.1#@ok.example/", True),
        ("http://ok.example@127.0.0.1/", True),
        ("http://ok.example\\@127.0.0.1/", True),
        ("http://user:127.0.0.1@ok.example/", False),
        ("http://ok.example/127.0.0.1", False),
        ("http://ok.example/?u=http://127.0.0.1", False),
        ("http://[broken/", False),
        ("file:///etc/passwd", False),
        ("", False),
    ],
)
async def test_the_host_of_an_address_is_judged_and_none_of_its_other_parts(
    url: str, refused: bool, set_network: SetNetwork, names: Names
) -> None:
    """I01: user information and paths that look like hosts."""
    set_network(allow_private_targets=False)
    names.set("ok.example", "203.0.113.1")
    assert bool(target_problem(url)) is refused


@pytest.mark.parametrize(
    "found",
    [
        ["203.0.113.1", "10.0.0.1"],
        ["10.0.0.1", "203.0.113.1"],
        ["2606:4700::1", "::ffff:10.0.0.1"],
        ["10.0.0.1"],
    ],
)
async def test_a_name_is_refused_for_one_bad_address_among_good_ones(
    found: list[str], set_network: SetNetwork, names: Names
) -> None:
    """I02."""
    set_network(allow_private_targets=False)
    names.set("mixed.test", *found)
    with pytest.raises(TargetRefused, match=f"^mixed.test {PRIVATE_WORDS}"):
        await check_target("https://mixed.test/mcp")
    assert PRIVATE_WORDS in target_problem("https://mixed.test/mcp")


def test_the_message_names_the_address_behind_a_name(set_network: SetNetwork) -> None:
    set_network(allow_private_targets=False)
    found = refusal("nas.test", ["203.0.113.1", "192.168.7.9"])
    assert found is not None
    assert found.message == (f"nas.test {PRIVATE_WORDS} (192.168.7.9).")


def test_a_hostile_name_is_shown_clean_and_bounded(set_network: SetNetwork) -> None:
    """I10."""
    set_network(allow_private_targets=False)
    found = refusal("a\x1b[31mb\u202e" + "c" * 10_000, ["10.0.0.1"])
    assert found is not None
    assert found.message.startswith("abccc")
    assert len(found.message) < 350


@pytest.mark.parametrize(
    ("blocked", "host", "refused"),
    [
        (["203.0.113.0/24"], "203.0.113.9", True),
        (["203.0.113.0/24"], "203.0.112.9", False),
        (["203.0.113.9"], "203.0.113.9", True),
        (["203.0.113.9/24"], "203.0.113.1", True),
        (["203.0.113.0/24"], "[::ffff:203.0.113.9]", True),
        (["203.0.113.0/24"], "[64:ff9b::203.0.113.9]", True),
        (["203.0.113.0/24"], "[2002:cb00:7109::1]", True),
        (["::ffff:203.0.113.0/120"], "203.0.113.9", True),
        (["::ffff:203.0.113.0/120"], "203.0.112.9", False),
        (["2001:db8::/32"], "[2001:db8::1%25eth0]", True),
        (["2001:db8::/32"], "203.0.113.9", False),
        (["::/0"], "203.0.113.9", False),
        (["0.0.0.0/0", "::/0"], "203.0.113.9", True),
        (["0.0.0.0/0", "::/0"], "[2606:4700::1]", True),
        (["10.0.0.0/8"], "10.1.2.3", True),
    ],
)
async def test_blocked_networks_are_refused_even_where_private_ones_are_allowed(
    blocked: list[str], host: str, refused: bool, set_network: SetNetwork
) -> None:
    set_network(blocked_targets=blocked)
    problem = target_problem(f"http://{host}/")
    assert bool(problem) is refused
    if refused:
        assert "points to a blocked address." in problem
        assert "network.blocked_targets" in problem
        with pytest.raises(TargetRefused):
            await check_target(f"http://{host}/")


@pytest.mark.parametrize("name", ["unknown.test", "a" * 64 + ".test", "a..test", "x" * 300])
async def test_what_cannot_be_resolved_passes_until_a_connection_is_made(
    name: str, set_network: SetNetwork
) -> None:
    set_network(allow_private_targets=False)
    await check_target(f"https://{name}/")
    assert target_problem(f"https://{name}/") == ""
    with pytest.raises(socket.gaierror):
        await resolve(name)


async def test_a_name_that_no_thread_is_left_for_fails_like_one_that_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A script may ask silent names until there are no threads; its proxy answers all the same."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="no thread"):
        await resolve("name.example")
    assert await resolve("192.0.2.1") == ("192.0.2.1",)


async def test_a_name_service_that_never_answers_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    released = threading.Event()

    def silent(*args: Any, **options: Any) -> Any:
        released.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "late")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    begun = time.monotonic()
    try:
        assert target_problem("https://slow.test/", limit=0.05) == ""
        await check_target("https://slow.test/", limit=0.05)
        assert not await is_private("slow.test", limit=0.05)
        # As at the end of `asyncio.run`, which waits for all threads of the executor.
        await asyncio.get_running_loop().shutdown_default_executor()
        assert time.monotonic() - begun < 5
    finally:
        released.set()


def test_an_answer_after_the_end_of_its_loop_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is it an error in a thread, which pytest would tell."""
    released, answered = threading.Event(), threading.Event()

    def late(*args: Any, **options: Any) -> Any:
        released.wait(20)
        answered.set()
        raise socket.gaierror(socket.EAI_AGAIN, "late")

    monkeypatch.setattr(socket, "getaddrinfo", late)
    asyncio.run(check_target("https://slow.test/", limit=0.05))
    asking = [thread for thread in threading.enumerate() if thread.name == "resolve"]
    released.set()
    for thread in asking:
        thread.join(20)
    assert answered.is_set()


@pytest.mark.parametrize(
    ("found", "private"),
    [
        (["127.0.0.1"], True),
        (["10.0.0.1", "fd00::1"], True),
        (["::ffff:10.0.0.1"], True),
        (["10.0.0.1", "203.0.113.1"], False),
        (["203.0.113.1"], False),
        (["2002:a00:1::1"], False),
        (["64:ff9b::10.0.0.1"], False),
        (["169.254.169.254"], False),
        (["::ffff:100.100.100.200"], False),
        ([], False),
    ],
)
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_host_is_private_if_all_its_addresses_are(
    found: list[str], private: bool, allowed: bool, set_network: SetNetwork, names: Names
) -> None:
    """I06: whether plain http is acceptable says the network, not the options."""
    set_network(allow_private_targets=allowed)
    names.set("as.test", *found)
    assert await is_private("as.test") is private


async def test_the_host_of_this_machine_is_private_and_a_metadata_name_is_not(names: Names) -> None:
    names.set("metadata.google.internal", "10.0.0.1")
    assert await is_private("localhost")
    assert await is_private("127.1")
    assert not await is_private("metadata.google.internal")


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("127.1", ("127.0.0.1",)),
        ("0x7f000001", ("127.0.0.1",)),
        ("::1", ("::1",)),
        ("fe80::1%25eth0", ("fe80::1%eth0",)),
        ("fe80::1%lo", ("fe80::1%lo",)),
    ],
)
async def test_nobody_is_asked_for_an_address_that_stands_there(
    host: str, found: tuple[str, ...], names: Names
) -> None:
    """RFC 6874: in a URL a zone begins with %25."""
    assert await resolve(host) == found
    assert names.asked == []


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.1."])
def test_short_forms_are_read_here_and_not_by_a_resolver(host: str) -> None:
    """I01: not every resolver knows them, and a proxy may."""
    assert literal(host) == ipaddress.ip_address("127.0.0.1")


async def test_addresses_of_both_families_take_turns(names: Names) -> None:
    """RFC 8305, section 4."""
    names.set("both.test", "::1", "::2", "::2", "::3", "127.0.0.1", "127.0.0.2")
    assert await resolve("both.test") == ("::1", "127.0.0.1", "::2", "127.0.0.2", "::3")


async def test_the_zone_that_a_resolver_finds_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ("fe80::1", 80, 0, 7)
    answer = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", place)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: answer)
    assert await resolve("printer.test") == ("fe80::1%7",)


def test_an_address_has_a_face_for_each_tunnel_that_leads_into_it() -> None:
    """RFC 4380, section 4: Teredo hides its client by turning the bits."""
    found = list(addresses.faces(ip_address("2001:0:4136:e378:8000:63bf:3fff:fdd2")))
    assert [str(face) for face in found][1:] == ["65.54.227.120", "192.0.2.45"]
