"""What people read when a request cannot be answered."""

from __future__ import annotations

import sys

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.views.decorators.csrf import requires_csrf_token

from umpteenth.core.htmx import wants_fragment
from umpteenth.core.rest import refusal, wants_json

FORM_EXPIRED = "This form has expired. Reload the page and send it again."
FAILED = {
    "title": "Something failed on the server",
    "text": "The request was not finished. The server's log says what went wrong.",
}
NO_DATABASE = {
    "title": "The database does not answer",
    "text": "The request was not finished. Try again in a moment; the server's log says more.",
}
TOO_MANY = "Too many attempts to sign in from your address. Wait a minute, then try again."


def error_page(
    request: HttpRequest, status: int, title: str, text: str, hint: str = ""
) -> HttpResponse:
    """A page that says what happened and what to do next; for htmx and programs the sentence."""
    if wants_json(request):
        return refusal(status, text)
    context = {"title": title, "text": text, "hint": hint, "status": status}
    signed_in = getattr(getattr(request, "user", None), "is_authenticated", False)
    context["layout"] = "base.html" if signed_in else "bare.html"
    name = "partials/error.html" if wants_fragment(request) else f"errors/{status}.html"
    return HttpResponse(render_to_string(name, context, request), status=status)


@requires_csrf_token
def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(
        request,
        400,
        "The request could not be understood",
        "Something in the address or the form has a shape that this page does not take.",
    )


@requires_csrf_token
def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(
        request, 403, "You may not do this", str(exception) or "Your role does not allow this."
    )


@requires_csrf_token
def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return error_page(
        request,
        404,
        "Nothing is here",
        _own_words(exception) or "The address is wrong, or what it led to has been deleted.",
    )


def _own_words(exception: Exception) -> str:
    """The sentence that a view raised with `Http404`; Django's own ones speak of models."""
    words = exception.args[0] if exception.args else ""
    if not isinstance(words, str) or "matches the given query" in words:
        return ""
    return words


def server_error(request: HttpRequest) -> HttpResponse:
    """Touches neither database nor session: either may be what failed."""
    away = isinstance(sys.exc_info()[1], OperationalError | InterfaceError)
    status = 503 if away else 500
    words = NO_DATABASE if away else FAILED
    if wants_json(request):
        return refusal(status, words["text"])
    if request.headers.get("HX-Request"):
        return HttpResponse(render_to_string("partials/error.html", words), status=status)
    context = {**words, "layout": "bare.html"}
    return HttpResponse(render_to_string("errors/500.html", context), status=status)


@requires_csrf_token
def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return error_page(request, 403, "The form was not accepted", FORM_EXPIRED)


def locked_out(
    request: HttpRequest, credentials: object = None, *args: object, **kwargs: object
) -> HttpResponse:
    response = error_page(request, 429, "Too many attempts", TOO_MANY)
    response["Retry-After"] = "60"
    return response
