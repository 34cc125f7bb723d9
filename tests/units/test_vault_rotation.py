"""Rotating keys while others work: nothing is lost, whoever comes in between (section 3)."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from secrets_vault import encryption, keyring, rotation
from secrets_vault.crypto import KeyRing
from secrets_vault.errors import RotationRefused
from secrets_vault.models import Key, Secret
from secrets_vault.rotation import Rotation
from secrets_vault.services import SecretData as Data
from secrets_vault.services import (
    Target,
    create_secret,
    ensure_key_ring,
    is_readable,
    rotate_keys,
    secret_value,
    set_secret,
    update_secret,
)
from tests.fakes.vault import ring_with, use_ring_in
from umpteenth.accounts.models import AuditEntry

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waiting is recorded, not done."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


@pytest.fixture
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    path = use_ring_in(monkeypatch, tmp_path)
    ensure_key_ring()
    return path


def make(name: str, value: str = "a value") -> Secret:
    return create_secret(actor=None, name=name, data=Data(value=value)).secret


def value_of(name: str) -> str:
    return secret_value(Secret.objects.get(name=name), target=Target())


def ids_in(path: Path) -> tuple[str, ...]:
    return KeyRing.parse(path.read_text()).ids


def test_everything_is_under_a_new_key_and_the_old_one_is_gone(
    ring_file: Path, waits: list[float]
) -> None:
    (old,) = ids_in(ring_file)
    for number in range(5):
        make(f"S{number}", f"value {number}")
    said: list[str] = []

    done = rotate_keys(said.append)

    assert ids_in(ring_file) == (done.active_id,) != (old,)
    assert (done.changed, done.retired, done.unreadable) == (5, [old], [])
    assert {secret.key_id for secret in Secret.objects.all()} == {done.active_id}
    assert [value_of(f"S{number}") for number in range(5)] == [f"value {n}" for n in range(5)]
    assert Key.objects.get(pk=old).retired_at is not None
    assert Key.objects.get(pk=done.active_id).retired_at is None
    assert waits == [rotation.SETTLE_SECONDS]
    assert said[0] == f"Key {done.active_id} is in use now."
    assert "5 secrets encrypted again." in said


def test_the_audit_log_says_that_keys_were_rotated(ring_file: Path) -> None:
    before = ids_in(ring_file)
    done = rotate_keys()
    entry = AuditEntry.objects.get(action="key.rotate")
    assert (entry.object_name, entry.details) == (done.active_id, {"retired": list(before)})
    assert rotation.forget_key(done.active_id)
    assert AuditEntry.objects.get(action="key.forget").object_id == done.active_id


def test_the_wait_outlasts_every_write_that_has_begun() -> None:
    """A write gives up when the database has been busy for that long (settings)."""
    from django.conf import settings

    assert settings.DATABASES["default"]["OPTIONS"]["timeout"] < rotation.SETTLE_SECONDS


def test_nothing_else_about_a_secret_changes(ring_file: Path) -> None:
    make("S")
    before = dict(Secret.objects.values().get())

    rotate_keys()

    after = dict(Secret.objects.values().get())
    assert after.pop("ciphertext") != before.pop("ciphertext")
    assert after.pop("key_id") != before.pop("key_id")
    assert after == before


def test_the_file_stays_private_and_the_site_starts_again(ring_file: Path) -> None:
    make("S")

    rotate_keys()
    rotate_keys()

    assert stat.S_IMODE(ring_file.stat().st_mode) == 0o600
    ensure_key_ring()
    assert value_of("S") == "a value"
    assert Key.objects.filter(retired_at=None).count() == 1


def test_more_rows_than_a_batch_are_all_changed(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "_BATCH", 3)
    for number in range(8):
        make(f"S{number}")

    assert rotate_keys().changed == 8


def test_one_row_is_one_row(ring_file: Path) -> None:
    make("S")
    said: list[str] = []

    rotate_keys(said.append)

    assert "1 secret encrypted again." in said


def _before_first_row(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """Let something happen between reading a row and writing it back."""
    original = rotation._reencrypt_row
    happened: list[bool] = []

    def reencrypt(*args: Any) -> None:
        if not happened:
            happened.append(True)
            meanwhile()
        original(*args)

    monkeypatch.setattr(rotation, "_reencrypt_row", reencrypt)


def test_a_value_replaced_in_between_is_kept(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("S", "old value")
    _before_first_row(monkeypatch, lambda: set_secret(actor=None, name="S", value="new value"))

    rotate_keys()

    assert value_of("S") == "new value"


def test_a_value_replaced_in_between_under_the_old_key_is_met_again(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that read the ring before the rotation saves after the row was read."""
    old_ring = keyring.read_ring()
    secret = make("S", "old value")

    def save() -> None:
        ciphertext, key_id = old_ring.encrypt(b'"new value"', kind="secret", row_id=secret.pk)
        Secret.objects.filter(pk=secret.pk).update(ciphertext=ciphertext, key_id=key_id)

    _before_first_row(monkeypatch, save)

    done = rotate_keys()

    assert value_of("S") == "new value"
    assert Secret.objects.get().key_id == done.active_id


