"""What other commands learn of an `umpteenth up` on the same data directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.login_rows import oauth_server
from umpteenth.cli.mcp_oauth import login_words
from umpteenth.cli.up import LOCK_FILE, lock_data_dir, running_address
from umpteenth.core.config import ConfigError

ADDRESS = "http://127.0.0.1:8391"


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[int]:
    descriptor = lock_data_dir(tmp_path)
    yield descriptor
    os.close(descriptor)


def test_the_address_of_a_site_is_known_once_it_listens(tmp_path: Path, lock: int) -> None:
    assert running_address(tmp_path) == ""
    os.write(lock, f"{ADDRESS}\n".encode())
    assert running_address(tmp_path) == ADDRESS
    with pytest.raises(ConfigError, match=rf"\(process {os.getpid()}\)"):
        lock_data_dir(tmp_path)


def test_a_site_that_has_ended_has_no_address(tmp_path: Path) -> None:
    assert running_address(tmp_path) == ""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / LOCK_FILE).write_text(f"{ended.pid}\n{ADDRESS}\n")
    assert running_address(tmp_path) == ""


@pytest.mark.django_db
def test_people_are_sent_to_the_site_that_runs(tmp_path: Path, lock: int, settings: Any) -> None:
    """Its port may be one of the command line, which no configuration names."""
    settings.OPTIONS = settings.OPTIONS.model_copy(update={"data_dir": tmp_path})
    server = oauth_server("a")
    assert login_words(server).startswith(f"Log in in a browser: {settings.OPTIONS.app_url}/")
    os.write(lock, f"{ADDRESS}\n".encode())
    assert login_words(server) == f"Log in in a browser: {ADDRESS}/servers/{server.pk}/"
