"""Builds of environments on this machine: asked for, claimed, carried out, waited for.

The disk says whether an environment is there; the row of a build says who is at it. A build is
claimed like a run: by one conditional update that writes a token, which every later write names,
so that of all processes of a machine one builds, and one that was killed is followed by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Q, QuerySet

from jobs import presence
from jobs.environments.build import BuildFailed, Stopped, build_directory, check_size, too_long
from jobs.environments.definition import Definition, DefinitionError, parse_definition
from jobs.environments.images import Images
from jobs.environments.log import BuildLog
from jobs.environments.store import Store
from jobs.models import Environment, EnvironmentBuild, Worker
from jobs.sandbox import base as sandbox
from umpteenth.core.clock import database_now
from umpteenth.core.config import get_options
from umpteenth.core.connections import closing, give_back
from umpteenth.core.text import clean

logger = logging.getLogger(__name__)

Status = EnvironmentBuild.Status
SILENCE = timedelta(seconds=60)  # after which a builder counts as gone
WRITE_EVERY = 1.0  # seconds between writes of the log
HEARTBEAT_EVERY = 10.0
AT_ONCE = 2  # builds of one process
MAX_ERROR = 1000

_stopping = threading.Event()
_slots = threading.BoundedSemaphore(AT_ONCE)
_threads: set[threading.Thread] = set()


def store() -> Store:
    """The environments of this machine."""
    return Store(get_options().data_dir)


def _images() -> Images:
    """They hold a system of their own, so that this machine's does not matter."""
    return Images(store().installation())


def uses_engine() -> bool:
    return sandbox.adapter().name == "engine"


@contextlib.contextmanager
def hold(digest: str) -> Iterator[str | None]:
    """What `SandboxSpec.base` is to be, kept while it is in use; None where it is not there.

    Blocks. Raises `SandboxError` where an engine does not answer.
    """
    if uses_engine():
        # An engine keeps an image that a container uses.
        yield _images().find(digest)
        return
    with store().hold(digest) as path:
        yield None if path is None else str(path)


def request(
    definition: str, digest: str, machine: str, *, host: str = "", again: bool = False
) -> EnvironmentBuild:
    """Ask for a build on a machine; one that waits or is under way stays as it is.

    `again`: also where the environment is there already.
    """
    rows = EnvironmentBuild.objects.filter(digest=digest, machine=machine)
    values = {"definition": definition, "status": Status.QUEUED, "queued_at": database_now()}
    values |= {"error": "", "step": "", "log": "", "claim_token": ""}
    try:
        with transaction.atomic():
            EnvironmentBuild.objects.create(digest=digest, machine=machine, host=host, **values)
    except IntegrityError:
        idle = rows.exclude(status__in=EnvironmentBuild.UNFINISHED)
        (idle if again else idle.exclude(status=Status.READY)).update(**values)
    return rows.get()


def request_here(definition: str, digest: str) -> EnvironmentBuild:
    """Ask for a build on this machine, whatever is there or was once."""
    return request(definition, digest, store().machine(), host=socket.gethostname(), again=True)


def waiting_here() -> list[EnvironmentBuild]:
    """What this machine could build now, oldest first."""
    machine = store().machine()
    rows = EnvironmentBuild.objects.filter(_claimable(), machine=machine)
    return list(rows.order_by("queued_at"))


def work_off() -> int:
    """Begin, in threads, what waits for this machine; how many were begun."""
    return sum(begin(row) for row in waiting_here())


def begin(row: EnvironmentBuild) -> bool:
    """Build it in a thread of this process, if nobody else does and there is room."""
    if _stopping.is_set() or not _slots.acquire(blocking=False):
        return False
    has_begun = False
    try:
        if token := claim(row):
            has_begun = _start(row, token)
    finally:
        if not has_begun:
            _slots.release()
    return has_begun


def _start(row: EnvironmentBuild, token: str) -> bool:
    thread = threading.Thread(
        target=_thread, args=(row, token), name=f"environment-{row.digest[:8]}", daemon=True
    )
    _threads.add(thread)
    try:
        thread.start()
    except RuntimeError as error:  # the machine has no room for a thread
        logger.warning("the environment %s is not built for now: %s", row.digest, error)
        _threads.discard(thread)
        _claimed(row, token).update(status=Status.QUEUED, claim_token="", started_at=None)
        return False
    return True


def stop_all() -> None:
    """Builds of this process end soon, and no others begin."""
    _stopping.set()


def wait_until_idle(timeout: float) -> None:
    """Until the end of every build of this process is written, at most so many seconds."""
    deadline = time.monotonic() + timeout
    for thread in list(_threads):
        thread.join(max(0.0, deadline - time.monotonic()))


def claim(row: EnvironmentBuild) -> str | None:
    """Take a build; its token, or None where somebody else has it."""
    token, now = secrets.token_urlsafe(24), database_now()
    changed = EnvironmentBuild.objects.filter(_claimable(), pk=row.pk).update(
        status=Status.BUILDING,
        claim_token=token,
        heartbeat_at=now,
        started_at=now,
        finished_at=None,
        host=socket.gethostname()[:200],
        log="",
        error="",
        step="",
    )
    return token if changed else None


