"""Where each room's pages hang."""

from __future__ import annotations

from django.urls import include, path

from umpteenth.accounts import views as accounts_views
from umpteenth.api import api
from umpteenth.health import healthz

urlpatterns = [
    path("healthz", healthz, name="healthz"),
    path("", accounts_views.dashboard, name="dashboard"),
    path("", include("umpteenth.accounts.urls")),
    path("settings/secrets/", include("secrets_vault.urls")),
    path("servers/", include("servers.urls")),
    path("api/mcp-servers/", include("servers.api_urls")),
    path("api/", api.urls),
    path("", include("jobs.urls.jobs")),
    path("settings/environments/", include("jobs.urls.environments")),
    path("runs/", include("jobs.urls.runs")),
]

handler400 = "umpteenth.accounts.views.errors.bad_request"
handler403 = "umpteenth.accounts.views.errors.forbidden"
handler404 = "umpteenth.accounts.views.errors.not_found"
handler500 = "umpteenth.accounts.views.errors.server_error"
