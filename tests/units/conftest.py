"""The cast of the unit tests: alice is an administrator, bob a member."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client

from umpteenth.accounts import context, dashboard, search
from umpteenth.accounts.models import User

ClientFor = Callable[[User | None], Client]


@pytest.fixture
def alice(administrator: User) -> User:
    return administrator


@pytest.fixture
def bob(member: User) -> User:
    return member


@pytest.fixture
def client_for() -> ClientFor:
    """A new browser, signed in as the given person (None: as nobody)."""

    def make(user: User | None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return make


@pytest.fixture
def empty_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room has registered anything."""
    monkeypatch.setattr(context, "_banners", [])
    monkeypatch.setattr(dashboard, "_panels", [])
    monkeypatch.setattr(dashboard, "_steps", [])
    monkeypatch.setattr(search, "_sources", [])