def build(row: EnvironmentBuild, token: str) -> None:
    """Carry out a claimed build to its end, whatever that is. Blocks."""
    log = BuildLog()
    give_back()
    try:
        with _written(row, token, log):
            result = _try(row, log)
    except Exception as error:
        logger.exception("the environment %s could not be built", row.digest)
        result = {"error": f"The build broke: {type(error).__name__}: {error}"}
    status = Status.READY
    if "error" in result:
        status, result["error"] = Status.FAILED, clean(result["error"], MAX_ERROR)
    _claimed(row, token).update(
        status=status, log=log.text(), step="", finished_at=database_now(), **result
    )


def _try(row: EnvironmentBuild, log: BuildLog) -> dict[str, Any]:
    """What the row is to hold in the end."""
    try:
        definition = parse_definition(row.definition)
        size = _build_with_adapter(definition, log)
    except (DefinitionError, BuildFailed, sandbox.SandboxError) as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"The environment could not be stored: {error.strerror or error}."}
    return {"size": size}


def _build_with_adapter(definition: Definition, log: BuildLog) -> int:
    if why := unsuitable(definition):
        raise BuildFailed(why)
    if why := sandbox.problem():
        raise BuildFailed(why)
    if uses_engine():
        return _make_image(definition, log)
    return asyncio.run(build_directory(definition, store(), log, _stopping.is_set))


def _make_image(definition: Definition, log: BuildLog) -> int:
    limit = get_options().sandbox.environment_time_limit
    until = time.monotonic() + limit
    try:
        size = _images().make(
            definition, log, lambda: _stopping.is_set() or time.monotonic() >= until
        )
    except sandbox.SandboxError:
        if _stopping.is_set():
            raise Stopped from None
        if time.monotonic() >= until:
            raise BuildFailed(too_long(limit)) from None
        raise
    try:
        check_size(size)
    except BuildFailed:
        _images().remove(definition.digest)
        raise
    return size


def unsuitable(definition: Definition) -> str:
    """Why this machine's sandboxes cannot use such an environment; empty where they can."""
    if definition.is_for_engine and not uses_engine():
        return (
            "This environment is an image for an engine, and sandboxes of this machine are made "
            f"by {sandbox.adapter().name}; list packages under python, npm and debian instead."
        )
    if uses_engine() and not definition.is_for_engine:
        return (
            "This environment lists packages, and sandboxes of this machine are made by an engine; "
            "name an image or write a dockerfile instead."
        )
    return ""


def _thread(row: EnvironmentBuild, token: str) -> None:
    try:
        closing(lambda: build(row, token))
    except DatabaseError:
        logger.warning("the end of a build could not be stored", exc_info=True)
    finally:
        _slots.release()
        _threads.discard(threading.current_thread())


@contextlib.contextmanager
def _written(row: EnvironmentBuild, token: str, log: BuildLog) -> Iterator[None]:
    """Keep the row's log and heartbeat up to date meanwhile."""
    ended = threading.Event()
    writer = threading.Thread(target=closing, args=(lambda: _write(row, token, log, ended),))
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def _write(row: EnvironmentBuild, token: str, log: BuildLog, ended: threading.Event) -> None:
    """The log as it grows, and the heartbeat, until the build has ended."""
    written, beat_at = "", time.monotonic()
    while not ended.wait(WRITE_EVERY):
        text = log.text()
        if text == written and time.monotonic() - beat_at < HEARTBEAT_EVERY:
            continue
        try:
            _claimed(row, token).update(log=text, step=log.step, heartbeat_at=database_now())
            written, beat_at = text, time.monotonic()
        except DatabaseError:
            logger.warning("the log of a build could not be stored", exc_info=True)
            connection.close()
        finally:
            give_back()


def _claimable() -> Q:
    silent = Q(status=Status.BUILDING, heartbeat_at__lt=database_now() - SILENCE)
    return Q(status=Status.QUEUED) | silent


def _claimed(row: EnvironmentBuild, token: str) -> QuerySet[EnvironmentBuild]:
    return EnvironmentBuild.objects.filter(pk=row.pk, claim_token=token, status=Status.BUILDING)


def tidy() -> int:
    """Remove from this machine's disk what no environment needs any more; how many went."""
    here = store()
    wanted = set(Environment.objects.values_list("digest", flat=True))
    unused_since = time.time() - get_options().sandbox.environment_days * 86_400
    gone = here.remove_unused(wanted, unused_since=unused_since)
    images = _images().remove_unused(wanted) if uses_engine() else 0
    # Images go with their environment, and so do their rows, below.
    rows = EnvironmentBuild.objects.filter(machine=here.machine())
    rows.filter(digest__in=gone).exclude(status__in=EnvironmentBuild.UNFINISHED).update(
        status=Status.REMOVED, size=0
    )
    # Of what nobody calls by a name any more nothing is left to tell.
    rows.exclude(digest__in=wanted).exclude(status__in=EnvironmentBuild.UNFINISHED).delete()
    _forget_machines()
    return len(gone) + images


def _forget_machines() -> None:
    """Rows of machines that have had no worker for a day: containers that are replaced, say."""
    known = Worker.objects.values_list("machine", flat=True)
    old = EnvironmentBuild.objects.filter(queued_at__lt=database_now() - presence.FORGET)
    old.exclude(machine__in=list(known)).exclude(machine=store().machine()).delete()
