"""What other rooms and the pages call: save, delete and use secrets.

Everything that the vault offers to others can be imported from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from django.db import IntegrityError, transaction
from django.db.models import PROTECT, ManyToOneRel, Q
from django.utils import timezone

from secrets_vault.crypto import CryptoError, DecryptionFailed, UnknownKey
from secrets_vault.encryption import (
    decrypt_json,
    encrypt_json,
    ensure_key_ring,
    register_encrypted,
)
from secrets_vault.errors import (
    BadReference,
    BadSecret,
    RotationRefused,
    SecretError,
    SecretNotAllowed,
    SecretNotFound,
    SecretUnreadable,
)
from secrets_vault.models import Secret
from secrets_vault.references import find_names, reference, replace, validate_references
from secrets_vault.rotation import rotate_keys
from secrets_vault.usage import Usage, register_usage, usages_of
from secrets_vault.validation import check_description, check_name, check_scope, check_value
from umpteenth.accounts.models import User
from umpteenth.accounts.services import record_audit
from umpteenth.core.masking import known_values

__all__ = [
    "BadReference",
    "BadSecret",
    "DecryptionFailed",
    "Resolved",
    "RotationRefused",
    "Saved",
    "SecretData",
    "SecretError",
    "SecretNotAllowed",
    "SecretNotFound",
    "SecretUnreadable",
    "Target",
    "UnknownKey",
    "Usage",
    "create_secret",
    "decrypt_json",
    "delete_secret",
    "encrypt_json",
    "ensure_key_ring",
    "is_readable",
    "may_use",
    "reference",
    "register_encrypted",
    "register_usage",
    "resolve",
    "rotate_keys",
    "secret_value",
    "set_secret",
    "update_secret",
    "usages_of",
    "validate_references",
]

KIND = "secret"
# `last_used_at` is for people: a busy job need not write it at every call.
USED_AGAIN_AFTER = timedelta(minutes=1)


@dataclass(frozen=True)
class Target:
    """Where a value is about to go: a server (its host, for HTTP) and the job that asks."""

    host: str | None = None
    server: str | None = None
    job: str | None = None

    def __str__(self) -> str:
        parts = [("server ", self.server), ("host ", self.host), ("job ", self.job)]
        return ", ".join(f"{word}{name}" for word, name in parts if name) or "this"


@dataclass(frozen=True)
class Resolved:
    """Texts with their references replaced, and the secrets that went into them, by name."""

    values: dict[str, str]
    secrets: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class SecretData:
    """What a person enters. `value` None keeps the present one."""

    value: str | None = field(default=None, repr=False)
    description: str = ""
    open_to_members: bool = False
    allowed_hosts: Sequence[str] = ()
    allowed_servers: Sequence[str] = ()
    allowed_jobs: Sequence[str] = ()


@dataclass(frozen=True)
class Saved:
    """`notes` are sentences for the person, about what was changed in the value on saving."""

    secret: Secret
    created: bool
    notes: list[str]


def create_secret(*, actor: User | None, name: str, data: SecretData) -> Saved:
    """Raises `BadSecret`, also where the name is taken. `actor` None is the operator."""
    name = check_name(name)
    secret = Secret(name=name)
    notes = _apply(secret, data, actor)
    if not secret.ciphertext:
        raise BadSecret("value", "Enter a value.")
    try:
        with transaction.atomic():
            secret.save(force_insert=True)
            _audit(actor, "secret.create", secret)
    except IntegrityError:
        if not Secret.objects.filter(name=name).exists():
            raise
        raise BadSecret("name", f"There is already a secret named {name}.") from None
    return Saved(secret, True, notes)


def update_secret(secret: Secret, *, actor: User | None, data: SecretData) -> Saved:
    """Change what is said about a secret, and its value if there is a new one."""
    notes = _apply(secret, data, actor)
    fields = ["description", "open_to_members", "updated_at", "updated_by", *_SCOPES]
    if data.value is not None:
        fields += ["ciphertext", "key_id"]
    with transaction.atomic():
        secret.save(update_fields=fields)
        details = {"value": "replaced"} if data.value is not None else {}
        _audit(actor, "secret.update", secret, details)
    return Saved(secret, False, notes)


def set_secret(
    *,
    actor: User | None,
    name: str,
    value: str,
    description: str | None = None,
    open_to_members: bool | None = None,
    allowed_hosts: Sequence[str] | None = None,
    allowed_servers: Sequence[str] | None = None,
    allowed_jobs: Sequence[str] | None = None,
) -> Saved:
    """Create a secret or replace its value; what is None stays as it is. Raises `BadSecret`."""
    secret = Secret.objects.filter(name=check_name(name)).first()
    old = secret or Secret(name=name)
    data = SecretData(
        value=value,
        description=old.description if description is None else description,
        open_to_members=old.open_to_members if open_to_members is None else open_to_members,
        allowed_hosts=old.allowed_hosts if allowed_hosts is None else allowed_hosts,
        allowed_servers=old.allowed_servers if allowed_servers is None else allowed_servers,
        allowed_jobs=old.allowed_jobs if allowed_jobs is None else allowed_jobs,
    )
    if secret is None:
        return create_secret(actor=actor, name=name, data=data)
    return update_secret(secret, actor=actor, data=data)


_SCOPES = ("allowed_hosts", "allowed_servers", "allowed_jobs")


def _apply(secret: Secret, data: SecretData, actor: User | None) -> list[str]:
    secret.description = check_description(data.description)
    secret.open_to_members = data.open_to_members
    for scope in _SCOPES:
        setattr(secret, scope, check_scope(scope, getattr(data, scope)))
    secret.updated_at = timezone.now()
    secret.updated_by = actor
    if data.value is None:
        return []
    value, notes = check_value(data.value)
    secret.ciphertext, secret.key_id = encrypt_json(value, kind=KIND, row_id=secret.pk)
    return notes


def delete_secret(secret: Secret, *, actor: User | None) -> None:
    """Raises `SecretError` where something holds on to it; references elsewhere stop resolving."""
    if is_held(secret):
        raise SecretError(
            f"Secret {secret.name} is mapped into jobs; take it out of their settings first."
        )
    with transaction.atomic():
        _audit(actor, "secret.delete", secret)
        secret.delete()


def is_held(secret: Secret) -> bool:
    """Whether rows of other rooms point at it in a way that forbids deleting it."""
    # Hidden ones too: whoever points here need not have a name for the way back.
    relations = Secret._meta.get_fields(include_hidden=True)
    return any(
        relation.related_model._default_manager.filter(**{relation.field.name: secret}).exists()
        for relation in relations
        if isinstance(relation, ManyToOneRel) and relation.on_delete is PROTECT
    )


def _audit(
    actor: User | None, action: str, secret: Secret, details: dict[str, str] | None = None
) -> None:
    record_audit(
        actor=actor,
        action=action,
        kind=KIND,
        object_id=secret.pk,
        object_name=secret.name,
        details=details,
    )


def resolve(values: Mapping[str, str], *, target: Target) -> Resolved:
    """Replace every `{{secret:NAME}}` in the texts: all of them, or none and a `SecretError`.

    One pass: a value that holds a reference is not looked into. The secrets are known to this
    process's logs from then on and count as used.
    """
    names = list(dict.fromkeys(name for text in values.values() for name in find_names(text)))
    secrets = _open_all(names, target) if names else {}
    return Resolved({key: replace(text, secrets) for key, text in values.items()}, secrets)


def secret_value(secret: Secret, *, target: Target) -> str:
    """The value, for a place it is allowed at. Raises `SecretError`."""
    value = _open(secret, target)
    _remember({secret.name: value}, [secret.pk])
    return value


def _open_all(names: Sequence[str], target: Target) -> dict[str, str]:
    found = {secret.name: secret for secret in Secret.objects.filter(name__in=names)}
    for name in names:
        if name not in found:
            raise SecretNotFound(name)
    values = {name: _open(found[name], target) for name in names}
    _remember(values, [secret.pk for secret in found.values()])
    return values


def _open(secret: Secret, target: Target) -> str:
    if not secret.is_for(host=target.host, server=target.server, job=target.job):
        raise SecretNotAllowed(secret.name, str(target))
    return _decrypt(secret)


def _decrypt(secret: Secret) -> str:
    try:
        value = decrypt_json(secret.ciphertext, key_id=secret.key_id, kind=KIND, row_id=secret.pk)
    except CryptoError as error:
        raise SecretUnreadable(secret.name, error.key_id) from None
    return str(value)


def is_readable(secret: Secret) -> bool:
    """Whether its key is there and fits (E09)."""
    try:
        _decrypt(secret)
    except SecretUnreadable:
        return False
    return True


def _remember(values: Mapping[str, str], ids: Sequence[UUID]) -> None:
    known = known_values()
    for name, value in values.items():
        known.add(name, value)
    mark_used(ids, timezone.now())


def mark_used(ids: Sequence[UUID], now: datetime) -> None:
    long_ago = Q(last_used_at=None) | Q(last_used_at__lt=now - USED_AGAIN_AFTER)
    Secret.objects.filter(long_ago, pk__in=ids).update(last_used_at=now)


def may_use(secret: Secret, person: User | None) -> bool:
    """Whether the person may map it into a job; None is the operator."""
    return person is None or person.is_administrator or secret.open_to_members
