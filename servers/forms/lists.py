"""What is asked of the list and of a server's tools; what a form does not know is as good as
nothing."""

from __future__ import annotations

from django import forms

from servers.limits import MAX_TOOL_NAME
from servers.models import Server
from servers.status import Auth

# Those of servers, and what lists can be asked for besides (`servers.queries.find_servers`).
STATES = (
    *Server.State.choices,
    ("trouble", "In trouble"),
    ("login_ending", "Login about to end"),
    ("disabled", "Disabled"),
)


class ServerFilter(forms.Form):
    """The list's filter."""

    q = forms.CharField(required=False, max_length=200)
    transport = forms.ChoiceField(
        required=False, choices=[("", "Transport"), *Server.Transport.choices]
    )
    auth = forms.ChoiceField(
        required=False,
        choices=[("", "Auth"), *Auth.choices],
    )
    state = forms.ChoiceField(
        required=False,
        choices=[("", "State"), *STATES],
    )

    def values(self) -> dict[str, str]:
        self.is_valid()
        return {name: self.cleaned_data.get(name, "") for name in self.fields}


class SinceForm(forms.Form):
    """The moment up to which a page knows everything."""

    since = forms.DateTimeField(input_formats=["%Y-%m-%dT%H:%M:%S%z"])


class ToolFilter(forms.Form):
    """Which of a server's tools are shown."""

    q = forms.CharField(required=False, max_length=200)
    page = forms.IntegerField(required=False, min_value=1, max_value=10_000)

    def words(self) -> str:
        self.is_valid()
        return str(self.cleaned_data.get("q", ""))

    def page_number(self) -> int:
        self.is_valid()
        return self.cleaned_data.get("page") or 1


class ToolForm(forms.Form):
    """Which tool is meant; servers give them any name, so that it stands in the query."""

    name = forms.CharField(max_length=MAX_TOOL_NAME, strip=False)
