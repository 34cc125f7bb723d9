"""The Tool policy part of the form: which tools runs may see, beyond their jobs' lists (A12-A15).

Once tools are known they are ticked in a list; before, and where there are too many to tick,
their names are written into rows. Names that the server no longer lists stay, marked as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations, zip_longest
from typing import Any, Final

from django import forms
from django.http import QueryDict

from servers.models import Tool
from servers.policy import GUARDED, OPEN, TRUST_LEVELS, Policy

PREFIX: Final = "policy"
MAX_TICKED: Final = 600  # tools; more of them would make a page that nobody can use
MAX_CHOSEN: Final = 100  # tools in the list of each row; beyond, their names are suggested
TRUST_WORDS: Final = {
    OPEN: "Jobs alone decide: each attachment picks its tools.",
    GUARDED: "What a run was started by counts as well as what its job picked.",
}
LEVEL_WORDS: Final = {
    "creator": "a signed-in person or the command line",
    "agent": "a schedule",
    "public": "nothing yet; it is for what strangers may start",
}
_KINDS: Final = [("open", "Open"), ("guarded", "Guarded")]
_SCOPES: Final = [("all", "All tools"), ("only", "Only those ticked")]
_BY: Final = [("marks", "By the server's marks"), ("given", "These levels")]


def level_choices() -> list[tuple[str, str]]:
    """Every set of trust levels but the empty one, which would keep a tool from everybody."""
    sizes = range(1, len(TRUST_LEVELS) + 1)
    sets = chain.from_iterable(combinations(TRUST_LEVELS, size) for size in sizes)
    return [(" ".join(levels), " or ".join(levels)) for levels in sets]


@dataclass(frozen=True)
class ToolChoice:
    """One line of the list of tools. `tool` is None for a name that is not listed any more."""

    name: str
    tool: Tool | None
    allowed: bool
    blocked: bool


@dataclass(frozen=True)
class LevelRow:
    """The levels of a single tool; `levels` as `level_choices` writes them."""

    name: str = ""
    levels: str = TRUST_LEVELS[0]


class PolicyForm(forms.Form):
    """`stored` is shown until something is sent."""

    trust = forms.ChoiceField(choices=_KINDS, required=False)
    scope = forms.ChoiceField(choices=_SCOPES, required=False)
    by = forms.ChoiceField(choices=_BY, required=False)
    level = forms.MultipleChoiceField(
        choices=[(level, level) for level in TRUST_LEVELS], required=False
    )

    def __init__(
        self, data: QueryDict | None = None, *, stored: Policy, tools: list[Tool] | None = None
    ) -> None:
        super().__init__(data, prefix=PREFIX)
        self.tools = tools or []
        # Sentences by part of the policy, as `servers.policy.check` names them.
        self.part_errors: dict[str, str] = {}
        self._sent = data is not None and self.add_prefix("trust") in data
        if data is not None and self._sent:
            self._from_post(data)
        else:
            self._from_policy(stored)

    def _from_policy(self, policy: Policy) -> None:
        self.shown: dict[str, str] = {
            "trust": policy.trust,
            "scope": "all" if policy.allowed_tools is None else "only",
            "by": "marks" if policy.allowed_trust_levels is None else "given",
        }
        self.allowed = list(policy.allowed_tools or ())
        self.blocked = list(policy.blocked_tools)
        self.levels = list(policy.allowed_trust_levels or ())
        self.exceptions = [
            LevelRow(name, _ordered(levels)) for name, levels in policy.tool_levels.items()
        ]

    def _from_post(self, data: QueryDict) -> None:
        first = {"trust": OPEN, "scope": "all", "by": "marks"}
        self.shown = {key: data.get(self.add_prefix(key), value) for key, value in first.items()}
        self.allowed = _names(data.getlist(self.add_prefix("allowed")))
        self.blocked = _names(data.getlist(self.add_prefix("blocked")))
        self.levels = [
            name for name in TRUST_LEVELS if name in data.getlist(self.add_prefix("level"))
        ]
        tools = data.getlist(self.add_prefix("tool"))
        levels = data.getlist(self.add_prefix("tool_levels"))
        self.exceptions = [
            LevelRow(name, chosen)
            for name, chosen in zip_longest(tools, levels[: len(tools)], fillvalue="")
            if name.strip()
        ]

    def clean(self) -> dict[str, Any]:
        """What services cannot see any more: one of two rows for one tool would be lost."""
        names = [row.name for row in self.exceptions]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            self.show_error("tool_levels", f"{twice} stands here twice; keep one of the rows.")
            raise forms.ValidationError("A tool stands twice in the policy.")
        return self.cleaned_data

    def show_error(self, part: str, sentence: str) -> None:
        self.part_errors[part] = sentence

    def value(self) -> Policy | None:
        """What was entered; None where the request held no policy. Call after `is_valid()`."""
        if not self._sent:
            return None
        return Policy(
            trust=GUARDED if self.shown["trust"] == GUARDED else OPEN,
            allowed_tools=tuple(self.allowed) if self.shown["scope"] == "only" else None,
            blocked_tools=tuple(self.blocked),
            allowed_trust_levels=tuple(self.levels) if self.shown["by"] == "given" else None,
            tool_levels={row.name: tuple(row.levels.split()) for row in self.exceptions},
        )

    @property
    def is_open(self) -> bool:
        """Whether it says anything, or something is wrong with it."""
        differs = (
            self.shown["trust"] != OPEN
            or self.shown["scope"] != "all"
            or self.shown["by"] != "marks"
        )
        return differs or bool(self.blocked or self.exceptions or self.part_errors or self.errors)

    @property
    def are_ticked(self) -> bool:
        """Whether tools are ticked in a list, else their names are written into rows."""
        return 0 < len(self.tools) <= MAX_TICKED

    @property
    def choices(self) -> list[ToolChoice]:
        """The listed tools in the server's order, after the names that are listed no more."""
        allowed, blocked = set(self.allowed), set(self.blocked)
        listed: dict[str, Tool | None] = {tool.name: tool for tool in self.tools}
        lost = [name for name in (*self.allowed, *self.blocked) if name not in listed]
        found = {**dict.fromkeys(lost), **listed}
        return [
            ToolChoice(name, tool, name in allowed, name in blocked) for name, tool in found.items()
        ]

    @property
    def trust_choices(self) -> list[tuple[str, str, str]]:
        return [(value, label, TRUST_WORDS[value]) for value, label in _KINDS]

    @property
    def level_choices(self) -> list[tuple[str, str, bool]]:
        return [(name, LEVEL_WORDS[name], name in self.levels) for name in TRUST_LEVELS]

    @property
    def exception_choices(self) -> list[tuple[str, str]]:
        return level_choices()

    @property
    def exception_names(self) -> list[str]:
        """What the rows of single tools choose from; none where names are written into them."""
        if not 0 < len(self.tools) <= MAX_CHOSEN:
            return []
        names = [tool.name for tool in self.tools] + [row.name for row in self.exceptions]
        return list(dict.fromkeys(names))

    @property
    def exception_rows(self) -> list[LevelRow]:
        return [*self.exceptions, LevelRow()]


def _names(sent: list[str]) -> list[str]:
    """Each once, none that is blank; a server's own blanks belong to the name."""
    return [name for name in dict.fromkeys(sent) if name.strip()]


def _ordered(levels: tuple[str, ...]) -> str:
    return " ".join(level for level in TRUST_LEVELS if level in levels)
