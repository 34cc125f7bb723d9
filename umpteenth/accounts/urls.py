from __future__ import annotations

from django.urls import path

from .views import pages, people, session, tokens

app_name = "accounts"
urlpatterns = [
    path("sign-in/", session.sign_in, name="sign_in"),
    path("sign-out/", session.sign_out, name="sign_out"),
    path("claim/<str:token>", session.claim, name="claim"),
    path("account/password/", session.password, name="password"),
    path("account/theme/", pages.theme, name="theme"),
    path("search", pages.search, name="search"),
    path("settings/", pages.settings_start, name="settings"),
    path("settings/people/", people.people, name="people"),
    path("settings/people/add/", people.add, name="person_add"),
    path("settings/people/<uuid:pk>/role/", people.role, name="person_role"),
    path("settings/people/<uuid:pk>/password/", people.one_time_password, name="person_password"),
    path("settings/people/<uuid:pk>/deactivate/", people.deactivate, name="person_deactivate"),
    path("settings/people/<uuid:pk>/activate/", people.activate, name="person_activate"),
    path("settings/tokens/", tokens.tokens, name="tokens"),
    path("settings/tokens/new/", tokens.create, name="token_create"),
    path("settings/tokens/<uuid:pk>/revoke/", tokens.revoke, name="token_revoke"),
    path("settings/general/", pages.general, name="general"),
    path("settings/audit/", pages.audit, name="audit"),
]
