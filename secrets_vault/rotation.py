"""Changing the key that everything is encrypted with, while the site runs.

1. A new key is put first in the ring file, in one step; processes see that the file changed and
   use it from then on. Its id is recorded.
2. Every registered column is re-encrypted row by row, each only if it still holds the old
   ciphertext: an edit that came between wins and is met in the next pass. Passes are repeated
   until one finds nothing.
3. Writes that began before step 1 may still be on their way to the database. After
   `SETTLE_SECONDS` a last pass finds them.
4. Old keys that no row uses any more are marked as retired and taken out of the file. A key that
   a row still needs, because the row cannot be read, stays.

Stopped at any point, nothing is lost, and running it again finishes the work. Where the ring is
given by option this process cannot change it: the operator does the steps, as the messages say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from django.db import models
from django.utils import timezone

from secrets_vault import keyring
from secrets_vault.crypto import CryptoError, KeyRing
from secrets_vault.encryption import (
    EncryptedColumn,
    encrypted_columns,
    record_key,
    retire_keys,
    unregistered_models,
)
from secrets_vault.errors import RotationRefused
from umpteenth.accounts.services import record_audit

# Longer than any process waits for the database (settings: 20 s) before it gives a write up.
SETTLE_SECONDS = 30.0
_BATCH = 100

Progress = Callable[[str], None]


@dataclass
class Rotation:
    """What a rotation did. `unreadable` names rows that no key of the ring opens."""

    active_id: str
    changed: int = 0
    retired: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    next_step: str = ""


def rotate_keys(
    progress: Progress = lambda _: None,
    *,
    output: Path | None = None,
    settle_seconds: float = SETTLE_SECONDS,
) -> Rotation:
    """Encrypt everything with a new key and retire the old ones (see the module).

    `output` is where a ring is written that the operator is to set as `security.key_ring`.
    Raises `RotationRefused`, `ConfigError`.
    """
    unknown = unregistered_models()
    if unknown:
        raise RotationRefused(f"These encrypted columns are not registered: {', '.join(unknown)}.")
    if keyring.is_given_by_option():
        return _rotate_given(progress, output)
    if output is not None:
        raise RotationRefused(
            f"--output is for a key ring given by {keyring.OPTION}; this one is in "
            f"{keyring.source()}."
        )
    try:
        with keyring.ring_lock(wait=False):
            return _rotate_file(progress, settle_seconds)
    except keyring.RingBusy:
        raise RotationRefused("Another rotation is under way; wait for it to end.") from None
    except OSError as error:
        raise RotationRefused(
            f"The key ring file {keyring.ring_path()} cannot be replaced: {error.strerror}."
        ) from None


def _rotate_file(progress: Progress, settle_seconds: float) -> Rotation:
    ring = keyring.read_ring(again=True).with_new_key(timezone.now())
    keyring.replace_ring_file(ring)
    record_key(ring, ring.active_id)
    rotation = Rotation(ring.active_id)
    progress(f"Key {ring.active_id} is in use now.")
    _reencrypt(ring, rotation, progress)
    progress(f"Waiting {settle_seconds:g} s for changes that others have begun.")
    time.sleep(settle_seconds)
    _reencrypt(ring, rotation, progress)
    rotation.retired = _unused(ring)
    # First the record: a key that is gone from the file but not retired would stop a start.
    retire_keys(rotation.retired)
    keyring.replace_ring_file(ring.without(rotation.retired))
    _audit("rotate", rotation.active_id, retired=rotation.retired)
    return rotation


def forget_key(key_id: str) -> bool:
    """Let the site start without a key that is lost; False where nothing asks for it."""
    forgotten = retire_keys([key_id]) > 0
    if forgotten:
        _audit("forget", key_id)
    return forgotten


def _audit(verb: str, key_id: str, **details: object) -> None:
    record_audit(
        actor=None,
        action=f"key.{verb}",
        kind="key",
        object_id=key_id,
        object_name=key_id,
        details=details,
    )


def _rotate_given(progress: Progress, output: Path | None) -> Rotation:
    ring = keyring.read_ring()
    rotation = Rotation(ring.active_id)
    if len(ring.ids) == 1:
        if output is None:
            raise RotationRefused(
                f"The key ring is given by {keyring.OPTION}, which only you can change. Run "
                "`umpteenth secret rotate-keys --output FILE`, set the option to what that file "
                "holds, restart everything, and run `umpteenth secret rotate-keys` again."
            )
        _write_output(output, ring.with_new_key(timezone.now()))
        rotation.next_step = (
            f"{output} holds the ring with a new key. Set {keyring.OPTION} to it for every "
            "process and restart them all, then run `umpteenth secret rotate-keys` again."
        )
        return rotation
    record_key(ring, ring.active_id)
    _reencrypt(ring, rotation, progress)
    _audit("rotate", rotation.active_id)
    unused = _unused(ring)
    if output is not None and unused:
        _write_output(output, ring.without(unused))
    if unused:
        keys = ", ".join(unused)
        place = f"; {output} holds the ring without it" if output else ""
        rotation.next_step = (
            f"No value needs key {keys} any more{place}. Once every process runs with the new "
            f"ring, take it out of {keyring.OPTION} and restart them."
        )
    return rotation


def _write_output(path: Path, ring: KeyRing) -> None:
    """Key material goes to a file of its own, never to a terminal or a log."""
    try:
        keyring.write_ring_to(path, ring)
    except OSError as error:
        raise RotationRefused(f"{path} cannot be written: {error.strerror}.") from None


def _unused(ring: KeyRing) -> list[str]:
    columns = encrypted_columns()
    return [
        key_id
        for key_id in ring.ids
        if key_id != ring.active_id and not any(column.uses(key_id) for column in columns)
    ]


def _reencrypt(ring: KeyRing, rotation: Rotation, progress: Progress) -> None:
    """Repeat passes over all columns until one changes nothing more."""
    unreadable: dict[tuple[str, str], str] = {}
    for column in encrypted_columns():
        changed = 0
        while count := _pass(column, ring, unreadable):
            changed += count
        rotation.changed += changed
        if changed:
            meta = column.model._meta
            name = meta.verbose_name if changed == 1 else meta.verbose_name_plural
            progress(f"{changed} {name} encrypted again.")
    rotation.unreadable = sorted(unreadable.values())


def _pass(column: EncryptedColumn, ring: KeyRing, unreadable: dict[tuple[str, str], str]) -> int:
    """One look at every row that is not under the active key; how many were met anew.

    A row that somebody changed in between counts too, so that another pass follows.
    """
    met = 0
    for row in _rows(column, ring.active_id):
        try:
            _reencrypt_row(column, ring, row)
            met += 1
        except CryptoError:
            label = f"{column.model._meta.verbose_name} {row}"
            unreadable[column.kind, str(row.pk)] = label
    return met


def _rows(column: EncryptedColumn, active_id: str) -> Iterator[models.Model]:
    """In small batches by primary key: no cursor stays open, and memory stays small."""
    rows = column.rows().exclude(**{column.key_field: active_id}).order_by("pk")
    batch = list(rows[:_BATCH])
    while batch:
        yield from batch
        batch = list(rows.filter(pk__gt=batch[-1].pk)[:_BATCH])


def _reencrypt_row(column: EncryptedColumn, ring: KeyRing, row: models.Model) -> None:
    key_id = getattr(row, column.key_field)
    old = bytes(getattr(row, column.ciphertext_field))
    data = ring.decrypt(old, key_id=key_id, kind=column.kind, row_id=row.pk)
    new, new_key_id = ring.encrypt(data, kind=column.kind, row_id=row.pk)
    column.rows().filter(
        pk=row.pk, **{column.key_field: key_id, column.ciphertext_field: old}
    ).update(**{column.key_field: new_key_id, column.ciphertext_field: new})
