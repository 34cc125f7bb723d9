"""Secrets in the search palette."""

from __future__ import annotations

from pathlib import Path

import pytest

from secrets_vault.search import search_secrets
from secrets_vault.services import SecretData, create_secret
from tests.fakes.vault import use_ring_in
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def github(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    use_ring_in(monkeypatch, tmp_path)
    data = SecretData(value="x", description="new one")
    secret = create_secret(actor=None, name="GITHUB", data=data).secret
    return str(secret.pk)


def test_administrators_come_to_the_form(administrator: User, github: str) -> None:
    (hit,) = search_secrets(administrator, "github")

    assert (hit.kind, hit.title, hit.subtitle, hit.dialog) == ("Secret", "GITHUB", "new one", True)
    assert hit.url == f"/settings/secrets/{github}/edit/"


def test_members_come_to_the_list(member: User) -> None:
    (hit,) = search_secrets(member, "git")

    assert (hit.url, hit.dialog) == ("/settings/secrets/?q=GITHUB", False)


def test_administrators_find_the_action(administrator: User, member: User) -> None:
    assert [hit.title for hit in search_secrets(administrator, "new")] == ["GITHUB", "New secret"]
    assert [hit.title for hit in search_secrets(member, "new")] == ["GITHUB"]


def test_nothing_typed_finds_nothing(administrator: User) -> None:
    assert list(search_secrets(administrator, " ")) == []
