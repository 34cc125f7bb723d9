from __future__ import annotations

from django.urls import path

from jobs.views import environments

app_name = "environments"
urlpatterns = [
    path("new/", environments.environment_create, name="create"),
    path("<uuid:pk>/", environments.environment_detail, name="detail"),
    path("<uuid:pk>/update/", environments.environment_update, name="update"),
    path("<uuid:pk>/builds/", environments.environment_builds, name="builds"),
    path("<uuid:pk>/build/", environments.environment_build, name="build"),
    path("<uuid:pk>/delete/", environments.environment_delete, name="delete"),
]
