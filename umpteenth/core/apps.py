from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "umpteenth.core"
    label = "core"

    def ready(self) -> None:
        from umpteenth.core import checks  # noqa: F401  # registers them
