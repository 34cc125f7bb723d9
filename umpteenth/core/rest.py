"""What the REST API answers where it refuses: JSON with one sentence, never a page to sign in."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, JsonResponse

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
