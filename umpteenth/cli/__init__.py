"""The command line. A command's module is imported only when that command is used."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import sys
from typing import Any

import click

from umpteenth import __version__
from umpteenth.cli.output import fail

# Name: (module, what `umpteenth --help` says, hidden). The module defines `command`.
COMMANDS: dict[str, tuple[str, str, bool]] = {
    "up": ("up", "Start web, worker and beat on this machine.", False),
    "demo": ("demo", "Run a ready example in a directory of its own.", False),
    "doctor": ("doctor", "Say what is missing or wrong on this machine.", False),
    "user": ("people", "People who sign in.", False),
    "token": ("tokens", "API tokens: keys to the REST API.", False),
    "secret": ("secrets", "Secrets and the keys that encrypt them.", False),
    "mcp": ("mcp", "MCP servers: add, test, call.", False),
    "job": ("jobs", "Jobs: create, run, list.", False),
    "run": ("runs", "Runs: show, follow, cancel, retry.", False),
    "env": ("environments", "Environments of jobs: build, list, show, remove.", False),
    "web": ("processes:web", "One web process (for containers).", True),
    "worker": ("processes:worker", "One worker process (for containers).", True),
    "beat": ("processes:beat", "One beat process (for containers).", True),
    "migrate": ("processes:migrate", "Bring the database up to date.", True),
}
# What people type for a command whose name looks different.
OTHER_WORDS = {
    "server": "mcp",
    "tool": "mcp",
    "people": "user",
    "person": "user",
    "api": "token",
    "start": "up",
    "serve": "up",
    "check": "doctor",
    "environment": "env",
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports the one that is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module_name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        module = importlib.import_module(f"umpteenth.cli.{module_name}")
        command = getattr(module, attribute or "command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        near = suggestion(name)
        hint = f" Did you mean {near}?" if near else ""
        raise click.UsageError(f"No such command '{name}'.{hint}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, wanted in (("Commands", False), ("Single processes", True)):
            rows = [
                (name, text) for name, (_, text, single) in COMMANDS.items() if single is wanted
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def suggestion(word: str) -> str:
    """The command that was probably meant; empty if none comes near."""
    word = word.lower()
    for singular in (word, word.removesuffix("s")):
        if singular in COMMANDS:
            return singular
        if singular in OTHER_WORDS:
            return OTHER_WORDS[singular]
    shown = [name for name, (_, _, hidden) in COMMANDS.items() if not hidden]
    return next(iter(difflib.get_close_matches(word, shown, n=1, cutoff=0.6)), "")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="umpteenth")
def cli() -> None:
    """Register MCP servers once, attach them to jobs, read every call on a timeline."""


def main(arguments: list[str] | None = None) -> None:
    """Exit status 0: done, 1: failed (one sentence on standard error), 2: wrong usage."""
    # Whatever is created (database, files, sockets) is for its owner alone.
    os.umask(0o077)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        result = cli.main(args=arguments, prog_name="umpteenth", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has gone; nothing is left to say or to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        logging.getLogger(__name__).debug("The command failed", exc_info=True)
        fail(_sentence(error))
    sys.exit(result if isinstance(result, int) else 0)


def _sentence(error: Exception) -> str:
    from umpteenth.core.config import ConfigError

    text = " ".join(str(error).split())
    if isinstance(error, ConfigError):
        return text
    if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
        # What the shell handed over was no UTF-8; no name or value here can be that.
        return "An argument is not text in UTF-8."
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename} cannot be used: {error.strerror}."
    return _database_sentence(error, text) or f"Unexpected {type(error).__name__}: {text}"


def _database_sentence(error: Exception, text: str) -> str:
    django_errors: Any = sys.modules.get("django.db.utils")
    if django_errors is not None and isinstance(error, django_errors.OperationalError):
        return f"The database cannot be used: {text}"
    return ""
