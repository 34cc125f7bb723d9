"""Settings → Sandboxes: how runs are kept apart, and which workers can do it."""

from __future__ import annotations

from django.http import HttpResponse
from django.views.decorators.http import require_GET

from jobs.models import Worker
from jobs.presence import SILENT
from jobs.sandbox.base import adapter
from jobs.sandbox.mounts import memory_size
from jobs.sandbox.places import Places
from jobs.sandbox.programs import find_programs
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
    programs = find_programs()
    context = {
        "adapter": adapter().name,
        "memory_size": memory_size(),
        "workers": workers,
        "any_alive": any(alive for _, alive in workers),
        "readonly_paths": Places.from_options(options).readonly,
        "unrestricted_network": options.sandbox.allow_unrestricted_network,
        "present": [program for program in programs if program.path],
        "missing": [program for program in programs if not program.path],
    }
    return render_page(
        request, "jobs/sandboxes.html", context, partial="jobs/sandboxes_workers.html"
    )
