"""What callers of the engine see, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from servers.mcp.types import ConnectionSettings, Tool

TOOL = Tool(name="a", input_schema={"b": 1, "c": 2})


@pytest.mark.parametrize("module", ["servers.mcp.types", "servers.limits", "servers.naming"])
def test_importing_loads_neither_the_sdk_nor_django(module: str) -> None:
    """Memory of the web process: the SDK is loaded where a connection is made."""
    code = (
        f"import sys, {module}; print([m for m in ('mcp', 'django', 'httpx2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_engine_loads_no_django() -> None:
    code = "import sys, servers.mcp.client; print('django' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_settings_never_show_their_secrets() -> None:
    """E11."""
    settings = ConnectionSettings(
        name="x",
        transport="http",
        url="http://h/?k=canary",
        headers=(("A", "canary"),),
        args=("canary",),
        env={"E": "canary"},
    )
    assert "canary" not in repr(settings)


def test_the_hash_of_a_tool_changes_with_its_content_alone() -> None:
    assert len(TOOL.content_hash) == 64
    assert replace(TOOL, input_schema={"c": 2, "b": 1}).content_hash == TOOL.content_hash
    assert replace(TOOL, description="x").content_hash != TOOL.content_hash
    assert replace(TOOL, destructive=False).content_hash != TOOL.content_hash
