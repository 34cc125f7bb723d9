"""A job's memory between runs: its keys, and one value to read, change or forget."""

from __future__ import annotations

from urllib.parse import urlencode
from uuid import UUID

from django.http import Http404, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from jobs import queries, services
from jobs.forms.run import KeyForm, StateForm
from jobs.models import Job, StateEntry
from jobs.views.jobs import get_job, job_context
from jobs.views.json_tree import json_tree, pretty
from jobs.views.words import preview
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast


@require_GET
def job_state(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    entries = [
        {
            "entry": entry,
            "preview": preview(entry.value),
            "url": _url("state_entry", pk, entry.key),
            "delete_url": _url("state_delete", pk, entry.key),
        }
        for entry in queries.state_of(job)
    ]
    context = job_context(job, "state") | {"entries": entries}
    return render_page(request, "jobs/state.html", context)


@require_http_methods(["GET", "POST"])
def state_entry(request: Request, pk: UUID) -> HttpResponse:
    """View and change one value (`?key=`), or make a new one (no key)."""
    job = get_job(pk)
    entry = _entry(request, job)
    initial = {"key": entry.key, "value": pretty(entry.value)} if entry else {}
    form = StateForm(request.POST if request.method == "POST" else None, initial=initial)
    if entry:
        # One form, one key: a changed key would silently make a second entry.
        form.fields["key"].disabled = True
    if request.method == "POST" and form.is_valid() and _save(request, job, form):
        return hx_redirect(request, reverse("jobs:state", args=[pk]))
    context = {
        "job": job,
        "entry": entry,
        "action": _url("state_entry", pk, entry.key if entry else None),
        "form": form,
        "tree": json_tree(entry.value) if entry else None,
    }
    return render_form(request, "jobs/state_entry.html", context)


def _url(name: str, pk: UUID, key: str | None) -> str:
    query = "" if key is None else f"?{urlencode({'key': key})}"
    return reverse(f"jobs:{name}", args=[pk]) + query


def _entry(request: Request, job: Job) -> StateEntry | None:
    if "key" not in request.GET:
        return None
    form = KeyForm(request.GET)
    found = job.state.filter(key=form.cleaned_data["key"]).first() if form.is_valid() else None
    if found is None:
        raise Http404("This job remembers nothing under that key.")
    return found


def _save(request: Request, job: Job, form: StateForm) -> bool:
    key, value = form.cleaned_data["key"], form.cleaned_data["value"]
    try:
        services.set_state(job, key, value, actor=request.user)
    except services.StateError as error:
        form.add_error(None, str(error))
        return False
    toast(request, f"{key} was saved.")
    return True


@require_http_methods(["GET", "POST"])
def state_delete(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    entry = _entry(request, job)
    if entry is None:
        raise Http404("No key is named.")
    if request.method == "POST":
        services.delete_state(job, entry.key, actor=request.user)
        toast(request, f"{entry.key} was deleted.")
        return hx_redirect(request, reverse("jobs:state", args=[pk]))
    context = {
        "job": job,
        "entry": entry,
        "action": _url("state_delete", pk, entry.key),
        "cancel_url": reverse("jobs:state", args=[pk]),
        "title": f"Delete {entry.key}?",
    }
    return render_form(request, "jobs/state_delete.html", context)
