"""Forms of the secrets pages. A value goes in and never comes out again."""

from __future__ import annotations

from typing import Any

from django import forms

from secrets_vault.errors import BadSecret
from secrets_vault.models import Secret
from secrets_vault.services import SecretData
from secrets_vault.validation import (
    MAX_DESCRIPTION,
    check_description,
    check_name,
    check_scope,
    check_value,
)

VALUE_AGAIN = "Enter the value again: it is never sent back to a page."


class WriteOnlyTextarea(forms.Textarea):
    """Stays empty when the form is shown again (E07)."""

    def get_context(self, name: str, value: Any, attrs: dict[str, Any] | None) -> dict[str, Any]:
        return super().get_context(name, None, attrs)


class LinesField(forms.CharField):
    """A list, one entry a line."""

    widget = forms.Textarea(attrs={"rows": 2, "spellcheck": "false", "autocapitalize": "none"})

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value


def _name() -> forms.CharField:
    attrs = {
        "autocomplete": "off",
        "autocapitalize": "none",
        "spellcheck": "false",
        # As in NAME_PATTERN; browsers want the hyphen escaped.
        "pattern": r"[A-Za-z0-9_.\-]{1,100}",
        "title": "Letters, digits, _ . or -",
        "class": "font-monospace",
        "placeholder": "GITHUB_TOKEN",
    }
    return forms.CharField(
        max_length=100,
        widget=forms.TextInput(attrs=attrs),
        error_messages={"required": "Enter a name."},
    )


def _value(**kwargs: Any) -> forms.CharField:
    attrs = {
        "rows": 3,
        "autocomplete": "off",
        "autocapitalize": "none",
        "spellcheck": "false",
        "class": "font-monospace",
        # Password managers offer to store or fill what looks like a credential.
        "data-1p-ignore": "",
        "data-lpignore": "true",
    }
    return forms.CharField(
        strip=False,
        widget=WriteOnlyTextarea(attrs=attrs),
        error_messages={"required": "Enter a value."},
        **kwargs,
    )


class _ValueForm(forms.Form):
    """Mixin: `clean_value` keeps to the rules of the vault, `clean` asks for a lost value."""

    id_prefix = "secret"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Shown in a dialog over any page, whose own inputs have names such as `id_name`.
        super().__init__(*args, **{"auto_id": f"{self.id_prefix}-%s", **kwargs})

    def clean_value(self) -> str | None:
        # Browsers send each line end of a text area as CRLF, whatever was pasted.
        typed = str(self.cleaned_data["value"]).replace("\r\n", "\n")
        if not typed:
            return None
        _translated(lambda: check_value(typed))
        return typed

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if self.errors and "value" not in self.errors and cleaned.get("value"):
            self.add_error("value", VALUE_AGAIN)
        return cleaned


class QuickSecretForm(_ValueForm):
    """A new secret from the key button: the rest can be said later."""

    id_prefix = "new-secret"

    name = _name()
    value = _value()

    def clean_name(self) -> str:
        return str(_translated(lambda: check_name(self.cleaned_data["name"])))

    @property
    def data_entered(self) -> SecretData:
        return SecretData(value=self.cleaned_data["value"])


class EditSecretForm(_ValueForm):
    """Everything but the name, which references hold on to. No value: the present one stays."""

    value = _value(
        label="New value",
        required=False,
        help_text="Leave it empty to keep the present value, which nobody can see.",
    )
    description = forms.CharField(
        required=False,
        max_length=MAX_DESCRIPTION,
        widget=forms.TextInput(attrs={"autocomplete": "off"}),
    )
    open_to_members = forms.BooleanField(
        required=False,
        label="Members may use it in jobs",
        help_text="Otherwise only administrators can give it to a job. "
        "Whoever edits such a job's script can read the value.",
    )
    allowed_hosts = LinesField(
        required=False, label="Hosts", help_text="Like api.example.org or *.example.org."
    )
    allowed_servers = LinesField(required=False, label="Servers", help_text="Names of MCP servers.")
    allowed_jobs = LinesField(required=False, label="Jobs", help_text="Names of jobs.")

    def clean_description(self) -> str:
        return str(_translated(lambda: check_description(self.cleaned_data["description"])))

    def clean_allowed_hosts(self) -> list[str]:
        return self._scope("allowed_hosts")

    def clean_allowed_servers(self) -> list[str]:
        return self._scope("allowed_servers")

    def clean_allowed_jobs(self) -> list[str]:
        return self._scope("allowed_jobs")

    def _scope(self, field: str) -> list[str]:
        lines = str(self.cleaned_data[field]).splitlines()
        return list(_translated(lambda: check_scope(field, lines)))

    @property
    def is_limited(self) -> bool:
        """Whether the folded part of the form has something to show."""
        scopes = ("allowed_hosts", "allowed_servers", "allowed_jobs")
        return any(self[name].value() or self[name].errors for name in scopes)

    @property
    def data_entered(self) -> SecretData:
        fields = {name: self.cleaned_data[name] for name in EditSecretForm.base_fields}
        return SecretData(**fields)

    @staticmethod
    def initial_of(secret: Secret) -> dict[str, Any]:
        names = [name for name in EditSecretForm.base_fields if name != "value"]
        return {name: getattr(secret, name) for name in names}


class CreateSecretForm(EditSecretForm):
    name = _name()
    value = _value(help_text="Kept encrypted. Nobody can see it again, you can only replace it.")
    field_order = ["name", "value"]

    def clean_name(self) -> str:
        return str(_translated(lambda: check_name(self.cleaned_data["name"])))


class SearchForm(forms.Form):
    q = forms.CharField(required=False, max_length=200)


def _translated(check: Any) -> Any:
    """The vault's rules as errors of the form."""
    try:
        return check()
    except BadSecret as error:
        raise forms.ValidationError(str(error)) from None
