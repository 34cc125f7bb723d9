"""Runs what every storage promises with the storage and the database of a site.

Prints the names of the tests that passed as JSON. A process of its own: its options come from the
environment, as those of a worker do.
"""

from __future__ import annotations

import json

from umpteenth.cli.bootstrap import setup


def main() -> list[str]:
    from django.core.files.storage import default_storage

    from tests.fakes.storages import StorageBehaviour

    names = [name for name in dir(StorageBehaviour) if name.startswith("test_")]
    for name in names:
        getattr(StorageBehaviour(), name)(default_storage)
    return names


if __name__ == "__main__":
    setup()
    print(json.dumps(main()))
