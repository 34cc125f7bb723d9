"""`umpteenth env`: build, list, show, remove."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from jobs.models import Environment, EnvironmentBuild

PATIENCE = 3.0  # seconds that a worker of this machine has to begin
POLL = 0.3  # seconds
STOP_LIMIT = 10.0  # seconds that a build of ours has to end after Ctrl-C


@click.group()
def command() -> None:
    """Environments of jobs: build, list, show, remove."""


@command.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--wait", is_flag=True, help="Build it on this machine and wait for the end.")
@json_option
def build(file: str, wait: bool, as_json: bool) -> None:
    """Make or change an environment by a YAML file (- reads standard input) and build it.

    With --wait exit 0 only if it is there in the end.
    """
    bootstrap.setup()
    from jobs.environments import builds, services
    from jobs.environments.definition import MAX_BYTES

    try:
        environment = services.save_environment(actor=None, text=read_file(file, MAX_BYTES))
    except (services.InvalidEnvironment, services.OutdatedEdit) as error:
        fail(str(error))
    asked = services.request_builds(environment, again=True)
    done = None
    if wait:
        done = _build_here(environment, asked.get(builds.store().machine()), quiet=as_json)
    if as_json:
        emit_json(services.environment_shape(environment))
    elif done is None:
        click.echo(f"Environment {environment.name} stored.")
        _say_who_builds(environment.name, len(asked))
    elif done.status == done.Status.READY:
        click.echo(f"Environment {environment.name} is ready.")
    if done is not None and done.status != done.Status.READY:
        if not as_json:
            click.echo(done.error, err=True)
        sys.exit(1)


def _say_who_builds(name: str, asked: int) -> None:
    if asked:
        who = "1 machine builds" if asked == 1 else f"{asked} machines build"
        click.echo(f"{who} it now. See: umpteenth env show {name}", err=True)
    else:
        click.echo("No worker is running: the first run builds it; --wait does it now.", err=True)


def _build_here(
    environment: Environment, asked: EnvironmentBuild | None, *, quiet: bool
) -> EnvironmentBuild:
    """Follow a worker of this machine that was asked, or build in this process if none begins."""
    from jobs.environments import builds
    from jobs.models import EnvironmentBuild

    row = asked or builds.request_here(environment.definition, environment.digest)
    begin_at = time.monotonic() + (PATIENCE if asked else 0)
    shown = 0
    try:
        while row.status in EnvironmentBuild.UNFINISHED:
            if time.monotonic() >= begin_at:
                builds.begin(row)
            time.sleep(POLL)
            row.refresh_from_db()
            shown = shown if quiet else _show(row.log, shown)
    except KeyboardInterrupt:
        builds.stop_all()
        builds.wait_until_idle(STOP_LIMIT)
        raise
    return row


def _show(log: str, shown: int) -> int:
    """Print the lines that are new; a log that lost its middle is only followed at its end."""
    lines = log.splitlines()
    for line in lines[shown:]:
        click.echo(line)
    return max(shown, len(lines))


@command.command("list")
@json_option
def list_environments(as_json: bool) -> None:
    """List all environments."""
    bootstrap.setup()
    from jobs.environments import services
    from jobs.models import Environment

    shapes = services.environment_shapes(list(Environment.objects.all()))
    if as_json:
        emit_json(shapes)
        return
    rows = [
        (
            shape["name"],
            ", ".join(f"{found['machine']}: {found['status']}" for found in shape["builds"]) or "-",
            len(shape["jobs"]),
        )
        for shape in shapes
    ]
    table(rows, ("NAME", "BUILT", "JOBS"))


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show one environment, with the log of its last build on this machine."""
    bootstrap.setup()
    from jobs.environments import builds, services
    from jobs.models import EnvironmentBuild

    environment = _find(name)
    if as_json:
        emit_json(services.environment_shape(environment))
        return
    emit_yaml(services.environment_shape(environment))
    here = EnvironmentBuild.objects.filter(
        digest=environment.digest, machine=builds.store().machine()
    ).first()
    if here is not None and here.log:
        click.echo(f"\n{here.log}")


@command.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(name: str, yes: bool, as_json: bool) -> None:
    """Delete an environment that no job uses; asks on a terminal."""
    bootstrap.setup()
    from jobs.environments import builds, services

    environment = _find(name)
    if not yes and not as_json and is_terminal():
        click.confirm(f"Delete the environment {name}?", abort=True)
    try:
        services.delete_environment(environment, actor=None)
    except services.EnvironmentInUse as error:
        fail(str(error))
    builds.tidy()
    if as_json:
        emit_json({"removed": name})
    else:
        click.echo(f"Environment {name} removed.")


def _find(name: str) -> Environment:
    from jobs.models import Environment

    found = Environment.objects.filter(name=name).first()
    if found is None:
        fail(f"There is no environment named {name}. See: umpteenth env list")
    return found
