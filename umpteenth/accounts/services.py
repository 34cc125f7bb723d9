"""What changes people: the first one, adding, roles, passwords, deactivation; and the audit log."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from umpteenth.core.clock import database_now

from .models import AuditEntry, ClaimLink, User

CLAIM_LIFETIME = timedelta(hours=24)
LAST_ADMINISTRATOR = (
    "This is the last active administrator. Make somebody else an administrator first."
)


class PeopleError(Exception):
    """A change that is refused; the message is one sentence for the person who asked."""


class ClaimRefused(PeopleError):
    """The claim link is unknown, used or expired, or somebody has claimed already."""


def record_audit(
    *,
    actor: User | None,
    action: str,
    kind: str,
    object_id: object,
    object_name: str,
    details: Mapping[str, Any] | None = None,
    by: str = "command line",
) -> None:
    """Write who did what to which thing. `details` must hold no secret value.

    `action` is `kind.verb` such as `server.create`; `models.AUDIT_WORDS` has the words for it.
    `actor` None is no person; `by` says who else.
    """
    AuditEntry.objects.create(
        actor=actor,
        actor_name=actor.username if actor else by,
        action=action[:60],
        kind=kind[:30],
        object_id=str(object_id)[:40],
        object_name=object_name[:200],
        details=dict(details or {}),
    )


def create_user(
    *,
    name: str,
    password: str,
    administrator: bool = False,
    actor: User | None = None,
    temporary: bool = False,
) -> User:
    """Add a person. Raises `PeopleError` for a name or password that cannot be used."""
    user = User(
        username=User.normalize_username(name.strip()),
        role=User.Role.ADMINISTRATOR if administrator else User.Role.MEMBER,
        password_is_temporary=temporary,
    )
    check_password_rules(password, user)
    user.set_password(password)
    try:
        user.full_clean(exclude=["password"])
        with transaction.atomic():
            user.save(force_insert=True)
            _record(actor, "create", user, role=user.role)
    except (ValidationError, IntegrityError) as error:
        raise PeopleError(_name_sentence(error, user.username)) from None
    return user


def _name_sentence(error: ValidationError | IntegrityError, name: str) -> str:
    if isinstance(error, IntegrityError) or "__all__" in error.message_dict:
        return f"There is already a person named {name}."
    if any("already exists" in text for text in error.messages):
        return f"There is already a person named {name}."
    return "A name has 1 to 150 letters, digits and @ . + - _ characters."


def check_password_rules(password: str, user: User | None = None) -> None:
    """Raises `PeopleError` with what the password lacks."""
    if "\x00" in password:
        raise PeopleError("The password must not contain a null character.")
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise PeopleError(" ".join(error.messages)) from None


def _record(actor: User | None, verb: str, user: User, **details: Any) -> None:
    record_audit(
        actor=actor,
        action=f"person.{verb}",
        kind="person",
        object_id=user.pk,
        object_name=user.username,
        details=details,
    )


def set_role(user: User, role: str, *, actor: User | None) -> None:
    """Raises `PeopleError` where no administrator would be left."""
    with transaction.atomic():
        if role != User.Role.ADMINISTRATOR:
            _keep_an_administrator(user)
        if User.objects.filter(pk=user.pk).exclude(role=role).update(role=role):
            user.role = role
            _record(actor, "role", user, role=role)


def deactivate_user(user: User, actor: User | None = None) -> None:
    """Shut a person out, end their sessions at once and revoke their API tokens.

    The last administrator stays.
    """
    with transaction.atomic():
        _keep_an_administrator(user)
        changed = User.objects.filter(pk=user.pk, is_active=True).update(
            is_active=False, session_epoch=user.session_epoch + 1
        )
        if changed:
            user.is_active = False
            # For good: who is let in again later must not find forgotten keys at work.
            open_ones = user.api_tokens.filter(revoked_at=None)
            revoked = open_ones.update(revoked_at=database_now())
            _record(actor, "deactivate", user, **({"tokens_revoked": revoked} if revoked else {}))


def activate_user(user: User, actor: User | None = None) -> None:
    with transaction.atomic():
        if User.objects.filter(pk=user.pk, is_active=False).update(is_active=True):
            user.is_active = True
            _record(actor, "activate", user)


def _keep_an_administrator(user: User) -> None:
    """Locks all active administrators: two of them must not remove each other at once."""
    active = User.objects.filter(role=User.Role.ADMINISTRATOR, is_active=True)
    remaining = list(active.select_for_update().order_by("pk").values_list("pk", flat=True))
    if remaining == [user.pk]:
        raise PeopleError(LAST_ADMINISTRATOR)


def set_password(
    user: User, password: str, *, temporary: bool = False, actor: User | None = None
) -> None:
    """Replace the password, which ends the person's other sessions. Raises `PeopleError`."""
    check_password_rules(password, user)
    user.set_password(password)
    user.password_is_temporary = temporary
    with transaction.atomic():
        user.save(update_fields=["password", "password_is_temporary"])
        _record(actor, "one_time_password" if temporary else "password", user)


def ensure_claim_link() -> str | None:
    """A new token for `/claim/<token>`, replacing earlier ones; None once somebody exists."""
    with transaction.atomic():
        ClaimLink.objects.filter(used_at=None).delete()
        if User.objects.exists():
            return None
        token = secrets.token_urlsafe(32)
        now = database_now()
        ClaimLink.objects.create(
            token_hash=_hash(token), created_at=now, expires_at=now + CLAIM_LIFETIME
        )
    return token


def claim_is_open(token: str) -> bool:
    """Whether this link would make the first administrator now."""
    return _open_links(token).exists() and not User.objects.exists()


def claim(token: str, *, name: str, password: str) -> User:
    """Make the first administrator. Raises `ClaimRefused`, or `PeopleError` for bad input.

    Of two claims at once one wins: the conditional update takes the link, and whoever comes
    second finds it used. A refused name or password gives the link back (rollback).
    """
    with transaction.atomic():
        now = database_now()
        if not _open_links(token).update(used_at=now) or User.objects.exists():
            raise ClaimRefused("This link has been used or has expired.")
        # Other links, where two starts raced: a claim through one of them waits here, or loses.
        ClaimLink.objects.filter(used_at=None).update(used_at=now)
        return create_user(name=name, password=password, administrator=True)


def _open_links(token: str) -> Any:
    return ClaimLink.objects.filter(
        token_hash=_hash(token), used_at=None, expires_at__gt=database_now()
    )


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def changed_meanwhile(what: str, who: User | None) -> str:
    """What somebody is told whose edit of a job, say, began before that of somebody else."""
    return f"{who.username if who else 'Somebody'} changed this {what} while you were editing it."
