"""A server's tools in pages, searched, and marked by what changed."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from servers.mcp.types import Tool, ToolList
from servers.models import Check, Server
from servers.services import store_success
from servers.views.tools import PER_PAGE
from tests.fakes.server_rows import FoundServer, after_success, http_server

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


def address(server: Server) -> str:
    return reverse("servers:tools", args=[server.pk])


def shown(html: str) -> list[str]:
    return re.findall(r'<code class="tool-name">([^<]*)</code>', html)


def many(count: int) -> Server:
    return after_success(http_server(), *(f"tool_{i:03}" for i in range(count)))


def test_pages_follow_each_other_without_a_gap(member_client: Client) -> None:
    server = many(PER_PAGE * 2 + 3)
    names: list[str] = []
    for number in (1, 2, 3):
        response = member_client.get(address(server), {"page": number}, headers=HTMX)
        names += shown(response.content.decode())
    assert names == [f"tool_{i:03}" for i in range(PER_PAGE * 2 + 3)]
    assert "Show more" not in response.content.decode()


def test_the_next_page_comes_as_lines_and_says_how_far_it_is(member_client: Client) -> None:
    server = many(PER_PAGE * 2 + 3)
    response = member_client.get(address(server), {"page": "2", "q": "tool"}, headers=HTMX)
    text = response.content.decode()
    assert text.lstrip().startswith("<li")
    assert "?page=3&amp;q=tool" in text
    words = f"{PER_PAGE * 2} of {PER_PAGE * 2 + 3} tools shown"
    assert json.loads(response["HX-Trigger"]) == {"announce": words}


def test_a_search_looks_at_name_title_and_description(member_client: Client) -> None:
    server = http_server()
    tools = [
        Tool("alpha", title="Finds", description="code"),
        Tool("beta", description="finds nothing"),
        Tool("gamma"),
    ]
    store_success(server, FoundServer(), ToolList(tools))

    def found(words: str) -> list[str]:
        response = member_client.get(address(server), {"q": words}, headers=HTMX)
        return shown(response.content.decode())

    assert found("find") == ["alpha", "beta"]
    assert found("FIND code") == ["alpha"]
    assert found("gam") == ["gamma"]
    assert found("zeta") == []
    assert found("") == ["alpha", "beta", "gamma"]


def test_a_search_without_a_hit_says_so(member_client: Client) -> None:
    text = member_client.get(address(many(9)), {"q": "zeta"}, headers=HTMX).content.decode()
    assert "No tool matches" in text


def test_the_list_is_a_page_of_its_own_where_there_is_no_script(member_client: Client) -> None:
    server = many(PER_PAGE + 1)
    text = member_client.get(address(server), {"q": "tool", "page": "2"}).content.decode()
    assert shown(text) == [f"tool_{PER_PAGE:03}"]
    assert 'name="q" value="tool"' in text
    assert f'action="{address(server)}"' in text


@pytest.mark.parametrize("page", ["0", "-1", "x", "99999999999999999999", "77"])
def test_a_page_that_is_none_is_the_first_or_the_last(page: str, member_client: Client) -> None:
    response = member_client.get(address(many(3)), {"page": page})
    assert response.status_code == 200
    assert len(shown(response.content.decode())) == 3


def test_few_tools_need_no_search(member_client: Client) -> None:
    assert "Search tools" not in member_client.get(address(many(8))).content.decode()
    Server.objects.all().delete()
    assert "Search 9 tools" in member_client.get(address(many(9))).content.decode()


def news(server: Server, *, ago: timedelta = timedelta(), **changes: list[str]) -> None:
    check = Check.objects.create(
        server=server,
        connection_version=1,
        status="done",
        outcome="connected",
        changes={"added": [], "changed": [], "removed": [], **changes},
    )
    Check.objects.filter(pk=check.pk).update(created_at=timezone.now() - ago)


def test_new_and_changed_tools_are_marked_and_lost_ones_named(member_client: Client) -> None:
    """What changed since the last success, for a week (issue 3, section 2)."""
    server = after_success(http_server(), "old", "fresh", "other")
    news(server, added=["fresh"], changed=["other"], removed=["lost"])
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    lines = re.findall(r'<code class="tool-name">(\w+)</code>(.*?)</div>', text, flags=re.S)
    marks = {name: re.findall(r"badge-live\">(\w+)<", line) for name, line in lines}
    assert marks == {"old": [], "fresh": ["New"], "other": ["Changed"]}
    assert "<code>lost</code>" in text


def test_news_grow_old(member_client: Client) -> None:
    server = after_success(http_server(), "fresh")
    news(server, ago=timedelta(days=8), added=["fresh"])
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert "badge-live" not in text


def test_a_server_that_is_gone_has_no_tools(member_client: Client) -> None:
    server = many(1)
    Server.objects.all().delete()
    assert member_client.get(address(server)).status_code == 404
