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
        from secrets_vault.search import search_secrets
        from umpteenth.accounts.search import register_source

        register_encrypted(Secret, "secret", "ciphertext", "key_id")
        register_source(search_secrets)
        register(check_encrypted_columns)
