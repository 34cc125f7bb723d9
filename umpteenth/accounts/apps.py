from __future__ import annotations

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "umpteenth.accounts"
    label = "accounts"

    def ready(self) -> None:
        from .places import hits
        from .search import register_source

        register_source(hits)
