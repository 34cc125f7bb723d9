"""The sandbox of a run's script as events of its timeline.

Those of stdio servers have none: that a server connected, and how it ended, says what they would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobs.timeline import Event

if TYPE_CHECKING:
    from jobs.plan import Plan
    from jobs.sandbox.base import Facts
    from jobs.timeline import Recorder

DESTROYED = "sandbox.destroy"


def created(facts: Facts, plan: Plan, recorder: Recorder, ms: float) -> Event:
    """What it is, and which limits of its job it is not held to. `ms`: until it had started."""
    payload: dict[str, Any] = {
        "adapter": facts.adapter,
        "isolation": facts.isolation,
        "image": facts.image,
        "environment": plan.environment.name if plan.environment else "",
        "user": "root" if plan.run.job.run_as_root else "agent",
        "network": plan.network.mode,
        "cpus": plan.limits.cpus,
        "memory": plan.limits.memory // 1024**2,
        "disk": plan.limits.disk // 1024**2,
        "unenforced": list(facts.unenforced),
    }
    said = {name: value for name, value in payload.items() if value not in ("", [])}
    return Event("sandbox.create", recorder.mask_json(said), ms=ms, masked=True)
