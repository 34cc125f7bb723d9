"""What the broker asks of whoever holds the run, and the limits it keeps on their behalf.

A connection to the broker carries one request and one answer, each a JSON line:

    {"token": "…", "command": "state_set", "args": {"key": "count", "value": 3}}
    {"ok": true, "result": null}
    {"ok": false, "error": "one sentence", "exit": 1}

`exit` is what `ump` ends with: 1 the call failed, 2 the request made no sense.
"""

from __future__ import annotations

from typing import Any, Protocol

from servers.mcp.types import CallResult

KIB = 1024
MIB = 1024 * KIB

# reference.md, section 2
MAX_REQUEST = 8 * MIB
# In one request. Each takes many times the bytes that it had as text, and the worker is shared.
MAX_VALUES = 600_000
MAX_CONCURRENT = 8
MAX_WAITING = 64
MAX_OUTPUTS = 100
MAX_OUTPUT_BYTES = 1 * MIB  # all outputs of a run together
MAX_STEPS = 1000
MAX_STEP_BYTES = 200
MAX_SUMMARY_BYTES = 16 * KIB
MAX_FAIL_REASON = 2000  # characters
MAX_STATE_KEYS = 1000
MAX_STATE_KEY = 200  # characters
MAX_STATE_VALUE = 1 * MIB
MAX_STATE_TOTAL = 16 * MIB
MAX_NAME = 200  # characters of an output's name
REQUEST_TIMEOUT = 60.0  # seconds for a client to send its request

FAILED = 1
USAGE = 2


class BrokerError(Exception):
    """A request that is refused or failed; the message is what the script's author reads."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


class BrokerHandler(Protocol):
    """The run behind the broker. Arguments are checked, cleaned and bounded already.

    Every method may raise `BrokerError`. A method is cancelled when the client hangs up.
    """

    async def mcp_tools(self, server: str | None) -> list[dict[str, Any]]:
        """Tools the run may call: `{server, name, title, description, input_schema, …}`."""
        ...

    async def mcp_call(self, server: str, tool: str, arguments: dict[str, Any]) -> CallResult:
        """Call a tool by its server's own name; `ok` False where the tool reports an error."""
        ...

    async def state_get(self, key: str) -> Any:
        """The value of a key. Raises `KeyError` where the job has no such key."""
        ...

    async def state_set(self, key: str, value: Any) -> None:
        """Keep a value; the limits of all values together are checked here."""
        ...

    async def state_list(self) -> list[str]:
        """Every key, in order."""
        ...

    async def output_set(self, name: str, value: Any) -> None: ...

    async def step(self, name: str) -> None: ...

    async def summary(self, text: str) -> None: ...

    async def fail(self, reason: str) -> None: ...
