"""A key ring of a test's own, so that no test sees the keys of another."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import SecretStr

from secrets_vault import keyring
from secrets_vault.crypto import KeyRing
from umpteenth.core.config import Options, SecurityOptions


def use_ring_in(monkeypatch: pytest.MonkeyPatch, data_dir: Path, given: str | None = None) -> Path:
    """Keep the ring in that directory, or take the text as `security.key_ring`."""
    security = SecurityOptions(key_ring=SecretStr(given) if given is not None else None)
    options = Options(data_dir=data_dir, security=security)
    get_options: Callable[[], Options] = lambda: options  # noqa: E731
    monkeypatch.setattr(keyring, "get_options", get_options)
    keyring.forget_ring()
    return data_dir / keyring.RING_FILE


def ring_with(*key_ids: str, fill: int = 0) -> KeyRing:
    """Keys that only tests may have; another `fill` gives other keys of the same ids."""
    return KeyRing({key_id: sha256(f"{fill} {key_id}".encode()).digest() for key_id in key_ids})
