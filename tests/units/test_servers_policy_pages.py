"""The Tool policy part of the form, and what the sheet says of a policy."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from servers import checks
from servers.forms.policy import MAX_CHOSEN, MAX_TICKED, PolicyForm, level_choices
from servers.mcp.types import Tool, ToolList
from servers.models import Server
from servers.models import Tool as Row
from servers.policy import TRUST_LEVELS, Policy
from servers.services import store_success, update_server
from tests.fakes.server_rows import FoundServer, after_success, http_data, http_server
from tests.units.forms_of_pages import Fields, fields_of

pytestmark = pytest.mark.django_db

CREATE = reverse("servers:create")
FULL = Policy(
    trust="guarded",
    allowed_tools=("read", "erase", "gone"),
    blocked_tools=("erase",),
    allowed_trust_levels=("creator", "agent"),
    tool_levels={"read": ("creator", "agent", "public"), "erase": ("creator",)},
)

UNCHANGED = ("name", "url", "private", "options", "connection_version", "state")


@pytest.fixture(autouse=True)
def _no_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "_hint", lambda pk: None)


def edit_address(server: Server) -> str:
    return reverse("servers:edit", args=[server.pk])


def page(client: Client, server: Server) -> str:
    return client.get(edit_address(server)).content.decode()


def opened(client: Client, server: Server) -> Fields:
    return fields_of(page(client, server), "server-form")


def is_open(html: str) -> bool:
    return re.search(r'id="policy"\s+open', html) is not None


def saved(client: Client, server: Server, **changes: Any) -> Policy:
    named = {f"policy-{name}": value for name, value in changes.items()}
    response = client.post(edit_address(server), {**opened(client, server), **named})
    assert response.status_code == 303, response.content.decode()
    server.refresh_from_db()
    return Policy.from_json(server.policy)


def error_in(html: str) -> str:
    [sentence] = re.findall(r'class="field-error" data-invalid.*?</svg>(.*?)</p>', html, flags=re.S)
    return str(sentence)


def test_a_new_server_is_open_and_the_part_is_folded(administrator_client: Client) -> None:
    """A29: open is the default; both kinds are explained in a line each."""
    text = administrator_client.get(CREATE).content.decode()
    assert fields_of(text, "server-form")["policy-trust"] == ["open"]
    assert not is_open(text)
    for words in ("Jobs alone decide", "What a run was started by counts"):
        assert words in text


@pytest.mark.parametrize("names", [(), ("read", "erase", "gone-too")])
def test_a_policy_saved_as_it_was_opened_stays(
    names: tuple[str, ...], administrator_client: Client
) -> None:
    """E08, before a test (rows) and after one (ticks)."""
    server = after_success(http_server(policy=FULL), *names) if names else http_server(policy=FULL)
    assert is_open(page(administrator_client, server))
    before = Server.objects.values(*UNCHANGED).get()
    policy = saved(administrator_client, server)
    # Ticks come in the server's order: what matters is which names there are.
    assert set(policy.allowed_tools or ()) == set(FULL.allowed_tools or ())
    assert replace(policy, allowed_tools=FULL.allowed_tools) == FULL
    assert Server.objects.values(*UNCHANGED).get() == before


def test_tools_are_ticked_once_they_are_known(administrator_client: Client) -> None:
    """A12, A13."""
    server = after_success(http_server(), "read", "erase")
    text = page(administrator_client, server)
    assert re.findall(r'name="policy-allowed" value="(\w+)"', text) == ["read", "erase"]
    policy = saved(administrator_client, server, scope="only", allowed=["read"], blocked=["erase"])
    assert policy == Policy(allowed_tools=("read",), blocked_tools=("erase",))


def test_names_are_written_into_rows_before_a_test(administrator_client: Client) -> None:
    server = http_server()
    text = page(administrator_client, server)
    assert "After a test, its tools can be ticked here" in text
    changes = {"scope": "only", "allowed": ["read", "", "read"], "blocked": ["", " "]}
    assert saved(administrator_client, server, **changes) == Policy(allowed_tools=("read",))


def test_more_tools_than_anybody_ticks_are_written_into_rows(administrator_client: Client) -> None:
    server = http_server(policy=Policy(blocked_tools=("t1",)))
    rows = [
        Row(server=server, position=i, name=f"t{i}", content_hash="0")
        for i in range(MAX_TICKED + 1)
    ]
    Row.objects.bulk_create(rows)
    text = page(administrator_client, server)
    assert "too many tools to tick" in text
    assert len(text) < 60_000
    assert saved(administrator_client, server) == Policy(blocked_tools=("t1",))


def test_a_name_that_is_listed_no_more_is_marked_and_stays(administrator_client: Client) -> None:
    server = after_success(http_server(policy=FULL), "read")
    text = page(administrator_client, server)
    assert text.count("Not listed any more") == 2
    assert set(opened(administrator_client, server)["policy-allowed"]) == {"read", "erase", "gone"}


def test_a_tool_may_have_any_name(administrator_client: Client) -> None:
    """D04: blanks, quotes and markup come back as they were."""
    names = (" a b ", '"><img src=x>', "größe/üb.er", "a,b")
    server = after_success(http_server(), *names)
    policy = saved(administrator_client, server, blocked=list(names))
    assert policy.blocked_tools == names
    assert "<img src=x>" not in page(administrator_client, server)
    assert opened(administrator_client, server)["policy-blocked"] == list(names)


@pytest.mark.parametrize(
    "levels", [set_ for size in (1, 2, 3) for set_ in combinations(TRUST_LEVELS, size)]
)
def test_every_set_of_levels_can_be_chosen(
    levels: tuple[str, ...], administrator_client: Client
) -> None:
    """A14, A15, A30, A33."""
    server = http_server()
    changes = {
        "trust": "guarded",
        "by": "given",
        "level": list(levels),
        "tool": ["read", ""],
        "tool_levels": [" ".join(levels), "creator"],
    }
    policy = saved(administrator_client, server, **changes)
    assert policy == Policy("guarded", allowed_trust_levels=levels, tool_levels={"read": levels})
    shown = opened(administrator_client, server)
    assert shown["policy-tool_levels"][0] == " ".join(levels)
    assert shown["policy-level"] == list(levels)


def test_the_empty_set_of_levels_is_not_offered() -> None:
    assert len(level_choices()) == 7
    assert "" not in dict(level_choices())


def test_levels_are_kept_while_the_policy_is_open(administrator_client: Client) -> None:
    """Switching trust off and on again loses nothing."""
    server = http_server(policy=FULL)
    assert saved(administrator_client, server, trust="open").allowed_trust_levels == (
        "creator",
        "agent",
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"by": "given", "level": []}, "at least one trust level"),
        ({"tool": ["a", "a"], "tool_levels": ["creator", "agent"]}, "a stands here twice"),
        ({"tool": ["a"], "tool_levels": ["root"]}, "no trust level"),
        ({"tool": ["a"], "tool_levels": []}, "at least one trust level"),
        ({"blocked": ["x" * 1001]}, "too long"),
    ],
)
def test_what_cannot_be_meant_is_told_in_its_part(
    changes: dict[str, Any], words: str, administrator_client: Client
) -> None:
    server = http_server()
    named = {f"policy-{name}": value for name, value in changes.items()}
    data = {**opened(administrator_client, server), "policy-trust": "guarded", **named}
    response = administrator_client.post(edit_address(server), data)
    text = response.content.decode()
    assert response.status_code == 422
    assert words in error_in(text)
    assert is_open(text)
    assert Server.objects.get().policy == {}


def test_nonsense_is_no_policy() -> None:
    from django.http import QueryDict

    form = PolicyForm(QueryDict("policy-trust=loose&policy-scope=x&policy-by=y"), stored=FULL)
    assert form.value() == Policy()
    assert not form.is_valid()


def test_a_changed_policy_keeps_what_a_test_found(administrator_client: Client) -> None:
    server = after_success(http_server(), "read")
    saved(administrator_client, server, blocked=["read"])
    server.refresh_from_db()
    assert (server.state, server.tool_count, server.connection_version) == ("connected", 1, 1)


def test_an_outdated_form_shows_policies_that_differ(administrator_client: Client) -> None:
    server = http_server(policy=FULL)
    data = {**opened(administrator_client, server), "policy-blocked": ["erase", "more"]}
    theirs = Policy("open", blocked_tools=("erase",))
    update_server(server, actor=None, data=http_data(policy=theirs), version=1)
    response = administrator_client.post(edit_address(server), data)
    found = {item.label: (item.theirs, item.yours) for item in response.context["differences"]}
    assert found == {
        "Tool policy": ("open", "guarded"),
        "Allowed tools": ("all", "read, erase, gone"),
        "Blocked tools": ("erase", "erase, more"),
        "Trust levels": ("by the server's marks", "creator, agent"),
        "Levels of single tools": ("", "read: creator, agent, public\nerase: creator"),
    }


def test_the_sheet_counts_and_marks_restricted_tools(member_client: Client) -> None:
    """A25, A29, A56."""
    policy = Policy("guarded", blocked_tools=("nasty",), tool_levels={"post": ("creator", "agent")})
    server = http_server(policy=policy)
    tools = [
        Tool("read", read_only=True),
        Tool("erase", destructive=True),
        Tool("web", open_world=True),
        Tool("nasty"),
        Tool("post"),
    ]
    store_success(server, FoundServer(), ToolList(tools))
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert "Guarded · 1 blocked · 4 of 5 tools restricted" in text
    assert "4 restricted by the policy" in text
    lines = dict(re.findall(r'<code class="tool-name">(\w+)</code>(.*?)</div>', text, flags=re.S))
    marks = {name: re.sub(r"<[^>]*>|\s+", " ", line).strip() for name, line in lines.items()}
    assert marks["read"] == "Read-only"
    assert marks["erase"].endswith("Creator only")
    assert marks["web"].endswith("Creator only")
    assert marks["nasty"].endswith("Blocked")
    assert marks["post"].endswith("Creator and agent only")


def test_a_sheet_without_a_policy_says_nothing_of_one(member_client: Client) -> None:
    server = after_success(http_server(), "read")
    text = member_client.get(reverse("servers:detail", args=[server.pk])).content.decode()
    assert "Tool policy" not in text
    assert "restricted" not in text


def test_tools_with_levels_of_their_own_are_chosen_from_those_listed(
    administrator_client: Client,
) -> None:
    """A14, A15: and a name that is listed no more can be kept."""
    policy = Policy("guarded", tool_levels={"gone": ("creator",)})
    server = after_success(http_server(policy=policy), "read", "erase")
    text = page(administrator_client, server)
    row = re.search(r'<select[^>]*name="policy-tool".*?</select>', text, flags=re.S)
    assert row
    assert re.findall(r'<option value="(\w*)"', row[0]) == ["", "read", "erase", "gone"]
    kept = saved(administrator_client, server, tool=["gone", "read"], tool_levels=["creator"] * 2)
    assert kept.tool_levels == {"gone": ("creator",), "read": ("creator",)}


def test_names_are_suggested_where_a_list_of_them_would_be_long(
    administrator_client: Client,
) -> None:
    server = after_success(http_server(), *[f"t{number}" for number in range(MAX_CHOSEN + 1)])
    text = page(administrator_client, server)
    assert '<datalist id="policy-tools"><option value="t0">' in text
    assert '<select class="form-select font-monospace" name="policy-tool"' not in text
