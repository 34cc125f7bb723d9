"""Addresses that may not be called cannot be saved (P77, I01)."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from django.test import Client
from django.urls import reverse

from servers import targets
from servers.models import Server
from servers.services import InvalidServer, create_server, current_data, update_server
from tests.fakes.names import Names
from tests.fakes.server_rows import http_data, http_server, stdio_data, unix_data
from umpteenth.cli import mcp

pytestmark = pytest.mark.django_db

SetNetwork = Callable[..., None]
CREATE = reverse("servers:create")
PRIVATE_WORDS = "points to a private or local network address"
METADATA_WORDS = "points to a cloud metadata address"


def problem(**values: Any) -> str:
    """The sentence of the one field that is at fault."""
    with pytest.raises(InvalidServer) as caught:
        create_server(actor=None, data=http_data(**values))
    [(field, sentence)] = caught.value.errors.items()
    assert field == "url"
    assert not Server.objects.exists()
    return sentence


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "localhost:8000", "[::ffff:10.0.0.1]", "nas.test", "mixed.test"]
)
def test_a_private_address_is_saved_by_default_and_not_where_they_are_switched_off(
    host: str, names: Names, set_network: SetNetwork
) -> None:
    """P77: by address and by what a name stands for, all of it (I02)."""
    names.set("nas.test", "192.168.1.9")
    names.set("mixed.test", "203.0.113.1", "fd00::1")
    url = f"http://{host}/mcp?key=canary"
    http_server(url=url).delete()
    set_network(allow_private_targets=False)
    sentence = problem(url=url)
    assert PRIVATE_WORDS in sentence
    assert "network.allow_private_targets is false" in sentence
    assert "canary" not in sentence  # U60


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "100.100.100.200",
        "[fd00:ec2::254]",
        "metadata.google.internal",
        "inside.test",
    ],
)
def test_a_metadata_address_is_never_saved(host: str, names: Names) -> None:
    """I01: whatever the options say, with words of its own."""
    names.set("inside.test", "169.254.169.254")
    assert METADATA_WORDS in problem(url=f"http://{host}/")


def test_a_blocked_address_is_not_saved(names: Names, set_network: SetNetwork) -> None:
    set_network(blocked_targets=["203.0.113.0/24"])
    names.set("api.test", "203.0.113.7")
    assert "network.blocked_targets" in problem(url="https://api.test/mcp")


def test_a_name_that_cannot_be_resolved_now_is_saved(set_network: SetNetwork) -> None:
    """The check is repeated with each connection."""
    set_network(allow_private_targets=False)
    assert http_server(url="https://not-yet.test/mcp").pk


def test_nobody_asks_for_what_is_wrong_in_itself_or_no_address(
    names: Names, set_network: SetNetwork
) -> None:
    set_network(allow_private_targets=False)
    names.set("nas.test", "192.168.1.9")
    with pytest.raises(InvalidServer) as caught:
        create_server(actor=None, data=http_data("no name", url="http://nas.test/"))
    assert list(caught.value.errors) == ["name"]
    create_server(actor=None, data=stdio_data(url="http://nas.test/"))
    assert targets.target_problems(unix_data(url="http://nas.test/")) == {}
    assert names.asked == []


def test_an_edit_is_checked_as_an_addition_is(names: Names, set_network: SetNetwork) -> None:
    """P77: also an address that was saved under other options."""
    server = http_server(url="https://api.test/mcp")
    names.set("api.test", "203.0.113.7")
    names.set("nas.test", "192.168.1.9")
    set_network(allow_private_targets=False)
    with pytest.raises(InvalidServer, match=PRIVATE_WORDS):
        update_server(
            server, actor=None, data=http_data(url="http://nas.test/"), version=server.version
        )
    data = current_data(server)
    assert update_server(server, actor=None, data=data, version=server.version) == server
    names.set("api.test", "10.0.0.7")
    with pytest.raises(InvalidServer, match=PRIVATE_WORDS):
        update_server(server, actor=None, data=data, version=server.version)


def test_the_form_says_it_under_the_field(
    administrator_client: Client, set_network: SetNetwork
) -> None:
    """P77."""
    set_network(allow_private_targets=False)
    data = {"name": "nas", "transport": "http", "url": "http://127.0.0.1:8000/mcp"}
    response = administrator_client.post(CREATE, data)
    assert response.status_code == 422
    text = html.unescape(response.content.decode())
    [sentence] = re.findall(r'id="id_url-error">\s*<p>.*?</svg>(.*?)</p>', text, flags=re.S)
    assert f"127.0.0.1 {PRIVATE_WORDS}." in sentence
    assert 'value="http://127.0.0.1:8000/mcp"' in text


def test_the_command_line_says_it_and_stores_nothing(
    monkeypatch: pytest.MonkeyPatch, set_network: SetNetwork
) -> None:
    monkeypatch.setattr("umpteenth.cli.mcp_add.setup", lambda: None)
    set_network(allow_private_targets=False)
    arguments = ["add", "nas", "--url", "http://localhost:8000/mcp"]
    result = CliRunner().invoke(mcp.command, arguments)
    assert result.exit_code != 0
    assert f"localhost {PRIVATE_WORDS}" in result.stderr
    assert not Server.objects.exists()


def test_a_slow_name_service_is_not_waited_for_with_a_connection_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All share the pool of Postgres."""
    order: list[str] = []

    def ask(*args: Any, **options: Any) -> Any:
        order.append("asked")
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(targets, "give_back", lambda: order.append("given back"))
    monkeypatch.setattr(socket, "getaddrinfo", ask)
    assert targets.target_problems(http_data(url="https://slow.test/")) == {}
    assert order == ["given back", "asked"]
