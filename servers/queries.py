"""What pages read."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Lower

from servers.models import Check, Server
from servers.oauth.state import warning_condition
from servers.status import Auth, auth_condition, token_exists
from umpteenth.core import clock

RECENT_CHECKS = 20
TROUBLES = 8
NEWS_FOR = timedelta(days=7)
LISTED = (
    "name",
    "description",
    "transport",
    "enabled",
    "url",
    "command",
    "args",
    "has_authorization",
    "token_name",
    "socket_path",
    "state",
    "tested_at",
    "checked_at",
    "tool_count",
    "last_error",
    "failures",
    "next_check_at",
    "oauth_kind",
    "oauth_advertised",
)
# What of a login tells what it is worth; the rest of the row is ciphertext and long texts.
OF_LOGIN = (
    "issuer",
    "ended",
    "expires_at",
    "can_refresh",
    "refresh_failures",
    "refresh_error",
)
# Health checks that found what was known already: many, and of no interest but the newest.
QUIET = Q(kind=Check.Kind.HEALTH, outcome=Check.Outcome.CONNECTED, changes={})


# Enabled servers that cannot be used.
IN_TROUBLE = Q(enabled=True, state__in=Server.TROUBLED)


def find_servers(
    *, q: str = "", transport: str = "", auth: str = "", state: str = ""
) -> QuerySet[Server]:
    """Servers for the list, by name; each with `check_under_way`, the id of its running test."""
    now = clock.now()
    servers = listed_servers().annotate(check_under_way=_check_under_way())
    for word in q.split()[:10]:
        servers = servers.filter(
            Q(name__icontains=word)
            | Q(description__icontains=word)
            | Q(url__icontains=word)
            | Q(socket_path__icontains=word)
            | Q(command__icontains=word)
            | Q(args__icontains=word)
        )
    if transport:
        servers = servers.filter(transport=transport)
    if auth:
        servers = servers.filter(auth_condition(auth, now))
    if state == "disabled":
        servers = servers.filter(enabled=False)
    elif state == "trouble":
        servers = servers.filter(IN_TROUBLE)
    elif state == "login_ending":
        servers = servers.filter(login_ends(now))
    elif state:
        servers = servers.filter(state=state)
    return servers


def listed_servers() -> QuerySet[Server]:
    """With the columns that lists show, and all that tells what their logins are worth: nobody
    has to ask for each of them."""
    columns = (*LISTED, "login__server", *(f"login__{name}" for name in OF_LOGIN))
    servers = Server.objects.select_related("login").only(*columns)
    return servers.annotate(token_exists=token_exists())


def login_ends(now: datetime) -> Q:
    """Servers whose login works and may not do so for long; those that send it."""
    sent = Q(transport=Server.Transport.HTTP, has_authorization=False) & ~Q(token_exists())
    return sent & warning_condition(now)


def logins_about_to_end(now: datetime) -> tuple[list[Server], int]:
    """Enabled servers with such a login, the one that ends first in front, and how many."""
    servers = listed_servers().filter(login_ends(now), enabled=True)
    shown = servers.order_by(F("login__expires_at").asc(nulls_last=True), "pk")
    found = list(shown[: TROUBLES + 1])
    return found[:TROUBLES], len(found) if len(found) <= TROUBLES else servers.count()


def waiting_for_login(*, q: str = "") -> QuerySet[Server]:
    """The same rule as `ShownLogin.wants_login`, of enabled servers."""
    now = clock.now()
    refused = auth_condition(Auth.OAUTH, now) & Q(state=Server.State.LOGIN_REQUIRED)
    without = auth_condition(Auth.NOT_LOGGED_IN, now) | auth_condition(Auth.LOGIN_EXPIRED, now)
    by_person = Q(enabled=True, oauth_kind=Server.LoginKind.PERSON)
    return find_servers(q=q).filter(by_person & (refused | without))


def changed_servers(since: datetime, *, limit: int) -> list[UUID]:
    """Servers that were checked, edited or asked about after this moment, `limit` at most."""
    asked = Check.objects.filter(created_at__gt=since).values("server_id")
    news = Q(checked_at__gt=since) | Q(updated_at__gt=since) | Q(pk__in=asked)
    news |= Q(login__logged_in_at__gt=since) | Q(login__ended_at__gt=since)
    return list(Server.objects.filter(news).order_by().values_list("pk", flat=True)[:limit])


def _check_under_way() -> Subquery:
    running = Check.objects.filter(server=OuterRef("pk")).exclude(status=Check.Status.DONE)
    return Subquery(running.order_by("-created_at").values("pk")[:1])


def recent_checks(server_id: UUID) -> list[Check]:
    """The newest checks, newest first; of the quiet ones only the newest of all."""
    checks = Check.objects.filter(server_id=server_id).order_by("-created_at")
    newest = checks.values("pk")[:1]
    shown = checks.exclude(QUIET & ~Q(pk__in=newest)).select_related("requested_by")
    return list(shown[:RECENT_CHECKS])


def latest_news(server_id: UUID, now: datetime) -> Check | None:
    """The success that changed the tools last, whatever made it; for a week.

    The one after it, minutes later and made by nobody, would tell a person nothing.
    """
    found = Check.objects.filter(server_id=server_id, outcome=Check.Outcome.CONNECTED)
    recent = found.filter(created_at__gt=now - NEWS_FOR).exclude(changes={})
    return recent.order_by("-created_at").first()


def servers_in_trouble() -> tuple[list[Server], int]:
    """Enabled servers that cannot be used, those that broke last first, and how many there are."""
    servers = Server.objects.filter(IN_TROUBLE)
    # Ordered by the last success: what has never worked comes last.
    shown = servers.only(*LISTED).order_by(F("tested_at").desc(nulls_last=True), Lower("name"))
    found = list(shown[: TROUBLES + 1])
    return found[:TROUBLES], len(found) if len(found) <= TROUBLES else servers.count()
