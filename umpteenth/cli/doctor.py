"""`umpteenth doctor`: what is missing or wrong on this machine, with the remedy."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import click

from umpteenth.cli.bootstrap import has_missing_migrations, load_django
from umpteenth.cli.output import emit_json
from umpteenth.core.config import ConfigError, get_options

OK, WARNING, PROBLEM = "ok", "warning", "problem"
SIGNS = {OK: "✓", WARNING: "!", PROBLEM: "✗"}


@dataclass(frozen=True)
class Finding:
    """`state` is ok, warning (something will not work) or problem (runs will not work)."""

    name: str
    state: str
    text: str
    remedy: str = ""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> int:
    """Say what is missing or wrong on this machine; exit 1 if anything blocks runs."""
    findings = list(examine())
    blocked = any(finding.state == PROBLEM for finding in findings)
    if as_json:
        emit_json({"ok": not blocked, "findings": [asdict(finding) for finding in findings]})
    else:
        for finding in findings:
            _show(finding)
        click.echo("Something blocks runs." if blocked else "Nothing blocks runs.")
    return int(blocked)


def _show(finding: Finding) -> None:
    click.echo(f"{SIGNS[finding.state]} {finding.name}: {finding.text}")
    if finding.remedy:
        click.echo(f"    {finding.remedy}")


def examine() -> Iterator[Finding]:
    """Look at one thing after the other; what cannot be looked at is a finding itself."""
    yield from (_python(), *_bubblewrap())
    try:
        load_django()
    except ConfigError as error:
        yield Finding("configuration", PROBLEM, str(error))
        return
    yield Finding("data directory", OK, str(get_options().data_dir))
    yield from _advice()
    for name, look in LOOKS.items():
        try:
            yield look()
        # Whatever a broken part raises, the other parts are still looked at.
        except Exception as error:
            text = " ".join(str(error).split()) or type(error).__name__
            yield Finding(name, PROBLEM, text)
            if name == "database":
                return


def _python() -> Finding:
    return Finding("Python", OK, ".".join(str(part) for part in sys.version_info[:3]))


def _bubblewrap() -> Iterator[Finding]:
    if _uses_engine():
        return
    found = shutil.which("bwrap")
    if found:
        yield Finding("bubblewrap", OK, found)
    else:
        yield Finding("bubblewrap", PROBLEM, "not found", "apt-get install bubblewrap")


def _uses_engine() -> bool:
    try:
        return get_options().sandbox.adapter == "engine"
    except ConfigError:
        return False  # which is a finding of its own


def _advice() -> Iterator[Finding]:
    from django.core.checks import run_checks

    for message in run_checks():
        state = PROBLEM if message.is_serious() else WARNING
        yield Finding("configuration", state, str(message.msg), str(message.hint or ""))


def _database() -> Finding:
    from django.db import connection

    connection.ensure_connection()
    name = connection.display_name
    if not connection.introspection.table_names():
        return Finding("database", OK, f"{name}, made at the first `umpteenth up`")
    if has_missing_migrations():
        remedy = "`umpteenth up` and `umpteenth migrate` bring it up to date."
        return Finding("database", WARNING, f"{name}, not up to date", remedy)
    return Finding("database", OK, name)


def _redis() -> Finding:
    url = get_options().redis.url
    if url is None:
        return Finding("queue", OK, "in the data directory, for this machine alone")
    import redis

    client = redis.Redis.from_url(
        url.get_secret_value(), socket_connect_timeout=3, socket_timeout=3
    )
    try:
        client.ping()
    except redis.RedisError as error:
        return Finding("queue", PROBLEM, f"Redis does not answer: {error}", "Check redis.url.")
    finally:
        client.close()
    return Finding("queue", OK, "Redis")


def _key_ring() -> Finding:
    from secrets_vault.services import ensure_key_ring

    if has_missing_migrations():
        return Finding("keys", OK, "made at the first `umpteenth up`")
    try:
        ensure_key_ring()
    except ConfigError as error:
        return Finding("keys", PROBLEM, str(error))
    return Finding("keys", OK, "each key that the database names is there")


def _files() -> Finding:
    options = get_options()
    where = {
        "directory": str(options.data_dir / "files"),
        "database": "in the database",
        "s3": f"in the bucket {options.storage.s3.bucket}",
    }[options.storage.backend]
    is_new = not (options.data_dir / "files").exists()
    if options.storage.backend == "directory" and is_new:
        return Finding("files", OK, f"{where}, made with the first file")
    if options.storage.backend == "database" and has_missing_migrations():
        return Finding("files", OK, f"{where}, made at the first `umpteenth up`")
    from jobs.storage.trial import problem

    why = problem()
    if why:
        remedy = "Runs cannot keep their files. See storage in config.example.yml."
        return Finding("files", PROBLEM, f"{where}: {why}", remedy)
    return Finding("files", OK, f"{where}: written, read and deleted")


def _sandbox() -> Finding:
    from jobs.sandbox.base import problem

    why = problem()
    if why:
        return Finding("sandbox", PROBLEM, why)
    if _uses_engine():
        return Finding("sandbox", OK, f"starts from the image {get_options().sandbox.engine.image}")
    return Finding("sandbox", OK, "starts; its system calls are filtered")


def _environment() -> Finding:
    """P20. Asked inside of a sandbox: what the shell finds that starts this says nothing."""
    from jobs.sandbox import programs

    found = asyncio.run(programs.default_environment())
    name = "default environment"
    if not found:
        return Finding(name, WARNING, "not looked at, since no sandbox starts")
    has = ", ".join(f"{shown} {version}" for shown, version in found if version)
    missing = [shown for shown, version in found if not version]
    text = f"has {has or 'nothing'}" + (f"; lacks {', '.join(missing)}" if missing else "")
    if not {"Node", "npm", "uv"} & set(missing):
        return Finding(name, OK, text)
    remedy = "Servers that start with npx need Node and npm, those with uvx need uv: "
    remedy += "put them into the image" if _uses_engine() else "apt-get install nodejs npm"
    return Finding(name, WARNING, text, f"{remedy}.")


def _limits() -> Finding:
    from jobs.sandbox.base import gaps, problem, root_problem

    if problem():
        return Finding("limits and walls", WARNING, "not looked at, since no sandbox starts")
    found = [gap for gap in gaps() if gap != root_problem()]
    if found:
        # A worker that is started in another way may be able to do more than this command.
        return Finding("limits and walls", WARNING, " ".join(found))
    return Finding(
        "limits and walls", OK, "memory, processes, processors and disk, for each sandbox"
    )


def _run_as_root() -> Finding:
    """P26."""
    from jobs.sandbox.base import problem, root_problem

    if problem():
        return Finding("run as root", WARNING, "not looked at, since no sandbox starts")
    if why := root_problem():
        return Finding("run as root", WARNING, why)
    return Finding("run as root", OK, "root inside, nobody outside, where a job asks for it")


def _worker() -> Finding:
    from jobs.presence import live_workers
    from umpteenth.core.clock import database_now

    if has_missing_migrations():
        return Finding("worker", WARNING, "none yet", "Start one with `umpteenth up`.")
    names = [worker.name for worker in live_workers(database_now())]
    if names:
        return Finding("worker", OK, ", ".join(names))
    return Finding("worker", WARNING, "none has reported lately", "Start one: `umpteenth up`.")


LOOKS: dict[str, Callable[[], Finding]] = {
    "database": _database,
    "queue": _redis,
    "keys": _key_ring,
    "files": _files,
    "sandbox": _sandbox,
    "default environment": _environment,
    "limits and walls": _limits,
    "run as root": _run_as_root,
    "worker": _worker,
}
