from __future__ import annotations

from django.urls import path

from secrets_vault import views

app_name = "secrets"
urlpatterns = [
    path("", views.secrets, name="list"),
    path("new/", views.create, name="create"),
    path("options/", views.options, name="options"),
    path("quick/", views.quick, name="quick"),
    path("<uuid:pk>/edit/", views.edit, name="edit"),
    path("<uuid:pk>/delete/", views.delete, name="delete"),
]
