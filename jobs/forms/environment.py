"""The forms of environments. What a definition may hold `jobs.environments.definition` checks."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.environments.definition import MAX_BYTES
from jobs.models import Environment

NEW_LISTS = """\
name: data-tools
python:
  - humanize
npm:
  - cowsay
debian:
  - jq
"""
NEW_DOCKERFILE = """\
name: data-tools
dockerfile: |
  FROM python:3.12
  RUN pip install --no-cache-dir humanize
"""


class DefinitionForm(forms.Form):
    definition = forms.CharField(
        strip=False,
        max_length=MAX_BYTES,
        widget=forms.Textarea(
            attrs={
                "rows": 14,
                "class": "mono",
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
            }
        ),
        error_messages={"required": "An environment needs a definition."},
    )
    version = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, widget=forms.HiddenInput
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # An error that the browser finds would hide the page's own words.
        self.use_required_attribute = False


class ChoiceForm(forms.Form):
    """Which environment a job uses."""

    environment = forms.ModelChoiceField(
        Environment.objects.all(),
        required=False,
        empty_label="Default environment",
        help_text="For the script and the job's stdio servers, from the next run on.",
        error_messages={"invalid_choice": "This environment does not exist any more."},
    )
