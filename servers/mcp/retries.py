"""Calls that a server asks to repeat (U49-U58).

Only a JSON-RPC error is such a request, and only of a tool that its server marks read-only: a call
that may have happened is never sent twice.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

from mcp_types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR

from servers.limits import RetryPolicy
from servers.mcp.errors import RpcError

TOOL_TIMED_OUT: Final = -32005
AT_CAPACITY: Final = -32006
# What stays wrong however often it is sent (U54).
HOPELESS: Final = frozenset({PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
UNAUTHORIZED: Final = (401, 403, 407)  # as HTTP status, or as JSON-RPC code of some servers


def wait_before_next(error: RpcError, policy: RetryPolicy, attempt: int) -> float | None:
    """Seconds until the call is sent again; None if it is not. `attempt` counts from 1.

    Exponential with full jitter; what the server asks for is the least (U52, U53).
    """
    if attempt >= policy.attempts or not asks_to_retry(error):
        return None
    most = min(policy.max_ms, policy.base_ms * 2 ** (attempt - 1))
    return max(random.uniform(0, most), _floor_ms(error.data)) / 1000


def asks_to_retry(error: RpcError) -> bool:
    if error.code in HOPELESS or error.status in UNAUTHORIZED or error.code in UNAUTHORIZED:
        return False
    if error.code in (TOOL_TIMED_OUT, AT_CAPACITY):
        return True
    return isinstance(error.data, dict) and bool(error.data.get("retryable"))


def _floor_ms(data: Any) -> float:
    """`retry_after_ms` of the error; anything that is no plain number of them counts as none."""
    value = data.get("retry_after_ms") if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        floor = float(value)
    except OverflowError:
        return math.inf
    return floor if floor > 0 else 0.0
