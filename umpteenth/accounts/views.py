from __future__ import annotations

from django.http import HttpRequest, HttpResponse


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return HttpResponse(status=403)


def locked_out(request: HttpRequest, credentials: object, *args: object) -> HttpResponse:
    return HttpResponse(status=429)


def sign_in(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def dashboard(request: HttpRequest) -> HttpResponse:
    return HttpResponse()
