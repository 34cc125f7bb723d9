"""Settings → Sandboxes: how runs are kept apart, and which workers can do it."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from jobs.models import Worker
from jobs.presence import SILENT
from jobs.sandbox.base import Limits, adapter
from jobs.sandbox.mounts import memory_size
from jobs.sandbox.places import Places
from jobs.views.environments import default_image, environment_rows, machines
from umpteenth.accounts.access import administrator_required
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options
from umpteenth.core.htmx import Request, render_page


@require_GET
@administrator_required
def sandboxes(request: Request) -> HttpResponse:
    """The page refreshes its table of workers by itself."""
    options = get_options()
    seen_after = database_now() - SILENT
    workers = [(worker, worker.seen_at >= seen_after) for worker in Worker.objects.order_by("name")]
    context = {
        "adapter": adapter().name,
        "engine": options.sandbox.engine if options.sandbox.adapter == "engine" else None,
        "memory_size": memory_size(),
        "limits": Limits(),
        "workers": workers,
        "any_alive": any(alive for _, alive in workers),
        "readonly_paths": Places.from_options(options).readonly,
        "tests_reach_private": options.network.allow_private_targets,
        "unrestricted_network": options.sandbox.allow_unrestricted_network,
        "machines": machines([worker for worker, alive in workers if alive]),
        "environments": environment_rows(),
        "default_image": default_image(),
    }
    return render_page(
        request, "jobs/sandboxes.html", context, partial="jobs/sandboxes_workers.html"
    )
