"""Celery: how work reaches workers. A message is only a hint; the database row is the truth."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery, signals
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

from umpteenth.core.config import Options, get_options

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "umpteenth.settings")
# The worker would load every page and form of the site only to check them; `doctor` does that.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")
TRANSPORT_ALIASES["directory"] = "umpteenth.core.directory_queue:Transport"

logger = logging.getLogger(__name__)

# Threads beside the run slots, so that runs never starve checks (design, section 3).
SPARE_THREADS = 4
POLLING_INTERVAL = 0.05  # seconds, where the system tells nobody of new files
# A web request waits at most about this long for a broker that does not answer.
BROKER_TIMEOUT = 2.0  # seconds


def _broker(options: Options) -> dict[str, Any]:
    if options.redis.url is not None:
        return {
            "broker_url": options.redis.url.get_secret_value(),
            "broker_transport_options": {
                "socket_connect_timeout": BROKER_TIMEOUT,
                "socket_timeout": BROKER_TIMEOUT,
                "max_retries": 0,
                # Kept apart from whatever else uses this Redis.
                "global_keyprefix": "umpteenth:",
            },
        }
    folder = options.data_dir / "broker"
    return {
        "broker_url": "directory://localhost",
        "broker_transport_options": {
            "data_folder_in": folder / "queue",
            "data_folder_out": folder / "queue",
            "control_folder": folder / "control",
            "polling_interval": POLLING_INTERVAL,
        },
    }


def make_broker_folders(options: Options) -> None:
    """Create the embedded broker's directories for their owner alone."""
    if options.redis.url is not None:
        return
    for folder in (Path("broker"), Path("broker/queue"), Path("broker/control")):
        (options.data_dir / folder).mkdir(mode=0o700, parents=True, exist_ok=True)


def _make_app(options: Options) -> Celery:
    search_path = list(sys.path)
    app = Celery("umpteenth", set_as_current=True)
    # Celery's Django support puts the working directory first, where anybody's files may lie.
    sys.path[:] = search_path
    app.conf.update(
        **_broker(options),
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_queues=[Queue("runs", routing_key="runs"), Queue("checks", routing_key="checks")],
        task_default_queue="checks",
        task_create_missing_queues=False,
        task_routes={
            "jobs.tasks.*": {"queue": "runs", "routing_key": "runs"},
            "servers.tasks.*": {"queue": "checks", "routing_key": "checks"},
        },
        task_publish_retry=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_connection_timeout=BROKER_TIMEOUT,
        worker_pool="threads",
        worker_concurrency=options.runs.max_concurrent + SPARE_THREADS,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        beat_scheduler="jobs.beat:Scheduler",
        beat_max_loop_interval=1,
        timezone="UTC",
    )
    app.autodiscover_tasks(["servers", "jobs"])
    make_broker_folders(options)
    return app


app = _make_app(get_options())


@signals.setup_logging.connect(dispatch_uid="umpteenth.celery.logging")
def _keep_django_logging(**_kwargs: object) -> None:
    """A receiver keeps Celery from configuring logs: Django's, with their masking, stand."""


def send_hint(task: str, *args: str) -> bool:
    """Tell a worker now; False, with a warning, where the broker cannot be reached.

    Nothing is lost then: beat finds the row and hints again.
    """
    try:
        app.send_task(task, args=args, retry=False, ignore_result=True)
    # Each transport raises its own errors, and none of them may break the caller's work.
    except Exception as error:
        logger.warning("No hint for %s: %s", task, error)
        return False
    return True


def hint(task: str, *args: str) -> None:
    """Tell a worker as soon as the open transaction is committed, at once without one."""
    from django.db import transaction

    transaction.on_commit(partial(send_hint, task, *args))
