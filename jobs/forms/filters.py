"""What narrows the lists of runs and jobs; it stands in the address."""

from __future__ import annotations

from datetime import date
from typing import Any

from django import forms

from jobs.models import Job, Run
from jobs.queries import RunFilter

MAX_JOBS = 500


class RunFilterForm(forms.Form):
    status = forms.ChoiceField(
        required=False,
        choices=[("", "Any status"), ("unfinished", "Not finished"), *Run.Status.choices],
    )
    job = forms.ChoiceField(required=False)
    trigger = forms.ChoiceField(required=False, choices=[("", "Any trigger"), *Run.Trigger.choices])
    since = forms.DateField(
        required=False, label="From", widget=forms.DateInput(attrs={"type": "date"})
    )
    until = forms.DateField(
        required=False, label="To", widget=forms.DateInput(attrs={"type": "date"})
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.auto_id = "filter-%s"
        names = Job.objects.values_list("pk", "name")[:MAX_JOBS]
        choices = [("", "Any job"), *((str(pk), name) for pk, name in names)]
        job = self.fields["job"]
        assert isinstance(job, forms.ChoiceField)
        job.choices = choices

    def clean_since(self) -> date | None:
        return _plausible(self.cleaned_data["since"])

    def clean_until(self) -> date | None:
        return _plausible(self.cleaned_data["until"])

    def clean(self) -> dict[str, Any]:
        data: dict[str, Any] = super().clean() or {}
        since, until = data.get("since"), data.get("until")
        if since and until and since > until:
            self.add_error("until", "This date is before the first one.")
        return data

    def to_filter(self) -> RunFilter:
        """What was understood; a field that makes no sense filters nothing and says so."""
        self.is_valid()
        data = self.cleaned_data
        return RunFilter(
            status=data.get("status") or "",
            trigger=data.get("trigger") or "",
            job=data.get("job") or None,
            since=data.get("since"),
            until=data.get("until"),
        )


def _plausible(day: date | None) -> date | None:
    """Years at the ends of the calendar have no day after or no time before them."""
    if day is not None and not 1970 <= day.year <= 9000:
        raise forms.ValidationError("Enter a date between 1970 and 9000.")
    return day


class CursorForm(forms.Form):
    """Where a page of runs begins, and which run was on top when it was loaded."""

    before = forms.UUIDField(required=False)
    after = forms.UUIDField(required=False)
    top = forms.UUIDField(required=False)

    def cursors(self) -> dict[str, Any]:
        self.is_valid()
        return {name: self.cleaned_data.get(name) for name in self.fields}
