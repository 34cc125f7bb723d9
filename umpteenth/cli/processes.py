"""Single processes: children of `umpteenth up`, or one container each."""

from __future__ import annotations

import os
import signal
import socket
import sys
import warnings

import click

from umpteenth.cli.bootstrap import load_django, setup
from umpteenth.core.config import get_options
from umpteenth.core.process import end_with_parent

# Open event streams would hold the web process for ever (design, section 3).
GRACEFUL_SHUTDOWN = 2  # seconds


@click.command()
@click.option("--parent", type=int, hidden=True)
@click.option("--fd", type=int, hidden=True, help="A socket that listens already.")
def web(parent: int | None, fd: int | None) -> None:
    """Serve the pages at app.bind."""
    end_with_parent(parent)
    load_django(service=True)
    import uvicorn

    host, _, port = get_options().app.bind.rpartition(":")
    config = uvicorn.Config(
        "umpteenth.asgi:application",
        host=host.strip("[]"),
        port=int(port),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        log_level="warning",
        # Who the client is, is decided by core.middleware and app.trusted_proxies.
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN,
    )
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    uvicorn.Server(config).run(sockets=sockets)


@click.command()
@click.option("--parent", type=int, hidden=True)
def worker(parent: int | None) -> None:
    """Do checks and runs: runs.max_concurrent at once, and four threads more."""
    end_with_parent(parent)
    load_django(service=True)
    # Sandboxes drop root themselves, and messages are JSON, never pickle.
    warnings.filterwarnings("ignore", module=r"celery\.(platforms|apps\.worker)")
    # The stubs do not know it.
    from celery.apps.worker import install_worker_term_handler  # type: ignore[attr-defined]
    from celery.signals import worker_ready

    from umpteenth.celery import app

    # Not through Celery's command line: it loads a shell's worth of modules, 20 MB.
    process = app.Worker(
        hostname=f"{os.getpid()}@{socket.gethostname()}",
        queues=["runs", "checks"],
        loglevel="WARNING",
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    )

    # In place of the handler that would print "Warm shutdown" between the lines of the log.
    def stop_quietly(**_kwargs: object) -> None:
        install_worker_term_handler(process, verbose=False)

    worker_ready.connect(stop_quietly)
    # Each lost connection to Redis would print a page about a setting of Celery 6. Only now:
    # making the worker has put a filter of Celery's own before all others.
    warnings.filterwarnings("ignore", module="celery.worker.consumer")
    process.start()
    sys.exit(process.exitcode)


@click.command()
@click.option("--parent", type=int, hidden=True)
def beat(parent: int | None) -> None:
    """Fire schedules and mend what died; any number of them may run."""
    end_with_parent(parent)
    load_django(service=True)
    from umpteenth.celery import app

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    app.Beat(loglevel="WARNING", quiet=True).run()


@click.command()
def migrate() -> None:
    """Bring the database up to date and make the vault's first key."""
    setup(service=True)
    click.echo("The database is up to date.")
