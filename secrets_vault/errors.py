"""What can go wrong with a secret. Each message is for the person; none holds a value."""

from __future__ import annotations


class SecretError(Exception):
    """A secret that cannot be used or saved."""


class BadReference(SecretError):
    """Text that looks like a reference and is none."""


class SecretNotFound(SecretError):
    def __init__(self, name: str) -> None:
        super().__init__(
            f"Secret {name} not found. An administrator can create it under Settings, Secrets "
            f"(or with: umpteenth secret set {name})."
        )
        self.name = name


class SecretNotAllowed(SecretError):
    """Used where it is not meant for; `where` reads like `host example.org`."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(
            f"Secret {name} may not be used for {where}. "
            "An administrator can change what it is for under Settings, Secrets."
        )
        self.name = name
        self.where = where


class SecretUnreadable(SecretError):
    """Its key is missing, or is not the one it was encrypted with."""

    def __init__(self, name: str, key_id: str) -> None:
        super().__init__(
            f"Secret {name} cannot be decrypted with key {key_id}, enter it again "
            f"under Settings, Secrets (or with: umpteenth secret set {name}), "
            "or bring that key back."
        )
        self.name = name
        self.key_id = key_id


class BadSecret(SecretError):
    """A name or value that cannot be saved; `field` is the form's field."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class RotationRefused(Exception):
    """Keys cannot be rotated now or here; the message says what to do instead."""
