"""Answers questions about a site on standard input: one expression a line, one JSON line back.

A command line costs a second of start-up; tests that look again and again ask here.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from datetime import timedelta
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
import django

django.setup()

from django.contrib.auth import (  # noqa: E402
    BACKEND_SESSION_KEY,
    HASH_SESSION_KEY,
    SESSION_KEY,
)
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.core.files.storage import default_storage  # noqa: E402
from django.db import connection  # noqa: E402
from django.utils import timezone  # noqa: E402

from jobs import jobfile, lifecycle, services, shapes, triggers  # noqa: E402
from jobs.models import Environment, EnvironmentBuild, Job, Run, RunEvent, Worker  # noqa: E402
from servers import checks, health, results  # noqa: E402
from servers.definition import ServerData  # noqa: E402
from servers.inflight_redis import PREFIX  # noqa: E402
from servers.mcp.types import Tool, ToolList  # noqa: E402
from servers.models import CallTicket, Check, Server  # noqa: E402
from servers.probe import Found  # noqa: E402
from servers.services import create_server, delete_server, set_enabled  # noqa: E402
from tests.fakes.server_rows import FoundServer  # noqa: E402
from umpteenth import celery  # noqa: E402
from umpteenth.accounts.models import User  # noqa: E402
from umpteenth.core import live  # noqa: E402
from umpteenth.core.connections import closing  # noqa: E402
from umpteenth.core.masking import Masker  # noqa: E402


def create(text: str) -> str:
    return services.create_job(actor=None, data=jobfile.parse_job_file(text)).name


def set_job(name: str, **columns: Any) -> None:
    """What only administrators may choose."""
    Job.objects.filter(name=name).update(**columns)


def start(name: str, **values: Any) -> str:
    job = Job.objects.get(name=name)
    return str(triggers.start_run(job=job, trigger="command", trust="creator", **values).pk)


def start_unheard(name: str) -> str:
    """Start a run whose hint is lost."""
    kept = celery.send_hint
    celery.send_hint = lambda *_words: False
    try:
        return start(name)
    finally:
        celery.send_hint = kept


def show(run_id: str) -> dict[str, Any]:
    return shapes.run_details(Run.objects.select_related("job").get(pk=run_id))


def runs(name: str) -> list[dict[str, Any]]:
    found = Run.objects.filter(job__name=name).select_related("job").order_by("number")
    return [shapes.run_shape(run) for run in found]


def events(run_id: str) -> list[dict[str, Any]]:
    return [shapes.event_shape(event) for event in RunEvent.objects.filter(run_id=run_id)]


def stored_files(run_id: str) -> list[dict[str, Any]]:
    """What a run left in the storage: its artifacts, then its large values."""
    run = Run.objects.get(pk=run_id)
    found = []
    items: list[Any] = [*run.artifacts.all(), *run.blobs.all()]
    for item in items:
        with default_storage.open(item.path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        name = getattr(item, "name", "")
        found.append({"id": str(item.pk), "name": name, "size": item.size, "sha256": digest})
    return found


def session() -> str:
    """The key of a session of a member."""
    user, _ = User.objects.get_or_create(username="reader", role=User.Role.MEMBER)
    store = SessionStore()
    store[SESSION_KEY], store[HASH_SESSION_KEY] = str(user.pk), user.get_session_auth_hash()
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store.save()
    return str(store.session_key)


def machines() -> list[str]:
    """Of the workers that have said which one they are on."""
    return list(Worker.objects.exclude(machine="").values_list("machine", flat=True))


def builds(name: str) -> list[str]:
    """How the builds of an environment stand."""
    digest = Environment.objects.get(name=name).digest
    return list(EnvironmentBuild.objects.filter(digest=digest).values_list("status", flat=True))


def programs() -> list[list[str]]:
    """Of the default environment, as a worker found them."""
    found: list[list[str]] = Worker.objects.exclude(machine="").values_list("programs", flat=True)[
        0
    ]
    return found


def cancel(run_id: str) -> None:
    lifecycle.request_cancel(Run.objects.get(pk=run_id).pk)


def silence(run_id: str) -> None:
    """As if a minute had passed since the run's last heartbeat."""
    long_ago = timezone.now() - timedelta(seconds=61)
    Run.objects.filter(pk=run_id).update(heartbeat_at=long_ago)


