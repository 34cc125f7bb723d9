"""Runs and their servers: what may be called, how many at once, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from jobs import lifecycle, reach, triggers
from jobs.models import Attachment, Job
from jobs.permission import DETACHED
from secrets_vault.services import set_secret
from servers import inflight, results
from servers.definition import Entry
from servers.mcp.types import CallResult, LoginRequired
from servers.models import CallTicket, Check, Server
from servers.policy import Policy
from tests.fakes.executions import (
    UMP,
    attach,
    execute,
    let_go,
    start,
    wait_for,
    without_a_machine,
)
from tests.fakes.runs import (
    FakeServer,
    FakeServers,
    kinds,
    make_job,
    make_run,
    output_of,
    payloads_of,
    tool,
    unavailable,
)

pytestmark = pytest.mark.django_db(transaction=True)
WAIT = "until [ -e go ]; do sleep 0.02; done\n"
LOOK_WAIT_CALL = UMP + "ump mcp tools good >/dev/null\n" + WAIT + "ump mcp call good echo '{}'\n"


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> FakeServers:
    return without_a_machine(monkeypatch)


class TestServers:
    def test_a_script_calls_a_tool(self, servers: FakeServers) -> None:
        job = make_job(script=UMP + """ump mcp call good echo '{"message": "hi"}'\n""")
        attach(job)
        run = execute(job)
        assert (run.status, output_of(run)) == ("succeeded", "hi\n")
        assert servers["good"].calls == [("echo", {"message": "hi"})]
        assert {"server.connected", "tool.call", "tool.result"} <= set(kinds(run))
        assert servers["good"].closed

    def test_what_worked_is_tried_first_the_next_time(self) -> None:
        job = make_job()
        attach(job)
        execute(job)
        assert Server.objects.get().remembered == {"mode": "stateless"}

    def test_the_end_of_a_run_brings_back_nothing_that_worked_once(self) -> None:
        """A check that was made meanwhile knows better."""
        job = make_job(script=WAIT)
        attach(job)
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: Server.objects.filter(state="connected").exists())
        Server.objects.update(remembered={"transport": "sse"})
        let_go(run)
        thread.join(15)
        assert Server.objects.get().remembered == {"transport": "sse"}

    def test_a_dead_server_is_named_and_the_run_goes_on(self, servers: FakeServers) -> None:
        """P71, A45: it contributes no tools, and the run starts all the same."""
        servers["bad"] = FakeServer(error=unavailable("Connection refused"))
        job = make_job(script=UMP + "ump mcp call bad x '{}' || echo went on\n")
        attach(job, "bad")
        attach(job, "good")
        run = execute(job)
        assert (run.status, output_of(run)) == ("succeeded", "went on\n")
        [event] = payloads_of(run, "server.unavailable")
        assert (event["message"], event["reason"]) == (
            "MCP server bad is unavailable",
            "Connection refused",
        )
        assert len(payloads_of(run, "server.connected")) == 1

    def test_a_disabled_server_is_skipped(self, servers: FakeServers) -> None:
        """P60, U4: neither connected nor a source of tools."""
        job = make_job(script=UMP + "ump mcp tools good; echo $?\n")
        attach(job)
        job.servers.update(enabled=False)
        run = execute(job)
        assert payloads_of(run, "server.skipped") == [{"server": "good", "reason": "disabled"}]
        assert servers.connected_with == {}
        assert output_of(run) == "1\n"

    def test_a_tool_taken_away_during_the_run_is_denied(self, servers: FakeServers) -> None:
        job = make_job(script=LOOK_WAIT_CALL)
        attach(job)
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: "broker.call" in kinds(run))
        Attachment.objects.update(allowed_tools=["look"])
        let_go(run)
        thread.join(15)
        run.refresh_from_db()
        assert run.error == "the script ended with exit code 1"
        assert "tool 'echo' of server 'good' not found" in output_of(run, "stderr")
        assert servers["good"].calls == []

    def test_where_no_server_is_there_at_all_the_run_says_so(self, servers: FakeServers) -> None:
        """F14: a script may not notice that it has no tools."""
        for name in ("one", "two"):
            servers[name] = FakeServer(error=LoginRequired("HTTP 401"))
        job = make_job(script=UMP + "ump mcp tools || true\n")
        for name in ("one", "two"):
            attach(job, name)
        run = execute(job)
        assert run.status == "succeeded"
        assert payloads_of(run, "error") == [
            {"message": "None of this run's MCP servers is available: one, two"}
        ]

    def test_a_missing_secret_stops_its_server_and_no_other(self, servers: FakeServers) -> None:
        """F13: in any order."""
        job = make_job(script=UMP + "ump mcp tools\n")
        secret = set_secret(actor=None, name="KEY", value="s3cr3t-horse").secret
        attach(job, "bad", headers=(Entry("X-Key", "{{secret:KEY}}"),))
        attach(job, "good")
        secret.delete()
        run = execute(job)
        assert "KEY" in payloads_of(run, "server.unavailable")[0]["reason"]
        assert "echo" in output_of(run)
        assert Server.objects.get(name="bad").state == "untested"  # it was not even tried


class TestWithoutMcp:
    """U6"""

    def test_nothing_of_it_is_even_made(
        self, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(reach, "Reach", None)
        monkeypatch.setattr("jobs.runner.Reach", None)
        monkeypatch.setattr("jobs.plan.connection_settings", None)
        job = make_job(script=UMP + "ump mcp tools || ump mcp call good echo '{}'\n")
        attach(job)
        run = execute(job, disable_mcp=True)
        assert servers.connected_with == {}
        assert not [kind for kind in kinds(run) if kind.startswith("server.")]
        assert {"message": "This run goes without MCP servers."} in payloads_of(run, "log")
        assert output_of(run, "stderr").count("This run goes without MCP servers.") == 2

    def test_its_secrets_are_not_looked_up(self) -> None:
        job = make_job()
        secret = set_secret(actor=None, name="KEY", value="s3cr3t-horse").secret
        attach(job, headers=(Entry("X-Key", "{{secret:KEY}}"),))
        secret.delete()
        assert execute(job, disable_mcp=True).status == "succeeded"


class TestTrust:
    """Requirements, section 0: what started the run decides, and a retry never raises it."""

    def risky(self, servers: FakeServers) -> Job:
        servers["good"].listed = [tool("wipe", destructive=True), tool("look", read_only=True)]
        job = make_job(script=UMP + "ump mcp tools good; ump mcp call good wipe '{}'\n")
        attach(job, policy=Policy("guarded"))
        return job

    @pytest.mark.parametrize(
        ("trust", "status"), [("creator", "succeeded"), ("agent", "failed"), ("public", "failed")]
    )
    def test_a_guarded_server_is_guarded_in_a_run(
        self, servers: FakeServers, trust: str, status: str
    ) -> None:
        """A29, A34"""
        run = execute(self.risky(servers), trust=trust)
        assert run.status == status
        assert ("wipe" in output_of(run)) == (status == "succeeded")
        assert len(payloads_of(run, "tool.refused")) == (status == "failed")
        assert "tool.call" in kinds(run) or status == "failed"
        assert len(servers["good"].calls) == (status == "succeeded")

    def test_a_person_who_retries_a_schedules_run_does_not_raise_its_trust(
        self, servers: FakeServers
    ) -> None:
        first = execute(self.risky(servers), trust="public")
        again = triggers.retry_run(first, actor=None, trust="creator")
        from jobs import runner

        assert runner.execute(again.pk, "test-worker")
        assert (again.trust, servers["good"].calls) == ("public", [])

    def test_a_policy_changed_during_the_run_counts_at_once(self, servers: FakeServers) -> None:
        """A13, A34"""
        job = make_job(
            script=UMP + "ump mcp tools >/dev/null\n" + WAIT + "ump mcp call good echo '{}'\n"
        )
        attach(job)
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: "broker.call" in kinds(run))
        Server.objects.update(policy=Policy(blocked_tools=("echo",)).as_json())
        let_go(run)
        thread.join(15)
        [refused] = payloads_of(run, "tool.refused")
        assert refused["reason"] == "the server's policy blocks it"
        assert servers["good"].calls == []

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda: Server.objects.update(enabled=False), "the server is disabled"),
            (Attachment.objects.all().delete, DETACHED),
            (lambda: Server.objects.get().delete(), DETACHED),
        ],
    )
    def test_a_server_that_goes_away_during_the_run_is_called_no_more(
        self, servers: FakeServers, change: Callable[[], Any], reason: str
    ) -> None:
        """P59, and its neighbours: taken off the job, deleted."""
        job = make_job(script=LOOK_WAIT_CALL)
        attach(job)
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: "broker.call" in kinds(run))
        change()
        let_go(run)
        thread.join(15)
        assert [payload["reason"] for payload in payloads_of(run, "tool.refused")] == [reason]
        assert servers["good"].calls == []


class TestPeople:
    @pytest.mark.parametrize(("named", "sent"), [(True, ("x-ugent-actor", "alice")), (False, None)])
    def test_a_server_that_wants_to_know_hears_who_started_the_run(
        self, servers: FakeServers, administrator: Any, named: bool, sent: Any
    ) -> None:
        """U61, U62, U64: without a person it is the base session."""
        job = make_job()
        attach(job, options={"per_actor": True})
        execute(job, actor=administrator if named else None)
        headers = dict(servers.connected_with["good"].headers)
        assert headers == ({} if sent is None else dict([sent]))


class TestSlots:
    """U5, A38, A50"""

    def test_two_runs_share_the_slots_of_a_server(self, servers: FakeServers) -> None:
        out, most = 0, 0

        async def slow(_name: str, _arguments: dict[str, Any]) -> CallResult:
            nonlocal out, most
            out, most = out + 1, max(most, out + 1)
            await asyncio.sleep(0.05)  # others would come in now
            out -= 1
            return CallResult(ok=True, text="")

        servers["good"].answer = slow
        script = UMP + "for n in 1 2 3; do ump mcp call good echo '{}' & done; wait\n"
        job = make_job(script=script, overlap="parallel")
        attach(job, options={"max_inflight_calls": 1})
        runs = [make_run(job), make_run(job)]
        threads = [start(run) for run in runs]
        for thread in threads:
            thread.join(30)
        assert (len(servers["good"].calls), most) == (6, 1)
        assert not CallTicket.objects.exists()

    def test_a_cancelled_run_leaves_no_slot_taken(self, servers: FakeServers) -> None:
        """A call that never ends, and one that waits for it."""

        async def hang(_name: str, _arguments: dict[str, Any]) -> CallResult:
            await asyncio.Event().wait()
            raise AssertionError

        servers["good"].answer, servers["good"].settle = hang, False
        job = make_job(script=UMP + "for n in 1 2; do ump mcp call good echo '{}' & done; wait\n")
        attach(job, options={"max_inflight_calls": 1})
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: CallTicket.objects.count() == 2 and bool(servers["good"].calls))
        lifecycle.request_cancel(run.pk)
        thread.join(15)
        run.refresh_from_db()
        assert (run.status, len(servers["good"].calls)) == ("cancelled", 1)
        ends = payloads_of(run, "tool.result")
        unanswered = "the script or its run ended before the answer came"
        # One waited for the other, so that nothing of it was sent.
        assert sorted(end["error"] for end in ends) == [
            unanswered,
            f"{unanswered}; the call may have happened",
        ]
        assert not CallTicket.objects.exists()

    def test_a_heartbeat_renews_the_slots_and_the_end_frees_them(self) -> None:
        job = make_job()
        server = attach(job).server
        run = make_run(job)
        token = lifecycle.claim(run.pk, "worker")
        assert token is not None
        inflight.store().turn(server.pk, token, limit=1, take=1)
        before = CallTicket.objects.get().expires_at
        assert lifecycle.heartbeat(run.pk, token)
        assert CallTicket.objects.get().expires_at > before
        assert not lifecycle.heartbeat(run.pk, "guessed")
        lifecycle.finish(run.pk, token, lifecycle.Outcome("succeeded"))
        assert not CallTicket.objects.exists()

    def test_the_sweep_frees_what_a_dead_worker_held(self) -> None:
        from umpteenth.core.clock import database_now

        server = attach(make_job()).server
        inflight.store().turn(server.pk, "dead", limit=1, take=1)
        assert inflight.sweep() == 0
        CallTicket.objects.update(expires_at=database_now())
        assert inflight.sweep() == 1


class TestWhatARunFindsOut:
    """Its start is as good as a test: the same tools and states."""

    def test_tools_and_state_are_those_that_the_run_saw(self, servers: FakeServers) -> None:
        job = make_job(script=WAIT)
        attach(job)
        run = make_run(job)
        thread = start(run)
        wait_for(lambda: Server.objects.filter(state="connected").exists())
        let_go(run)
        thread.join(15)
        server = Server.objects.get()
        assert (server.tool_count, [row.name for row in server.tools.all()]) == (
            2,
            ["echo", "look"],
        )

    @pytest.mark.parametrize("job_network", ["unrestricted", "none"])
    def test_a_failure_is_the_servers_state(self, servers: FakeServers, job_network: str) -> None:
        """An HTTP server is reached from the worker, whatever the script's network."""
        servers["good"].error = unavailable("Connection refused")
        job = make_job(network=job_network)
        attach(job)
        execute(job)
        server = Server.objects.get()
        assert (server.state, server.last_error) == ("failed", "Connection refused")
        assert Check.objects.get().outcome == "failed"

    def test_secrets_do_not_get_into_the_state(self, servers: FakeServers) -> None:
        set_secret(actor=None, name="KEY", value="s3cr3t-horse-battery")
        servers["good"].error = unavailable("refused s3cr3t-horse-battery")
        job = make_job()
        attach(job, headers=(Entry("X-Key", "{{secret:KEY}}"),))
        execute(job)
        assert Server.objects.get().last_error == "refused [secret KEY]"

    def test_a_run_does_not_depend_on_it(
        self, servers: FakeServers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: Any, **_options: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(results, "store_run_start", broken)
        job = make_job(script=UMP + "ump mcp call good echo '{}'\n")
        attach(job)
        assert execute(job).status == "succeeded"
