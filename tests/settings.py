"""The settings of the test process. The options come from here, never from the machine.

pytest-django loads settings before any conftest, so the environment is made here. Programs that
tests start get `umpteenth.settings` and the environment as it is then.
"""

from __future__ import annotations

import os
import tempfile

for _name in [name for name in os.environ if name.startswith("UMPTEENTH_")]:
    del os.environ[_name]
# One for each process, so that parallel tests share nothing. Short: sockets live below it.
os.environ["UMPTEENTH_DATA_DIR"] = tempfile.mkdtemp(prefix="ump-test-")
os.environ["UMPTEENTH_SECURITY__SECRET_KEY"] = "a-key-for-tests-only"
os.environ["DJANGO_SETTINGS_MODULE"] = "umpteenth.settings"

from umpteenth.settings import *  # noqa: E402, F403
