"""What every command needs before it touches the database."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from umpteenth.core.config import Options, get_options
from umpteenth.core.keyfiles import make_data_dir

# Any number that no other program uses as its advisory lock on the same Postgres database.
MIGRATION_LOCK = 7_205_846_113


def setup(*, service: bool = False) -> Options:
    """Load Django, bring the database up to date and make the vault's first key.

    A `service` keeps the configured log level; a command of one shot logs warnings only.
    Raises `ConfigError`.
    """
    options = load_django(service=service, pooled=False)
    migrate_database(options)
    from secrets_vault.services import ensure_key_ring

    ensure_key_ring()
    return options


def load_django(*, service: bool = False, pooled: bool | None = None) -> Options:
    """Load Django without a look at the database. Raises `ConfigError`.

    Only a `service` has a pool of connections unless told otherwise: a pool tries for 20 seconds
    and then no longer knows why, where a plain connection says at once what is wrong.
    """
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
    options = get_options()
    make_data_dir(options.data_dir)
    import django

    django.setup()
    if not (service if pooled is None else pooled):
        _without_pool()
    if not service and options.app.log_level == "INFO":
        logging.getLogger().setLevel(logging.WARNING)
    return options


def _without_pool() -> None:
    from django.db import connections

    for database in connections.settings.values():
        database.get("OPTIONS", {}).pop("pool", None)


def migrate_database(options: Options) -> bool:
    """Apply what is missing, one process at a time; True if anything was.

    A new database gets its first key under the same lock, so that two machines that start at
    once do not make one each.
    """
    if not has_missing_migrations():
        return False
    from django.core.management import call_command

    from secrets_vault.services import ensure_key_ring

    with _migration_lock(options):
        if not has_missing_migrations():
            return False
        call_command("migrate", interactive=False, verbosity=0)
        ensure_key_ring()
    return True


def has_missing_migrations() -> bool:
    """Whether the database lacks what this version of the code expects."""
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


@contextmanager
def _migration_lock(options: Options) -> Iterator[None]:
    """Wait for whoever migrates: a file on this machine, on Postgres also among machines."""
    from django.db import connection

    with (options.data_dir / "migrate.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if connection.vendor != "postgresql":
            yield
            return
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [MIGRATION_LOCK])
            try:
                yield
            finally:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [MIGRATION_LOCK])
