"""Callers of the REST API."""

from __future__ import annotations

from django.test import Client

from umpteenth.accounts.models import User
from umpteenth.accounts.tokens import create_token


def new_token(owner: User, name: str = "script", days: int | None = None) -> str:
    return create_token(owner=owner, name=name, days=days, actor=owner)[1]


def with_token(text: str, scheme: str = "Bearer") -> Client:
    """A program: it has a token, no cookie and no CSRF token."""
    return Client(enforce_csrf_checks=True, headers={"Authorization": f"{scheme} {text}"})
