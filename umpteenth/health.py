"""`GET /healthz`: for load balancers and container checks, without a sign-in."""

from __future__ import annotations

from datetime import timedelta

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

# Workers report every few seconds; the sweep gives up on one after the same time.
WORKER_SEEN_WITHIN = timedelta(seconds=60)


@require_safe
@never_cache
@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """200 while the database answers, else 503; `worker` tells whether one reported lately."""
    from jobs.models import Worker

    try:
        since = timezone.now() - WORKER_SEEN_WITHIN
        seen = Worker.objects.filter(seen_at__gte=since).exists()
    except DatabaseError:
        # Why, is in the log: this page is open to everybody.
        return JsonResponse({"status": "unavailable", "database": False}, status=503)
    return JsonResponse({"status": "ok", "database": True, "worker": seen})
