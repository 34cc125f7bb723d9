"""The REST API at `/api`, with its OpenAPI document at `/api/openapi.json` (docs/rest.md).

`umpteenth.accounts.middleware.ApiMiddleware` has signed the caller in before anything here runs.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI, Schema
from ninja.errors import HttpError, ValidationError
from ninja.security.base import AuthBase
from ninja.utils import check_csrf

from servers.api import Moment
from servers.api import router as servers_router
from umpteenth import __version__
from umpteenth.accounts.views.errors import not_found
from umpteenth.core.htmx import Request
from umpteenth.core.rest import reads

NO_CSRF = (
    "A call with a browser's session needs its CSRF token in the header X-CSRFToken. "
    "Programs use an API token instead."
)


class ByToken(AuthBase):
    """`Authorization: Bearer ump_…`, looked up by the middleware."""

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __call__(self, request: HttpRequest) -> Any:
        return request.api_token  # type: ignore[attr-defined]


class BySession(AuthBase):
    """A browser's session. django-ninja exempts its views from CSRF, so it is checked here."""

    openapi_type = "apiKey"
    openapi_in = "cookie"
    openapi_name = settings.SESSION_COOKIE_NAME

    def __call__(self, request: HttpRequest) -> Any:
        if not request.user.is_authenticated:
            return None
        if check_csrf(request) is not None:
            raise HttpError(403, NO_CSRF)
        return request.user


api = NinjaAPI(
    title="Umpteenth",
    version=__version__,
    description="Errors are JSON with one sentence in `detail`.",
    # Its documentation page would load scripts from elsewhere, which the policy forbids.
    docs_url=None,
    urls_namespace="api",
    auth=[ByToken(), BySession()],
)
api.add_router("/mcp-servers", servers_router)


class About(Schema):
    """Who calls, with what."""

    version: str
    person: str
    role: str
    token: str | None
    token_expires_at: Moment | None


@reads(api, "/", response=About, tags=["About"], url_name="about")
def about(request: Request) -> dict[str, Any]:
    """Whose token or session this is: the first call of a new program."""
    token = request.api_token
    expires = token.expires_at if token else None
    return {
        "version": __version__,
        "person": request.user.username,
        "role": request.user.role,
        "token": token.name if token else None,
        "token_expires_at": expires.isoformat() if expires else None,
    }


@api.exception_handler(ValidationError)
def invalid(request: HttpRequest, error: ValidationError) -> HttpResponse:
    """422 with the first fault in a sentence, and all of them for programs."""
    faults = [{"field": _field(fault), "message": str(fault["msg"])} for fault in error.errors]
    first = faults[0]
    response = {"detail": f"{first['field']}: {first['message']}.", "errors": faults}
    return api.create_response(request, response, status=422)


def _field(fault: dict[str, Any]) -> str:
    # ("query", "page", "limit"): where it stood, the model that read it, the name.
    return str(fault["loc"][-1])


@api.exception_handler(Http404)
def gone(request: HttpRequest, error: Http404) -> HttpResponse:
    return not_found(request, error)
