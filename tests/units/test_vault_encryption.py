"""What other rooms encrypt with, and that no encrypted column is forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core import checks

from secrets_vault import encryption, keyring
from secrets_vault.encryption import (
    decrypt_json,
    encrypt_json,
    encrypted_columns,
    register_encrypted,
    unregistered_models,
)
from secrets_vault.models import Secret
from secrets_vault.services import DecryptionFailed
from tests.fakes.vault import use_ring_in

pytestmark = pytest.mark.django_db
ROW = "019a0000-0000-7000-8000-000000000001"


@pytest.fixture(autouse=True)
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return use_ring_in(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "value", [None, "", "é😀\ud800\x00", 1.5, [1, {"a": [None, True]}], {"headers": [["A", "b"]]}]
)
def test_any_json_comes_back_as_it_was(value: Any) -> None:
    ciphertext, key_id = encrypt_json(value, kind="server", row_id=ROW)

    assert decrypt_json(ciphertext, key_id=key_id, kind="server", row_id=ROW) == value
    view = memoryview(ciphertext)
    assert decrypt_json(view, key_id=key_id, kind="server", row_id=ROW) == value


def test_what_is_no_json_inside_counts_as_undecryptable() -> None:
    encrypt_json("x", kind="server", row_id=ROW)
    ring = keyring.read_ring()
    ciphertext, key_id = ring.encrypt(b"not json", kind="server", row_id=ROW)

    with pytest.raises(DecryptionFailed):
        decrypt_json(ciphertext, key_id=key_id, kind="server", row_id=ROW)


def test_every_encrypted_column_of_the_project_is_registered() -> None:
    """Rotation throws the old key away: a column it does not know would be lost."""
    assert unregistered_models() == []
    assert Secret in {column.model for column in encrypted_columns()}
    assert [found for found in checks.run_checks() if found.id == "secrets_vault.E001"] == []


def test_a_forgotten_column_is_found_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "_columns", {})

    assert "secrets_vault.Secret.key_id" in unregistered_models()
    errors = [message for message in checks.run_checks() if message.id == "secrets_vault.E001"]
    assert any("secrets_vault.Secret.key_id" in message.msg for message in errors)


def test_registering_twice_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "_columns", {})

    register_encrypted(Secret, "secret", "ciphertext", "key_id")
    register_encrypted(Secret, "secret", "ciphertext", "key_id")

    assert len(encrypted_columns()) == 1


def test_the_vault_reads_only_its_own_models() -> None:
    """The check looks at every model of the project; the table of keys itself holds none."""
    assert "secrets_vault.Key" in {model._meta.label for model in apps.get_models()}
    assert not any(name.startswith("secrets_vault.Key.") for name in unregistered_models())
