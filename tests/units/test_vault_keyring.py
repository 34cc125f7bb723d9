"""Where the key ring lives, and that nothing starts with a ring that does not fit."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from secrets_vault import keyring
from secrets_vault.encryption import (
    decrypt_json,
    encrypt_json,
    ensure_key_ring,
    retire_keys,
)
from secrets_vault.models import Key
from secrets_vault.services import SecretData, UnknownKey, create_secret
from tests.fakes.vault import ring_with, use_ring_in
from umpteenth.core.config import ConfigError

pytestmark = pytest.mark.django_db
ROW = "019a0000-0000-7000-8000-000000000001"


@pytest.fixture
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    return use_ring_in(monkeypatch, tmp_path / "data")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write(path: Path, text: str) -> None:
    """Put another text in place of the file, as rotation does."""
    path.parent.mkdir(exist_ok=True)
    spare = path.with_name("spare")
    spare.write_text(text)
    spare.chmod(0o600)
    spare.rename(path)


def test_the_first_start_makes_a_private_ring_and_records_its_key(ring_file: Path) -> None:
    ensure_key_ring()

    assert mode(ring_file) == 0o600
    assert mode(ring_file.parent) == 0o700
    ring = keyring.read_ring()
    key = Key.objects.get()
    assert str(key) == key.key_id
    assert (key.key_id, key.fingerprint) == (ring.active_id, ring.fingerprint(ring.active_id))


def test_later_starts_change_nothing(ring_file: Path) -> None:
    ensure_key_ring()
    before = ring_file.read_text()

    ensure_key_ring()

    assert ring_file.read_text() == before
    assert Key.objects.count() == 1


def test_encrypting_before_any_start_makes_the_ring(ring_file: Path) -> None:
    ciphertext, key_id = encrypt_json({"a": 1}, kind="secret", row_id=ROW)

    assert Key.objects.get().key_id == key_id
    assert decrypt_json(ciphertext, key_id=key_id, kind="secret", row_id=ROW) == {"a": 1}


def test_a_lost_ring_stops_the_start_and_names_the_key(ring_file: Path) -> None:
    ensure_key_ring()
    key_id = Key.objects.get().key_id
    ring_file.unlink()

    with pytest.raises(ConfigError, match=rf"Key {key_id} is missing .*{ring_file}"):
        ensure_key_ring()
    assert not ring_file.exists()


def test_a_key_that_values_need_and_the_ring_lacks_stops_the_start(ring_file: Path) -> None:
    secret = create_secret(actor=None, name="A", data=SecretData(value="x")).secret
    write(ring_file, ring_with("other").to_text())

    with pytest.raises(ConfigError, match=f"Key {secret.key_id} is missing"):
        ensure_key_ring()
    assert list(Key.objects.filter(retired_at=None)) == [Key.objects.get(pk=secret.key_id)]


def test_a_key_that_nothing_needs_may_be_missing(ring_file: Path) -> None:
    ensure_key_ring()
    old = Key.objects.get()
    write(ring_file, ring_with("other").to_text())

    ensure_key_ring()

    old.refresh_from_db()
    assert old.retired_at is not None
    assert list(Key.objects.filter(retired_at=None).values_list("pk", flat=True)) == ["other"]


def test_another_key_of_the_same_id_stops_the_start(ring_file: Path) -> None:
    write(ring_file, ring_with("k1").to_text())
    ensure_key_ring()
    write(ring_file, ring_with("k1", fill=9).to_text())

    with pytest.raises(ConfigError, match=r"Key k1 in .* is not the key of that name"):
        ensure_key_ring()


def test_a_ring_is_made_again_once_the_lost_key_is_given_up(ring_file: Path) -> None:
    ensure_key_ring()
    old = Key.objects.get().key_id
    ring_file.unlink()
    retire_keys([old])

    ensure_key_ring()

    assert keyring.read_ring().ids != (old,)


@pytest.mark.parametrize("content", ["# nothing\n", "nonsense\n", "k1 c2hvcnQ=\n"])
def test_a_file_that_is_no_ring_stops_the_start(ring_file: Path, content: str) -> None:
    write(ring_file, content)

    with pytest.raises(ConfigError, match=f"The key ring file {ring_file} cannot be used"):
        ensure_key_ring()


def test_a_file_that_others_can_read_stops_the_start(ring_file: Path) -> None:
    write(ring_file, ring_with("k1").to_text())
    ring_file.chmod(0o640)

    with pytest.raises(ConfigError, match="can be read by others"):
        ensure_key_ring()


def test_a_ring_given_by_option_makes_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = use_ring_in(monkeypatch, tmp_path, given=ring_with("k1").to_text())

    ensure_key_ring()
    ciphertext, key_id = encrypt_json("x", kind="secret", row_id=ROW)

    assert not path.exists()
    assert key_id == "k1"
    assert decrypt_json(ciphertext, key_id="k1", kind="secret", row_id=ROW) == "x"
    assert Key.objects.get().key_id == "k1"


def test_a_bad_ring_given_by_option_names_the_option_and_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_ring_in(monkeypatch, tmp_path, given="k1 c2hvcnQ=")

    with pytest.raises(ConfigError, match=r"Security\.key_ring cannot be used") as caught:
        ensure_key_ring()
    assert "c2hvcnQ" not in str(caught.value)


def test_a_file_that_cannot_be_made_leaves_nothing_behind(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        ensure_key_ring()
    assert not ring_file.exists()


# While processes run


def test_a_process_that_meets_an_unknown_key_reads_the_ring_again(ring_file: Path) -> None:
    write(ring_file, ring_with("k1").to_text())
    assert keyring.read_ring().ids == ("k1",)
    newer = ring_with("k1", "k2")
    ciphertext, _ = newer.without(["k1"]).encrypt(b'"new"', kind="secret", row_id=ROW)
    # Same length, same place and time: nothing but the content tells that it changed.
    state = keyring._state()
    write(ring_file, newer.to_text())
    keyring._cache = (keyring._state(), keyring._cache[1]) if keyring._cache else None
    assert keyring._state() != state
    assert keyring.read_ring().ids == ("k1",)

    assert decrypt_json(ciphertext, key_id="k2", kind="secret", row_id=ROW) == "new"


def test_a_process_encrypts_with_the_new_key_as_soon_as_the_file_has_it(ring_file: Path) -> None:
    write(ring_file, ring_with("k1").to_text())
    assert encrypt_json("x", kind="secret", row_id=ROW)[1] == "k1"

    write(ring_file, ring_with("k2", "k1").to_text())

    assert encrypt_json("x", kind="secret", row_id=ROW)[1] == "k2"


def test_a_key_that_the_ring_does_not_hold_is_named(ring_file: Path) -> None:
    ensure_key_ring()

    with pytest.raises(UnknownKey, match="Key gone is not in the key ring"):
        decrypt_json(b"x", key_id="gone", kind="secret", row_id=ROW)


def test_a_running_process_still_decrypts_while_the_file_is_away(ring_file: Path) -> None:
    ciphertext, key_id = encrypt_json("x", kind="secret", row_id=ROW)
    ring_file.rename(ring_file.with_name("elsewhere"))

    assert decrypt_json(ciphertext, key_id=key_id, kind="secret", row_id=ROW) == "x"


def test_nothing_is_encrypted_while_the_file_is_away(ring_file: Path) -> None:
    encrypt_json("x", kind="secret", row_id=ROW)
    ring_file.rename(ring_file.with_name("elsewhere"))

    with pytest.raises(ConfigError, match="is missing"):
        encrypt_json("x", kind="secret", row_id=ROW)


def test_a_new_process_without_the_file_names_the_key(ring_file: Path) -> None:
    ciphertext, key_id = encrypt_json("x", kind="secret", row_id=ROW)
    ring_file.unlink()
    keyring.forget_ring()

    with pytest.raises(UnknownKey, match=key_id):
        decrypt_json(ciphertext, key_id=key_id, kind="secret", row_id=ROW)


def test_the_right_ring_is_used_as_soon_as_it_is_back(ring_file: Path) -> None:
    ciphertext, key_id = encrypt_json("x", kind="secret", row_id=ROW)
    right = ring_file.read_text()
    write(ring_file, ring_with("other").to_text())
    with pytest.raises(UnknownKey):
        decrypt_json(ciphertext, key_id=key_id, kind="secret", row_id=ROW)

    write(ring_file, right)

    assert decrypt_json(ciphertext, key_id=key_id, kind="secret", row_id=ROW) == "x"


# The file itself


def test_only_one_changes_the_ring_at_a_time(ring_file: Path) -> None:
    with keyring.ring_lock(), pytest.raises(keyring.RingBusy), keyring.ring_lock(wait=False):
        pass
    with keyring.ring_lock(wait=False):
        pass


def test_whoever_waits_for_the_lock_gets_it(ring_file: Path) -> None:
    got = threading.Event()

    def wait() -> None:
        with keyring.ring_lock():
            got.set()

    with keyring.ring_lock():
        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not got.wait(0.05)
    waiting.join(20)
    assert got.is_set()


def test_a_replaced_ring_is_private_and_leaves_no_other_file(ring_file: Path) -> None:
    ensure_key_ring()

    keyring.replace_ring_file(ring_with("k1"))

    assert mode(ring_file) == 0o600
    assert sorted(path.name for path in ring_file.parent.iterdir()) == ["keyring", "keyring.lock"]
    assert keyring.read_ring().ids == ("k1",)


def test_a_link_to_the_ring_stays_a_link(ring_file: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", ring_with("k1").to_text())
    ring_file.parent.mkdir()
    ring_file.symlink_to(tmp_path / "elsewhere")

    keyring.replace_ring_file(ring_with("k2"))

    assert ring_file.is_symlink()
    assert keyring.read_ring().ids == ("k2",)


def test_a_failed_replacement_leaves_the_old_ring(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_key_ring()
    before = ring_file.read_text()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keyring.replace_ring_file(ring_with("k1"))

    assert ring_file.read_text() == before
    assert sorted(path.name for path in ring_file.parent.iterdir()) == ["keyring", "keyring.lock"]


def test_the_file_keeps_its_owner_when_root_replaces_it(
    ring_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that runs as somebody else must be able to read it afterwards."""
    ensure_key_ring()
    owner = ring_file.stat()
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "geteuid", lambda: owner.st_uid + 1)
    monkeypatch.setattr(os, "fchown", lambda handle, uid, gid: given.append((uid, gid)))

    keyring.replace_ring_file(ring_with("k1"))

    assert given == [(owner.st_uid, owner.st_gid)]


def test_a_ring_is_never_written_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.txt"
    path.write_text("precious")

    with pytest.raises(FileExistsError):
        keyring.write_ring_to(path, ring_with("k1"))
    assert path.read_text() == "precious"
