"""Which tools of a server a run may see, beyond its job's own list (A12-A15, A29-A33).

Nothing here imports Django. Enforced by `jobs.toolbox` when a list is made, when a name is looked
up and right before a call is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from servers.limits import MAX_TOOL_NAME
from umpteenth.core.text import clean

TRUST_LEVELS: Final = ("creator", "agent", "public")
OPEN: Final = "open"
GUARDED: Final = "guarded"
MAX_NAMES: Final = 2000


class Hinted(Protocol):
    """What a policy asks of a tool."""

    @property
    def name(self) -> str: ...
    @property
    def read_only(self) -> bool | None: ...
    @property
    def destructive(self) -> bool | None: ...
    @property
    def open_world(self) -> bool | None: ...


@dataclass(frozen=True)
class Policy:
    """`allowed_tools` None: all. `tool_levels` maps a tool's raw name to its trust levels.

    Trust levels count only under a guarded policy; names count always, and blocked wins.
    """

    trust: Literal["open", "guarded"] = OPEN
    allowed_tools: tuple[str, ...] | None = None
    blocked_tools: tuple[str, ...] = ()
    allowed_trust_levels: tuple[str, ...] | None = None
    tool_levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Policy:
        """From a server's column; what is missing there is the default."""
        allowed, levels = value.get("allowed_tools"), value.get("allowed_trust_levels")
        return cls(
            trust=GUARDED if value.get("trust") == GUARDED else OPEN,
            allowed_tools=None if allowed is None else tuple(allowed),
            blocked_tools=tuple(value.get("blocked_tools", ())),
            allowed_trust_levels=None if levels is None else tuple(levels),
            tool_levels={
                name: tuple(given) for name, given in value.get("tool_levels", {}).items()
            },
        )

    def as_json(self) -> dict[str, Any]:
        """What differs from the default."""
        found: dict[str, Any] = {}
        if self.trust != OPEN:
            found["trust"] = self.trust
        if self.allowed_tools is not None:
            found["allowed_tools"] = list(self.allowed_tools)
        if self.blocked_tools:
            found["blocked_tools"] = list(self.blocked_tools)
        if self.allowed_trust_levels is not None:
            found["allowed_trust_levels"] = list(self.allowed_trust_levels)
        if self.tool_levels:
            found["tool_levels"] = {name: list(given) for name, given in self.tool_levels.items()}
        return found

    def refusal(self, tool: Hinted, trust: str) -> str:
        """Why a run of this trust level may not use the tool; empty if it may."""
        if tool.name in self.blocked_tools:
            return "the server's policy blocks it"
        if self.allowed_tools is not None and tool.name not in self.allowed_tools:
            return "it is not among the server's allowed tools"
        levels = self.levels(tool)
        if trust not in levels:
            return f"the server's policy keeps it for runs started by {' or '.join(levels)}"
        return ""

    def restriction(self, tool: Hinted) -> str:
        """What the policy says of the tool in a word or two; empty if every run may use it (A56).

        `blocked`, `not allowed`, or the trust levels that may use it, as `creator only`.
        """
        if tool.name in self.blocked_tools:
            return "blocked"
        if self.allowed_tools is not None and tool.name not in self.allowed_tools:
            return "not allowed"
        levels = self.levels(tool)
        return "" if set(levels) >= set(TRUST_LEVELS) else f"{' and '.join(levels)} only"

    def levels(self, tool: Hinted) -> tuple[str, ...]:
        """The trust levels that may use the tool, as far as trust decides."""
        if self.trust == OPEN:
            return TRUST_LEVELS
        if tool.name in self.tool_levels:
            return self.tool_levels[tool.name]
        if self.allowed_trust_levels is not None:
            return self.allowed_trust_levels
        return ("creator",) if is_risky(tool) else TRUST_LEVELS


def check(policy: Policy) -> dict[str, str]:
    """One sentence for each part at fault, by `policy.<part>` (A12-A15)."""
    errors: dict[str, str] = {}
    if policy.trust not in (OPEN, GUARDED):
        errors["policy.trust"] = "Choose open or guarded."
    for part in ("allowed_tools", "blocked_tools", "tool_levels"):
        if problem := _names_problem(tuple(getattr(policy, part) or ())):
            errors[f"policy.{part}"] = problem
    if problem := _levels_problem(policy.allowed_trust_levels):
        errors["policy.allowed_trust_levels"] = problem
    for name, levels in policy.tool_levels.items():
        if problem := _levels_problem(levels):
            errors.setdefault("policy.tool_levels", f"{clean(name, 60)}: {problem}")
    return errors


def _names_problem(names: tuple[str, ...]) -> str:
    if len(names) > MAX_NAMES:
        return f"There are {len(names):,} tools; {MAX_NAMES:,} are possible."
    if not all(name.strip() for name in names):
        return "A tool's name is empty; enter it or leave the row out."
    if any(len(name) > MAX_TOOL_NAME for name in names):
        return f"A tool's name is too long: {MAX_TOOL_NAME:,} characters are possible."
    return ""


def _levels_problem(levels: tuple[str, ...] | None) -> str:
    if levels is None:
        return ""
    known = " and ".join((", ".join(TRUST_LEVELS[:-1]), TRUST_LEVELS[-1]))
    if unknown := [level for level in levels if level not in TRUST_LEVELS]:
        return f"There is no trust level {clean(unknown[0], 40)!r}; there are {known}."
    if not levels:
        return f"Choose at least one trust level; there are {known}."
    return ""


def tidied(policy: Policy) -> Policy:
    """As it is stored: each name once, levels in one order, no characters a database refuses."""
    allowed, levels = policy.allowed_tools, policy.allowed_trust_levels
    return Policy(
        trust=policy.trust,
        allowed_tools=None if allowed is None else _once(allowed),
        blocked_tools=_once(policy.blocked_tools),
        allowed_trust_levels=None if levels is None else _ordered(levels),
        tool_levels={clean(name): _ordered(given) for name, given in policy.tool_levels.items()},
    )


def _once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(clean(name) for name in names))


def _ordered(levels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(level for level in TRUST_LEVELS if level in levels)


def is_risky(tool: Hinted) -> bool:
    """Whether the server itself marks it destructive or open-world; silence says nothing."""
    return (tool.destructive is True and tool.read_only is not True) or tool.open_world is True
