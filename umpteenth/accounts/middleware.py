"""Who a request comes from: an API token, or somebody who must choose a password first."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from umpteenth.core.htmx import hx_redirect
from umpteenth.core.rest import is_api, refusal, wants_json

from .models import ApiToken, User
from .tokens import TokenRefused, sign_in
from .views.errors import error_page

# What they may open before that.
_OPEN = {"accounts:password", "accounts:sign_out", "accounts:theme"}
_CHALLENGE = 'Bearer realm="Umpteenth"'
UNSIGNED = (
    "Nobody is signed in. Send an API token as Authorization: Bearer TOKEN; "
    "make one under Settings, API tokens."
)
SIGN_IN_FIRST = "Sign in to Umpteenth in this browser, then try again."
CHOOSE_PASSWORD = (
    "The password of this person is a one-time password. "
    "Sign in with a browser and choose another one first."
)

Handler = Callable[[HttpRequest], HttpResponse]


class ApiMiddleware:
    """Signs in the owner of an API token, below `/api` alone, and never leads to a form.

    Every request has `api_token` afterwards: None stands for a browser's session. A token is no
    cookie, which a browser would send along by itself, so a call that brings one needs no CSRF
    token; calls with a session keep it. Where both come, the token decides.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.api_token = None  # type: ignore[attr-defined]
        if is_api(request) and (text := _bearer(request)) is not None:
            try:
                _act_as_owner(request, sign_in(text))
            except TokenRefused as error:
                return _refuse_token(str(error))
        response = self.get_response(request)
        if response.status_code == HTTPStatus.METHOD_NOT_ALLOWED and wants_json(request):
            return _name_methods(response)
        return response

    def process_view(
        self, request: HttpRequest, view: object, args: object, kwargs: object
    ) -> HttpResponse | None:
        if not is_api(request) or request.user.is_authenticated:
            return None
        if not getattr(view, "login_required", True):
            return None
        if request.headers.get("HX-Request"):
            # The page that it stands on is to sign in: LoginRequiredMiddleware and PageMiddleware.
            return None
        return _unsigned(request)


def _bearer(request: HttpRequest) -> str | None:
    """What follows `Bearer`; None where another scheme, perhaps a proxy's, or nothing is sent."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def _act_as_owner(request: HttpRequest, token: ApiToken) -> None:
    owner = token.owner

    async def asynchronously() -> User:
        return owner

    request.user = owner
    request.auser = asynchronously
    request.api_token = token  # type: ignore[attr-defined]
    request._dont_enforce_csrf_checks = True  # type: ignore[attr-defined]


def _refuse_token(sentence: str) -> HttpResponse:
    """RFC 6750, section 3.1."""
    response = refusal(401, sentence)
    response["WWW-Authenticate"] = f'{_CHALLENGE}, error="invalid_token"'
    return response


def _unsigned(request: HttpRequest) -> HttpResponse:
    if wants_json(request):
        response: HttpResponse = refusal(401, UNSIGNED)
    else:
        response = error_page(request, 401, "You are not signed in", SIGN_IN_FIRST)
    # Without an error code: nothing was sent that could be wrong (RFC 6750, section 3).
    response["WWW-Authenticate"] = _CHALLENGE
    return response


def _name_methods(response: HttpResponse) -> HttpResponse:
    """Neither Django nor django-ninja says it as the rest of the API says what is wrong."""
    allowed = ", ".join(sorted(response["Allow"].split(", ")))
    answer = refusal(response.status_code, f"This address takes {allowed} only.")
    answer["Allow"] = allowed
    return answer


class TemporaryPasswordMiddleware:
    """Somebody whose password was typed by an administrator chooses another one first."""

    def __init__(self, get_response: Handler) -> None:
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
        if wants_json(request):
            return refusal(403, CHOOSE_PASSWORD)
        return hx_redirect(request, reverse("accounts:password"))
