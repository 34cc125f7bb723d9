"""`umpteenth run`: list, show, follow, cancel, retry.

RUN is an id, the beginning of one, or a job's name with a number: `"nightly report#3"`.
"""

from __future__ import annotations

import re
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
MIN_PREFIX = 8  # characters of an id
MAX_DIGITS = 9  # of a run's number; the column holds no longer one
RUN = click.argument("words", metavar="RUN")


@click.group()
def command() -> None:
    """Runs: show, follow, cancel, retry.

    RUN is an id, its first 8 characters or more, or "job name#3".
    """


@command.command("list")
@click.option("--job", "job_name", metavar="NAME", help="Only runs of this job.")
@click.option("--limit", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True)
@json_option
def list_runs(job_name: str | None, limit: int, as_json: bool) -> None:
    """List the newest runs."""
    bootstrap.setup()
    from jobs.models import Run
    from jobs.shapes import moment, run_shape

    runs = Run.objects.select_related("job").defer("side_effects")
    runs = runs.order_by("-queued_at", "-id")
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
@RUN
@json_option
def show(words: str, as_json: bool) -> None:
    """Show one run."""
    bootstrap.setup()
    from jobs.shapes import run_details

    run = find_run(words)
    details = run_details(run)
    if as_json:
        emit_json(details)
        return
    for key, value in details.items():
        if key != "side_effects" and value not in (None, "", {}, 0):
            click.echo(f"{key}: {value}")
    for call in details["side_effects"]:
        click.echo("side effect: {server} {tool} {arguments} {outcome}".format_map(call))


@command.command()
@RUN
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def events(words: str, as_json: bool) -> None:
    """Print a run's timeline."""
    bootstrap.setup()
    from jobs.models import RunEvent
    from jobs.shapes import event_shape
    from umpteenth.cli.following import print_event

    run = find_run(words)
    for event in RunEvent.objects.filter(run=run).order_by("seq").iterator(chunk_size=500):
        if as_json:
            emit_json(event_shape(event), compact=True)
        else:
            print_event(event, run.queued_at)


@command.command()
@RUN
def cancel(words: str) -> None:
    """End a run that has not finished."""
    bootstrap.setup()
    from jobs import lifecycle

    run = find_run(words)
    try:
        lifecycle.request_cancel(run.pk)
    except lifecycle.AlreadyFinished:
        fail(f"Run {run} has ended already ({run.status}).")
    run.refresh_from_db()
    ended = "is cancelled" if run.is_finished else "is being cancelled"
    click.echo(f"Run {run} {ended}.")


@command.command()
@RUN
@click.option("--wait", is_flag=True, help="Wait for the end; exit 0 only if it succeeded.")
@json_option
def retry(words: str, wait: bool, as_json: bool) -> None:
    """Run again with the same input."""
    bootstrap.setup()
    from jobs import triggers

    start = partial(triggers.retry_run, find_run(words), actor=None)
    start_and_report(start, wait=wait, as_json=as_json)


def find_run(words: str) -> Run:
    """The run of that id, of that beginning of an id, or `job name#3`; else the command ends."""
    name, hash_sign, number = words.rpartition("#")
    found = _by_number(name.strip(), number) if hash_sign else _by_id(words.strip())
    if len(found) > 1:
        fail(f"Several runs have an id that begins with {words}; write more of it.")
    if not found:
        fail(f"There is no run {words[:80]}. See: umpteenth run list")
    return found[0]


def _by_number(job_name: str, number: str) -> list[Run]:
    from jobs.models import Run

    job = find_job(job_name)
    if not (number.isascii() and number.isdigit()) or len(number) > MAX_DIGITS:
        return []
    return list(Run.objects.select_related("job").filter(job=job, number=int(number)))


def _by_id(text: str) -> list[Run]:
    """The runs, two at most, whose id begins so."""
    from jobs.models import Run

    digits = text.replace("-", "").lower()
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        return []
    if len(digits) < MIN_PREFIX:
        fail(f"The id {text} is too short; write {MIN_PREFIX} or more characters of it.")
    # A range, because databases store ids differently.
    between = UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
    return list(Run.objects.select_related("job").filter(pk__range=between)[:2])
