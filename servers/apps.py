from __future__ import annotations

from django.apps import AppConfig


class ServersConfig(AppConfig):
    name = "servers"

    def ready(self) -> None:
        from secrets_vault.services import register_encrypted, register_usage
        from servers.models import Login, PendingLogin, RegisteredClient, Server
        from servers.oauth import store
        from servers.private import KIND
        from servers.wiring import (
            ending_logins,
            first_step,
            search_logins,
            search_servers,
            servers_using_secrets,
            trouble,
        )
        from umpteenth.accounts.dashboard import register_panel, register_step
        from umpteenth.accounts.search import register_source

        register_encrypted(Server, KIND, "private", "key_id")
        register_encrypted(Login, store.KIND, "private", "key_id")
        register_encrypted(PendingLogin, store.PENDING_KIND, "private", "key_id")
        register_encrypted(RegisteredClient, store.CLIENT_KIND, "private", "key_id")
        register_usage(servers_using_secrets)
        register_source(search_servers)
        register_source(search_logins)
        register_step(first_step)
        register_panel(trouble)
        register_panel(ending_logins)
