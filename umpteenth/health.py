"""`GET /healthz`: for load balancers and container checks, without a sign-in."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from umpteenth.core.clock import database_now


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the database answers, else 503; `worker` tells whether one reported lately."""
    from jobs.presence import live_workers

    try:
        seen = bool(live_workers(database_now()))
    except DatabaseError:
        # Why, is in the log: this page is open to everybody.
        return JsonResponse({"status": "unavailable", "database": False}, status=503)
    return JsonResponse({"status": "ok", "database": True, "worker": seen})
