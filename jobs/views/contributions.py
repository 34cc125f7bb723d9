"""What the room of jobs adds to pages of others: dashboard, search, a banner."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.urls import reverse

from jobs import presence, queries, timeline
from jobs.models import Job, Run
from jobs.views import live
from umpteenth.accounts import context, dashboard, search
from umpteenth.accounts.models import User
from umpteenth.core import clock
from umpteenth.core.clock import database_now
from umpteenth.core.htmx import Request

JOB_HITS = 5
QUIET = timedelta(minutes=1)


def register() -> None:
    """Called once when the app is ready."""
    dashboard.register_panel(panel)
    # The first step, adding a server, is the servers' own.
    for step in (job_step, run_step):
        dashboard.register_step(step)
    search.register_source(job_hits)
    search.register_source(run_hits)
    context.register_banner(no_worker)
    timeline.register_listener(live.wake)


def panel(request: Request) -> dict[str, Any] | None:
    """Running now, recent failures and the counts of one day; nothing before the first run."""
    shown = queries.overview(clock.now())
    if not shown.counts and not shown.running and not shown.failures:
        return None
    for run in [*shown.running, *shown.failures]:
        run.elapsed_ms = queries.run_duration_ms(run)  # type: ignore[attr-defined]
    return {"template": "jobs/_dashboard.html", "wide": True, "overview": shown}


def job_step(request: Request) -> dict[str, Any]:
    return {
        "title": "Make a job",
        "text": "Write a script, attach the server and pick the tools that it may call.",
        "url": reverse("jobs:create"),
        "action": "New job",
        "done": Job.objects.exists(),
    }


def run_step(request: Request) -> dict[str, Any]:
    job = Job.objects.only("pk").order_by("-created_at").first()
    return {
        "title": "Run it",
        "text": "Start the job and watch every call on its timeline.",
        "url": reverse("jobs:detail", args=[job.pk]) if job else reverse("jobs:list"),
        "action": "Open the job" if job else "Go to jobs",
        "done": Run.objects.exists(),
    }


def job_hits(user: User, words: str) -> Iterable[search.Hit]:
    """Jobs by name, and what can be done with the first of them."""
    if search.matches(words, "New job"):
        yield search.Hit("Action", "New job", "Write a script and attach servers", _url("create"))
    if not words.strip() or "#" in words:
        return
    # `run nightly` finds the job nightly to run.
    verb, _, rest = words.strip().partition(" ")
    name = rest if verb.lower() == "run" and rest else words.strip()
    jobs = list(
        Job.objects.only("pk", "name", "description").filter(name__icontains=name)[:JOB_HITS]
    )
    for job in jobs:
        yield search.Hit("Job", job.name, job.description, _url("detail", job))
    for job in jobs[:2]:
        yield search.Hit("Action", f"Run {job.name} now", "", _url("run_now", job), dialog=True)


def run_hits(user: User, words: str) -> Iterable[search.Hit]:
    for run in queries.find_runs(words):
        url = reverse("runs:detail", args=[run.pk])
        yield search.Hit("Run", str(run), run.get_status_display(), url)


def _url(name: str, job: Job | None = None) -> str:
    return reverse(f"jobs:{name}", args=[job.pk] if job else [])


def no_worker(request: HttpRequest) -> str | None:
    """Said on every page while nobody would execute a run."""
    now = database_now()
    since = presence.no_worker_since(now)
    if since is None or timedelta() < now - since < QUIET:
        return None
    return (
        "No worker has been seen for a minute: runs and tests wait. "
        "Start one with umpteenth up, or read the log of the worker that should be there."
    )
