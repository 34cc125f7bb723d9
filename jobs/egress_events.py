"""What a guarded network lets through and refuses, as events of the run's timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobs.sandbox.egress.base import EgressEvent
    from jobs.timeline import Recorder

_KINDS = {
    "opened": "network.connected",
    "refused": "network.refused",
    "failed": "network.failed",
}


def reporter(recorder: Recorder, server: str = "") -> Callable[[EgressEvent], None]:
    """Records for the run itself, or for the sandbox of a stdio server."""

    def report(event: EgressEvent) -> None:
        kind = _KINDS.get(event.kind)
        if kind is None:
            recorder.record("log", {"message": event.reason})
            return
        payload: dict[str, Any] = {}
        if event.host:  # none where a connection got no further than the proxy
            payload = {"host": event.host, "port": event.port}
        if event.reason:
            payload["reason"] = event.reason
        if server:
            payload["server"] = server
        recorder.record(kind, payload)

    return report
