from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register


class SecretsVaultConfig(AppConfig):
    name = "secrets_vault"
    verbose_name = "Secrets"

    def ready(self) -> None:
        from secrets_vault.checks import check_encrypted_columns
        from secrets_vault.encryption import register_encrypted
        from secrets_vault.models import Secret

        register_encrypted(Secret, "secret", "ciphertext", "key_id")
        register(check_encrypted_columns)
