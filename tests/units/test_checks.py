"""Tests of servers: asked for once, claimed once, followed, ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from secrets_vault.services import set_secret
from servers import checks
from servers.checks import cancel_check, end_dead, request_check, run_check, waiting
from servers.connecting import connection_settings
from servers.mcp.types import LoginRequired, ServerError, ServerUnavailable, ToolList
from servers.models import Check, Server
from servers.oauth.types import Looked
from servers.probe import Found, Outcome, Progress, Stopped
from servers.services import set_enabled, update_server
from tests.fakes.mcp_helpers import FAKE
from tests.fakes.mcp_server import TOOLS, Behaviour
from tests.fakes.server_rows import (
    FoundServer,
    after_success,
    behaviour_argument,
    http_data,
    http_server,
    stdio_server,
    tool_list,
)
from tests.fakes.spawner import BareSpawner
from umpteenth.accounts.models import User

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def hints(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The hints that were sent."""
    sent: list[Any] = []
    monkeypatch.setattr(checks, "_hint", sent.append)
    return sent


@pytest.fixture
def spawner(monkeypatch: pytest.MonkeyPatch) -> BareSpawner:
    spawner = BareSpawner()
    monkeypatch.setattr(checks, "get_spawner", lambda **_: spawner)
    return spawner


def fake_server(behaviour: Behaviour | None = None, **values: Any) -> Server:
    args = ("-I", "-S", "-X", "utf8", str(FAKE), behaviour_argument(behaviour))
    return stdio_server("fake", command=sys.executable, args=args, **values)


class ScriptedProbe:
    """Stands in for a connection: each look at it runs the next action; then it has ended."""

    def __init__(self, outcome: Outcome, *actions: Callable[[], object]) -> None:
        self.outcome = outcome
        self.stderr_tail = "the end of stderr"
        self.stopped = False
        self.looked: Looked | None = None
        self.shown = Progress([{"label": "Connecting", "ms": None}], "a line")
        self._actions = list(actions)

    def __call__(
        self, settings: object, spawn: object, ask: object, *, notes: object, looks_for_login: bool
    ) -> ScriptedProbe:
        return self

    def start(self) -> None:
        pass

    def wait(self, timeout: float) -> bool:
        if self.stopped or not self._actions:
            return True
        self._actions.pop(0)()
        return False

    def stop(self) -> None:
        if self._actions:
            self.outcome = Stopped()
        self.stopped = True

    def progress(self) -> Progress:
        return self.shown


