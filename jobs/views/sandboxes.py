"""Settings → Sandboxes: how runs are kept apart, and which workers can do it."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from jobs.models import Worker
from jobs.presence import SILENT
from jobs.sandbox.base import Limits, adapter
from jobs.sandbox.inside import memory_size
from jobs.sandbox.places import Places
from jobs.views.environments import default_image, environment_rows, machines
from umpteenth.accounts.access import administrator_required
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options
from umpteenth.core.htmx import Request, render_page, wants_fragment


@require_GET
@administrator_required
def sandboxes(request: Request) -> HttpResponse:
    """The page refreshes its table of workers by itself."""
    seen_after = database_now() - SILENT
    workers = [(worker, worker.seen_at >= seen_after) for worker in Worker.objects.order_by("name")]
    context = {"workers": workers, "any_alive": any(alive for _, alive in workers)}
    if not wants_fragment(request):
        context |= _page_context([worker for worker, alive in workers if alive])
    return render_page(
        request, "jobs/sandboxes.html", context, partial="jobs/sandboxes_workers.html"
    )


def _page_context(live: list[Worker]) -> dict[str, Any]:
    """What the table of workers does without."""
    options = get_options()
    return {
        "adapter": adapter().name,
        "engine": options.sandbox.engine if options.sandbox.adapter == "engine" else None,
        "memory_size": memory_size(),
        "limits": Limits(),
        "readonly_paths": Places.from_options(options).readonly,
        "tests_reach_private": options.network.allow_private_targets,
        "unrestricted_network": options.sandbox.allow_unrestricted_network,
        "machines": machines(live),
        "environments": environment_rows(),
        "default_image": default_image(),
    }
