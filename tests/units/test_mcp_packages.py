"""Warm starts of servers that are fetched: the cache first, the registry where that is not enough,
and each failure under its own name (P6, P21, P23).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from servers.mcp import packages
from servers.mcp.client import connect
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from tests.fakes.mcp_helpers import stdio_settings
from tests.fakes.spawner import BareSpawner

UV_MISS = (
    "  cause: Because mcp-server-x was not found in the cache, it cannot be had.\n"
    "hint: Packages were unavailable because the network was disabled. When the network is "
    "disabled, registry packages may only be read from the cache.\n"
)
NPM_MISS = "npm error code ENOTCACHED\nnpm error request to https://registry.example/x failed\n"
NPM_STALE = "npm error code ETARGET\nnpm error notarget No matching version found for x@2.\n"
OWN_FAILURE = "Error: BRAVE_API_KEY environment variable is required\n"
NOW = 2_000_000_000.0


class Program:
    """A `uvx` or `npx` that fails with `words` where one of its arguments is among `fails_with`,
    and else is the server that its arguments name."""

    def __init__(self, folder: Path, name: str, words: str, *fails_with: str) -> None:
        self.path = folder / name
        self.starts = folder / "starts"
        self.words = folder / "words"
        self.words.write_text(words)
        pattern = "|".join(fails_with) or "nothing-of-this-name"
        self.path.write_text(
            "#!/bin/bash\n"
            f'echo "$1" >> {self.starts}\n'
            'for argument in "$@"; do case "$argument" in\n'
            f"  {pattern}) cat {self.words} >&2; exit 1;;\n"
            "esac; done\n"
            '[ "${1#--}" = "$1" ] || shift\n'
            'exec "$@"\n'
        )
        self.path.chmod(0o755)

    @property
    def started_with(self) -> list[str]:
        """The first argument of each start."""
        return self.starts.read_text().splitlines()

    def settings(self, **remembered: Any) -> ConnectionSettings:
        bare = stdio_settings()
        return replace(
            bare,
            command=str(self.path),
            args=(bare.command, *bare.args),
            remembered=remembered,
        )


async def remembered_after(settings: ConnectionSettings) -> Mapping[str, Any]:
    async with connect(settings, spawn=BareSpawner()) as connection:
        assert (await connection.list_tools()).tools
        return connection.remembered


async def failure_of(settings: ConnectionSettings) -> ServerUnavailable:
    with pytest.raises(ServerUnavailable) as caught:
        await remembered_after(settings)
    return caught.value


@pytest.fixture(params=["uvx", "npx"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def option(name: str) -> str:
    return {"uvx": "--offline", "npx": "--prefer-offline"}[name]


async def test_the_first_start_asks_the_registry_and_is_remembered(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    program = Program(tmp_path, name, "")
    assert (await remembered_after(program.settings()))[packages.ASKED_AT] == NOW
    assert option(name) not in program.started_with


async def test_the_next_one_takes_what_is_in_the_cache(tmp_path: Path, name: str) -> None:
    program = Program(tmp_path, name, "")
    asked_at = time.time() - 3600
    found = await remembered_after(program.settings(packages_at=asked_at))
    assert program.started_with == [option(name)]
    # Else nothing newer would ever be found.
    assert found[packages.ASKED_AT] == asked_at


@pytest.mark.parametrize("age", [-3600.0, packages.KEPT + 1, "yesterday", None])
async def test_after_a_day_or_with_an_odd_moment_the_registry_is_asked(
    tmp_path: Path, name: str, age: Any
) -> None:
    program = Program(tmp_path, name, "")
    asked_at = time.time() - age if isinstance(age, float) else age
    await remembered_after(program.settings(packages_at=asked_at))
    assert option(name) not in program.started_with


async def test_what_is_not_in_the_cache_is_fetched(tmp_path: Path) -> None:
    program = Program(tmp_path, "uvx", UV_MISS, "--offline")
    found = await remembered_after(program.settings(packages_at=time.time() - 3600))
    assert program.started_with[0] == "--offline"
    assert "--offline" not in program.started_with[1:]
    assert found[packages.ASKED_AT] > time.time() - 60


async def test_a_cache_that_is_too_old_is_passed_by(tmp_path: Path) -> None:
    program = Program(tmp_path, "npx", NPM_STALE, "--prefer-offline")
    await remembered_after(program.settings(packages_at=time.time() - 3600))
    assert program.started_with[0] == "--prefer-offline"
    assert "--prefer-offline" not in program.started_with[1:]


async def test_a_servers_own_failure_is_not_tried_again_for_its_packages(
    tmp_path: Path, name: str
) -> None:
    """P21: and its words are shown. Once more without the newest protocol, as ever (U19)."""
    program = Program(tmp_path, name, OWN_FAILURE, "*")
    error = await failure_of(program.settings(packages_at=time.time() - 3600))
    assert program.started_with == [option(name)] * 2
    assert "BRAVE_API_KEY environment variable is required" in error.message
    assert error.exit_code == 1


async def test_where_nothing_can_be_fetched_that_is_said_after_one_start(tmp_path: Path) -> None:
    """P23: a package manager that gives up is no server that dislikes a message."""
    program = Program(tmp_path, "uvx", UV_MISS, "*")
    error = await failure_of(program.settings())
    assert len(program.started_with) == 1
    assert "network was disabled" in error.stderr_tail


async def test_npm_that_was_told_to_stay_offline_is_started_once(tmp_path: Path) -> None:
    """P23: with No network, whether something was fetched before or not."""
    program = Program(tmp_path, "npx", NPM_MISS, "*")
    error = await failure_of(program.settings(packages_at=time.time() - 3600))
    assert program.started_with == ["--prefer-offline"]
    assert "ENOTCACHED" in error.stderr_tail


async def test_other_commands_are_started_as_they_are(tmp_path: Path) -> None:
    program = Program(tmp_path, "mcp-server-x", "")
    found = await remembered_after(program.settings(packages_at=time.time()))
    assert packages.ASKED_AT not in found
    assert not any(first.startswith("--") for first in program.started_with)
