"""Django's secret key: a file of its own in the data directory, beside the vault's key ring."""

from __future__ import annotations

import logging
import os
import secrets
import stat
from pathlib import Path

from umpteenth.core.config import ConfigError, Options

SECRET_KEY_FILE = "django.key"
# Files that a data directory holds once it has been used.
SIGNS_OF_USE = ("keyring", "umpteenth.sqlite3")

logger = logging.getLogger(__name__)


def make_data_dir(path: Path) -> None:
    """Create the data directory for its owner alone (0700); an existing one stays as it is."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"The data directory {path} cannot be made: {reason}.") from None


def read_private_file(path: Path) -> str:
    """The text of a key file. Raises `ConfigError` where others can read it."""
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"The key file {path} can be read by others; run: chmod 600 {path}")
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"The key file {path} cannot be read: {reason}.") from None
    if not text:
        raise ConfigError(f"The key file {path} is empty; restore it from a backup.")
    return text


def create_private_file(path: Path, text: str) -> bool:
    """Write a new file readable by its owner alone; False where it exists already.

    It appears under its name with all of its text, so that nobody reads half a key.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink()
    return True


def read_secret_key(options: Options) -> str:
    """The given key, else the one in the data directory, made at first use."""
    if options.security.secret_key is not None:
        return options.security.secret_key.get_secret_value()
    make_data_dir(options.data_dir)
    path = options.data_dir / SECRET_KEY_FILE
    if not path.exists():
        made = create_private_file(path, secrets.token_urlsafe(48) + "\n")
        if made and any((options.data_dir / name).exists() for name in SIGNS_OF_USE):
            logger.warning("%s was missing and has been made anew: everybody is signed out.", path)
    return read_private_file(path)
