"""What every test may use. The options come from here, never from the machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

for _name in [name for name in os.environ if name.startswith("UMPTEENTH_")]:
    del os.environ[_name]
_DATA_DIR = Path(tempfile.mkdtemp(prefix="ump-test-"))
os.environ["UMPTEENTH_DATA_DIR"] = str(_DATA_DIR)
os.environ["UMPTEENTH_SECURITY__SECRET_KEY"] = "a-key-for-tests-only"
