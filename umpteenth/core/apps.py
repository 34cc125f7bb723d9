from django.apps import AppConfig


class CoreConfig(AppConfig):
    name = "umpteenth.core"
    label = "core"
