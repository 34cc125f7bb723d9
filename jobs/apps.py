from __future__ import annotations

from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "jobs"

    def ready(self) -> None:
        from jobs import usage
        from jobs.sandbox.homes import Homes
        from jobs.sandbox.spawner import make_spawner
        from jobs.views import contributions
        from servers.homes import register_homes
        from servers.spawning import register_spawner
        from umpteenth.core.config import get_options

        register_spawner(make_spawner)
        register_homes(lambda: Homes.from_options(get_options()))
        usage.register()
        contributions.register()
