"""Hints to workers: the row is the truth, so that a hint may fail but never hold anybody up."""

from __future__ import annotations

import base64
import json
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from celery import Celery
from django.db import transaction
from kombu import Queue
from pydantic import SecretStr

from umpteenth import celery
from umpteenth.core import directory_queue
from umpteenth.core.config import Options, RedisOptions, RunsOptions, get_options
from umpteenth.core.directory_queue import Channel

EXECUTE = "jobs.tasks.execute_run"


@pytest.fixture(autouse=True)
def _empty_queue() -> Iterator[None]:
    """Other tests may have left hints, as services do."""
    _forget_hints()
    yield
    _forget_hints()


def _forget_hints() -> None:
    for path in queue_folder().glob("*"):
        path.unlink()


def queue_folder() -> Path:
    return get_options().data_dir / "broker" / "queue"


def hints() -> list[tuple[str, str, list[Any]]]:
    """(queue, task, arguments) of each message that waits, oldest first."""
    found = []
    for path in sorted(queue_folder().iterdir()):
        message = json.loads(path.read_text())
        arguments = json.loads(base64.b64decode(message["body"]))[0]
        found.append((path.name.split(".")[1], message["headers"]["task"], arguments))
    return found


def test_runs_and_checks_have_a_queue_each() -> None:
    assert celery.send_hint(EXECUTE, "run-1")
    assert celery.send_hint("servers.tasks.execute_check", "check-1")
    assert hints() == [
        ("runs", EXECUTE, ["run-1"]),
        ("checks", "servers.tasks.execute_check", ["check-1"]),
    ]


@pytest.mark.django_db(transaction=True)
def test_a_hint_is_sent_only_when_the_transaction_is_committed() -> None:
    with transaction.atomic():
        celery.hint(EXECUTE, "run-1")
        assert hints() == []
    assert hints() == [("runs", EXECUTE, ["run-1"])]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_rolled_back_sends_no_hint() -> None:
    with transaction.atomic():
        celery.hint(EXECUTE, "run-1")
        transaction.set_rollback(True)
    assert hints() == []


def test_messages_are_for_their_owner_alone() -> None:
    celery.send_hint(EXECUTE, "run-1")
    (message,) = queue_folder().iterdir()
    assert stat.S_IMODE(message.stat().st_mode) == 0o600
    assert stat.S_IMODE(queue_folder().stat().st_mode) == 0o700
    assert stat.S_IMODE(queue_folder().parent.stat().st_mode) == 0o700


def test_a_worker_takes_the_oldest_message_of_its_queue_and_takes_it_once() -> None:
    with celery.app.connection_for_read() as connection:
        channel = connection.channel()
        assert isinstance(channel, Channel)
        for number in range(3):
            channel._put("runs", {"body": number})
        channel._put("checks", {"body": 99})
        assert [channel._get("runs")["body"] for _ in range(3)] == [0, 1, 2]
        with pytest.raises(Empty):
            channel._get("runs")


def test_a_hint_that_waits_already_is_not_written_again() -> None:
    for run in ("run-1", "run-1", "run-2", "run-1"):
        assert celery.send_hint(EXECUTE, run)
    assert [arguments for _, _, arguments in hints()] == [["run-1"], ["run-2"]]


def test_a_hint_that_a_worker_has_taken_is_written_again() -> None:
    celery.send_hint(EXECUTE, "run-1")
    with celery.app.connection_for_read() as connection:
        channel = connection.channel()
        assert isinstance(channel, Channel)
        channel._get("runs")
    celery.send_hint(EXECUTE, "run-1")
    assert hints() == [("runs", EXECUTE, ["run-1"])]


def test_a_message_that_is_no_json_is_dropped_and_the_next_one_taken(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (queue_folder() / "-broken.runs.msg").write_text("{")
    with celery.app.connection_for_read() as connection:
        channel = connection.channel()
        assert isinstance(channel, Channel)
        channel._put("runs", {"number": 1})
        assert channel._get("runs") == {"number": 1}
    assert "Dropped an unreadable message of queue runs" in caplog.text


def test_a_worker_that_waits_takes_a_message_as_soon_as_it_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    long = 30.0  # seconds; nothing but the arrival itself ends this wait
    monkeypatch.setattr(directory_queue, "ROUND", long)
    taken: list[Any] = []
    with celery.app.connection_for_read() as connection:
        assert isinstance(connection.transport, directory_queue.Transport)
        connection.transport.polling_interval = long
        consumer = connection.Consumer(Queue("runs", routing_key="runs"), no_ack=True)
        consumer.register_callback(lambda body, message: taken.append(body))
        with consumer:
            later = threading.Timer(0.05, celery.send_hint, [EXECUTE, "run-1"])
            later.start()
            began = time.monotonic()
            connection.drain_events(timeout=long)
            later.join()
    assert time.monotonic() - began < long / 2
    assert taken[0][0] == ["run-1"]


def test_a_round_without_messages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker notices between two rounds that it is told to stop."""
    monkeypatch.setattr(directory_queue, "ROUND", 0.01)
    with (
        celery.app.connection_for_read() as connection,
        connection.Consumer(Queue("runs", routing_key="runs")),
        pytest.raises(TimeoutError),
    ):
        connection.drain_events(timeout=30)


def with_redis(url: str) -> Celery:
    options = Options(data_dir=Path("/nowhere"), redis=RedisOptions(url=SecretStr(url)))
    return celery._make_app(options)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_broker_that_is_down_costs_a_warning_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setattr(celery, "app", with_redis(f"redis://:hunter22@127.0.0.1:{port}/0"))
    began = time.monotonic()
    assert celery.send_hint(EXECUTE, "run-1") is False
    assert time.monotonic() - began < 2
    assert f"No hint for {EXECUTE}" in caplog.text
    assert "hunter22" not in caplog.text


def test_a_broker_that_does_not_answer_holds_the_caller_a_few_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    monkeypatch.setattr(celery, "app", with_redis(f"redis://127.0.0.1:{silent_port}/0"))
    began = time.monotonic()
    assert celery.send_hint(EXECUTE, "run-1") is False
    assert time.monotonic() - began < 3 * celery.BROKER_TIMEOUT


def test_a_worker_has_four_threads_more_than_run_slots() -> None:
    options = Options(data_dir=get_options().data_dir, runs=RunsOptions(max_concurrent=9))
    assert celery._make_app(options).conf.worker_concurrency == 13


def test_only_json_is_accepted_and_nothing_is_kept_of_results() -> None:
    conf = celery.app.conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.task_ignore_result is True
    assert conf.result_backend is None


def test_the_working_directory_is_not_searched_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    celery._make_app(get_options())
    assert str(tmp_path) not in sys.path
