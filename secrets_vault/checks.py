"""System checks of the vault."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error

from secrets_vault.encryption import unregistered_models


def check_encrypted_columns(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """A column that rotation does not know would be lost with the old key."""
    return [
        Error(
            f"{name} looks like an encrypted column and is not registered.",
            hint="Call secrets_vault.services.register_encrypted in the app's ready().",
            id="secrets_vault.E001",
        )
        for name in unregistered_models()
    ]
