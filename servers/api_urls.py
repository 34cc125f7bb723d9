"""Addresses of the REST API that belong to servers and are used by browsers (P40)."""

from __future__ import annotations

from django.urls import path

from servers.views import oauth

app_name = "servers_api"
urlpatterns = [
    path("<uuid:pk>/oauth/login", oauth.login, name="oauth_login"),
    path("<uuid:pk>/oauth/callback", oauth.callback, name="oauth_callback"),
    path("<uuid:pk>/oauth/logout", oauth.logout, name="oauth_logout"),
    path("<uuid:pk>/oauth/client.json", oauth.client_document, name="oauth_client"),
]
