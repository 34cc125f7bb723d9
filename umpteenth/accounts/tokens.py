"""API tokens: made, shown once, looked up at every call, revoked.

A token is 40 random letters and digits, so that its plain SHA-256 is as good as a slow hash, and
no guess needs to be counted: a limit by address would lock out others behind the same router.
"""

from __future__ import annotations

import hashlib
import secrets
import string
from datetime import datetime, timedelta
from typing import Final

from django.db import IntegrityError, transaction
from django.db.models import Q

from umpteenth.core.clock import database_now
from umpteenth.core.text import clean

from .models import ApiToken, User
from .services import record_audit

PREFIX: Final = "ump_"
LENGTH: Final = 40  # random characters behind the prefix, 238 bits
HINT_LENGTH: Final = len(PREFIX) + 4
MAX_NAME: Final = 100
MAX_DAYS: Final = 3650
# Of one person, at once: a script that makes a token for each of its runs is told.
MOST_TOKENS: Final = 100
# How often a token's use is written down.
USE_NOTED_EVERY: Final = timedelta(minutes=1)
_ALPHABET: Final = string.ascii_letters + string.digits

UNKNOWN: Final = "This API token is unknown. Make one under Settings, API tokens."


class TokenError(Exception):
    """A token that cannot be made; the message is one sentence for the person who asked."""


class TokenRefused(Exception):
    """A token that lets nobody in; the message says why, to whoever holds it."""


def create_token(
    *, owner: User, name: str, days: int | None = None, actor: User | None
) -> tuple[ApiToken, str]:
    """The row and the token itself, which is known only now. `days` None: it never expires.

    Raises `TokenError`.
    """
    name = _checked_name(name)
    if days is not None and not 1 <= days <= MAX_DAYS:
        raise TokenError(f"A token is good for 1 to {MAX_DAYS:,} days, or without an end.")
    text = PREFIX + "".join(secrets.choice(_ALPHABET) for _ in range(LENGTH))
    now = database_now()
    expires = None if days is None else now + timedelta(days=days)
    try:
        with transaction.atomic():
            _leave_room(owner, now)
            token = ApiToken.objects.create(
                owner=owner,
                name=name,
                token_hash=_hash(text),
                hint=text[:HINT_LENGTH],
                created_at=now,
                expires_at=expires,
            )
            _record(actor, "create", token, expires=f"{expires:%Y-%m-%d}" if expires else "never")
    except IntegrityError:
        whose = "You already have" if actor == owner else f"{owner.username} already has"
        words = f"{whose} a token named {name}. End that one first, or take another name."
        raise TokenError(words) from None
    return token, text


def _checked_name(name: str) -> str:
    name = " ".join(clean(name).split())
    if not name:
        raise TokenError("Give the token a name, such as the program that will use it.")
    if len(name) > MAX_NAME:
        raise TokenError(f"The name has {len(name):,} characters; at most {MAX_NAME} are kept.")
    return name


def _leave_room(owner: User, now: datetime) -> None:
    lasting = Q(expires_at=None) | Q(expires_at__gt=now)
    if owner.api_tokens.filter(lasting, revoked_at=None).count() >= MOST_TOKENS:
        raise TokenError(f"A person has at most {MOST_TOKENS} tokens. Revoke one of them first.")


def revoke_token(token: ApiToken, *, actor: User | None) -> bool:
    """End a token at once and for good; False where it was revoked already."""
    with transaction.atomic():
        open_one = ApiToken.objects.filter(pk=token.pk, revoked_at=None)
        if not open_one.update(revoked_at=database_now()):
            return False
        _record(actor, "revoke", token)
    return True


def sign_in(text: str) -> ApiToken:
    """The token with its owner as they are at this moment. Raises `TokenRefused`."""
    token = ApiToken.objects.select_related("owner").filter(token_hash=_hash(text)).first()
    if token is None:
        raise TokenRefused(UNKNOWN)
    now = database_now()
    state = token.state_at(now)
    if state == "revoked":
        raise TokenRefused("This API token has been revoked. Make another one.")
    if state == "expired":
        raise TokenRefused(f"This API token expired on {token.expires_at:%Y-%m-%d}.")
    if not token.owner.is_active:
        raise TokenRefused(f"{token.owner.username}, whose API token this is, is deactivated.")
    _note_use(token, now)
    return token


def _note_use(token: ApiToken, now: datetime) -> None:
    """At most once a minute, of however many calls at once."""
    before = now - USE_NOTED_EVERY
    if token.last_used_at is not None and token.last_used_at > before:
        return
    stale = Q(last_used_at=None) | Q(last_used_at__lte=before)
    ApiToken.objects.filter(stale, pk=token.pk).update(last_used_at=now)


def _record(actor: User | None, verb: str, token: ApiToken, **details: str) -> None:
    record_audit(
        actor=actor,
        action=f"token.{verb}",
        kind="token",
        object_id=token.pk,
        object_name=token.name,
        details={"person": token.owner.username, **details},
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
