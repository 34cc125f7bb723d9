"""The cast of the unit tests: alice is an administrator, bob a member."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.test import Client
from pytest_django import Settings

from umpteenth.accounts import context, dashboard, search
from umpteenth.accounts.models import User

ClientFor = Callable[[User | None], Client]
SetAppUrl = Callable[[str | None], None]


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
def set_app_url(settings: Settings) -> SetAppUrl:
    """What the configuration says that Umpteenth's address is."""

    def change(url: str | None) -> None:
        app = settings.OPTIONS.app.model_copy(update={"url": url})
        settings.OPTIONS = settings.OPTIONS.model_copy(update={"app": app})
        settings.ALLOWED_HOSTS = ["*"]

    return change


@pytest.fixture
def empty_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room has registered anything."""
    monkeypatch.setattr(context, "_banners", [])
    monkeypatch.setattr(dashboard, "_panels", [])
    monkeypatch.setattr(dashboard, "_steps", [])
    monkeypatch.setattr(search, "_sources", [])
