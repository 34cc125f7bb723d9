"""What the search palette finds here."""

from __future__ import annotations

from collections.abc import Iterator

from django.urls import reverse

from secrets_vault.queries import matching
from umpteenth.accounts.models import User
from umpteenth.accounts.search import MOST_PER_SOURCE, Hit, matches


def search_secrets(user: User, words: str) -> Iterator[Hit]:
    """Secrets by name or description; administrators come to the form, others to the list."""
    if not words.strip():
        return
    for secret in matching(words).only("name", "description")[:MOST_PER_SOURCE]:
        if user.is_administrator:
            url = reverse("secrets:edit", args=[secret.pk])
            yield Hit("Secret", secret.name, secret.description, url, dialog=True)
        else:
            url = reverse("secrets:list", query={"q": secret.name})
            yield Hit("Secret", secret.name, secret.description, url)
    if user.is_administrator and matches(words, "New secret"):
        yield Hit("Action", "New secret", "", reverse("secrets:create"), dialog=True)
