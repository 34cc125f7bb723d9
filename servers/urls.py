from __future__ import annotations

from django.urls import path

from servers.views import checks, forms, homes, pages, sheet, tools

app_name = "servers"
urlpatterns = [
    path("", pages.list_servers, name="list"),
    path("new/", forms.create, name="create"),
    path("changes/", pages.changes, name="changes"),
    path("checks/<uuid:pk>/", checks.show, name="check"),
    path("checks/<uuid:pk>/cancel/", checks.cancel, name="cancel_check"),
    path("<uuid:pk>/", sheet.detail, name="detail"),
    path("<uuid:pk>/news/", sheet.news, name="news"),
    path("<uuid:pk>/row/", pages.row, name="row"),
    path("<uuid:pk>/tools/", tools.tools, name="tools"),
    path("<uuid:pk>/tool/", tools.tool, name="tool"),
    path("<uuid:pk>/edit/", forms.edit, name="edit"),
    path("<uuid:pk>/duplicate/", pages.duplicate, name="duplicate"),
    path("<uuid:pk>/delete/", pages.delete, name="delete"),
    path("<uuid:pk>/log-out/", pages.log_out, name="log_out"),
    path("<uuid:pk>/home/", homes.home_size, name="home_size"),
    path("<uuid:pk>/home/clear/", homes.clear, name="clear_home"),
    path("<uuid:pk>/enabled/", pages.switch, name="enabled"),
    path("<uuid:pk>/test/", checks.test, name="test"),
]
