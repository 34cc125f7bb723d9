"""The helper of `bench.site`: makes servers, jobs and runs, and reads what they became.

Reads one JSON line `[what, arguments]` at a time and answers with one. Times are seconds since
the epoch, of this machine's one clock.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from bench import toolbox

if TYPE_CHECKING:
    from jobs.models import Run

LIMIT = 90.0  # seconds for what is asked at once
LOOK_EVERY = 0.05  # seconds; what is measured stands in the rows, not in when they are seen


def wait_for_worker() -> None:
    from jobs.models import Worker

    _wait(lambda: Worker.objects.exists(), "a worker")


def add_server(
    name: str, command: str, args: list[str], url: str, inflight: int = 0, tools: int = 0
) -> None:
    """`inflight` and `tools`, where they are given, stand in for the server's usual limits."""
    from servers.definition import HTTP, STDIO, ServerData
    from servers.services import create_server

    wanted = {"max_inflight_calls": inflight, "max_tools": tools, "max_tool_pages": tools}
    options = {option: value for option, value in wanted.items() if value}
    data = (
        ServerData(name, HTTP, "", url=url, options=options)
        if url
        else ServerData(name, STDIO, "", command=command, args=tuple(args), options=options)
    )
    create_server(actor=None, data=data)


def test(name: str) -> float:
    """Test the server here; seconds from the claim to what was stored."""
    from servers.checks import request_check, run_check
    from servers.models import Check, Server

    check = request_check(Server.objects.get(name=name), actor=None)
    run_check(check.pk)
    _wait(lambda: Check.objects.filter(pk=check.pk, status=Check.Status.DONE).exists(), "a test")
    check = Check.objects.get(pk=check.pk)
    if check.outcome != Check.Outcome.CONNECTED:
        raise RuntimeError(f"the test of {name} failed: {check.error}")
    assert check.started_at is not None
    assert check.finished_at is not None
    return (check.finished_at - check.started_at).total_seconds()


def page_of_server(name: str) -> str:
    from django.urls import reverse

    from servers.models import Server

    return reverse("servers:detail", args=[Server.objects.get(name=name).pk])


def add_job(name: str, script: str, servers: list[str], overlap: str) -> None:
    from jobs.models import Job
    from jobs.services import AttachmentData, JobData, create_job

    attached = tuple(AttachmentData(server) for server in servers)
    data = JobData(
        name=name,
        script=script,
        overlap=overlap,
        network=Job.Network.NONE,
        timeout=60,
        attachments=attached,
    )
    create_job(actor=None, data=data)


def run(name: str, count: int = 1) -> list[dict[str, Any]]:
    """Start this many runs at once and wait until all have ended."""
    from jobs.models import Job, Run
    from jobs.triggers import start_run

    job = Job.objects.get(name=name)
    started: list[tuple[Run, float]] = []
    for _ in range(count):
        asked = time.time()
        made = start_run(job=job, trigger=Run.Trigger.COMMAND, trust=Run.Trust.CREATOR)
        started.append((made, asked))
    unfinished = Run.objects.filter(job=job, status__in=Run.UNFINISHED)
    _wait(lambda: not unfinished.exists(), f"{count} runs of {name}")
    return [_times(made, asked) for made, asked in started]


def sign_in() -> dict[str, str]:
    """A new administrator's cookie."""
    from django.conf import settings
    from django.test import Client

    from umpteenth.accounts.services import create_user

    browser = Client()
    browser.force_login(create_user(name="bench", password=token_urlsafe(), administrator=True))
    name = settings.SESSION_COOKIE_NAME
    return {name: browser.cookies[name].value}


def pages() -> list[str]:
    """Addresses of one page of each kind."""
    from django.urls import reverse

    from jobs.models import Job, Run

    names = ["dashboard", "servers:list", "servers:create", "jobs:list", "jobs:create"]
    names += ["runs:list", "secrets:list", "accounts:people", "accounts:general"]
    job, run = Job.objects.latest("created_at"), Run.objects.latest("queued_at")
    return [
        *(reverse(name) for name in names),
        reverse("jobs:detail", args=[job.pk]),
        reverse("jobs:settings", args=[job.pk]),
        reverse("runs:detail", args=[run.pk]),
    ]


def _times(made: Run, asked: float) -> dict[str, Any]:
    """When what happened. Ends the bench for a run that did not succeed: it measures nothing."""
    from jobs.models import RunEvent

    made.refresh_from_db()
    events = list(RunEvent.objects.filter(run=made).order_by("seq"))
    results = [event for event in events if event.kind == "tool.result"]
    failed = [event for event in results if not event.payload["ok"]]
    if made.status != made.Status.SUCCEEDED or failed:
        sys.exit(f"A run ended as {made.status}: {made.error} {[e.payload for e in events]}")
    assert made.finished_at is not None
    claimed = next(
        event for event in events if event.payload.get("status") == made.Status.PROVISIONING
    )
    return {
        "asked": asked,
        "queued": made.queued_at.timestamp(),
        "claimed": claimed.at.timestamp(),
        "results": sorted(event.at.timestamp() for event in results),
        "finished": made.finished_at.timestamp(),
    }


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"The bench waited {LIMIT:.0f} seconds in vain for {what}.")
        time.sleep(LOOK_EVERY)


TASKS: dict[str, Callable[..., Any]] = {
    "wait_for_worker": wait_for_worker,
    "add_server": add_server,
    "add_job": add_job,
    "run": run,
    "sign_in": sign_in,
    "pages": pages,
    "page_of_server": page_of_server,
    "test": test,
    "toolbox_calls": toolbox.calls,
}


def main() -> None:
    from umpteenth.cli.bootstrap import load_django

    load_django()
    for line in sys.stdin:
        what, arguments = json.loads(line)
        print(json.dumps(TASKS[what](**arguments)), flush=True)


if __name__ == "__main__":
    main()
