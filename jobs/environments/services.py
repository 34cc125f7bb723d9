"""What people do to environments: write, change, build again, delete; and what is told of them.

Only administrators write them, like servers: what a definition names is installed on the machine
and used by every job that chooses it. Everybody may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Prefetch, ProtectedError, prefetch_related_objects
from django.utils import timezone

from jobs import presence
from jobs.environments import builds
from jobs.environments.definition import Definition, DefinitionError, parse_definition
from jobs.models import Environment, EnvironmentBuild, Job, Worker
from jobs.shapes import moment
from umpteenth.accounts.models import User
from umpteenth.accounts.services import changed_meanwhile, record_audit
from umpteenth.core.clock import database_now
from umpteenth.core.text import clean

NAMED = 5  # jobs that a sentence names


class InvalidEnvironment(ValueError):
    """The definition cannot be stored; one sentence."""


class OutdatedEdit(Exception):
    """Somebody else changed the environment meanwhile; the message says who."""


class EnvironmentInUse(Exception):
    """Jobs use it, so that it cannot be deleted; the message names them."""


def create_environment(*, actor: User | None, text: str) -> Environment:
    """Store a new one and have it built. Raises `InvalidEnvironment`."""
    environment = _create(actor, text)
    request_builds(environment)
    return environment


def _create(actor: User | None, text: str) -> Environment:
    definition, text = _parsed(text)
    environment = Environment(
        name=definition.name, definition=text, digest=definition.digest, updated_by=actor
    )
    try:
        with transaction.atomic():
            environment.save(force_insert=True)
            _audit(actor, "environment.create", environment)
    except IntegrityError:
        raise _name_taken(definition) from None
    return environment


def update_environment(
    environment: Environment, *, actor: User | None, text: str, version: int
) -> Environment:
    """Store an edit that was begun on `version`, and have it built if its content is new.

    Raises `InvalidEnvironment` or `OutdatedEdit`.
    """
    _update(environment, actor, text, version)
    request_builds(environment)
    return environment


def _update(environment: Environment, actor: User | None, text: str, version: int) -> Environment:
    definition, text = _parsed(text)
    rows = Environment.objects.filter(pk=environment.pk, version=version)
    try:
        with transaction.atomic():
            changed = rows.update(
                name=definition.name,
                definition=text,
                digest=definition.digest,
                version=F("version") + 1,
                updated_at=timezone.now(),
                updated_by=actor,
            )
            if changed:
                environment.refresh_from_db()
                _audit(actor, "environment.update", environment)
    except IntegrityError:
        raise _name_taken(definition) from None
    if not changed:
        raise OutdatedEdit(_who_changed(environment))
    return environment


def save_environment(*, actor: User | None, text: str) -> Environment:
    """Make it, or change the one of that name; nothing is built. Raises like the two above."""
    definition, _ = _parsed(text)
    current = Environment.objects.filter(name=definition.name).first()
    if current is None:
        return _create(actor, text)
    return _update(current, actor, text, current.version)


def delete_environment(environment: Environment, *, actor: User | None) -> None:
    """Machines remove their directories by and by. Raises `EnvironmentInUse`."""
    try:
        with transaction.atomic():
            # A job that is about to choose it holds it, too.
            Environment.objects.select_for_update().filter(pk=environment.pk).first()
            _audit(actor, "environment.delete", environment)
            environment.delete()
    except ProtectedError:
        names = list(environment.jobs.order_by("name").values_list("name", flat=True))
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        raise EnvironmentInUse(
            f"Jobs use the environment {environment.name}: {', '.join(names[:NAMED])}{more}. "
            "Give them another one first."
        ) from None


def request_builds(environment: Environment, *, again: bool = False) -> dict[str, EnvironmentBuild]:
    """Have it built on every machine with a live worker; what was asked for, by machine."""
    from umpteenth.celery import send_hint

    text, digest = environment.definition, environment.digest
    asked = {
        machine: builds.request(text, digest, machine, host=host, again=again)
        for machine, host in machines_of(presence.live_workers(database_now())).items()
    }
    if asked:
        # Whichever worker hears of it; the others look for themselves now and then.
        send_hint("jobs.tasks.build_environments", digest)
    return asked


def machines_of(workers: list[Worker]) -> dict[str, str]:
    """The machines of these workers, each with the name that people call it by."""
    return {worker.machine: presence.host_in(worker.name) for worker in workers if worker.machine}


def builds_of(environment: Environment) -> list[EnvironmentBuild]:
    """One for each machine that was asked; the newest first."""
    rows = EnvironmentBuild.objects.filter(digest=environment.digest)
    return list(rows.defer("definition").order_by("-queued_at"))


def builds_by_digest(environments: Sequence[Environment]) -> dict[str, list[EnvironmentBuild]]:
    """What was asked for of these, without logs; the newest first."""
    rows = EnvironmentBuild.objects.filter(digest__in={item.digest for item in environments})
    found: dict[str, list[EnvironmentBuild]] = {}
    for build in rows.defer("definition", "log").order_by("-queued_at"):
        found.setdefault(build.digest, []).append(build)
    return found


def definition_of(environment: Environment) -> Definition | None:
    """None for one that an earlier version took and this one does not."""
    try:
        return parse_definition(environment.definition)
    except DefinitionError:
        return None


def environment_shape(environment: Environment) -> dict[str, Any]:
    """An environment as the command line prints it."""
    return environment_shapes([environment])[0]


def environment_shapes(environments: Sequence[Environment]) -> list[dict[str, Any]]:
    """Several at once, with as many queries as for one."""
    prefetch_related_objects(
        environments, Prefetch("jobs", Job.objects.only("name", "environment"))
    )
    built = builds_by_digest(environments)
    return [_shape(item, built.get(item.digest, [])) for item in environments]


def _shape(environment: Environment, built: list[EnvironmentBuild]) -> dict[str, Any]:
    definition = definition_of(environment)
    lists = {
        key: list(getattr(definition, key)) if definition else []
        for key in ("python", "npm", "debian")
    }
    return {
        "id": str(environment.pk),
        "name": environment.name,
        "digest": environment.digest,
        **lists,
        "image": definition.image if definition else "",
        "dockerfile": definition.dockerfile if definition else "",
        "jobs": sorted(job.name for job in environment.jobs.all()),
        "builds": [build_shape(build) for build in built],
    }


def build_shape(build: EnvironmentBuild) -> dict[str, Any]:
    return {
        "machine": build.host or build.machine,
        "status": build.status,
        "error": build.error,
        "size": build.size,
        "started_at": moment(build.started_at),
        "finished_at": moment(build.finished_at),
    }


def _parsed(text: str) -> tuple[Definition, str]:
    text = clean(text).replace("\r\n", "\n").strip() + "\n"
    try:
        return parse_definition(text), text
    except DefinitionError as error:
        raise InvalidEnvironment(str(error)) from None


def _name_taken(definition: Definition) -> InvalidEnvironment:
    return InvalidEnvironment(
        f"name: An environment named {definition.name} exists already; choose another name."
    )


def _who_changed(environment: Environment) -> str:
    current = Environment.objects.select_related("updated_by").filter(pk=environment.pk).first()
    if current is None:
        return "The environment was deleted meanwhile."
    return changed_meanwhile("environment", current.updated_by)


def _audit(actor: User | None, action: str, environment: Environment) -> None:
    record_audit(
        actor=actor,
        action=action,
        kind="environment",
        object_id=environment.pk,
        object_name=environment.name,
        details={"digest": environment.digest[:12]},
    )
