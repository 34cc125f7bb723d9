from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "umpteenth.accounts"
    label = "accounts"
