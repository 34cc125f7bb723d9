"""What the secrets pages read."""

from __future__ import annotations

from dataclasses import dataclass

from django.core.paginator import Page, Paginator
from django.db.models import Q, QuerySet
from django.db.models.functions import Lower

from secrets_vault.models import Secret
from secrets_vault.services import is_readable
from secrets_vault.usage import Usage, usages_of_many
from umpteenth.accounts.models import User

PAGE_SIZE = 50
# The key button's list: beyond it one types a few letters more.
OPTIONS_SHOWN = 30
USAGES_SHOWN = 2


@dataclass(frozen=True)
class Row:
    """A line of the list. `readable` False: its key is missing or another one (E09)."""

    secret: Secret
    usages: list[Usage]
    readable: bool

    @property
    def first_usages(self) -> list[Usage]:
        return self.usages[:USAGES_SHOWN]

    @property
    def other_usages(self) -> list[Usage]:
        return self.usages[USAGES_SHOWN:]


def matching(words: str) -> QuerySet[Secret]:
    """Secrets whose name or description holds every word, by name."""
    secrets = Secret.objects.order_by(Lower("name"), "name")
    for word in words.split():
        secrets = secrets.filter(Q(name__icontains=word) | Q(description__icontains=word))
    return secrets


def page_of(words: str, number: str | int | None) -> tuple[Page[Secret], list[Row]]:
    """One page and its rows, with as many queries for ten secrets as for a thousand."""
    page = Paginator(matching(words).select_related("updated_by"), PAGE_SIZE).get_page(number)
    secrets = list(page.object_list)
    usages = usages_of_many([secret.name for secret in secrets])
    return page, [Row(secret, usages[secret.name], is_readable(secret)) for secret in secrets]


def options(words: str, user: User) -> tuple[list[Secret], int]:
    """What the key button shows to this person, and how many more there are."""
    secrets = matching(words)
    if not user.is_administrator:
        secrets = secrets.filter(open_to_members=True)
    found = list(secrets.only("name", "description")[: OPTIONS_SHOWN + 1])
    more = secrets.count() - OPTIONS_SHOWN if len(found) > OPTIONS_SHOWN else 0
    return found[:OPTIONS_SHOWN], more
