"""A new server, or an edit of one. Rules are `servers.definition`'s, asked by services."""

from __future__ import annotations

from typing import Any

from django import forms
from django.http import QueryDict

from servers.definition import (
    HTTP,
    MAX_COMMAND,
    MAX_DESCRIPTION,
    MAX_NAME,
    MAX_QUERY,
    MAX_URL,
    STDIO,
    UNIX,
    Errors,
    ServerData,
)
from servers.forms.oauth import OAuthForm
from servers.forms.options import OptionsForm
from servers.forms.policy import PolicyForm
from servers.forms.rows import (
    EMPTY_ARGUMENT,
    Row,
    entries,
    padded,
    posted_arguments,
    posted_rows,
    shown_argument,
    stored_row,
)
from servers.models import Server, Tool
from servers.policy import Policy
from servers.private import Private

_NAME_HELP = "After the service: github, not gh-final-v2. Letters, digits, _ and -."
_SOCKET_HELP = "On the machine that runs Umpteenth's workers. Administrators only."
_URI_HELP = "The address that is asked over the socket; its host is only a name."


def _code(**attrs: str) -> forms.TextInput:
    """A field for what machines read."""
    plain = {"autocomplete": "off", "spellcheck": "false", "class": "font-monospace"}
    return forms.TextInput(attrs={**plain, **attrs})


class ServerForm(forms.Form):
    """Its parts `options`, `policy` and `oauth` are forms with fields of their own names.

    Fields of all transports are there; those of the chosen one are read.
    """

    name = forms.CharField(
        required=False, max_length=MAX_NAME * 4, help_text=_NAME_HELP, widget=_code()
    )
    description = forms.CharField(required=False, max_length=MAX_DESCRIPTION * 2)
    transport = forms.ChoiceField(
        choices=Server.Transport.choices,
        error_messages={"required": "Choose HTTP, stdio or Unix socket."},
    )
    url = forms.CharField(
        required=False,
        label="URL",
        max_length=MAX_URL + MAX_QUERY + 1,
        widget=_code(inputmode="url"),
    )
    socket_path = forms.CharField(
        required=False, label="Socket", max_length=4096, help_text=_SOCKET_HELP, widget=_code()
    )
    uri = forms.CharField(
        required=False,
        label="URI",
        max_length=MAX_URL + MAX_QUERY + 1,
        help_text=_URI_HELP,
        widget=_code(inputmode="url"),
    )
    forget_query = forms.BooleanField(required=False, label="Forget the stored query")
    command = forms.CharField(required=False, max_length=MAX_COMMAND * 4, widget=_code())
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        server: Server | None = None,
        private: Private | None = None,
        tools: list[Tool] | None = None,
    ) -> None:
        super().__init__(data, initial=_initial(server))
        self.server = server
        self.private = private or Private()
        self.args_error = ""
        policy = Policy.from_json(server.policy if server else {})
        self.options = OptionsForm(data, stored=server.options if server else {})
        self.policy = PolicyForm(data, stored=policy, tools=tools)
        self.oauth = OAuthForm(data, server=server, private=self.private)
        if data is None:
            self._rows_from_store(server)
        else:
            self.args = posted_arguments(data)
            self.headers = posted_rows(data, "header")
            self.env = posted_rows(data, "env")

    def _rows_from_store(self, server: Server | None) -> None:
        self.args = [Row(value=shown_argument(str(arg))) for arg in (server.args if server else [])]
        self.headers = [stored_row(name, value) for name, value in self.private.headers]
        self.env = [stored_row(name, value) for name, value in self.private.env]

    def is_valid(self) -> bool:
        """All parts are asked, so that all that is wrong is shown at once."""
        own = super().is_valid()
        return all([own, *(part.is_valid() for part in (self.options, self.policy, self.oauth))])

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
        transport = values["transport"]
        return ServerData(
            name=values["name"],
            description=values["description"],
            transport=transport,
            url=values["uri" if transport == UNIX else "url"],
            keep_query=not values["forget_query"],
            socket_path=values["socket_path"],
            headers=entries(self.headers),
            command=values["command"],
            args=tuple("" if row.value == EMPTY_ARGUMENT else row.value for row in self.args),
            env=entries(self.env),
            options=self.options.values(transport),
            policy=self.policy.value(),
            oauth=self.oauth.values(transport),
        )

    def show_errors(self, errors: Errors) -> None:
        """Put each sentence of `servers.definition` under its field or into its row."""
        for key, sentence in errors.items():
            group, _, rest = key.partition(".")
            if key == "args":
                self.args_error = sentence
            elif group == "options" and self.options.show_error(rest, sentence):
                continue
            elif group == "policy":
                self.policy.show_error(rest, sentence)
            elif group == "oauth":
                self.oauth.show_error(rest, sentence)
            elif rest and group in ("args", "headers", "env"):
                self._show_row_error(group, rest, sentence)
            else:
                self.add_error(self._shown_field(group), sentence)

    def _shown_field(self, field: str) -> str | None:
        """The field that holds it on this page; None puts a sentence over the form."""
        if field == "url" and self.shown_transport == UNIX:
            return "uri"
        return field if field in self.fields else None

    def _show_row_error(self, group: str, rest: str, sentence: str) -> None:
        index, _, part = rest.partition(".")
        row: Row = getattr(self, group)[int(index)]
        if part == "name":
            row.name_error = sentence
        else:
            row.value_error = sentence

    @property
    def args_rows(self) -> list[Row]:
        return padded(self.args, self.args_error)

    @property
    def headers_rows(self) -> list[Row]:
        return padded(self.headers)

    @property
    def env_rows(self) -> list[Row]:
        return padded(self.env)


def _initial(server: Server | None) -> dict[str, Any]:
    if server is None:
        return {"transport": STDIO}
    return {
        "name": server.name,
        "description": server.description,
        "transport": server.transport,
        "url": server.url if server.transport == HTTP else "",
        "uri": server.url if server.transport == UNIX else "",
        "socket_path": server.socket_path,
        "command": server.command,
        "version": server.version,
    }
