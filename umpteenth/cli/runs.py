"""`umpteenth run`: list, show, follow, cancel, retry."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import click

from umpteenth.cli import bootstrap
from umpteenth.cli.jobs import find_job, start_and_report
from umpteenth.cli.output import emit_json, fail, json_option, table

if TYPE_CHECKING:
    from jobs.models import Run

MAX_LISTED = 1000


@click.group()
def command() -> None:
    """Runs: show, follow, cancel, retry."""


@command.command("list")
@click.option("--job", "job_name", metavar="NAME", help="Only runs of this job.")
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True)
@json_option
def list_runs(job_name: str | None, limit: int, as_json: bool) -> None:
    """List the newest runs."""
    bootstrap.setup()
    from jobs.models import Run
    from jobs.shapes import moment, run_shape

    runs = Run.objects.select_related("job").order_by("-queued_at", "-id")
    if job_name is not None:
        runs = runs.filter(job=find_job(job_name))
    if as_json:
        emit_json([run_shape(run) for run in runs[:limit]])
        return
    rows = [
        (run.pk, f"{run.job.name} #{run.number}", run.status, moment(run.queued_at), run.error)
        for run in runs[:limit]
    ]
    table(rows, ("ID", "RUN", "STATUS", "QUEUED", "ERROR"))


@command.command()
@click.argument("run_id", metavar="ID")
@json_option
def show(run_id: str, as_json: bool) -> None:
    """Show one run."""
    bootstrap.setup()
    from jobs.shapes import run_shape

    run = find_run(run_id)
    if as_json:
        emit_json(run_shape(run))
        return
    for key, value in run_shape(run).items():
        if value not in (None, "", {}):
            click.echo(f"{key}: {value}")


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def events(run_id: str, as_json: bool) -> None:
    """Print a run's timeline."""
    bootstrap.setup()
    from jobs.models import RunEvent
    from jobs.shapes import event_shape
    from umpteenth.cli.following import print_event

    run = find_run(run_id)
    for event in RunEvent.objects.filter(run=run).order_by("seq").iterator(chunk_size=500):
        if as_json:
            emit_json(event_shape(event), compact=True)
        else:
            print_event(event, run.queued_at)


@command.command()
@click.argument("run_id", metavar="ID")
def cancel(run_id: str) -> None:
    """End a run that has not finished."""
    bootstrap.setup()
    from jobs import lifecycle

    run = find_run(run_id)
    try:
        lifecycle.request_cancel(run.pk)
    except lifecycle.AlreadyFinished:
        fail(f"Run {run} has ended already ({run.status}).")
    run.refresh_from_db()
    ended = "is cancelled" if run.is_finished else "is being cancelled"
    click.echo(f"Run {run} {ended}.")


@command.command()
@click.argument("run_id", metavar="ID")
@click.option("--wait", is_flag=True, help="Wait for the end; exit 0 only if it succeeded.")
@json_option
def retry(run_id: str, wait: bool, as_json: bool) -> None:
    """Run again with the same input."""
    bootstrap.setup()
    from jobs import triggers

    start = partial(triggers.retry_run, find_run(run_id), actor=None)
    start_and_report(start, wait=wait, as_json=as_json)


def find_run(run_id: str) -> Run:
    """The run with that id; without one the command ends."""
    from jobs.models import Run

    try:
        run = Run.objects.select_related("job").filter(pk=UUID(run_id)).first()
    except ValueError:
        run = None
    if run is None:
        fail(f"There is no run {run_id[:80]}. See: umpteenth run list")
    return run
