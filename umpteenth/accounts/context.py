"""What the frame around every page needs to know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import SimpleLazyObject

from .places import PLACES, Place

THEMES = ("light", "dark")
Banner = Callable[[HttpRequest], str | None]
_banners: list[Banner] = []


def register_banner(banner: Banner) -> None:
    """Add a sentence for the top of every page while it is true, such as: no worker is seen."""
    if banner not in _banners:
        _banners.append(banner)


def shell(request: HttpRequest) -> dict[str, Any]:
    """Template context: `theme`, and lazily `navigation` and `banners`."""
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in THEMES else "",
        "navigation": SimpleLazyObject(lambda: _navigation(request)),
        "banners": SimpleLazyObject(lambda: _sentences(request)),
    }


def _sentences(request: HttpRequest) -> list[str]:
    if not request.user.is_authenticated:
        return []
    return [sentence for banner in _banners if (sentence := banner(request))]


def _navigation(request: HttpRequest) -> list[dict[str, Any]]:
    match = request.resolver_match
    name = match.view_name if match else ""
    space = name.partition(":")[0]
    items = [_line(place, name, space, request) for place in PLACES]
    # Settings → Sandboxes is served by the jobs' views and must not light up Jobs as well.
    deepest = [item for item in items if any(child["current"] for child in item["children"])]
    for item in items:
        item["current"] = item in deepest if deepest else item["current"]
    return items


def _line(place: Place, name: str, space: str, request: HttpRequest) -> dict[str, Any]:
    children = [
        _line(child, name, space, request)
        for child in place.children
        if not child.administrators or getattr(request.user, "is_administrator", False)
    ]
    return {
        "title": place.title,
        "url": reverse(place.view),
        "icon": place.icon,
        "current": bool({name, space} & set(place.spaces)) or any(c["current"] for c in children),
        "children": children,
    }
