"""Forms of the MCP Servers pages: the filter of the list, and a server with its rows.

A stored value of a header or variable that is no reference is never sent to a browser. Its row
holds an empty field and a mark (`…_kept`) that says "as it was" (E07). Beside the mark stands a
keyed digest, by which an outdated form can tell whether somebody changed the value meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.crypto import salted_hmac

from servers.definition import (
    HTTP,
    MAX_COMMAND,
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_QUERY,
    MAX_URL,
    Entry,
    Errors,
    ServerData,
    refers,
)
from servers.limits import MAX_TOOL_NAME
from servers.models import Server
from servers.private import Private
from servers.status import AUTH_IN_USE
from umpteenth.core.edits import Difference

# How an empty argument is written, since an empty row means "no argument".
EMPTY_ARGUMENT = '""'
GROUPS = {"headers": "header", "env": "env"}


class ServerFilter(forms.Form):
    """The list's filter; what it does not know is as good as nothing."""

    q = forms.CharField(required=False, max_length=200)
    transport = forms.ChoiceField(
        required=False, choices=[("", "Transport"), *Server.Transport.choices]
    )
    auth = forms.ChoiceField(
        required=False,
        choices=[("", "Auth"), *((auth.value, auth.label) for auth in AUTH_IN_USE)],
    )
    state = forms.ChoiceField(
        required=False,
        choices=[("", "State"), *Server.State.choices, ("disabled", "Disabled")],
    )

    def values(self) -> dict[str, str]:
        self.is_valid()
        return {name: self.cleaned_data.get(name, "") for name in self.fields}


class ToolForm(forms.Form):
    """Which tool is meant; servers give them any name, so that it stands in the query."""

    name = forms.CharField(max_length=MAX_TOOL_NAME, strip=False)


@dataclass
class Row:
    """One row of headers, variables or arguments as the page shows it."""

    name: str = ""
    value: str = ""
    kept: str = ""
    digest: str = ""
    name_error: str = ""
    value_error: str = ""
    note: str = ""

    @property
    def is_blank(self) -> bool:
        return not (self.name or self.value or self.kept)


class ServerForm(forms.Form):
    """A new server, or an edit of one. Rules are `servers.definition`'s, asked by services."""

    name = forms.CharField(
        required=False,
        max_length=MAX_NAME * 4,
        help_text="After the service: github, not gh-final-v2. Letters, digits, _ and -.",
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "class": "font-monospace"}
        ),
    )
    description = forms.CharField(required=False, max_length=MAX_DESCRIPTION * 2)
    transport = forms.ChoiceField(
        choices=Server.Transport.choices, error_messages={"required": "Choose HTTP or stdio."}
    )
    url = forms.CharField(
        required=False,
        label="URL",
        max_length=MAX_URL + MAX_QUERY + 1,
        widget=forms.TextInput(
            attrs={
                "inputmode": "url",
                "autocomplete": "off",
                "spellcheck": "false",
                "class": "font-monospace",
            }
        ),
    )
    forget_query = forms.BooleanField(required=False, label="Forget the stored query")
    command = forms.CharField(
        required=False,
        max_length=MAX_COMMAND * 4,
        widget=forms.TextInput(
            attrs={"autocomplete": "off", "spellcheck": "false", "class": "font-monospace"}
        ),
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        server: Server | None = None,
        private: Private | None = None,
    ) -> None:
        super().__init__(data, initial=_initial(server))
        self.server = server
        self.private = private or Private()
        self.args_error = ""
        if data is None:
            self._rows_from_store(server)
        else:
            self._rows_from_post(data)

    def _rows_from_store(self, server: Server | None) -> None:
        self.args = [Row(value=shown_argument(str(arg))) for arg in (server.args if server else [])]
        self.headers = [stored_row(name, value) for name, value in self.private.headers]
        self.env = [stored_row(name, value) for name, value in self.private.env]

    def _rows_from_post(self, data: QueryDict) -> None:
        self.args = [Row(value=_lines(text)) for text in data.getlist("arg") if text.strip()]
        self.headers = _posted_rows(data, "header")
        self.env = _posted_rows(data, "env")

    @property
    def has_query(self) -> bool:
        """Whether a query is stored, which the page never shows."""
        return bool(self.private.query)

    @property
    def shown_transport(self) -> str:
        """The transport whose fields are shown; stdio is the preset (P18)."""
        return str(self["transport"].value() or Server.Transport.STDIO)

    def server_data(self) -> ServerData:
        """What was entered. Call after `is_valid()`."""
        values = self.cleaned_data
        return ServerData(
            name=values["name"],
            description=values["description"],
            transport=values["transport"],
            url=values["url"],
            keep_query=not values["forget_query"],
            headers=_entries(self.headers),
            command=values["command"],
            args=tuple("" if row.value == EMPTY_ARGUMENT else row.value for row in self.args),
            env=_entries(self.env),
        )

    def show_errors(self, errors: Errors) -> None:
        """Put each sentence of `servers.definition` under its field or into its row."""
        for key, sentence in errors.items():
            group, _, rest = key.partition(".")
            if key == "args":
                self.args_error = sentence
            elif not rest:
                self.add_error(group if group in self.fields else None, sentence)
            else:
                self._show_row_error(group, rest, sentence)

    def _show_row_error(self, group: str, rest: str, sentence: str) -> None:
        index, _, part = rest.partition(".")
        row: Row = getattr(self, group)[int(index)]
        if part == "name":
            row.name_error = sentence
        else:
            row.value_error = sentence

    def padded(self, rows: list[Row], error: str = "") -> list[Row]:
        """With a blank row at the end to be filled; what is wrong with all of them stands there."""
        return [*rows, Row(value_error=error)]

    @property
    def args_rows(self) -> list[Row]:
        return self.padded(self.args, self.args_error)

    @property
    def headers_rows(self) -> list[Row]:
        return self.padded(self.headers)

    @property
    def env_rows(self) -> list[Row]:
        return self.padded(self.env)


