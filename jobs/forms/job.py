"""The form of a job: its plain fields. What may stand in them `jobs.definition` checks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from zoneinfo import available_timezones

from django import forms

from jobs.definition import CPUS, DISK, MAX_DESCRIPTION, MAX_NAME, MEMORY
from jobs.models import (
    DEFAULT_CPUS,
    DEFAULT_DISK,
    DEFAULT_MEMORY,
    DEFAULT_TIMEOUT,
    MAX_CPUS,
    MAX_DISK,
    MAX_MEMORY,
    MAX_TIMEOUT,
    MIN_CPUS,
    MIN_DISK,
    MIN_MEMORY,
    MIN_TIMEOUT,
    Job,
)
from jobs.network import MAX_DOMAIN, MAX_DOMAINS, split_domains
from jobs.services import AttachmentData, JobData, SecretData
from umpteenth.accounts.models import User

TIMEOUT = f"The time limit is {MIN_TIMEOUT} to {MAX_TIMEOUT:,} seconds."
NEW_SCRIPT = '#!/usr/bin/env bash\nset -euo pipefail\n\nump step "First step"\n'


def _said(sentence: str) -> dict[str, str]:
    """One sentence for whatever is wrong with a number."""
    return dict.fromkeys(("required", "invalid", "min_value", "max_value"), sentence)


@lru_cache(maxsize=1)
def time_zones() -> list[str]:
    return sorted(name for name in available_timezones() if "/" in name or name == "UTC")


class JobForm(forms.Form):
    name = forms.CharField(max_length=MAX_NAME, error_messages={"required": "A job needs a name."})
    description = forms.CharField(max_length=MAX_DESCRIPTION, required=False)
    timeout = forms.IntegerField(
        label="Time limit",
        min_value=MIN_TIMEOUT,
        max_value=MAX_TIMEOUT,
        initial=DEFAULT_TIMEOUT,
        help_text="In seconds, for the script and everything it calls.",
        error_messages=_said(TIMEOUT),
    )
    network = forms.ChoiceField(
        choices=Job.Network.choices, initial=Job.Network.INTERNET, widget=forms.RadioSelect
    )
    domains = forms.CharField(
        label="Allowed domains",
        required=False,
        max_length=MAX_DOMAINS * (MAX_DOMAIN + 2),
        widget=forms.Textarea(
            attrs={
                "rows": 4,
                "class": "mono",
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
            }
        ),
        help_text="One a line. *.example.org allows all names below example.org, and not "
        "example.org itself.",
    )
    allow_private_network = forms.BooleanField(
        required=False,
        label="Allow private network",
        help_text="Also addresses of this machine and of the local network. Cloud metadata is "
        "refused in any case.",
    )
    cpus = forms.FloatField(
        label="Processors",
        min_value=MIN_CPUS,
        max_value=MAX_CPUS,
        initial=f"{DEFAULT_CPUS:g}",
        widget=forms.NumberInput(attrs={"step": "any"}),
        help_text="Also parts of one, such as 0.5.",
        error_messages=_said(CPUS),
    )
    memory = forms.IntegerField(
        min_value=MIN_MEMORY,
        max_value=MAX_MEMORY,
        initial=DEFAULT_MEMORY,
        help_text="In MiB, with what /tmp holds. Beyond it processes are ended.",
        error_messages=_said(MEMORY),
    )
    disk = forms.IntegerField(
        min_value=MIN_DISK,
        max_value=MAX_DISK,
        initial=DEFAULT_DISK,
        help_text="In MiB, for /workspace, /ump/outputs and /ump/logs together. "
        "Beyond it the run is ended.",
        error_messages=_said(DISK),
    )
    run_as_root = forms.BooleanField(
        required=False,
        label="Run as root",
        help_text="Root inside the sandbox only, and nobody outside. The system stays read-only. "
        "stdio servers with environment variables are skipped, since root could read them.",
    )
    overlap = forms.ChoiceField(
        label="If a run has not ended when the next one is due",
        choices=[
            (Job.Overlap.SKIP, "Skip the new run and record that"),
            (Job.Overlap.QUEUE, "Queue the new run until the other ends"),
            (Job.Overlap.PARALLEL, "Parallel: start it at once"),
        ],
        initial=Job.Overlap.SKIP,
    )
    enabled = forms.BooleanField(
        required=False,
        initial=True,
        label="Run on schedule",
        help_text="Off pauses the schedule; Run now still works.",
    )
    script = forms.CharField(
        strip=False,
        initial=NEW_SCRIPT,
        widget=forms.Textarea(
            attrs={
                "rows": 16,
                "spellcheck": "false",
                "autocapitalize": "off",
                "autocomplete": "off",
                "wrap": "off",
                "class": "script",
                "data-editor": "",
            }
        ),
        error_messages={"required": "A job needs a script."},
    )
    cron = forms.CharField(
        required=False,
        label="Cron schedule",
        # Longer than any valid one: the check says what is wrong in its own words.
        max_length=20_000,
        widget=forms.TextInput(
            attrs={"class": "mono", "spellcheck": "false", "autocomplete": "off"}
        ),
        help_text="Minute, hour, day of month, month, day of week; or @hourly, @daily, @weekly, "
        "@monthly. Empty: only by hand.",
    )
    timezone = forms.CharField(
        label="Time zone",
        initial="UTC",
        max_length=200,
        error_messages={"required": "Name a time zone, such as UTC or Europe/Berlin."},
        widget=forms.TextInput(attrs={"list": "time-zones", "autocomplete": "off"}),
    )
    version = forms.IntegerField(
        required=False, min_value=0, max_value=2**31 - 1, widget=forms.HiddenInput
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # An error that the browser finds would hide the page's own words.
        self.use_required_attribute = False

    def to_data(self, attachments: list[AttachmentData], secrets: list[SecretData]) -> JobData:
        """What was typed, for the service. Call it on a valid form."""
        fields = {name: self.cleaned_data[name] for name in self.fields if name != "version"}
        fields["domains"] = split_domains(fields["domains"])
        return JobData(**fields, attachments=tuple(attachments), secrets=tuple(secrets))

    def add_errors(self, errors: dict[str, str]) -> dict[str, str]:
        """Put the service's sentences under their fields; returns those of no field here."""
        rest = {}
        for name, sentence in errors.items():
            if name in self.fields:
                self.add_error(name, sentence)
            else:
                rest[name] = sentence
        return rest


def initial_of(job: Job) -> dict[str, Any]:
    names = [name for name in JobForm.base_fields if name != "version"]
    values = {name: getattr(job, name) for name in names}
    values |= {"domains": "\n".join(job.domains), "cpus": f"{job.cpus:g}"}
    return values | {"version": job.version}


def root_problem(person: User, job: Job | None) -> str:
    """Why the person cannot let the job run as root; empty if they can, or may keep it."""
    kept = job is not None and job.run_as_root
    return "" if person.is_administrator or kept else "Only administrators can choose this."
