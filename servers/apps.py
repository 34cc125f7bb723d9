from django.apps import AppConfig


class ServersConfig(AppConfig):
    name = "servers"

    def ready(self) -> None:
        from secrets_vault.services import register_encrypted
        from servers.models import Server
        from servers.private import KIND

        register_encrypted(Server, KIND, "private", "key_id")
