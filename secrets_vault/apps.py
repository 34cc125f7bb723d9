from django.apps import AppConfig


class SecretsVaultConfig(AppConfig):
    name = "secrets_vault"
