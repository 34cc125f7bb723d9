"""Whom of this machine's users a sandbox's user stands for, where that is somebody."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Iterator

from jobs.sandbox.base import USER_IDS

_NAMES = {"agent": "scripts", "mcp": "stdio servers"}


def gaps(*, privileged: bool) -> tuple[str, ...]:
    """A sentence with the remedy for each way in which it has, or gives, more than it should."""
    return tuple(_accounts() if privileged else _groups())


def _accounts() -> Iterator[str]:
    """Root gives sandboxes users by number, whether or not somebody here has that number."""
    for party, number in USER_IDS.items():
        try:
            name = pwd.getpwuid(number).pw_name
        except KeyError:
            continue
        yield (
            f"On this machine the user of {_NAMES[party]} ({number}) is the account {name}, which "
            "can read what they are given, secrets too: start the worker as a plain user of its "
            f"own, or where no account has the number {number} (docs/operations.md)."
        )


def _groups() -> Iterator[str]:
    """A plain user cannot put down the groups that he is in."""
    names = [_group(number) for number in sorted({*os.getgroups()} - {os.getegid()})]
    if names:
        yield (
            f"Programs in sandboxes read what the worker's groups may read ({', '.join(names)}): "
            "start the worker as a user who is in no other group (docs/operations.md)."
        )


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
