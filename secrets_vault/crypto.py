"""Encryption of what the database keeps: AES-256-GCM under keys derived from a ring (design 3).

A ring holds master keys by id; the first one encrypts, all decrypt. Each purpose ("kind") has a
key of its own, derived by HKDF, and what was encrypted is bound to its kind, its row and its
key's id: moved elsewhere it does not open.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import secrets
from collections.abc import Collection, Mapping
from datetime import datetime
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MASTER_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
# First byte of every ciphertext, so that another format can follow one day.
_FORMAT = b"\x01"
_KEY_ID = re.compile(r"[A-Za-z0-9_.-]{1,32}")


class CryptoError(Exception):
    def __init__(self, message: str, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class UnknownKey(CryptoError):
    """The ring holds no key of this id."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"Key {key_id} is not in the key ring.", key_id)


class DecryptionFailed(CryptoError):
    """The key of this id is not the one it was encrypted with, or the data was changed."""

    def __init__(self, key_id: str) -> None:
        super().__init__(f"This cannot be decrypted with key {key_id}.", key_id)


class BadKeyRing(ValueError):
    """Text that is no key ring. The message never quotes a key."""


class KeyRing:
    """Master keys by id, the active one first. Immutable; never shows its keys."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise BadKeyRing("it holds no key")
        self._keys = dict(keys)
        self._ciphers: dict[tuple[str, str], AESGCM] = {}

    def __repr__(self) -> str:
        return f"<KeyRing {' '.join(self._keys)}>"

    @classmethod
    def parse(cls, text: str) -> KeyRing:
        """Read lines `id base64`, the active one first, `#` for comments. Raises `BadKeyRing`."""
        keys: dict[str, bytes] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            key_id, _, encoded = line.strip().partition(" ")
            if not _KEY_ID.fullmatch(key_id) or key_id in keys:
                raise BadKeyRing(f"line {number} must begin with a key id of its own")
            keys[key_id] = _decode(encoded.strip(), number)
        return cls(keys)

    def to_text(self) -> str:
        """What `parse` reads. Only for a file that nobody else can read."""
        return "".join(
            f"{key_id} {base64.b64encode(key).decode('ascii')}\n"
            for key_id, key in self._keys.items()
        )

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._keys)

    @property
    def active_id(self) -> str:
        return next(iter(self._keys))

    def with_new_key(self, now: datetime) -> KeyRing:
        """A ring with a fresh key before the others; its id tells the day it was made."""
        key_id = f"{now:%Y%m%d}-{secrets.token_hex(4)}"
        return KeyRing({key_id: secrets.token_bytes(MASTER_KEY_BYTES), **self._keys})

    def without(self, key_ids: Collection[str]) -> KeyRing:
        return KeyRing({k: key for k, key in self._keys.items() if k not in key_ids})

    def fingerprint(self, key_id: str) -> str:
        """Tells a key from another of the same id and says nothing about the key itself."""
        return _derive(self._master(key_id), b"umpteenth fingerprint", 16).hex()

    def encrypt(self, data: bytes, *, kind: str, row_id: UUID | str | int) -> tuple[bytes, str]:
        """The ciphertext and the id of the key, which must be kept with it."""
        key_id = self.active_id
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher(key_id, kind).encrypt(nonce, data, _bound_to(kind, row_id, key_id))
        return _FORMAT + nonce + sealed, key_id

    def decrypt(
        self, ciphertext: bytes, *, key_id: str, kind: str, row_id: UUID | str | int
    ) -> bytes:
        """Raises `UnknownKey` and `DecryptionFailed`."""
        cipher = self._cipher(key_id, kind)
        body = ciphertext[1:]
        if ciphertext[:1] != _FORMAT or len(body) < _NONCE_BYTES + _TAG_BYTES:
            raise DecryptionFailed(key_id)
        try:
            return cipher.decrypt(
                body[:_NONCE_BYTES], body[_NONCE_BYTES:], _bound_to(kind, row_id, key_id)
            )
        except InvalidTag:
            raise DecryptionFailed(key_id) from None

    def _master(self, key_id: str) -> bytes:
        try:
            return self._keys[key_id]
        except KeyError:
            raise UnknownKey(key_id) from None

    def _cipher(self, key_id: str, kind: str) -> AESGCM:
        master = self._master(key_id)
        cipher = self._ciphers.get((key_id, kind))
        if cipher is None:
            cipher = AESGCM(_derive(master, b"umpteenth encrypt " + kind.encode(), 32))
            self._ciphers[key_id, kind] = cipher
        return cipher


def new_ring(now: datetime) -> KeyRing:
    """A ring with one fresh key."""
    spare = "spare"
    return KeyRing({spare: bytes(MASTER_KEY_BYTES)}).with_new_key(now).without([spare])


def _decode(encoded: str, number: int) -> bytes:
    try:
        key = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != MASTER_KEY_BYTES:
        raise BadKeyRing(f"line {number} must hold a key of 32 bytes in base64")
    return key


def _derive(master: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(master)


def _bound_to(kind: str, row_id: UUID | str | int, key_id: str) -> bytes:
    """Associated data. Lengths go along, so that no two triples read the same."""
    parts = [part.encode() for part in (kind, str(row_id), key_id)]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
