"""Pages of jobs: the list, a job's overview and runs, Run now, pause and delete."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from django import forms
from django.core.paginator import Paginator
from django.http import HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from jobs import queries, services, triggers
from jobs.forms.run import RunNowForm
from jobs.models import Attachment, Job, Run
from jobs.skipping import skipped_among
from jobs.views import schedules
from jobs.views.runs import run_table
from servers.models import Server
from umpteenth.core import clock
from umpteenth.core.htmx import Request, hx_redirect, render_form, render_page, toast

RUNS_ON_OVERVIEW = 8


class SearchForm(forms.Form):
    q = forms.CharField(required=False, max_length=200)
    page = forms.IntegerField(required=False, min_value=1, max_value=2**31 - 1)


class EnabledForm(forms.Form):
    enabled = forms.BooleanField(required=False)


@require_GET
def job_list(request: Request) -> HttpResponse:
    form = SearchForm(request.GET)
    form.is_valid()
    search = form.cleaned_data.get("q") or ""
    found = Paginator(queries.jobs_for_list(search), queries.JOBS_A_PAGE)
    page = found.get_page(form.cleaned_data.get("page") or 1)
    jobs = list(page.object_list)
    recent = queries.recent_runs(jobs)
    now = clock.now()
    rows = [
        {
            "job": job,
            "schedule": schedules.describe(job),
            "bars": queries.strip(recent[job.pk]),
            "last": recent[job.pk][-1] if recent[job.pk] else None,
            "servers": _servers(job, now),
            "is_overdue": bool(job.next_run_at and job.next_run_at < now),
        }
        for job in jobs
    ]
    context = {"rows": rows, "page_obj": page, "search": search}
    return render_page(request, "jobs/list.html", context, partial="jobs/_table.html")


def _servers(job: Job, now: datetime) -> list[Attachment]:
    """Those in trouble first: a row has no room for all of them."""
    attached = list(job.attachments.all())
    queries.note_logins(attached, now)
    return sorted(attached, key=lambda item: not (item.login_problem and item.server.enabled))


def get_job(pk: UUID) -> Job:
    return get_object_or_404(Job.objects.select_related("updated_by", "environment"), pk=pk)


def job_context(job: Job, tab: str) -> dict[str, Any]:
    """What the header of every tab shows."""
    recent = queries.recent_runs([job])[job.pk]
    return {
        "job": job,
        "tab": tab,
        "schedule": schedules.describe(job),
        "recent": recent,
        "last": recent[-1] if recent else None,
    }


@require_GET
def job_detail(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    context = job_context(job, "overview")
    runs = context["recent"][::-1][:RUNS_ON_OVERVIEW]
    for run in runs:
        run.elapsed_ms = queries.run_duration_ms(run)
    context |= {
        "bars": queries.strip(context["recent"], height=40, step=14),
        "runs": runs,
        "preview": schedules.preview(job.cron, job.timezone),
        "attachments": _attachments(job),
        "secrets": list(job.secrets.select_related("secret")),
        "state_keys": job.state.count(),
    }
    return render_page(request, "jobs/overview.html", context)


def _attachments(job: Job) -> list[tuple[Attachment, list[str]]]:
    """Attached servers, each with the allowed tools that it does not offer any more."""
    gone: dict[str, list[str]] = {}
    for server, tool in services.unlisted_tools(job):
        gone.setdefault(server, []).append(tool)
    rows = list(queries.with_servers(job.attachments.all()))
    queries.note_logins(rows, clock.now())
    if job.run_as_root:
        skipped = skipped_among(job.servers.filter(transport=Server.Transport.STDIO))
        for row in rows:
            row.is_skipped_as_root = row.server_id in skipped
    return [(row, gone.get(row.server.name, [])) for row in rows]


@require_GET
def job_runs(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    runs = queries.runs_for_list().filter(job=job)
    context = job_context(job, "runs") | run_table(request, runs)
    return render_page(request, "jobs/runs.html", context, partial="runs/_table.html")


@require_http_methods(["GET", "POST"])
def run_now(request: Request, pk: UUID) -> HttpResponse:
    """Start a run; the input may stay empty."""
    job = get_job(pk)
    form = RunNowForm(request.POST if request.method == "POST" else None)
    if request.method == "POST":
        run = _start(request, job, form) if form.is_valid() else None
        if run is not None:
            return hx_redirect(request, reverse("runs:detail", args=[run.pk]))
    unfinished = job.runs.filter(status__in=Run.UNFINISHED).order_by("number").first()
    context = {"job": job, "form": form, "unfinished": unfinished}
    return render_form(request, "jobs/run_now.html", context)


def _start(request: Request, job: Job, form: RunNowForm) -> Run | None:
    try:
        return triggers.start_run(
            job=job,
            trigger=Run.Trigger.MANUAL,
            trust=Run.Trust.CREATOR,
            actor=request.user,
            input=form.cleaned_data["input"],
        )
    except triggers.TriggerError as error:
        form.add_error(None, str(error))
        return None


@require_POST
def job_enabled(request: Request, pk: UUID) -> HttpResponse:
    """Pause or resume the schedule; saved at once."""
    job = get_job(pk)
    form = EnabledForm(request.POST)
    form.is_valid()
    enabled = form.cleaned_data["enabled"]
    try:
        services.set_enabled(job, actor=request.user, enabled=enabled)
    except services.JobGone as error:
        toast(request, str(error), "error")
        return hx_redirect(request, reverse("jobs:list"))
    job.refresh_from_db()
    if not request.htmx:
        return redirect(_back(request, job))
    words = f"{job.name}: {'enabled' if job.enabled else 'paused'}"
    context = {"job": job, "is_update": True}
    response = render_page(request, "jobs/_switch.html", context)
    response["HX-Trigger"] = _announce(words)
    return response


def _announce(words: str) -> str:
    # ASCII only: a header carries no other characters.
    return json.dumps({"announce": words})


def _back(request: Request, job: Job) -> str:
    return reverse("jobs:list") if request.POST.get("from") == "list" else job_url(job)


def job_url(job: Job) -> str:
    return reverse("jobs:detail", args=[job.pk])


@require_http_methods(["GET", "POST"])
def job_delete(request: Request, pk: UUID) -> HttpResponse:
    job = get_job(pk)
    error = ""
    if request.method == "POST":
        try:
            services.delete_job(job, actor=request.user)
        except services.JobBusy as busy:
            error = str(busy)
        else:
            toast(request, f"{job.name} was deleted.")
            return hx_redirect(request, reverse("jobs:list"))
    context = {"job": job, "error": error, "runs": job.runs.count()}
    return render_form(request, "jobs/delete.html", context, refused=bool(error))