def reap() -> int:
    """What beat does for runs whose worker is silent."""
    return lifecycle.reap(timezone.now())


def make_due(name: str) -> None:
    Job.objects.filter(name=name).update(next_run_at=timezone.now())


def set_columns(name: str, **columns: Any) -> None:
    Server.objects.filter(name=name).update(**columns)


def tickets(name: str) -> int:
    """Calls that hold a slot of the server or wait for one."""
    server = Server.objects.get(name=name)
    if not live.redis_url():
        return CallTicket.objects.filter(server=server).count()
    from redis import Redis

    found: Any = Redis.from_url(live.redis_url()).zcard(f"{PREFIX}{server.pk}:line")
    return int(found)


def workers() -> int:
    return Worker.objects.count()


def add_server(name: str, transport: str, **values: Any) -> str:
    data = ServerData(name=name, transport=transport, **values)
    return create_server(actor=None, data=data).name


def server(name: str) -> dict[str, Any]:
    found = Server.objects.get(name=name)
    fields = ("state", "failures", "last_error", "tool_count", "next_check_at", "found_how")
    tools = list(found.tools.values_list("name", flat=True))
    return {**{field: getattr(found, field) for field in fields}, "tools": tools}


def kinds(name: str) -> list[str]:
    """Of the server's checks, oldest first."""
    found = Check.objects.filter(server__name=name).order_by("created_at")
    return list(found.values_list("kind", flat=True))


def make_server_due(name: str) -> None:
    Server.objects.filter(name=name).update(next_check_at=timezone.now())


def switch(name: str, enabled: bool) -> None:
    set_enabled(Server.objects.get(name=name), actor=None, enabled=enabled)


def while_a_test_is_stored(name: str, what: str) -> dict[str, Any]:
    """`delete` a server or make a health check of it `due` while another thread keeps what a test
    found: at its most delicate moment, which is between two locks."""
    server, begun = Server.objects.get(name=name), threading.Event()
    check = checks.request_check(server, actor=None, hinted=False)
    token = checks._claim(check.pk)
    lock = results._lock

    def slowly(*arguments: Any) -> Any:
        begun.set()
        # A file lets nobody else even begin.
        while connection.vendor == "postgresql" and not _somebody_waits():
            time.sleep(0.01)  # only the database knows who waits for a lock
        return lock(*arguments)

    def store() -> None:
        found: Any = Found(FoundServer(), ToolList([Tool("late")]))  # type: ignore[arg-type]
        checks._succeed(check, str(token), found, None, Masker({}), {"warnings": []})

    results._lock = slowly  # type: ignore[assignment]
    thread = threading.Thread(target=closing, args=(store,), daemon=True)
    thread.start()
    begun.wait(10)
    try:
        if what == "delete":
            delete_server(server, actor=None)
        else:
            make_server_due(name)
            server.refresh_from_db()
            health.start_due(timezone.now())
    finally:
        thread.join(10)
        results._lock = lock
    return {"servers": Server.objects.filter(name=name).count(), "tests": outcomes_of(name)}


def outcomes_of(name: str) -> list[str]:
    return [check.outcome or check.status for check in Check.objects.filter(server__name=name)]


def _somebody_waits() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


def test(names: list[str]) -> list[str]:
    servers = {server.name: server for server in Server.objects.filter(name__in=names)}
    return [str(checks.request_check(servers[name], actor=None).pk) for name in names]


def cancel_test(check_id: str) -> None:
    checks.cancel_check(Check.objects.get(pk=check_id))


def outcomes(check_ids: list[str]) -> list[str]:
    """In the order of the ids; a test under way has its status."""
    found = {str(check.pk): check for check in Check.objects.filter(pk__in=check_ids)}
    return [found[pk].outcome or found[pk].status for pk in check_ids]


def errors(check_ids: list[str]) -> list[str]:
    return list(Check.objects.filter(pk__in=check_ids).values_list("error", flat=True))


for line in sys.stdin:
    function, *arguments = json.loads(line)
    named = arguments.pop() if arguments and isinstance(arguments[-1], dict) else {}
    try:
        answer: dict[str, Any] = {"value": globals()[function](*arguments, **named)}
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    connection.close()
    print(json.dumps(answer, default=str), flush=True)
