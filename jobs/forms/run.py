"""Input of a run, and values of a job's memory: JSON that people type."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.broker.protocol import MAX_STATE_KEY
from umpteenth.core.text import read_json


def parse_json(text: str, what: str) -> Any:
    """The value, or `ValidationError` that says where it is no JSON."""
    try:
        return read_json(text)
    except ValueError as error:
        raise forms.ValidationError(f"{what} {error}.") from None


_JSON_AREA = {"rows": 6, "class": "mono", "spellcheck": "false", "autocomplete": "off"}


class RunNowForm(forms.Form):
    input = forms.CharField(
        required=False,
        strip=True,
        label="Input (JSON)",
        widget=forms.Textarea(attrs={**_JSON_AREA, "placeholder": '{"name": "value"}'}),
        help_text="Optional. The script finds it in /ump/input.json.",
    )

    def clean_input(self) -> Any:
        text: str = self.cleaned_data["input"]
        return parse_json(text, "The input") if text else None


class StateForm(forms.Form):
    key = forms.CharField(max_length=MAX_STATE_KEY, strip=False)
    value = forms.CharField(
        strip=True,
        label="Value (JSON)",
        widget=forms.Textarea(attrs={**_JSON_AREA, "rows": 12}),
        error_messages={"required": 'Type a JSON value, such as null, 12, "text" or {}.'},
    )

    def clean_value(self) -> Any:
        return parse_json(self.cleaned_data["value"], "The value")


class KeyForm(forms.Form):
    """Which state entry is meant; keys hold any character, so that they stand in the query."""

    key = forms.CharField(max_length=MAX_STATE_KEY, strip=False)
