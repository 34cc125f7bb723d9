"""Servers that are looked at by themselves, by a real beat and a real worker, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from servers.limits import MAX_TOOL_NAME_BYTES
from tests.fakes.mcp_http import FakeHttp, Reply, Request, running
from tests.fakes.mcp_server import TOOLS
from tests.real.conftest import Site, eventually, free_port


class Moody:
    """A server that can be put out of order and asked how often it was contacted."""

    def __init__(self, fake: FakeHttp) -> None:
        self.fake = fake
        self.broken = False
        fake.script = self._answer

    def _answer(self, request: Request) -> Reply | None:
        return Reply(503, {}, b"closed for repairs") if self.broken else None

    @property
    def contacts(self) -> int:
        return len(self.fake.requests)


@pytest.fixture
def moody() -> Iterator[Moody]:
    with running(FakeHttp()) as fake:
        yield Moody(fake)


def state(site: Site, name: str, wanted: str, failures: int = 0) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        shown: dict[str, Any] = site.ask("server", name)
        return shown if (shown["state"], shown["failures"]) == (wanted, failures) else None

    found: dict[str, Any] = eventually(look, f"{wanted} after {failures} failures")
    return found


def test_a_server_is_connected_without_being_asked_breaks_and_comes_back(
    site: Site, moody: Moody
) -> None:
    """U2: auto_connect; the lamp follows the server."""
    name = site.ask("add_server", f"moody-{moody.fake.port}", "http", {"url": moody.fake.url})
    found = state(site, name, "connected")
    assert found["tool_count"] == len(found["tools"]) == len(TOOLS)
    assert found["found_how"]
    moody.broken = True
    site.ask("make_server_due", name)
    failed = state(site, name, "failed", failures=1)
    assert "503" in failed["last_error"]
    assert failed["tools"] == found["tools"]
    site.ask("make_server_due", name)
    state(site, name, "failed", failures=2)
    moody.fake.fake.behaviour.tools = TOOLS[:3]
    moody.broken = False
    site.ask("make_server_due", name)
    healed = state(site, name, "connected")
    assert healed["tools"] == [tool["name"] for tool in TOOLS[:3]]
    assert set(site.ask("kinds", name)) == {"health"}


def test_the_longest_name_of_a_tool_fits_into_the_index(site: Site, moody: Moody) -> None:
    """D04. Of other characters each time, so that the database cannot compress it."""
    name = "".join(
        chr(0x4E00 + number * 7919 % 20_000) for number in range(MAX_TOOL_NAME_BYTES // 3)
    )
    moody.fake.fake.behaviour.tools = [{**TOOLS[0], "name": name}]
    server = site.ask("add_server", f"long-{moody.fake.port}", "http", {"url": moody.fake.url})
    assert state(site, server, "connected")["tools"] == [name]


def test_a_disabled_server_is_left_alone_until_it_is_enabled(site: Site, moody: Moody) -> None:
    """P59."""
    name = site.ask("add_server", f"off-{moody.fake.port}", "http", {"url": moody.fake.url})
    site.ask("switch", name, False)
    with running(FakeHttp()) as fake:
        other = site.ask("add_server", f"on-{fake.port}", "http", {"url": fake.url})
        site.ask("make_server_due", name)  # the switch counts, whatever the time says
        site.ask("make_server_due", other)
        state(site, other, "connected")
    assert site.ask("server", name)["state"] == "untested"
    assert site.ask("kinds", name) == []
    assert moody.contacts == 0
    site.ask("switch", name, True)
    state(site, name, "connected")


def test_a_restart_forgets_the_back_off(site: Site, moody: Moody) -> None:
    moody.broken = True
    name = site.ask("add_server", f"moody-{moody.fake.port}", "http", {"url": moody.fake.url})
    for failures in (1, 2, 3):
        site.ask("make_server_due", name)
        state(site, name, "failed", failures)
    moody.broken = False
    # By itself it would be tried again in two minutes, later than `state` waits.
    [beat] = [process for process in site.processes if "beat" in str(process.args)]
    site.stop(beat)
    site.start("beat")
    state(site, name, "connected")


@pytest.fixture
def bare_server(site: Site) -> str:
    """A server that the site itself leaves alone."""
    name = f"bare-{free_port()}"
    site.ask("add_server", name, "http", {"url": "http://127.0.0.1:1/mcp"})
    site.ask("switch", name, False)
    return name


def test_a_server_is_deleted_while_its_tools_are_stored(site: Site, bare_server: str) -> None:
    """The tools that come last must not keep it."""
    left = site.ask("while_a_test_is_stored", bare_server, "delete")
    assert left == {"servers": 0, "tests": []}


def test_a_test_ends_well_while_its_server_becomes_due(site: Site, bare_server: str) -> None:
    """Both lock the check and the server; in two orders they would wait for each other."""
    site.ask("set_columns", bare_server, {"enabled": True})
    left = site.ask("while_a_test_is_stored", bare_server, "due")
    assert left["servers"] == 1
    assert "connected" in left["tests"]
