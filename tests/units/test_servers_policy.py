"""Which tools a server's policy leaves to which runs; no database."""

from __future__ import annotations

from itertools import product

import pytest

from servers.mcp.types import Tool
from servers.policy import GUARDED, OPEN, TRUST_LEVELS, Policy, check, is_risky, tidied

PLAIN = Tool("read_status")
READER = Tool("read_status", read_only=True, destructive=True)
DESTROYER = Tool("drop_table", destructive=True)
WANDERER = Tool("search_web", read_only=True, open_world=True)
TOOLS = [PLAIN, READER, DESTROYER, WANDERER]
HINTS = (None, True, False)


def allowed(policy: Policy, tool: Tool) -> set[str]:
    return {level for level in TRUST_LEVELS if not policy.refusal(tool, level)}


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_an_open_policy_leaves_everything_to_the_attachment(tool: Tool) -> None:
    """Section 0, P64: levels count under a guarded policy only."""
    policies = [Policy(), Policy(allowed_trust_levels=("creator",), tool_levels={tool.name: ()})]
    assert all(allowed(policy, tool) == set(TRUST_LEVELS) for policy in policies)
    assert Policy().restriction(tool) == ""


@pytest.mark.parametrize("trust", [OPEN, GUARDED])
def test_only_named_tools_are_exposed_where_names_are_given(trust: str) -> None:
    """A12."""
    policy = Policy(trust=trust, allowed_tools=("read_status",))  # type: ignore[arg-type]
    assert allowed(policy, PLAIN) == set(TRUST_LEVELS)
    assert allowed(policy, DESTROYER) == set()
    assert "not among the server's allowed tools" in policy.refusal(DESTROYER, "creator")
    assert allowed(Policy(allowed_tools=()), PLAIN) == set()


@pytest.mark.parametrize("trust", [OPEN, GUARDED])
def test_a_blocked_tool_is_gone_even_if_it_is_allowed_too(trust: str) -> None:
    """A13: blocked wins."""
    policy = Policy(
        trust=trust,  # type: ignore[arg-type]
        allowed_tools=("drop_table",),
        blocked_tools=("drop_table",),
        tool_levels={"drop_table": TRUST_LEVELS},
    )
    assert allowed(policy, DESTROYER) == set()
    assert policy.refusal(DESTROYER, "creator") == "the server's policy blocks it"
    assert policy.restriction(DESTROYER) == "blocked"


@pytest.mark.parametrize(
    ("read_only", "destructive", "open_world"), list(product(HINTS, HINTS, HINTS))
)
def test_a_guarded_policy_keeps_what_the_server_marks_for_creators(
    read_only: bool | None, destructive: bool | None, open_world: bool | None
) -> None:
    """A29, A31: destructive or open-world; an absent hint does not restrict."""
    tool = Tool("t", read_only=read_only, destructive=destructive, open_world=open_world)
    marked = (destructive is True and read_only is not True) or open_world is True
    assert is_risky(tool) is marked
    policy = Policy(trust=GUARDED)
    assert allowed(policy, tool) == ({"creator"} if marked else set(TRUST_LEVELS))
    assert policy.restriction(tool) == ("creator only" if marked else "")


def test_the_servers_list_narrows_and_widens() -> None:
    """A14, A30."""
    policy = Policy(trust=GUARDED, allowed_trust_levels=("creator", "agent"))
    assert all(allowed(policy, tool) == {"creator", "agent"} for tool in TOOLS)
    assert policy.restriction(PLAIN) == "creator and agent only"
    assert "runs started by creator or agent" in policy.refusal(PLAIN, "public")


def test_a_tools_own_list_replaces_the_servers() -> None:
    """A15, A30, A33: no intersection, so it narrows or widens; raw names are the keys."""
    policy = Policy(
        trust=GUARDED,
        allowed_trust_levels=("creator",),
        tool_levels={"drop_table": ("agent", "public"), "mcp_ops_read_status": ("public",)},
    )
    assert allowed(policy, DESTROYER) == {"agent", "public"}
    assert allowed(policy, PLAIN) == {"creator"}


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(trust=GUARDED),
        Policy(allowed_tools=()),
        Policy(
            trust=GUARDED,
            allowed_tools=("a",),
            blocked_tools=("b", "ü"),
            allowed_trust_levels=("creator", "agent"),
            tool_levels={"a": ("public",)},
        ),
    ],
)
def test_a_policy_is_the_same_after_it_was_stored(policy: Policy) -> None:
    assert Policy.from_json(policy.as_json()) == policy
    assert tidied(policy) == policy
    assert check(policy) == {}


def test_nothing_is_stored_of_what_nobody_set() -> None:
    assert Policy().as_json() == {}
    assert Policy.from_json({}) == Policy()


def test_names_and_levels_are_stored_once_in_one_order() -> None:
    messy = Policy(
        blocked_tools=("b", "a", "b\0"),
        allowed_trust_levels=("public", "creator", "public"),
        tool_levels={"x": ("agent", "creator")},
    )
    tidy = tidied(messy)
    assert tidy.blocked_tools == ("b", "a")
    assert tidy.allowed_trust_levels == ("creator", "public")
    assert tidy.tool_levels == {"x": ("creator", "agent")}


@pytest.mark.parametrize(
    ("policy", "key", "words"),
    [
        (Policy(trust="ajar"), "policy.trust", "open or guarded"),  # type: ignore[arg-type]
        (Policy(allowed_tools=("a", " ")), "policy.allowed_tools", "name is empty"),
        (Policy(blocked_tools=("x" * 1001,)), "policy.blocked_tools", "too long"),
        (Policy(blocked_tools=("x",) * 2001), "policy.blocked_tools", "2,000 are possible"),
        (Policy(allowed_trust_levels=()), "policy.allowed_trust_levels", "at least one"),
        (Policy(allowed_trust_levels=("root",)), "policy.allowed_trust_levels", "'root'"),
        (Policy(tool_levels={"a": ()}), "policy.tool_levels", "a: Choose at least one"),
        (Policy(tool_levels={"": ("agent",)}), "policy.tool_levels", "name is empty"),
    ],
)
def test_a_policy_that_says_nothing_sensible_is_refused(
    policy: Policy, key: str, words: str
) -> None:
    """A14: a list of levels is not empty and holds known ones."""
    errors = check(policy)
    assert list(errors) == [key]
    assert words in errors[key]
    assert errors[key].endswith(".")
