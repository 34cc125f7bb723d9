"""What other rooms encrypt their columns with, and the list of those columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import models
from django.utils import timezone

from secrets_vault import keyring
from secrets_vault.crypto import DecryptionFailed, KeyRing, UnknownKey, new_ring
from secrets_vault.models import Key
from umpteenth.core.config import ConfigError

RowId = UUID | str | int


@dataclass(frozen=True)
class EncryptedColumn:
    """A column of ciphertexts, bound to its row's primary key, with the column of key ids."""

    model: type[models.Model]
    kind: str
    ciphertext_field: str
    key_field: str

    def rows(self) -> models.QuerySet[models.Model]:
        rows: models.QuerySet[models.Model] = self.model._default_manager.all()
        # A row that holds nothing has no key either.
        return rows.filter(**{f"{self.ciphertext_field}__isnull": False}).exclude(
            **{self.key_field: ""}
        )

    def uses(self, key_id: str) -> bool:
        return self.rows().filter(**{self.key_field: key_id}).exists()


_columns: dict[tuple[type[models.Model], str], EncryptedColumn] = {}


def register_encrypted(
    model: type[models.Model], kind: str, ciphertext_field: str, key_field: str
) -> None:
    """Name a column that `encrypt_json` fills, in the app's `ready`.

    Rotation re-encrypts registered columns only and then throws the old key away, so every one
    must be registered; a system check looks for columns that nobody named.
    """
    column = EncryptedColumn(model, kind, ciphertext_field, key_field)
    _columns[model, ciphertext_field] = column


def encrypted_columns() -> list[EncryptedColumn]:
    return list(_columns.values())


def unregistered_models() -> list[str]:
    """Models that look as if they held ciphertexts (`…key_id` beside bytes) unregistered."""
    registered = {(column.model, column.key_field) for column in encrypted_columns()}
    found = []
    for model in apps.get_models():
        fields = model._meta.concrete_fields
        if model is Key or not any(isinstance(field, models.BinaryField) for field in fields):
            continue
        found += [
            f"{model._meta.label}.{field.name}"
            for field in fields
            if field.name.endswith("key_id") and (model, field.name) not in registered
        ]
    return found


def encrypt_json(value: Any, *, kind: str, row_id: RowId) -> tuple[bytes, str]:
    """Encrypt a JSON value for one row: (ciphertext, id of the key). Raises `ConfigError`.

    `kind` and `row_id` are bound in: the ciphertext opens under the same two only.
    """
    data = json.dumps(value, separators=(",", ":")).encode("ascii")
    return _ring_for_writing().encrypt(data, kind=kind, row_id=row_id)


def decrypt_json(ciphertext: bytes | memoryview, *, key_id: str, kind: str, row_id: RowId) -> Any:
    """What `encrypt_json` was given. Raises `UnknownKey` and `DecryptionFailed`."""
    ring = _ring_for_reading(key_id)
    data = ring.decrypt(bytes(ciphertext), key_id=key_id, kind=kind, row_id=row_id)
    try:
        return json.loads(data)
    except ValueError:
        raise DecryptionFailed(key_id) from None


def _ring_for_writing() -> KeyRing:
    if not keyring.is_given_by_option() and not keyring.ring_path().exists():
        ensure_key_ring()
    return keyring.read_ring()


def _ring_for_reading(key_id: str) -> KeyRing:
    """A ring with that key; the file may have got it a moment ago, or be out of reach for now."""
    try:
        ring = keyring.read_ring()
        if key_id not in ring.ids:
            ring = keyring.read_ring(again=True)
    except ConfigError:
        remembered = keyring.remembered_ring()
        if remembered is None:
            raise UnknownKey(key_id) from None
        ring = remembered
    return ring


def ensure_key_ring() -> None:
    """Make the key ring at the very first start; at every other one, see that it fits.

    Raises `ConfigError` that names a key which the database needs and the ring lacks, or holds
    in another shape: starting then would only produce values that nobody can read.
    """
    keys = {key.key_id: key for key in Key.objects.filter(retired_at=None)}
    if not keyring.is_given_by_option():
        _make_ring_file(keys)
    ring = keyring.read_ring(again=True)
    for key in keys.values():
        _check_key(key, ring)
    for key_id in ring.ids:
        record_key(ring, key_id)


def _make_ring_file(keys: dict[str, Key]) -> None:
    with keyring.ring_lock():
        if keyring.ring_path().exists():
            return
        if keys:
            raise ConfigError(_missing(", ".join(keys)))
        keyring.write_ring_to(keyring.ring_path(), new_ring(timezone.now()))


def _check_key(key: Key, ring: KeyRing) -> None:
    if key.key_id in ring.ids:
        if ring.fingerprint(key.key_id) != key.fingerprint:
            raise ConfigError(
                f"Key {key.key_id} in {keyring.source()} is not the key of that name that this "
                "database was encrypted with; bring the right one back."
            )
    elif any(column.uses(key.key_id) for column in encrypted_columns()):
        raise ConfigError(_missing(key.key_id))
    else:
        # Taken out of the ring after a rotation, as it should be.
        retire_keys([key.key_id])


def _missing(key_ids: str) -> str:
    return (
        f"Key {key_ids} is missing from {keyring.source()}, and this database is encrypted with "
        "it; bring it back from a backup or from the machine that has it (if it is lost for "
        "good, `umpteenth secret forget-key` lets you start and enter the secrets again)."
    )


def record_key(ring: KeyRing, key_id: str) -> None:
    Key.objects.get_or_create(key_id=key_id, defaults={"fingerprint": ring.fingerprint(key_id)})


def rows_of_key(key_id: str) -> int:
    """How many values only this key opens."""
    return sum(
        column.rows().filter(**{column.key_field: key_id}).count() for column in encrypted_columns()
    )


def retire_keys(key_ids: list[str]) -> int:
    """Mark keys as no longer needed; the answer is how many were not so already."""
    return Key.objects.filter(key_id__in=key_ids, retired_at=None).update(retired_at=timezone.now())
