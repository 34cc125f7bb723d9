from __future__ import annotations

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        from jobs import usage
        from jobs.sandbox.spawner import make_spawner
        from jobs.views import contributions
        from servers.spawning import register_spawner

        register_spawner(make_spawner)
        usage.register()
        contributions.register()
