"""The part "OAuth client" of the form (P56-P58). Rules are `servers.oauth.operator_client`'s.

A stored client secret that is no reference is never sent to a browser: its field is empty then,
which keeps it, and a box beside it forgets it (E07).
"""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.http import QueryDict
from django.utils.safestring import SafeString

from servers.definition import HTTP, OAuthClientData, refers
from servers.models import Server
from servers.oauth.operator_client import MAX_CLIENT_ID, MAX_CLIENT_SECRET, MAX_SCOPES
from servers.private import Private

PREFIX: Final = "oauth"
_ID_HELP = (
    "Given out by the provider. Empty: Umpteenth registers itself when a person logs in, where the "
    "provider lets it."
)
_SECRET_HELP = (
    "For a secret use the key button; a value typed here is stored encrypted and never shown "
    "again. A private key in PEM signs requests and is never sent."
)
_SCOPES_HELP = "Separated by blanks. Empty: those that the server asks for."


def _code(widget: type[forms.TextInput] | type[forms.Textarea], **attrs: Any) -> forms.Widget:
    plain = {"autocomplete": "off", "spellcheck": "false", "class": "font-monospace"}
    return widget(attrs={**plain, **attrs})


class OAuthForm(forms.Form):
    """Fields of every transport's form; they are read for HTTP."""

    # No ChoiceField: a value that is none is the definition's to refuse.
    kind = forms.CharField(required=False, max_length=50)
    client_id = forms.CharField(
        required=False,
        label="Client ID",
        max_length=MAX_CLIENT_ID * 2,
        help_text=_ID_HELP,
        widget=_code(forms.TextInput),
    )
    client_secret = forms.CharField(
        required=False,
        label="Client secret",
        max_length=MAX_CLIENT_SECRET * 2,
        help_text=_SECRET_HELP,
        widget=_code(forms.Textarea, rows="1"),
    )
    forget_secret = forms.BooleanField(required=False, label="Forget the stored client secret")
    scopes = forms.CharField(
        required=False,
        max_length=MAX_SCOPES * 2,
        help_text=_SCOPES_HELP,
        widget=_code(forms.TextInput),
    )

    def __init__(
        self,
        data: QueryDict | None = None,
        *,
        server: Server | None = None,
        private: Private | None = None,
    ) -> None:
        stored = private.client_secret if private else ""
        initial: dict[str, Any] = {"kind": Server.LoginKind.PERSON}
        if server is not None:
            initial = {
                "kind": server.oauth_kind,
                "client_id": server.oauth_client_id,
                "client_secret": stored if refers(stored) else "",
                "scopes": server.oauth_scopes,
            }
        super().__init__(data, initial=initial, prefix=PREFIX)
        self._sent = data is not None and any(key.startswith(f"{PREFIX}-") for key in data)
        # Whether a value is stored that the page does not show.
        self.keeps_secret = bool(stored) and not refers(stored)
        if self.keeps_secret:
            hint = "Stored, not shown; type to replace it"
            self.fields["client_secret"].widget.attrs["placeholder"] = hint

    @property
    def kind_choices(self) -> list[tuple[str, str, str, bool]]:
        """Value, label, what it means, and whether it is chosen."""
        chosen = str(self["kind"].value() or Server.LoginKind.PERSON)
        words = {
            Server.LoginKind.PERSON: "In the browser, at the provider; the login is then "
            "the server's and all jobs use it.",
            Server.LoginKind.MACHINE: "With its Client ID and secret (client credentials); "
            "nobody has to approve anything.",
        }
        return [
            (kind.value, kind.label, words[kind], kind.value == chosen) for kind in Server.LoginKind
        ]

    @property
    def is_machine(self) -> bool:
        """Whether nobody comes back from a provider, and a secret is needed."""
        return bool(self["kind"].value() == Server.LoginKind.MACHINE)

    @property
    def secret_control(self) -> SafeString:
        """The field alone: a button stands beside it."""
        bound = self["client_secret"]
        attrs: dict[str, Any] = {"class": "form-control font-monospace row-text"}
        attrs["aria-describedby"] = f"{bound.auto_id}-help"
        if bound.errors:
            attrs["class"] += " is-invalid"
            attrs |= {"aria-invalid": "true"}
            attrs["aria-describedby"] += f" {bound.auto_id}-error"
        return bound.as_widget(attrs=attrs)

    @property
    def is_open(self) -> bool:
        """What is set or wrong must not hide in a folded part."""
        return bool(self.set_words or self.errors)

    @property
    def set_words(self) -> str:
        """What is set, for the folded part's head."""
        found = []
        if self["client_id"].value():
            found.append("Client ID")
        if self["client_secret"].value() or self.keeps_secret:
            found.append("secret")
        if self["scopes"].value():
            found.append("scopes")
        if self.is_machine:
            found.append("logs in by itself")
        return ", ".join(found)

    def values(self, transport: str) -> OAuthClientData | None:
        """What was entered; None keeps all, where it was not asked for. After `is_valid()`."""
        if not self._sent or transport != HTTP:
            return None
        values = self.cleaned_data
        typed = values["client_secret"]
        keeps = self.keeps_secret and not typed and not values["forget_secret"]
        return OAuthClientData(
            kind=values["kind"] or Server.LoginKind.PERSON,
            client_id=values["client_id"],
            secret=None if keeps else typed,
            scopes=values["scopes"],
        )

    def show_error(self, name: str, sentence: str) -> None:
        self.add_error(name if name in self.fields else None, sentence)
