"""What all routes of the REST API have in common: how they read, and how they refuse.

A refusal is JSON with one sentence, never a page to sign in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.http import HttpRequest, JsonResponse

if TYPE_CHECKING:
    from ninja import NinjaAPI, Router

View = TypeVar("View", bound=Callable[..., Any])

# Everything below it belongs to the API, and only there are API tokens looked at.
PREFIX: Final = "/api/"


def is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith(PREFIX)


def wants_json(request: HttpRequest) -> bool:
    """Whether a program asks: not htmx, and no browser that opens an address or sends a form."""
    if not is_api(request) or request.headers.get("HX-Request"):
        return False
    if getattr(request, "api_token", None):
        return True
    return "text/html" not in request.headers.get("Accept", "").lower()


def refusal(status: int, sentence: str) -> JsonResponse:
    """Every error of the API has this shape; some have more beside the sentence."""
    return JsonResponse({"detail": sentence}, status=status, headers={"Cache-Control": "no-store"})


# What a refusal looks like, for the OpenAPI document.
_TEXT: Final = {"type": "string"}
_SENTENCE: Final = {"type": "object", "properties": {"detail": _TEXT}, "required": ["detail"]}
_FAULT: Final = {
    "type": "object",
    "properties": {"field": _TEXT, "message": _TEXT},
    "required": ["field", "message"],
}
_FAULTS: Final = {
    "type": "object",
    "properties": {"detail": _TEXT, "errors": {"type": "array", "items": _FAULT}},
    "required": ["detail", "errors"],
}
_REFUSALS: Final[dict[int, tuple[str, dict[str, Any]]]] = {
    401: ("No token, or one that is unknown, expired or revoked", _SENTENCE),
    404: ("Nothing has this id", _SENTENCE),
    422: ("A parameter is wrong", _FAULTS),
}


def reads(
    router: NinjaAPI | Router, path: str, *, refusals: tuple[int, ...] = (), **options: Any
) -> Callable[[View], View]:
    """A route for GET, and for HEAD, which every server answers (RFC 9110, section 9.1).

    `refusals` are its statuses beside 401, which all have. The OpenAPI document names GET alone:
    the other one would stand there twice, and mean the same.
    """
    described = {"responses": {status: _described(status) for status in (401, *refusals)}}

    def register(view: View) -> View:
        router.api_operation(["HEAD"], path, include_in_schema=False, **options)(view)
        return router.get(path, openapi_extra=described, **options)(view)

    return register


def _described(status: int) -> dict[str, Any]:
    words, schema = _REFUSALS[status]
    return {"description": words, "content": {"application/json": {"schema": schema}}}
