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


def reads(router: NinjaAPI | Router, path: str, **options: Any) -> Callable[[View], View]:
    """A route for GET, and for HEAD, which every server answers (RFC 9110, section 9.1).

    The OpenAPI document names GET alone: the other one would stand there twice, and mean the same.
    """

    def register(view: View) -> View:
        router.api_operation(["HEAD"], path, include_in_schema=False, **options)(view)
        return router.get(path, **options)(view)

    return register