def stored_row(name: str, value: str) -> Row:
    """A row of a stored value: references as they are, anything else unseen."""
    if refers(value):
        return Row(name=name, value=value)
    return Row(name=name, kept=name, digest=value_digest(value))


def value_digest(value: str) -> str:
    """Tells whether two values are equal without telling anything else about them."""
    return salted_hmac("servers.forms.value", value).hexdigest()[:24]


def shown_argument(argument: str) -> str:
    return argument or EMPTY_ARGUMENT


def _initial(server: Server | None) -> dict[str, Any]:
    if server is None:
        return {"transport": Server.Transport.STDIO}
    return {
        "name": server.name,
        "description": server.description,
        "transport": server.transport,
        "url": server.url,
        "command": server.command,
        "version": server.version,
    }


def _lines(text: str) -> str:
    """Browsers send every line end of a text area as CR LF."""
    return text.replace("\r\n", "\n")


def _posted_rows(data: QueryDict, prefix: str) -> list[Row]:
    columns = (data.getlist(f"{prefix}_{part}") for part in ("name", "value", "kept", "digest"))
    rows = [
        Row(name=name.strip(), value=_lines(value), kept=kept, digest=digest)
        for name, value, kept, digest in zip_longest(*columns, fillvalue="")
    ]
    # A row without name and value was emptied or never filled: without script, that removes it.
    return [row for row in rows if row.name or row.value]


def _entries(rows: list[Row]) -> tuple[Entry, ...]:
    return tuple(
        Entry(row.name, None if row.kept and not row.value else row.value, row.kept) for row in rows
    )


def differences(form: ServerForm, current: Server, stored: Private) -> list[Difference]:
    """What an outdated form would overwrite. Values that nobody sees are only called changed."""
    data = form.server_data()
    found = []
    plain: dict[str, tuple[str, str]] = {
        "Name": (current.name, data.name),
        "Description": (current.description, data.description),
        "Transport": (current.get_transport_display(), Server.Transport(data.transport).label),
    }
    if data.transport == HTTP:
        plain |= {"URL": (current.url, data.url.partition("?")[0])}
    else:
        plain |= {
            "Command": (current.command, data.command),
            "Arguments": (_joined(current.args), _joined(data.args)),
        }
    found += [Difference(label, *pair) for label, pair in plain.items() if pair[0] != pair[1]]
    if data.transport == HTTP:
        found += _row_differences("Header", form.headers, stored.headers)
    else:
        found += _row_differences("Variable", form.env, stored.env)
    return found


def _joined(args: Any) -> str:
    return " ".join(shown_argument(str(arg)) for arg in args)


def _row_differences(
    label: str, rows: list[Row], stored: tuple[tuple[str, str], ...]
) -> list[Difference]:
    theirs = dict(stored)
    mine = {row.name: row for row in rows}
    found = []
    for name in [*theirs, *(name for name in mine if name not in theirs)]:
        if name not in mine:
            found.append(Difference(f"{label} {name}", _words(theirs[name]), "not there"))
        elif name not in theirs:
            found.append(Difference(f"{label} {name}", "not there", _row_words(mine[name])))
        elif not _same(mine[name], theirs[name]):
            words = _words(theirs[name])
            theirs_words = "changed" if words == "a hidden value" else words
            found.append(Difference(f"{label} {name}", theirs_words, _row_words(mine[name])))
    return found


def _same(row: Row, value: str) -> bool:
    if row.kept and not row.value:
        return row.digest == value_digest(value)
    return row.value == value


def _words(value: str) -> str:
    return value if refers(value) else "a hidden value"


def _row_words(row: Row) -> str:
    if row.kept and not row.value:
        return "as it was"
    return row.value if refers(row.value) else "a new value"


def refresh_kept_rows(
    form: ServerForm, data: QueryDict, current: Server, stored: Private
) -> ServerForm:
    """The same entries over what is stored now, so that saving again is not outdated."""
    data = data.copy()
    data["version"] = str(current.version)
    fresh = ServerForm(data, server=current, private=stored)
    fresh.is_valid()
    values = {**dict(stored.headers), **dict(stored.env)}
    for row in (*fresh.headers, *fresh.env):
        if row.kept in values:
            row.digest = value_digest(values[row.kept])
    return fresh