def test_a_row_deleted_in_between_does_no_harm(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("S")
    _before_first_row(monkeypatch, Secret.objects.all().delete)

    assert rotate_keys().unreadable == []


def test_a_write_that_had_begun_before_is_met_after_the_wait(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_ring = keyring.read_ring()
    secret = make("S")

    def save_late(seconds: float) -> None:
        ciphertext, key_id = old_ring.encrypt(b'"late value"', kind="secret", row_id=secret.pk)
        Secret.objects.filter(pk=secret.pk).update(ciphertext=ciphertext, key_id=key_id)

    monkeypatch.setattr(time, "sleep", save_late)

    done = rotate_keys()

    assert value_of("S") == "late value"
    assert ids_in(ring_file) == (done.active_id,)


def test_a_secret_made_during_the_rotation_is_under_the_new_key(ring_file: Path) -> None:
    def progress(words: str) -> None:
        if "in use now" in words:
            make("NEW", "fresh")

    done = rotate_keys(progress)

    assert Secret.objects.get(name="NEW").key_id == done.active_id
    assert value_of("NEW") == "fresh"


def test_a_row_that_cannot_be_read_is_named_and_its_key_stays(ring_file: Path) -> None:
    make("GOOD")
    bad = make("BAD")
    (old,) = ids_in(ring_file)
    damaged = bytes(bad.ciphertext)[:-1] + b"\x00\x00"
    Secret.objects.filter(pk=bad.pk).update(ciphertext=damaged)

    done = rotate_keys()

    assert done.unreadable == ["secret BAD"]
    assert done.retired == []
    assert ids_in(ring_file) == (done.active_id, old)
    assert bytes(Secret.objects.get(name="BAD").ciphertext) == damaged
    assert value_of("GOOD") == "a value"


def test_a_row_whose_key_is_missing_is_named(ring_file: Path) -> None:
    Secret.objects.filter(pk=make("BAD").pk).update(key_id="gone")

    assert rotate_keys().unreadable == ["secret BAD"]


def test_an_unreadable_secret_is_put_right_by_a_new_value(ring_file: Path) -> None:
    secret = make("BAD")
    Secret.objects.filter(pk=secret.pk).update(key_id="gone")
    secret.refresh_from_db()
    assert not is_readable(secret)

    update_secret(secret, actor=None, data=Data(value="again"))

    assert value_of("BAD") == "again"
    assert rotate_keys().unreadable == []


@pytest.mark.parametrize("stop_at", ["record_key", "_reencrypt", "_unused", "retire_keys"])
def test_a_rotation_that_is_cut_off_loses_nothing_and_is_finished_by_the_next(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch, stop_at: str
) -> None:
    make("S")

    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rotation, stop_at, die)
        with pytest.raises(KeyboardInterrupt):
            rotate_keys()
    keyring.forget_ring()
    ensure_key_ring()
    assert value_of("S") == "a value"
    assert len(ids_in(ring_file)) == 2

    done = rotate_keys()

    assert ids_in(ring_file) == (done.active_id,)
    assert value_of("S") == "a value"


def test_cut_off_between_record_and_file_the_site_still_starts(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("S")
    replace = keyring.replace_ring_file
    calls: list[KeyRing] = []

    def once(ring: KeyRing) -> None:
        calls.append(ring)
        if len(calls) == 2:
            raise KeyboardInterrupt
        replace(ring)

    with monkeypatch.context() as patch:
        patch.setattr(keyring, "replace_ring_file", once)
        with pytest.raises(KeyboardInterrupt):
            rotate_keys()

    keyring.forget_ring()
    ensure_key_ring()
    assert value_of("S") == "a value"


def test_two_rotations_at_once_are_refused(ring_file: Path) -> None:
    with keyring.ring_lock(), pytest.raises(RotationRefused, match="under way"):
        rotate_keys()


def test_a_file_that_cannot_be_replaced_is_named(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("S")

    def busy(self: Path, target: Path) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(Path, "rename", busy)

    with pytest.raises(
        RotationRefused, match=f"{ring_file} cannot be replaced: Device or resource"
    ):
        rotate_keys()
    assert value_of("S") == "a value"
    assert os.listdir(ring_file.parent).count("keyring") == 1


def test_an_unregistered_column_stops_the_rotation(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encryption, "_columns", {})

    with pytest.raises(RotationRefused, match=r"secrets_vault\.Secret\.key_id"):
        rotate_keys()


def test_rows_that_hold_nothing_are_left_alone(ring_file: Path) -> None:
    Secret.objects.create(name="EMPTY", ciphertext=b"", key_id="", updated_at=timezone.now())

    assert rotate_keys() == Rotation(
        active_id=ids_in(ring_file)[0],
        retired=[Key.objects.exclude(retired_at=None).get().pk],
    )


def test_an_output_is_refused_where_the_ring_is_a_file(ring_file: Path, tmp_path: Path) -> None:
    with pytest.raises(RotationRefused, match="--output is for a key ring given by"):
        rotate_keys(output=tmp_path / "ring.txt")


# A ring that is given by option: the operator does the steps


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[KeyRing], None]:
    def give(ring: KeyRing) -> None:
        use_ring_in(monkeypatch, tmp_path, given=ring.to_text())
        ensure_key_ring()

    return give


Give = Callable[[KeyRing], None]


def test_a_given_ring_with_one_key_is_explained(given: Give) -> None:
    given(ring_with("k1"))

    with pytest.raises(RotationRefused, match="rotate-keys --output FILE"):
        rotate_keys()


def test_a_given_ring_is_rotated_in_steps(given: Give, tmp_path: Path, waits: list[float]) -> None:
    given(ring_with("k1"))
    make("S", "kept")
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"

    done = rotate_keys(output=first)

    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    ring = KeyRing.parse(first.read_text())
    assert ring.ids[1:] == ("k1",)
    assert Secret.objects.get().key_id == "k1"
    assert "security.key_ring" in done.next_step
    assert ring.to_text().split()[1] not in done.next_step

    given(ring)
    done = rotate_keys(output=second)

    assert done.changed == 1
    assert Secret.objects.get().key_id == ring.active_id
    assert "No value needs key k1 any more" in done.next_step
    assert str(second) in done.next_step
    assert KeyRing.parse(second.read_text()).ids == (ring.active_id,)

    given(KeyRing.parse(second.read_text()))

    assert value_of("S") == "kept"
    assert Key.objects.get(pk="k1").retired_at is not None
    assert waits == []


def test_without_output_the_second_step_says_which_key_may_go(given: Give) -> None:
    given(ring_with("k2", "k1"))

    done = rotate_keys()

    assert "No value needs key k1 any more. Once every process" in done.next_step


def test_a_given_key_that_a_value_still_needs_is_not_let_go(given: Give, tmp_path: Path) -> None:
    given(ring_with("k1"))
    bad = make("BAD")
    Secret.objects.filter(pk=bad.pk).update(ciphertext=b"\x01damaged")
    given(ring_with("k2", "k1"))

    done = rotate_keys(output=tmp_path / "ring.txt")

    assert done.unreadable == ["secret BAD"]
    assert done.next_step == ""
    assert not (tmp_path / "ring.txt").exists()


@pytest.mark.parametrize("place", ["taken.txt", "missing/ring.txt"])
def test_an_output_that_cannot_be_written_is_named(given: Give, tmp_path: Path, place: str) -> None:
    given(ring_with("k1"))
    (tmp_path / "taken.txt").write_text("precious")

    with pytest.raises(RotationRefused, match=f"{place} cannot be written"):
        rotate_keys(output=tmp_path / place)
    assert (tmp_path / "taken.txt").read_text() == "precious"


def test_a_lost_key_can_be_given_up(ring_file: Path) -> None:
    (old,) = ids_in(ring_file)
    make("S")
    assert encryption.rows_of_key(old) == 1
    ring_file.unlink()
    keyring.forget_ring()

    assert rotation.forget_key(old)
    assert not rotation.forget_key(old)

    ensure_key_ring()
    assert not is_readable(Secret.objects.get())
