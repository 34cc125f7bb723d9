"""`umpteenth job`: create, list, show, remove, run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from umpteenth.cli import bootstrap
from umpteenth.cli.output import (
    emit_json,
    emit_yaml,
    fail,
    is_terminal,
    json_option,
    read_file,
    table,
)
from umpteenth.core.text import read_json

if TYPE_CHECKING:
    from jobs.models import Job, Run


@click.group()
def command() -> None:
    """Jobs: create, run, list."""


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--replace", is_flag=True, help="Change the job of that name, if there is one.")
@json_option
def create(file: str, replace: bool, as_json: bool) -> None:
    """Make a job from a YAML file (- reads standard input)."""
    bootstrap.setup()
    from jobs import services
    from jobs.definition import tidy
    from jobs.jobfile import MAX_BYTES, JobFileError, parse_job_file
    from jobs.models import Job

    try:
        data = parse_job_file(read_file(file, MAX_BYTES))
        current = Job.objects.filter(name=tidy(data).name).first()
        if current is not None and not replace:
            fail(f"name: A job named {current.name} exists already; --replace changes it.")
        if current is None:
            job, done = services.create_job(actor=None, data=data), "created"
        else:
            job = services.update_job(current, actor=None, data=data, version=current.version)
            done = "changed"
    except (JobFileError, services.InvalidJob, services.OutdatedEdit, services.JobGone) as error:
        fail(_field_sentence(error))
    if as_json:
        _emit_job(job)
    else:
        click.echo(f"Job {job.name} {done}.")
    for server, tool in services.unlisted_tools(job):
        click.echo(
            f"servers: The last test of {server} listed no tool {tool}; see: "
            f"umpteenth mcp show {server}",
            err=True,
        )


@command.command("list")
@json_option
def list_jobs(as_json: bool) -> None:
    """List all jobs."""
    bootstrap.setup()
    from jobs.models import Job
    from jobs.shapes import job_shape, moment

    jobs = Job.objects.prefetch_related("attachments__server", "secrets__secret", "environment")
    if as_json:
        emit_json([job_shape(job) for job in jobs])
        return
    rows = [
        (job.name, job.cron or "-", moment(job.next_run_at), "on" if job.enabled else "paused")
        for job in jobs
    ]
    table(rows, ("NAME", "SCHEDULE", "NEXT RUN", "STATE"))


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one job."""
    bootstrap.setup()
    job = find_job(name)
    if as_json:
        _emit_job(job)
        return
    from jobs.shapes import job_shape

    emit_yaml(job_shape(job))


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove(name: str, yes: bool) -> None:
    """Delete a job with its runs; asks on a terminal."""
    bootstrap.setup()
    from jobs import services

    job = find_job(name)
    if not yes and is_terminal():
        click.confirm(f"Delete {name} with its runs, artifacts and state?", abort=True)
    try:
        services.delete_job(job, actor=None)
    except services.JobBusy as error:
        fail(str(error))
    click.echo(f"Job {job.name} removed.")


@command.command()
@click.argument("name")
@click.option("--input", "input_text", metavar="JSON", help="The run's input (- reads it).")
@click.option("--wait", is_flag=True, help="Wait for the end; exit 0 only if it succeeded.")
@json_option
@click.option("--disable-mcp", is_flag=True, help="Run without MCP servers.")
def run(name: str, input_text: str | None, wait: bool, as_json: bool, disable_mcp: bool) -> None:
    """Run a job now."""
    bootstrap.setup()
    from jobs import triggers
    from jobs.models import Run

    start = partial(
        triggers.start_run,
        job=find_job(name),
        trigger=Run.Trigger.COMMAND,
        trust=Run.Trust.CREATOR,
        input=_parse_input(input_text),
        disable_mcp=disable_mcp,
    )
    start_and_report(start, wait=wait, as_json=as_json)


def find_job(name: str) -> Job:
    """The job of that name; without one the command ends."""
    from jobs.models import Job

    job = Job.objects.filter(name=name).first()
    if job is None:
        fail(f"There is no job named {name}. See: umpteenth job list")
    return job


def start_and_report(start: Callable[[], Run], *, wait: bool, as_json: bool) -> None:
    """Start a run, follow it if asked to, and say how it stands.

    After `wait` the command ends with 1 unless the run succeeded.
    """
    from jobs import lifecycle, presence, triggers
    from umpteenth.cli.following import follow
    from umpteenth.core.clock import database_now

    # Without a running server nobody else ends what an earlier command left behind.
    lifecycle.reap(database_now())
    try:
        run = start()
    except triggers.TriggerError as error:
        fail(str(error))
    if wait:
        run = follow(run.pk, quiet=as_json)
    _report(run, as_json=as_json)
    if not run.is_finished and presence.no_worker_since(database_now()):
        click.echo("It waits for `umpteenth up` or a worker; --wait runs it here.", err=True)
    if wait and run.status != run.Status.SUCCEEDED:
        sys.exit(1)


def _report(run: Run, *, as_json: bool) -> None:
    """A run in one line, or whole as JSON."""
    from jobs.shapes import run_shape

    if as_json:
        emit_json(run_shape(run))
        return
    reason = f": {run.error}" if run.error else ""
    click.echo(f"{run.job.name} #{run.number} {run.get_status_display().lower()}{reason}")
    click.echo(str(run.pk))


def _emit_job(job: Job) -> None:
    from jobs.shapes import job_shape

    emit_json(job_shape(job))


def _parse_input(text: str | None) -> Any:
    if text is None:
        return None
    if text == "-":
        text = sys.stdin.read()
    try:
        return read_json(text)
    except ValueError as error:
        fail(f"The input {error}.")


def _field_sentence(error: Exception) -> str:
    """`InvalidJob` knows its field; the sentence then begins with it."""
    errors: dict[str, str] = getattr(error, "errors", {})
    for field, sentence in errors.items():
        return f"{field}: {sentence}"
    return str(error)
