from __future__ import annotations

from django.urls import path

from jobs.views import files, live, runs, values

app_name = "runs"
urlpatterns = [
    path("", runs.run_list, name="list"),
    path("<uuid:pk>/", runs.run_detail, name="detail"),
    path("<uuid:pk>/events/", live.run_events, name="events"),
    path("<uuid:pk>/events/<int:seq>/", runs.run_event, name="event"),
    path("<uuid:pk>/events/<int:seq>/<slug:key>/", values.run_value, name="value"),
    path("<uuid:pk>/cancel/", runs.run_cancel, name="cancel"),
    path("<uuid:pk>/retry/", runs.run_retry, name="retry"),
    path("<uuid:pk>/raw.json", runs.run_raw, name="raw"),
    path("<uuid:pk>/output.txt", files.output, name="output"),
    path("<uuid:pk>/blobs/<uuid:blob_id>/", files.blob, name="blob"),
    path("<uuid:pk>/artifacts/<uuid:artifact_id>/", files.artifact, name="artifact"),
]
