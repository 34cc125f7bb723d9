"""What the frame around every page needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.functional import SimpleLazyObject

THEMES = ("light", "dark")
Banner = Callable[[HttpRequest], str | None]
_banners: list[Banner] = []


@dataclass(frozen=True)
class Place:
    """A line of the sidebar. `spaces` are the url namespaces or names that belong to it."""

    title: str
    view: str
    icon: str
    spaces: tuple[str, ...] = ()
    children: tuple[Place, ...] = ()
    administrators: bool = False


SETTINGS = (
    Place("Secrets", "secrets:list", icon="key", spaces=("secrets",)),
    Place("Sandboxes", "jobs:sandboxes", icon="box", spaces=("jobs:sandboxes",)),
    Place("People", "accounts:people", icon="users", spaces=("accounts:people", "accounts:person")),
    Place("General", "accounts:general", icon="settings", spaces=("accounts:general",)),
    Place(
        "Audit log",
        "accounts:audit",
        icon="history",
        spaces=("accounts:audit",),
        administrators=True,
    ),
)
PLACES = (
    Place("Dashboard", "dashboard", icon="layout-dashboard", spaces=("dashboard",)),
    Place("Jobs", "jobs:list", icon="stack-2", spaces=("jobs",)),
    Place("Runs", "runs:list", icon="timeline", spaces=("runs",)),
    Place("MCP Servers", "servers:list", icon="server-2", spaces=("servers",)),
    Place("Settings", "secrets:list", icon="settings", children=SETTINGS),
)


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
    try:
        url = reverse(place.view)
    except NoReverseMatch:
        url = "#"
    return {
        "title": place.title,
        "url": url,
        "icon": place.icon,
        "current": bool({name, space} & set(place.spaces)) or any(c["current"] for c in children),
        "children": children,
    }