def ran(server: Server, probe: ScriptedProbe, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr(checks, "Probe", probe)
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    return check


def success(*names: str) -> Found:
    return Found(FoundServer(), tool_list(*names))  # type: ignore[arg-type]


def test_asking_makes_a_waiting_check_and_sends_a_hint(member: User, hints: list[Any]) -> None:
    check = request_check(http_server(), actor=member)
    assert (check.status, check.requested_by) == ("queued", member)
    assert hints == [check.pk]


@pytest.mark.django_db(transaction=True)
def test_a_server_that_was_deleted_meanwhile_is_not_tested() -> None:
    server = http_server()
    Server.objects.all().delete()
    with pytest.raises(Server.DoesNotExist):
        request_check(server, actor=None)
    assert not Check.objects.exists()


def test_a_second_click_joins_the_test_under_way(hints: list[Any]) -> None:
    server = http_server()
    assert request_check(server, actor=None) == request_check(server, actor=None)
    assert len(hints) == 1


def test_after_an_edit_a_new_test_is_made_beside_the_old_one() -> None:
    server = http_server()
    old = request_check(server, actor=None)
    data = http_data(url="https://api.example.org/other")
    server = update_server(server, actor=None, data=data, version=1)
    assert request_check(server, actor=None) != old


def test_a_dead_test_is_not_joined() -> None:
    server = http_server()
    old = request_check(server, actor=None)
    long_ago = timezone.now() - timedelta(seconds=61)
    Check.objects.filter(pk=old.pk).update(status="running", heartbeat_at=long_ago)
    assert request_check(server, actor=None) != old
    old.refresh_from_db()
    assert old.error == "interrupted: the worker stopped"


def test_a_stdio_server_is_tested_for_real(spawner: BareSpawner) -> None:
    """P27, P28: it connects, lists and stores; nothing of it lives on."""
    server = fake_server(Behaviour(stderr="hello from stderr", instructions="Be gentle."))
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    server.refresh_from_db()
    assert (check.status, check.outcome) == ("done", "connected")
    assert check.tool_count == server.tool_count == server.tools.count() == len(TOOLS)
    labels = [step["label"] for step in check.steps]
    assert labels[0].startswith("Starting ")
    assert labels[-1] == "Listing tools"
    assert all(step["ms"] is not None for step in check.steps)
    assert (server.server_name, server.server_version) == ("fake", "1.2.3")
    assert (server.state, server.instructions) == ("connected", "Be gentle.")
    assert server.tools.get(name="echo").shows_read_only
    assert server.tools.get(name="exit").shows_destructive
    assert not server.tools.get(name="content").shows_destructive
    assert spawner.alive() == []


def test_a_server_that_dies_at_once_shows_its_exit_code_and_stderr(spawner: BareSpawner) -> None:
    """P21, P32, C06."""
    server = fake_server(Behaviour(start="die", exit_code=3, stderr="BRAVE_API_KEY is required"))
    check = request_check(server, actor=None)
    run_check(check.pk)
    check.refresh_from_db()
    server.refresh_from_db()
    assert (check.outcome, check.exit_code) == ("failed", 3)
    assert "BRAVE_API_KEY is required" in check.stderr_tail
    assert server.state == "failed"
    assert server.last_error == check.error


def test_what_is_stored_of_a_test_holds_no_secret(spawner: BareSpawner) -> None:
    """Masked: errors, stderr, and the tools that a server lists."""
    set_secret(actor=None, name="KEY", value="canary-value-1")
    env = {"KEY": "{{secret:KEY}}", "OTHER": "canary-value-2"}
    server = fake_server(
        Behaviour(start="die", stderr="given canary-value-1 and canary-value-2"), env=env
    )
    check = request_check(server, actor=None)
    run_check(check.pk)
    check.refresh_from_db()
    assert "[secret KEY]" in check.stderr_tail
    assert "canary" not in json.dumps([check.stderr_tail, check.error, check.steps, check.hint])


def test_a_second_worker_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ran(http_server(), ScriptedProbe(success("echo")), monkeypatch)
    assert not run_check(check.pk)


def test_of_two_hints_at_once_one_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http_server()
    check = request_check(server, actor=None)
    second: list[bool] = []
    probe = ScriptedProbe(success("echo"), lambda: second.append(run_check(check.pk)))
    monkeypatch.setattr(checks, "Probe", probe)
    assert run_check(check.pk)
    assert second == [False]


def test_a_missing_check_is_no_error() -> None:
    """H13: the row may be gone with its server."""
    check = request_check(http_server(), actor=None)
    Server.objects.all().delete()
    assert not run_check(check.pk)


def test_progress_and_heartbeat_are_written_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http_server()
    seen: list[Check] = []
    probe = ScriptedProbe(success("echo"), lambda: None, lambda: seen.append(Check.objects.get()))
    ran(server, probe, monkeypatch)
    assert seen[0].steps == [{"label": "Connecting", "ms": None}]
    assert seen[0].last_stderr == "a line"
    assert seen[0].heartbeat_at is not None


def test_the_heartbeat_goes_on_where_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[Any] = []

    def look() -> None:
        beats.append(Check.objects.values_list("heartbeat_at", flat=True).get())
        clock.shift(timedelta(seconds=6))

    monkeypatch.setattr(checks, "HEARTBEAT", 0.0)
    with time_machine.travel(timezone.now(), tick=False) as clock:
        probe = ScriptedProbe(success("echo"), look, look, look)
        ran(http_server(), probe, monkeypatch)
    assert beats[0] < beats[1] < beats[2]


def test_what_happened_by_itself_is_kept_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that were declined and sessions that were renewed stand in the record."""
    set_secret(actor=None, name="KEY", value="canary-value-1")
    server = http_server(headers={"X-Key": "{{secret:KEY}}"})
    probe = ScriptedProbe(success("echo"), lambda: None)
    probe.shown = Progress(notices=["Declined: give me canary-value-1\x00", "n" * 2000])
    check = ran(server, probe, monkeypatch)
    assert check.notices[0] == "Declined: give me [secret KEY]"
    assert len(check.notices[1]) == 1000


@pytest.mark.parametrize("outcome", [success("echo"), ServerUnavailable("No route."), Stopped()])
def test_warnings_about_the_settings_are_shown_however_it_ends(
    outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U27: a token that was dropped is named."""

    def settings(server: Server, **options: Any) -> Any:
        made, mask = connection_settings(server, **options)
        return replace(made, warnings=("@GONE was dropped.",)), mask

    monkeypatch.setattr(checks, "connection_settings", settings)
    if isinstance(outcome, Found):
        tools = ToolList(outcome.tools.tools, ["One tool was left out."])
        outcome = Found(outcome.connection, tools)
    check = ran(http_server(), ScriptedProbe(outcome), monkeypatch)
    also = ["One tool was left out."] if isinstance(outcome, Found) else []
    assert check.warnings == ["@GONE was dropped.", *also]


def test_a_check_that_its_asker_does_is_not_hinted(hints: list[Any]) -> None:
    """But found by the sweep, should the asker be gone."""
    check = request_check(http_server(), actor=None, hinted=False)
    assert hints == []
    assert waiting(timezone.now() + timedelta(seconds=4)) == [check.pk]


def test_a_success_says_what_changed_since_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http_server()
    first = ran(server, ScriptedProbe(success("a", "b", "c")), monkeypatch)
    assert first.changes == {}
    tools = tool_list("b", "c", "d")
    tools.tools[1] = type(tools.tools[1])("c", description="Another text")
    second = ran(server, ScriptedProbe(Found(FoundServer(), tools)), monkeypatch)  # type: ignore[arg-type]
    assert second.changes == {"added": ["d"], "removed": ["a"], "changed": ["c"]}
    assert list(server.tools.values_list("name", flat=True)) == ["b", "c", "d"]


@pytest.mark.parametrize(
    ("error", "outcome", "state"),
    [
        (ServerUnavailable("No route.", "Look at it."), "failed", "failed"),
        (LoginRequired("401 Unauthorized"), "login_required", "login_required"),
    ],
)
def test_a_failure_keeps_the_tools(
    error: ServerError, outcome: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P28, P31, P32."""
    server = after_success(http_server(), "a", "b")
    tested_at = server.tested_at
    check = ran(server, ScriptedProbe(error), monkeypatch)
    server.refresh_from_db()
    assert (check.outcome, check.error, check.hint) == (outcome, error.message, error.hint)
    assert (server.state, server.tool_count, server.tested_at) == (state, 2, tested_at)
    assert server.tools.count() == 2


def test_a_test_is_stopped_at_three_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """P34."""
    assert checks.LIMIT == 180
    monkeypatch.setattr(checks, "LIMIT", -1.0)
    probe = ScriptedProbe(success("echo"), lambda: None, lambda: None)
    check = ran(http_server(), probe, monkeypatch)
    assert check.outcome == "failed"
    assert "stopped after 3 minutes" in check.error
    assert check.stderr_tail == "the end of stderr"
    assert probe.stopped


def test_a_running_test_can_be_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    server = after_success(http_server(), "a")
    probe = ScriptedProbe(success("echo"), lambda: cancel_check(Check.objects.get()), lambda: None)
    check = ran(server, probe, monkeypatch)
    server.refresh_from_db()
    assert check.outcome == "cancelled"
    assert server.state == "connected"
    assert probe.stopped


def test_a_waiting_test_is_cancelled_at_once() -> None:
    check = request_check(http_server(), actor=None)
    cancel_check(check)
    check.refresh_from_db()
    assert (check.status, check.outcome) == ("done", "cancelled")
    assert not run_check(check.pk)


def test_cancelling_a_finished_test_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = ran(http_server(), ScriptedProbe(success("a")), monkeypatch)
    cancel_check(check)
    check.refresh_from_db()
    assert (check.outcome, check.cancel_requested_at) == ("connected", None)


def test_a_worker_that_was_declared_dead_writes_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """H08: failed does not turn into connected."""
    server = http_server()
    later = timezone.now() + timedelta(seconds=61)
    probe = ScriptedProbe(success("echo"), lambda: end_dead(later))
    check = ran(server, probe, monkeypatch)
    server.refresh_from_db()
    assert (check.outcome, check.error) == ("failed", checks.INTERRUPTED)
    assert (server.state, server.tool_count) == ("untested", 0)


def test_what_an_edited_server_answered_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    server = http_server()

    def edit() -> None:
        data = http_data(url="https://api.example.org/other")
        update_server(server, actor=None, data=data, version=1)

    check = ran(server, ScriptedProbe(success("echo"), edit), monkeypatch)
    server.refresh_from_db()
    assert check.outcome == "connected"
    assert checks.OUTDATED in check.warnings
    assert (server.state, server.tools.count()) == ("untested", 0)


def test_an_edited_server_is_not_blamed_for_the_old_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = http_server()

    def edit() -> None:
        data = http_data(url="https://api.example.org/other")
        update_server(server, actor=None, data=data, version=1)

    ran(server, ScriptedProbe(ServerUnavailable("No route."), edit), monkeypatch)
    server.refresh_from_db()
    assert (server.state, server.last_error) == ("untested", "")


def test_an_edit_of_the_description_or_the_switch_does_not_spoil_a_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = http_server()

    def edit() -> None:
        update_server(server, actor=None, data=http_data(description="x"), version=1)
        set_enabled(server, actor=None, enabled=False)

    check = ran(server, ScriptedProbe(success("echo"), edit), monkeypatch)
    assert check.warnings == []
    assert server.tools.count() == 1


def test_a_secret_that_does_not_resolve_fails_before_connecting() -> None:
    """E05, E09."""
    server = http_server(headers={"Authorization": "Bearer {{secret:NOWHERE}}"})
    check = request_check(server, actor=None)
    assert run_check(check.pk)
    check.refresh_from_db()
    assert check.outcome == "failed"
    assert "NOWHERE" in check.error
    assert check.steps == []


def test_values_without_their_key_fail_with_that_text() -> None:
    """E09."""
    server = http_server(headers={"X-Api-Key": "canary"})
    Server.objects.update(key_id="gone")
    check = request_check(server, actor=None)
    run_check(check.pk)
    check.refresh_from_db()
    assert "cannot be decrypted" in check.error
    assert "enter them again" in check.error


def test_no_sandbox_is_a_failure_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    from servers import spawning

    monkeypatch.setattr(spawning, "_factories", [])
    check = request_check(stdio_server(), actor=None)
    run_check(check.pk)
    check.refresh_from_db()
    assert check.outcome == "failed"
    assert check.hint == "Run: umpteenth doctor"


def test_what_cannot_be_stored_is_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    """H16: NUL and lone surrogates in an error never keep a check from ending."""
    error = ServerUnavailable("a\x00b\ud800", "h\x00", stderr_tail="\x00\x1b[31mred", exit_code=-9)
    check = ran(http_server(), ScriptedProbe(error), monkeypatch)
    assert (check.error, check.hint, check.exit_code) == ("ab\ufffd", "h", -9)
    assert check.stderr_tail == "red"


def test_the_sweep_ends_silent_checks_once_and_leaves_the_others() -> None:
    """H04, H08."""
    now = timezone.now()
    ages = {"fresh": 59, "stale": 61}
    for name, age in ages.items():
        check = request_check(http_server(name), actor=None)
        beat = now - timedelta(seconds=age)
        Check.objects.filter(pk=check.pk).update(status="running", heartbeat_at=beat)
    assert end_dead(now) == 1
    assert end_dead(now) == 0
    ended = Check.objects.get(server__name="stale")
    assert (ended.outcome, ended.error) == ("failed", "interrupted: the worker stopped")
    assert Check.objects.get(server__name="fresh").status == "running"


def test_a_check_that_waits_may_have_lost_its_hint() -> None:
    """H10."""
    check = request_check(http_server(), actor=None)
    assert waiting(timezone.now()) == []
    assert waiting(timezone.now() + timedelta(seconds=11)) == [check.pk]


def test_the_task_runs_the_check_of_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    from servers.tasks import execute_check

    seen: list[Any] = []
    monkeypatch.setattr(checks, "run_check", seen.append)
    check = request_check(http_server(), actor=None)
    execute_check(str(check.pk))
    assert seen == [check.pk]


def test_the_hint_names_the_task_and_waits_for_the_commit(
    monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    """H13, E11: a task's arguments are a row's id, so that nothing of a server is in the queue."""
    from umpteenth import celery

    monkeypatch.undo()
    sent: list[Any] = []
    monkeypatch.setattr(celery, "send_hint", lambda *args: sent.append(args))
    with django_capture_on_commit_callbacks(execute=True):
        check = request_check(http_server(), actor=None)
        assert sent == []
    assert sent == [("servers.tasks.execute_check", str(check.pk))]
