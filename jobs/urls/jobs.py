from __future__ import annotations

from django.urls import include, path

from jobs.views import editor, environments, jobs, sandboxes, state

app_name = "jobs"
_jobs = [
    path("", jobs.job_list, name="list"),
    path("new/", editor.job_create, name="create"),
    path("cron-preview/", editor.cron_preview, name="cron_preview"),
    path("attachment/", editor.attachment_row, name="attachment_row"),
    path("attachment/<uuid:pk>/tools/", editor.attachment_tools, name="attachment_tools"),
    path("<uuid:pk>/", jobs.job_detail, name="detail"),
    path("<uuid:pk>/runs/", jobs.job_runs, name="runs"),
    path("<uuid:pk>/state/", state.job_state, name="state"),
    path("<uuid:pk>/state/entry/", state.state_entry, name="state_entry"),
    path("<uuid:pk>/state/delete/", state.state_delete, name="state_delete"),
    path("<uuid:pk>/environment/", environments.job_environment, name="environment"),
    path("<uuid:pk>/settings/", editor.job_settings, name="settings"),
    path("<uuid:pk>/run/", jobs.run_now, name="run_now"),
    path("<uuid:pk>/enabled/", jobs.job_enabled, name="enabled"),
    path("<uuid:pk>/delete/", jobs.job_delete, name="delete"),
]
urlpatterns = [
    path("jobs/", include(_jobs)),
    path("settings/sandboxes/", sandboxes.sandboxes, name="sandboxes"),
]
