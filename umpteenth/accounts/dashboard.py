"""The dashboard's panels: rooms register what they show there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from umpteenth.core.htmx import Request

# A panel is {"template": "jobs/_dashboard.html", "wide": True, …}: its template gets it as `panel`.
Panel = Callable[[Request], dict[str, Any] | None]
# A first step is {"title", "text", "url", "action", "done"}: shown until all are done.
Step = Callable[[Request], dict[str, Any]]
_panels: list[Panel] = []
_steps: list[Step] = []


def register_panel(panel: Panel) -> None:
    """Add a panel; it returns None where it has nothing to say."""
    if panel not in _panels:
        _panels.append(panel)


def register_step(step: Step) -> None:
    """Add one of the first steps (add a server, make a job, run it)."""
    if step not in _steps:
        _steps.append(step)


def panels(request: Request) -> list[dict[str, Any]]:
    return [panel for source in _panels if (panel := source(request)) is not None]


def steps(request: Request) -> list[dict[str, Any]]:
    return [step(request) for step in _steps]
