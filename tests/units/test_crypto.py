"""The key ring: what one key closed for one row opens nowhere else (E09)."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secrets_vault.crypto import (
    BadKeyRing,
    DecryptionFailed,
    KeyRing,
    UnknownKey,
    new_ring,
)
from tests.fakes.vault import ring_with

NOW = datetime(2026, 3, 4, tzinfo=UTC)
ROW = UUID("019a0000-0000-7000-8000-000000000001")
OTHER_ROW = UUID("019a0000-0000-7000-8000-000000000002")


def test_what_was_encrypted_opens_with_its_kind_row_and_key() -> None:
    ring = ring_with("k1")

    ciphertext, key_id = ring.encrypt(b"value", kind="secret", row_id=ROW)

    assert key_id == "k1"
    assert b"value" not in ciphertext
    assert ring.decrypt(ciphertext, key_id="k1", kind="secret", row_id=ROW) == b"value"
    assert ring.decrypt(ciphertext, key_id="k1", kind="secret", row_id=str(ROW)) == b"value"


def test_the_same_value_never_looks_the_same() -> None:
    ring = ring_with("k1")

    ciphertexts = {ring.encrypt(b"value", kind="secret", row_id=ROW)[0] for _ in range(20)}

    assert len(ciphertexts) == 20


@pytest.mark.parametrize(
    ("kind", "row_id"), [("server", ROW), ("secret", OTHER_ROW), ("secret", ""), ("", ROW)]
)
def test_a_ciphertext_moved_to_another_row_or_kind_does_not_open(kind: str, row_id: UUID) -> None:
    ring = ring_with("k1")
    ciphertext, _ = ring.encrypt(b"value", kind="secret", row_id=ROW)

    with pytest.raises(DecryptionFailed):
        ring.decrypt(ciphertext, key_id="k1", kind=kind, row_id=row_id)


def test_kind_and_row_cannot_be_shifted_into_each_other() -> None:
    ring = ring_with("k1")
    ciphertext, _ = ring.encrypt(b"value", kind="ab", row_id="c")

    with pytest.raises(DecryptionFailed):
        ring.decrypt(ciphertext, key_id="k1", kind="a", row_id="bc")


def test_the_same_key_under_another_id_does_not_open_it() -> None:
    ciphertext, _ = ring_with("k1").encrypt(b"value", kind="secret", row_id=ROW)

    with pytest.raises(DecryptionFailed):
        ring_with("k2").decrypt(ciphertext, key_id="k2", kind="secret", row_id=ROW)


def test_another_key_of_the_same_id_is_named_in_the_error() -> None:
    ciphertext, _ = ring_with("k1").encrypt(b"value", kind="secret", row_id=ROW)

    with pytest.raises(DecryptionFailed, match="key k1") as caught:
        ring_with("k1", fill=9).decrypt(ciphertext, key_id="k1", kind="secret", row_id=ROW)
    assert caught.value.key_id == "k1"


def test_a_missing_key_is_named_in_the_error() -> None:
    with pytest.raises(UnknownKey, match="Key k9 is not in the key ring") as caught:
        ring_with("k1").decrypt(b"\x01" + b"x" * 40, key_id="k9", kind="secret", row_id=ROW)
    assert caught.value.key_id == "k9"


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: b"",
        lambda c: c[:20],
        lambda c: b"\x02" + c[1:],
        lambda c: c[:-1],
        lambda c: c + b"\x00",
        lambda c: c[:-1] + bytes([c[-1] ^ 1]),
        lambda c: c[:5] + bytes([c[5] ^ 1]) + c[6:],
    ],
)
def test_damaged_data_does_not_open(damage: object) -> None:
    assert callable(damage)
    ring = ring_with("k1")
    ciphertext, _ = ring.encrypt(b"value", kind="secret", row_id=ROW)

    with pytest.raises(DecryptionFailed):
        ring.decrypt(damage(ciphertext), key_id="k1", kind="secret", row_id=ROW)


@settings(deadline=None)
@given(st.binary(max_size=2000), st.text(max_size=20), st.text(max_size=40))
def test_anything_comes_back_as_it_was(data: bytes, kind: str, row_id: str) -> None:
    ring = ring_with("k1", "k2")

    ciphertext, key_id = ring.encrypt(data, kind=kind, row_id=row_id)

    assert ring.decrypt(ciphertext, key_id=key_id, kind=kind, row_id=row_id) == data


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_foreign_bytes_never_open(data: bytes) -> None:
    with pytest.raises(DecryptionFailed):
        ring_with("k1").decrypt(data, key_id="k1", kind="secret", row_id=ROW)


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    old = ring_with("k1")
    ciphertext, _ = old.encrypt(b"value", kind="secret", row_id=ROW)

    ring = old.with_new_key(NOW)

    assert ring.ids == (ring.active_id, "k1")
    assert ring.active_id.startswith("20260304-")
    assert ring.encrypt(b"x", kind="secret", row_id=ROW)[1] == ring.active_id
    assert ring.decrypt(ciphertext, key_id="k1", kind="secret", row_id=ROW) == b"value"
    assert old.ids == ("k1",)


def test_a_ring_without_a_key_cannot_open_what_it_closed() -> None:
    ring = ring_with("k1", "k2")
    ciphertext, _ = ring.encrypt(b"value", kind="secret", row_id=ROW)

    with pytest.raises(UnknownKey):
        ring.without(["k1"]).decrypt(ciphertext, key_id="k1", kind="secret", row_id=ROW)


def test_a_ring_survives_being_written_and_read() -> None:
    ring = new_ring(NOW).with_new_key(NOW)
    ciphertext, key_id = ring.encrypt(b"value", kind="secret", row_id=ROW)

    read = KeyRing.parse(ring.to_text())

    assert read.ids == ring.ids
    assert read.decrypt(ciphertext, key_id=key_id, kind="secret", row_id=ROW) == b"value"


def test_comments_and_empty_lines_of_a_ring_are_skipped() -> None:
    text = f"# made by hand\n\n  k1   {base64.b64encode(b'k' * 32).decode()}  \r\n\n"

    assert KeyRing.parse(text).ids == ("k1",)


_GOOD = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        ("k1", "line 1 must hold a key"),
        (f"k1 {_GOOD}\nk1 {_GOOD}", "line 2 must begin with a key id of its own"),
        (f"k/1 {_GOOD}", "line 1 must begin with a key id"),
        (f"{'k' * 33} {_GOOD}", "line 1 must begin with a key id"),
        ("k1 c2hvcnQ=", "line 1 must hold a key of 32 bytes"),
        ("k1 not*base64", "line 1 must hold a key of 32 bytes"),
        ("k1 ünï", "line 1 must hold a key of 32 bytes"),
    ],
)
def test_a_bad_ring_is_refused_without_quoting_a_key(text: str, words: str) -> None:
    with pytest.raises(BadKeyRing, match=words) as caught:
        KeyRing.parse(text)

    assert _GOOD not in str(caught.value)


def test_a_ring_never_shows_its_keys() -> None:
    ring = ring_with("k1", "k2")

    assert repr(ring) == "<KeyRing k1 k2>"


def test_a_fingerprint_tells_keys_apart_and_says_nothing_else() -> None:
    ring = ring_with("k1", "k2")

    assert ring.fingerprint("k1") == ring_with("k1").fingerprint("k1")
    assert len({ring.fingerprint("k1"), ring.fingerprint("k2")}) == 2
    assert len(ring.fingerprint("k1")) == 32
    with pytest.raises(UnknownKey):
        ring.fingerprint("k3")
