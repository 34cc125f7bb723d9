"""The home of a stdio server on its page and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.test import Client

from servers import homes
from servers.access import NotAllowed
from servers.models import Server
from tests.fakes.server_rows import http_server, stdio_server
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.cli import mcp, mcp_home

pytestmark = pytest.mark.django_db
MIB = 1024**2
IN_PAGE = {"HX-Request": "true"}


class FakeHomes:
    """Each holds so much until it is cleared."""

    limit = 2048 * MIB

    def __init__(self) -> None:
        self.held = 132 * MIB
        self.cleared: list[Any] = []
        self.removed = 0
        self.error: OSError | None = None
        self.while_counting: Callable[[], None] = lambda: None
        self.counted = 0

    def size(self, server_id: Any) -> int:
        self.counted += 1
        self.while_counting()
        return self.held

    def clear(self, server_id: Any) -> None:
        # Whoever is killed now leaves a trace, and nothing that is lost without one.
        assert AuditEntry.objects.filter(action="server.clear_home").exists()
        if self.error is not None:
            raise self.error
        self.cleared.append(server_id)
        self.held = 0

    def remove_cleared(self) -> int:
        self.removed += 1
        return 1


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> FakeHomes:
    found = FakeHomes()
    monkeypatch.setattr(homes, "_keepers", [lambda: found])
    monkeypatch.setattr(homes, "_sizes", homes.Sizes())
    monkeypatch.setattr(mcp_home, "setup", lambda: None)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(mcp.command, ["clear-home", *arguments])


def page(client: Client, server: Server, path: str = "", **headers: str) -> str:
    return client.get(f"/servers/{server.pk}/{path}", headers=headers).content.decode()


def test_the_page_of_a_server_asks_for_the_size_of_its_home(member_client: Client) -> None:
    assert f"/servers/{(server := stdio_server()).pk}/home/" in page(member_client, server)
    assert "<dt>Home</dt>" not in page(member_client, http_server())


def test_the_size_stands_beside_the_limit(member_client: Client) -> None:
    said = page(member_client, stdio_server(), "home/")
    assert "132.0\xa0MB of at most 2.0\xa0GB" in said
    assert "Clear" not in said


def test_one_that_is_too_large_says_what_that_means(
    administrator_client: Client, kept: FakeHomes
) -> None:
    kept.held = kept.limit + 1
    said = page(administrator_client, stdio_server(), "home/")
    assert "it is ended soon after each start until its home is cleared" in said
    assert "/home/clear/" in said


def test_an_empty_one_cannot_be_cleared(administrator_client: Client, kept: FakeHomes) -> None:
    kept.held = 0
    assert "/home/clear/" not in page(administrator_client, stdio_server(), "home/")


@pytest.mark.parametrize("headers", [{}, IN_PAGE], ids=["page", "dialog"])
def test_clearing_asks_first(
    administrator_client: Client, kept: FakeHomes, headers: dict[str, str]
) -> None:
    said = page(administrator_client, stdio_server(), "home/clear/", **headers)
    assert "It holds 132.0\xa0MB of at most 2.0\xa0GB on this machine." in said
    assert "A run that uses it at this moment may fail." in said
    assert ("<html" in said) == (not headers)
    assert kept.cleared == []


def test_it_is_cleared_without_javascript_and_in_the_audit_log(
    administrator_client: Client, kept: FakeHomes
) -> None:
    server = stdio_server()
    response = administrator_client.post(f"/servers/{server.pk}/home/clear/", follow=True)
    assert "The home of everything is cleared; it held 132.0\xa0MB." in response.content.decode()
    assert kept.cleared == [server.pk]
    entry = AuditEntry.objects.get(action="server.clear_home")
    assert (entry.object_name, entry.details) == ("everything", {"bytes": 132 * MIB})


def test_homes_are_counted_one_after_the_other(member_client: Client, kept: FakeHomes) -> None:
    """Whoever asks meanwhile is told at once, and asks again."""
    one, other = stdio_server(), stdio_server(name="other")
    meanwhile: list[str] = []
    kept.while_counting = lambda: meanwhile.append(page(member_client, other, "home/"))
    assert "132.0" in page(member_client, one, "home/")
    [said] = meanwhile
    assert "Being counted" in said
    assert f"/servers/{other.pk}/home/" in said
    assert kept.counted == 1
    page(member_client, one, "home/")
    assert kept.counted == 1
    kept.while_counting = lambda: None
    assert "132.0" in page(member_client, other, "home/")


def test_what_cannot_be_counted_now_breaks_no_page(
    administrator_client: Client, kept: FakeHomes
) -> None:
    def fail() -> None:
        raise OSError(11, "Resource temporarily unavailable")

    kept.while_counting = fail
    server = stdio_server()
    assert "Being counted" in page(administrator_client, server, "home/")
    assert "is being counted" in page(administrator_client, server, "home/clear/")
    response = administrator_client.post(f"/servers/{server.pk}/home/clear/", follow=True)
    assert "The home of everything is cleared." in response.content.decode()


def test_nobody_counts_with_a_connection_to_the_database(
    member_client: Client, kept: FakeHomes, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(homes, "give_back", lambda: order.append("given back"))
    kept.while_counting = lambda: order.append("counted")
    page(member_client, stdio_server(), "home/")
    assert order == ["given back", "counted"]


def test_a_page_waits_for_no_deletion(administrator_client: Client, kept: FakeHomes) -> None:
    administrator_client.post(f"/servers/{stdio_server().pk}/home/clear/")
    assert (len(kept.cleared), kept.removed) == (1, 0)


def test_what_the_system_refuses_is_said(administrator_client: Client, kept: FakeHomes) -> None:
    kept.error = OSError(30, "Read-only file system")
    server = stdio_server()
    response = administrator_client.post(f"/servers/{server.pk}/home/clear/", follow=True)
    words = "The home of everything could not be cleared: Read-only file system."
    assert words in response.content.decode()
    assert not AuditEntry.objects.filter(action="server.clear_home").exists()
    result = run("everything")
    assert (result.exit_code, result.stdout) == (1, "")
    assert words in result.stderr


def test_members_do_not_clear(bob: User, kept: FakeHomes) -> None:
    with pytest.raises(NotAllowed):
        homes.clear_home(stdio_server(), actor=bob)
    assert kept.cleared == []


def test_a_server_that_is_not_started_has_none(administrator_client: Client) -> None:
    server = http_server()
    assert page(administrator_client, server, "home/").strip() == "None"
    response = administrator_client.post(f"/servers/{server.pk}/home/clear/", follow=True)
    assert "only servers that are started have one" in response.content.decode()
    assert not AuditEntry.objects.filter(action="server.clear_home").exists()


def test_the_command_line_clears_it_too(kept: FakeHomes) -> None:
    server = stdio_server()
    assert run("everything").stdout == "Cleared the home of everything: 132.0 MiB.\n"
    assert (kept.cleared, kept.removed) == ([server.pk], 1)
    assert json.loads(run("everything", "--json").stdout) == {
        "name": "everything",
        "freed_bytes": 0,
    }


def test_the_command_line_names_what_is_wrong() -> None:
    http_server()
    for name, words in (("github", "has no home"), ("nowhere", "no MCP server named nowhere")):
        result = run(name)
        assert (result.exit_code, result.stdout) == (1, "")
        assert words in result.stderr
