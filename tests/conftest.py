"""What every test may use."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings as hypothesis_settings

from tests.fakes.names import Names

if TYPE_CHECKING:
    from django.test import Client

    from umpteenth.accounts.models import User

# Made by tests/settings.py, which is loaded first.
_DATA_DIR = Path(os.environ["UMPTEENTH_DATA_DIR"])
# Playwright's event loop runs in the thread that also asks the database.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"

# A busy machine is no counterexample.
hypothesis_settings.register_profile("patient", deadline=None)
hypothesis_settings.load_profile("patient")

PASSWORD = "correct horse battery"
# Tests under these directories may leave this machine, to the package registries.
_MAY_CONNECT = {"real", "e2e"}


def pytest_configure() -> None:
    from django.conf import settings

    # Fast, and nothing here is worth protecting.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What is missing on a CI machine is a failure there, not a skip."""
    if _skipped and os.environ.get("CI") and session.exitstatus == pytest.ExitCode.OK:
        print(f"\nSkipped, which fails in CI: {', '.join(_skipped)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_unconfigure() -> None:
    shutil.rmtree(_DATA_DIR, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        directory = item.path.parent.name
        if directory in _MAY_CONNECT:
            item.add_marker(directory)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings: None) -> None:
    """A file instead of shared memory, whose locks know no time-out between threads."""
    from django.conf import settings

    database = settings.DATABASES["default"]
    if database["ENGINE"].endswith("sqlite3"):
        database.setdefault("TEST", {})["NAME"] = str(_DATA_DIR / "test.sqlite3")


@pytest.fixture(autouse=True)
def _no_outbound_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit test that reaches out fails; this machine itself may be reached."""
    if any(request.node.get_closest_marker(name) for name in _MAY_CONNECT):
        return
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded(self: socket.socket, address: Any) -> None:
        _refuse_outbound(self, address)
        connect(self, address)

    def guarded_ex(self: socket.socket, address: Any) -> int:
        _refuse_outbound(self, address)
        return connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_ex)
    monkeypatch.setattr(socket, "getaddrinfo", Names())


@pytest.fixture
def names(_no_outbound_network: None) -> Names:
    """What host names stand for in this test; unknown ones cannot be resolved."""
    found: Any = socket.getaddrinfo
    assert isinstance(found, Names)
    return found


@pytest.fixture
def set_network(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets options of the section `network`, for Django and for what knows nothing of it."""
    from django.conf import settings

    from umpteenth.core import addresses, config

    def set_to(**values: Any) -> None:
        network = config.NetworkOptions(**values)
        options = settings.OPTIONS.model_copy(update={"network": network})
        monkeypatch.setattr(settings, "OPTIONS", options)
        monkeypatch.setattr(addresses, "get_options", lambda: options)

    return set_to


def _refuse_outbound(connecting: socket.socket, address: Any) -> None:
    if connecting.family not in (socket.AF_INET, socket.AF_INET6):
        return
    host = str(address[0])
    try:
        local = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise AssertionError(f"This test tried to reach {host}; units stay on this machine.")


@pytest.fixture
def administrator(db: None) -> User:
    from umpteenth.accounts.models import User

    return User.objects.create_user("alice", password=PASSWORD, role=User.Role.ADMINISTRATOR)


@pytest.fixture
def member(db: None) -> User:
    from umpteenth.accounts.models import User

    return User.objects.create_user("bob", password=PASSWORD, role=User.Role.MEMBER)


@pytest.fixture
def administrator_client(administrator: User) -> Client:
    return _signed_in(administrator)


@pytest.fixture
def member_client(member: User) -> Client:
    return _signed_in(member)


def _signed_in(user: User) -> Client:
    from django.test import Client

    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A private directory with a short path: a Unix socket's path holds 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="ump-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
