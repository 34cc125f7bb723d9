"""The pages of the sidebar, as lines of it and as hits of the search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.urls import reverse

from .models import User
from .search import Hit, matches


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
    Place(
        "Sandboxes",
        "jobs:sandboxes",
        icon="box",
        spaces=("jobs:sandboxes", "environments"),
        administrators=True,
    ),
    Place(
        "People",
        "accounts:people",
        icon="users",
        spaces=(
            "accounts:people",
            "accounts:person_add",
            "accounts:person_role",
            "accounts:person_password",
            "accounts:person_deactivate",
        ),
    ),
    Place(
        "API tokens",
        "accounts:tokens",
        icon="plug-connected",
        spaces=("accounts:tokens", "accounts:token_create", "accounts:token_revoke"),
    ),
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


def open_to(user: User, place: Place) -> bool:
    """Whether this person may see the page."""
    return user.is_administrator or not place.administrators


def hits(user: User, words: str) -> Iterator[Hit]:
    """Pages, and what can be done with people: a source of the search."""
    for place in (*PLACES[:-1], *SETTINGS):
        if not open_to(user, place):
            continue
        above = "Settings" if place in SETTINGS else ""
        if matches(words, place.title, above):
            yield Hit("Page", place.title, above, reverse(place.view))
    if words and matches(words, "Change password"):
        yield Hit("Action", "Change password", "", reverse("accounts:password"))
    if words and matches(words, "New API token"):
        yield Hit("Action", "New API token", "", reverse("accounts:token_create"), dialog=True)
    if words and user.is_administrator and matches(words, "Add person"):
        yield Hit("Action", "Add person", "", reverse("accounts:person_add"), dialog=True)
