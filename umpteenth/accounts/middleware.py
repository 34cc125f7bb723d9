"""Somebody whose password was typed by an administrator chooses another one first."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from umpteenth.core.htmx import hx_redirect

from .models import User

# What they may open before that.
_OPEN = {"accounts:password", "accounts:sign_out", "accounts:theme"}


class TemporaryPasswordMiddleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponse | None:
        if not isinstance(request.user, User) or not request.user.password_is_temporary:
            return None
        match = request.resolver_match
        if match is not None and match.view_name in _OPEN:
            return None
        return hx_redirect(request, reverse("accounts:password"))
