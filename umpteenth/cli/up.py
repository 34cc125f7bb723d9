"""`umpteenth up`: the whole site on this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from pathlib import Path

import click

from umpteenth.cli.bootstrap import setup
from umpteenth.core.config import ConfigError, Options, load_options
from umpteenth.core.keyfiles import make_data_dir
from umpteenth.core.process import end_with_parent

LOCK_FILE = "umpteenth.lock"
BIND_VARIABLE = "UMPTEENTH_APP__BIND"
BACKLOG = 512


@click.command("up")
@click.option("--port", type=click.IntRange(0, 65535), help="Instead of the port of app.bind.")
@click.option("--parent", type=int, hidden=True)
def command(port: int | None, parent: int | None) -> None:
    """Migrate, start web, worker and beat, print the address; Ctrl-C ends them all.

    At first it also prints the link that makes the first administrator.
    """
    end_with_parent(parent)
    options = load_options()
    make_data_dir(options.data_dir)
    lock = lock_data_dir(options.data_dir)
    listening = _listen(options, port)
    options = setup(service=True)
    os.write(lock, f"{options.app_url}\n".encode())
    _greet(options)
    # From here on a small program watches over the children, without Django in its memory.
    for descriptor in (lock, listening.fileno()):
        os.set_inheritable(descriptor, True)
    arguments = [f"--lock-fd={lock}", f"--listen-fd={listening.fileno()}"]
    # Whoever reads the lines above from a pipe has them all now; the rest is the log.
    sys.stdout.flush()
    os.dup2(2, 1)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "umpteenth.supervisor", *arguments])


def lock_data_dir(data_dir: Path) -> int:
    """Hold the data directory for this process alone; the descriptor keeps it so.

    Raises `ConfigError` where another `umpteenth up` holds it.
    """
    descriptor = os.open(data_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        holder = (_lock_lines(data_dir) or ["unknown"])[0]
        raise ConfigError(
            f"Umpteenth already runs on the data directory {data_dir} (process {holder})."
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


def running_address(data_dir: Path) -> str:
    """Where the site that runs on this data directory is; empty where none does.

    Nobody else knows which port it was given on its command line.
    """
    try:
        holder, address = _lock_lines(data_dir)
        os.kill(int(holder), 0)
    except (OSError, ValueError):
        return ""
    return address


def _lock_lines(data_dir: Path) -> list[str]:
    """Who holds the data directory and, once it listens, where its site is."""
    return (data_dir / LOCK_FILE).read_text("utf-8", "replace").splitlines()


def _listen(options: Options, port: int | None) -> socket.socket:
    """Open the web address before anything starts; what follows sees it as app.bind."""
    host, _, configured = options.app.bind.rpartition(":")
    host = host.strip("[]")
    wanted = int(configured) if port is None else port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, wanted))
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(_why_not(error, host, wanted)) from None
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    os.environ.pop(f"{BIND_VARIABLE}_FILE", None)
    os.environ[BIND_VARIABLE] = f"{shown}:{listening.getsockname()[1]}"
    return listening


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use by another program; choose another with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose one above 1023."
    return f"app.bind: {host}:{port} cannot be opened: {error.strerror or error}."


def _greet(options: Options) -> None:
    from umpteenth.accounts.services import ensure_claim_link

    click.echo(f"Umpteenth is at {options.app_url}")
    token = ensure_claim_link()
    if token is not None:
        click.echo("Make yourself the first administrator, within 24 hours:")
        click.echo(f"  {options.app_url}/claim/{token}")
