"""The Advanced part of the form, made from the catalogue in `servers.options`.

An empty field is the default, which stands in it as its placeholder. A value that cannot be
read is handed on as it was typed, so that services say what is wrong with it and the sentence
stands under its field beside all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django import forms
from django.forms import BoundField
from django.http import QueryDict
from django.utils.safestring import SafeString

from servers.effective import value_words
from servers.limits import PROFILES
from servers.models import Server
from servers.options import BY_NAME, CATALOGUE, LIMIT_FIELDS, Option, OptionError, parse

PREFIX: Final = "option"
UNITS: Final = {"seconds": "s", "milliseconds": "ms", "bytes": "bytes"}
LABELS: Final = {
    "start_timeout_secs": "Start",
    "connect_timeout_secs": "TCP connection",
    "request_timeout_secs": "One request",
    "tool_timeout_secs": "One tool call",
    "max_inflight_calls": "Calls at once",
    "tool_call_max_attempts": "Attempts of a call",
    "tool_call_retry_base_ms": "First wait",
    "tool_call_retry_max_ms": "Longest wait",
    "allow_stateless": "Accept no session id",
    "reinit_on_expired_session": "Renew lost sessions",
    "initialized_ack_mode": "Answer to initialized",
    "token_ref": "Bearer token",
    "per_actor": "A session per person",
    "actor_header": "Actor header",
    "evidence_source": "Source of citations",
    "limits_profile": "Profile",
    "max_tools": "Tools",
    "max_tool_pages": "Pages of tools",
    "max_definition_bytes": "All definitions",
    "max_message_bytes": "One message",
    "max_result_bytes": "One result",
    "max_schema_bytes": "One schema",
    "max_argument_bytes": "Arguments of a call",
    "max_depth": "Depth",
    "max_nodes": "Values",
}


@dataclass(frozen=True)
class OptionField:
    """One option as the template lays it out."""

    option: Option
    bound: BoundField

    @property
    def unit(self) -> str:
        return UNITS.get(self.option.kind, "")

    @property
    def for_transports(self) -> str:
        return " ".join(self.option.transports)

    @property
    def only_words(self) -> str:
        """Which transports have it, where not all do; read where no script hides the others."""
        if len(self.option.transports) == len(Server.Transport.choices):
            return ""
        labels = [Server.Transport(name).label for name in self.option.transports]
        return f"{' and '.join(labels)} only"

    @property
    def control(self) -> SafeString:
        """The field alone: the template has a layout of its own for options."""
        select = isinstance(self.bound.field.widget, forms.Select)
        css = ["form-select" if select else "form-control"]
        css.append(self.bound.field.widget.attrs.get("class", ""))
        attrs = {"aria-describedby": f"{self.bound.auto_id}-help"}
        if self.bound.errors:
            css.append("is-invalid")
            attrs["aria-invalid"] = "true"
            attrs["aria-describedby"] += f" {self.bound.auto_id}-error"
        return self.bound.as_widget(attrs={**attrs, "class": " ".join(filter(None, css))})

    @property
    def takes_secret(self) -> bool:
        return self.option.name == "token_ref"


@dataclass(frozen=True)
class OptionGroup:
    name: str
    fields: list[OptionField]

    @property
    def for_transports(self) -> str:
        """Those that have any option of the group."""
        found = [name for field in self.fields for name in field.option.transports]
        return " ".join(dict.fromkeys(found))


class OptionsForm(forms.Form):
    """A field for each option; those of other transports are neither read nor checked."""

    def __init__(self, data: QueryDict | None = None, *, stored: Mapping[str, Any]) -> None:
        initial = {name: written(value) for name, value in stored.items() if name in BY_NAME}
        super().__init__(data, initial=initial, prefix=PREFIX)
        self._sent = data is not None and any(key.startswith(f"{PREFIX}-") for key in data)
        self._stored = stored
        for option in CATALOGUE:
            self.fields[option.name] = _field(option)

    @property
    def groups(self) -> list[OptionGroup]:
        names = dict.fromkeys(option.group for option in CATALOGUE)
        return [
            OptionGroup(
                name,
                [OptionField(item, self[item.name]) for item in CATALOGUE if item.group == name],
            )
            for name in names
        ]

    @property
    def set_count(self) -> int:
        """How many fields hold something, those that do not fit included."""
        return sum(1 for option in CATALOGUE if str(self[option.name].value() or "").strip())

    @property
    def is_open(self) -> bool:
        """A set or wrong option must not hide in a folded part."""
        return bool(self.set_count or self.errors)

    def values(self, transport: str) -> dict[str, Any] | None:
        """What was entered for this transport; None where the request held no options."""
        if not self._sent:
            return None
        found = {}
        for option in CATALOGUE:
            text = str(self[option.name].value() or "").strip()
            if text and transport in option.transports:
                found[option.name] = _parsed(option.name, text)
        return found

    def show_error(self, name: str, sentence: str) -> bool:
        """Put it under its field; False if there is no such option."""
        if name not in self.fields:
            return False
        self.add_error(name, sentence)
        return True


def written(value: Any) -> str:
    """A stored value as people type it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _parsed(name: str, text: str) -> Any:
    try:
        return parse(name, text)
    except OptionError:
        return text


def _field(option: Option) -> forms.Field:
    common: dict[str, Any] = {
        "required": False,
        "label": LABELS.get(option.name, option.name),
        "help_text": _help(option),
    }
    if option.kind in ("switch", "choice"):
        # No ChoiceField: a value that is none is the catalogue's to refuse.
        return forms.CharField(widget=forms.Select(choices=_choices(option)), **common)
    attrs = {"placeholder": _placeholder(option), "autocomplete": "off", "spellcheck": "false"}
    if option.kind != "text":
        attrs["inputmode"] = "decimal" if option.kind == "seconds" else "numeric"
    else:
        attrs["class"] = "font-monospace"
    return forms.CharField(max_length=200, widget=forms.TextInput(attrs=attrs), **common)


def _choices(option: Option) -> list[tuple[str, str]]:
    if option.kind == "switch":
        words = {True: "Yes", False: "No"}
        other = not option.default
        return [("", f"{words[option.default]} (default)"), (written(other), words[other])]
    rest = [(choice, choice) for choice in option.choices if choice != option.default]
    return [("", f"{option.default} (default)"), *rest]


def _placeholder(option: Option) -> str:
    if option.name == "token_ref":
        return "@NAME"
    return option.unset if option.default is None else written(option.default)


def _help(option: Option) -> str:
    meaning = option.meaning.replace("`", "")
    if option.name not in LIMIT_FIELDS:
        return meaning
    field = LIMIT_FIELDS[option.name]
    words = [
        f"{name} {value_words(option, getattr(limits, field))}" for name, limits in PROFILES.items()
    ]
    return f"{meaning} By profile: {', '.join(words)}."
