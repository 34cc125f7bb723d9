"""`umpteenth demo`: two example servers, a secret and a job, run to its end on a real site."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.cli.following import follow
from umpteenth.cli.output import fail
from umpteenth.core.config import (
    CONFIG_VARIABLE,
    DATA_DIR_VARIABLE,
    PREFIX,
    PROJECT_ROOT,
    ConfigError,
    default_data_dir,
    running_in_checkout,
)
from umpteenth.core.keyfiles import make_data_dir
from umpteenth.supervisor import STOP_TIMEOUT, umpteenth_command

if TYPE_CHECKING:
    from jobs.models import Job, Run
    from jobs.services import JobData
    from servers.definition import ServerData

MARKER = ".umpteenth-demo"
EXAMPLES = PROJECT_ROOT / "docs" / "examples"
USUAL_PORT = 8080
START_LIMIT = 30.0  # seconds until the site or a server answers
PATIENCE = 60.0  # seconds that the site's worker has to take the run
POLL = 0.1  # seconds between looks whether the example server answers
SECRET = "DEMO_WEATHER_TOKEN"


@click.command("demo")
@click.option("--once", is_flag=True, help="End after the run, also on a terminal.")
def command(once: bool) -> int:
    """Run a ready example in a directory of its own; exit 0 only if the run succeeded.

    On a terminal the site then stays up until Ctrl-C.
    """
    stays = not once and sys.stdout.isatty()
    _use_demo_directory()
    with _site(_port(stays)) as (site, greeting), _weather_server() as (address, token):
        click.echo(greeting[0])
        run = follow(_start_run(address, token).pk, patience=PATIENCE)
        _show_outcome(run)
        if stays:
            click.echo("\n".join(["", *greeting, "Ctrl-C ends the demo."]))
            with contextlib.suppress(KeyboardInterrupt):
                site.wait()
    return 0 if run.status == run.Status.SUCCEEDED else 1


def demo_directory() -> Path:
    """Beside the data directory: `demo-data` in a checkout."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    if not named and running_in_checkout():
        return PROJECT_ROOT / "demo-data"
    return Path(named or default_data_dir(os.environ)).absolute().parent / "demo-data"


def _use_demo_directory() -> None:
    """Make it, and let nothing of a real site's configuration in.

    Raises `ConfigError` for a directory that no demo made.
    """
    path = demo_directory()
    marker = path / MARKER
    if path.exists() and not marker.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} was not made by `umpteenth demo`; move it out of the way.")
    make_data_dir(path)
    marker.touch()
    empty = path / "config.yml"
    empty.touch()
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    os.environ[DATA_DIR_VARIABLE] = str(path)
    os.environ[CONFIG_VARIABLE] = str(empty)
    # The timeline is what there is to see.
    os.environ[f"{PREFIX}APP__LOG_LEVEL"] = "WARNING"


def _port(stays: bool) -> int:
    """The usual port if somebody may look and it is free, else any (0)."""
    if not stays:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


@contextlib.contextmanager
def _site(port: int) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """`umpteenth up` as a child, and the lines it greets with; it ends with the block."""
    arguments = ["up", f"--port={port}", f"--parent={os.getpid()}"]
    process = subprocess.Popen(
        umpteenth_command(*arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        greeting = process.stdout.read().splitlines()  # then it goes on on standard error
        if not greeting:
            sys.exit(process.wait() or 1)  # it has said why there
        yield process, greeting
    finally:
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _weather_server() -> Iterator[tuple[str, str]]:
    """The example server over HTTP: its address, and the token that it wants."""
    token = secrets.token_urlsafe(16)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = str(EXAMPLES / "weather_http.py")
    linked = [sys.executable, "-P", "-m", "umpteenth.core.process", str(os.getpid())]
    process = subprocess.Popen(
        [*linked, sys.executable, script, f"--port={port}"],
        env={"PATH": os.environ.get("PATH", ""), "WEATHER_TOKEN": token},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        _wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}/mcp", token
    finally:
        _end(process)


def _wait_for_port(port: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                fail("The example server docs/examples/weather_http.py did not start.")
            time.sleep(POLL)


def _start_run(address: str, token: str) -> Run:
    """Register everything that the example needs, then Run now."""
    setup()
    from jobs.models import Job, Run
    from jobs.services import AttachmentData, JobData, SecretData
    from jobs.triggers import start_run
    from secrets_vault.services import set_secret
    from servers.definition import HTTP, STDIO, Entry, ServerData

    set_secret(actor=None, name=SECRET, value=token, description="Made by the demo.")
    bearer = Entry("Authorization", f"Bearer {{{{secret:{SECRET}}}}}")
    _put_server(
        ServerData("weather", HTTP, "Made-up weather.", url=address, headers=(bearer,)),
    )
    notes = (str(EXAMPLES / "notes_stdio.py"),)
    author = Entry("NOTES_AUTHOR", "demo")
    _put_server(
        ServerData(
            "notes", STDIO, "Short notes.", command=sys.executable, args=notes, env=(author,)
        )
    )
    job = _put_job(
        JobData(
            name="morning note",
            description="Asks for the weather and keeps a note of it.",
            script=(EXAMPLES / "morning_note.py").read_text(encoding="utf-8"),
            network=Job.Network.NONE,
            timeout=120,
            attachments=(AttachmentData("notes"), AttachmentData("weather", ("forecast",))),
            secrets=(SecretData("WEATHER_TOKEN", SECRET),),
        )
    )
    return start_run(job=job, trigger=Run.Trigger.COMMAND, trust=Run.Trust.CREATOR)


def _put_server(data: ServerData) -> None:
    """Register it, or set it again where an earlier demo left it; and have it tested."""
    from servers.checks import request_check
    from servers.models import Server
    from servers.services import create_server, update_server

    server = Server.objects.filter(name=data.name).first()
    if server is None:
        server = create_server(actor=None, data=data)
    else:
        server = update_server(server, actor=None, data=data, version=server.version)
    request_check(server, actor=None)
    click.echo(f"Registered the server {data.name} ({data.transport})")


def _put_job(data: JobData) -> Job:
    from jobs.models import Job
    from jobs.services import create_job, update_job

    job = Job.objects.filter(name=data.name).first()
    if job is None:
        return create_job(actor=None, data=data)
    return update_job(job, actor=None, data=data, version=job.version)


def _show_outcome(run: Run) -> None:
    assert run.finished_at is not None
    took = (run.finished_at - run.queued_at).total_seconds()
    click.echo(f"{run.get_status_display()} after {took:.1f} s. {run.error or run.summary}")
    for name, value in run.outputs.items():
        click.echo(f"Output {name}: {json.dumps(value, ensure_ascii=False)}")
