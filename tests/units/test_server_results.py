"""What a connection found out is kept: as it is, all at once, and only where it is news."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test.utils import CaptureQueriesContext

from servers import checks, results, toolcache
from servers.changes import Changes
from servers.mcp.types import LoginRequired, ServerError, ServerUnavailable, Tool, ToolList
from servers.models import Check, Server
from servers.models import Tool as ToolRow
from servers.probe import Found
from servers.results import store_run_start, store_success
from servers.services import update_server
from tests.fakes.server_rows import (
    FoundServer,
    after_success,
    http_data,
    http_server,
    stdio_server,
    tool_list,
)
from umpteenth.core.masking import Masker

pytestmark = pytest.mark.django_db
NOTHING = Masker({})


def listed(*pairs: tuple[str, str]) -> ToolList:
    return ToolList([Tool(name, description=text) for name, text in pairs])


def kept(server: Server) -> list[tuple[str, str]]:
    return list(server.tools.order_by("position").values_list("name", "description"))


def store(server: Server, tools: ToolList, masker: Masker = NOTHING) -> Any:
    return store_success(server, FoundServer(), tools, masker=masker)


class TestTools:
    def test_a_list_that_is_the_same_writes_no_tool(
        self, django_assert_max_num_queries: Any
    ) -> None:
        """P28: 5,000 tools every 15 minutes, and not one row."""
        server = http_server()
        many = listed(*[(f"t{n}", "x") for n in range(300)])
        store(server, many)
        with CaptureQueriesContext(_connection()) as queries:
            assert not store(server, many)
        written = [query["sql"] for query in queries if '"servers_tool"' in query["sql"]]
        assert all(sql.startswith("SELECT") for sql in written), written
        assert len(queries) <= 6

    def test_only_what_differs_is_written(self) -> None:
        server = http_server()
        store(server, listed(("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")))
        ids = dict(server.tools.values_list("name", "pk"))
        ToolRow.objects.filter(name__in="abd").update(title="untouched")
        changes = store(server, listed(("a", "1"), ("b", "1"), ("c", "2"), ("e", "1")))
        assert changes == Changes(added=["e"], removed=["d"], changed=["c"])
        assert kept(server) == [("a", "1"), ("b", "1"), ("c", "2"), ("e", "1")]
        assert dict(server.tools.filter(name__in="abc").values_list("name", "pk")) == {
            name: ids[name] for name in "abc"
        }
        assert set(server.tools.filter(title="untouched").values_list("name", flat=True)) == {
            "a",
            "b",
        }

    def test_a_new_order_is_kept_and_is_no_change(self) -> None:
        server = http_server()
        store(server, listed(("a", "1"), ("b", "1"), ("c", "1")))
        changes = store(server, listed(("c", "1"), ("b", "1"), ("a", "1")))
        assert not changes
        assert [name for name, _ in kept(server)] == ["c", "b", "a"]

    def test_a_list_that_became_empty_empties_the_cache(self) -> None:
        server = after_success(http_server(), *[f"t{n}" for n in range(450)])
        changes = store(server, ToolList([]))
        assert len(changes.removed) == 450
        server.refresh_from_db()
        assert (server.tool_count, server.tools.count()) == (0, 0)

    def test_what_became_a_secret_is_masked_although_the_tool_is_the_same(self) -> None:
        """The hash is that of the server's words."""
        server = http_server()
        tools = listed(("a", "use canary-value-1 to sign in"))
        store(server, tools)
        changes = store(server, tools, Masker({"KEY": "canary-value-1"}))
        assert not changes
        assert kept(server) == [("a", "use [secret KEY] to sign in")]

    @pytest.mark.parametrize(
        "tool",
        [
            Tool("a", title="canary-value-1"),
            Tool("a", description="x" * 5000 + "canary-value-1"),
            Tool("a", input_schema={"properties": {"canary-value-1": {}}}),
            Tool("a", input_schema={"enum": [["deep", {"in": "canary-value-1"}]]}),
            Tool("a", input_schema={"default": 123456789}),
            Tool("a", output_schema={"const": 123456.789}),
            Tool("a", output_schema={"description": "Y2FuYXJ5LXZhbHVlLTE="}),
        ],
        ids=["title", "description", "key", "deep", "integer", "number", "base64"],
    )
    def test_a_secret_is_masked_wherever_a_tool_holds_it(self, tool: Tool) -> None:
        secrets = {"KEY": "canary-value-1", "PIN": "123456789", "RATE": "123456.789"}
        store(http_server(), ToolList([tool, Tool("b", title="plain")]), Masker(secrets))
        row = str(ToolRow.objects.filter(name="a").values().get())
        assert "[secret " in row
        assert not any(value in row for value in (*secrets.values(), "Y2FuYXJ5"))

    def test_a_tool_whose_name_is_a_secret_is_left_out(self) -> None:
        server = http_server()
        store(server, listed(("canary-value-1", "x"), ("b", "x")), Masker({"K": "canary-value-1"}))
        assert [name for name, _ in kept(server)] == ["b"]

    def test_every_field_of_a_tool_is_replaced(self) -> None:
        server = http_server()
        first = Tool("a", "Old", "old", {"type": "object"}, None, True, False, False)
        second = Tool("a", "New", "new", {"type": "object", "x": 1}, {"y": 2}, False, True, True)
        store(server, ToolList([first]))
        assert store(server, ToolList([second])).changed == ["a"]
        row = server.tools.get()
        for field in dataclasses.fields(Tool):
            assert getattr(row, field.name) == getattr(second, field.name), field.name
        assert row.content_hash == second.content_hash

    def test_a_failure_in_the_middle_leaves_state_and_tools_as_they_were(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Tools and states never contradict each other."""
        server = after_success(http_server(), "a")

        def broken(*_: Any, **__: Any) -> None:
            raise IntegrityError("the disk is full")

        monkeypatch.setattr(results, "_update", broken)
        with pytest.raises(IntegrityError):
            store(server, tool_list("b"))
        server.refresh_from_db()
        assert (server.tool_count, [name for name, _ in kept(server)]) == (1, ["a"])

    def test_the_first_success_has_nothing_to_compare_with(self) -> None:
        assert not store(http_server(), tool_list("a", "b"))


class TestRunStart:
    def start(
        self, server: Server, outcome: ToolList | ServerError, **options: Any
    ) -> Changes | None:
        connection = None if isinstance(outcome, ServerError) else FoundServer()
        version = options.pop("version", server.connection_version)
        masker = options.pop("masker", NOTHING)
        return store_run_start(server.pk, version, connection, outcome, masker, **options)

    def test_it_brings_tools_and_state_up_to_date(self) -> None:
        """One probe behind Test, the lamp and the start of a run."""
        server = after_success(http_server(), "a")
        changes = self.start(server, tool_list("a", "b"))
        assert changes is not None
        assert changes.added == ["b"]
        server.refresh_from_db()
        assert (server.state, server.tool_count) == ("connected", 2)
        assert [name for name, _ in kept(server)] == ["a", "b"]
        check = Check.objects.get()
        assert (check.kind, check.outcome, check.tool_count) == ("run", "connected", 2)
        assert check.changes == {"added": ["b"], "removed": [], "changed": []}

    def test_what_is_known_is_not_recorded_every_time(self) -> None:
        server = after_success(http_server(), "a")
        for _ in range(3):
            assert self.start(server, tool_list("a")) is not None
        assert not Check.objects.exists()
        for _ in range(3):
            self.start(server, ServerUnavailable("No route."))
        check = Check.objects.get()
        assert (check.kind, check.outcome, check.error) == ("run", "failed", "No route.")
        self.start(server, tool_list("a"))
        self.start(server, tool_list("a"))
        assert [row.outcome for row in Check.objects.order_by("created_at")] == [
            "failed",
            "connected",
        ]

    @pytest.mark.parametrize(
        ("maker", "outcome", "state"),
        [
            ("failure_columns", ServerUnavailable("No route."), "connected"),
            ("toolcache.rows_of", tool_list("a"), "failed"),
        ],
    )
    def test_two_runs_at_once_record_the_same_news_once(
        self,
        maker: str,
        outcome: ToolList | ServerError,
        state: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The other run is through right before this one locks the row."""
        server = after_success(http_server(), "a")
        Server.objects.update(state=state)
        make = operator.attrgetter(maker)(results)

        def make_after_the_other(*args: Any) -> Any:
            monkeypatch.undo()
            self.start(server, outcome)
            return make(*args)

        monkeypatch.setattr(f"servers.results.{maker}", make_after_the_other)
        self.start(server, outcome)
        assert Check.objects.count() == 1

    def test_a_failure_shows_on_the_server_and_keeps_its_tools(self) -> None:
        server = after_success(http_server(), "a")
        self.start(server, ServerUnavailable("No route."))
        server.refresh_from_db()
        assert (server.state, server.last_error) == ("failed", "No route.")
        assert (server.failures, server.tools.count()) == (1, 1)
        self.start(server, LoginRequired("401"))
        server.refresh_from_db()
        assert server.state == "login_required"

    def test_a_stdio_server_without_network_is_not_to_blame(self) -> None:
        server = after_success(stdio_server(), "a")
        self.start(server, ServerUnavailable("npm cannot reach its registry."), network=False)
        server.refresh_from_db()
        assert (server.state, server.failures) == ("connected", 0)
        self.start(server, ServerUnavailable("It exited."), network=True)
        server.refresh_from_db()
        assert server.state == "failed"

    def test_an_http_server_is_reached_without_the_jobs_network(self) -> None:
        server = http_server()
        self.start(server, ServerUnavailable("No route."), network=False)
        server.refresh_from_db()
        assert server.state == "failed"

    @pytest.mark.parametrize("outcome", [tool_list("b"), ServerUnavailable("No route.")])
    def test_what_older_settings_found_is_not_kept(self, outcome: ToolList | ServerError) -> None:
        server = after_success(http_server(), "a")
        data = http_data(url="https://other.example/mcp")
        update_server(server, actor=None, data=data, version=1)
        assert self.start(server, outcome, version=1) is None
        server.refresh_from_db()
        assert server.state == "untested"
        assert not server.tools.filter(name="b").exists()
        assert not Check.objects.filter(kind=Check.Kind.RUN).exists()

    @pytest.mark.parametrize("outcome", [tool_list("b"), ServerUnavailable("No route.")])
    def test_a_server_that_was_deleted_meanwhile_is_no_error(
        self, outcome: ToolList | ServerError
    ) -> None:
        server = http_server()
        pk, version = server.pk, server.connection_version
        server.delete()
        connection = None if isinstance(outcome, ServerError) else FoundServer()
        assert store_run_start(pk, version, connection, outcome, NOTHING) is None

    def test_nothing_stored_holds_a_secret(self) -> None:
        server = http_server()
        masker = Masker({"KEY": "canary-value-1"})
        error = ServerUnavailable("canary-value-1", "canary-value-1", "stderr canary-value-1")
        self.start(server, error, masker=masker)
        tools = ToolList([Tool("a", description="canary-value-1")], ["canary-value-1"])
        self.start(server, tools, masker=masker)
        rows = [*Check.objects.values(), *Server.objects.values(), *ToolRow.objects.values()]
        assert len(rows) == 4
        assert "canary" not in str(rows)


def _connection() -> Any:
    from django.db import connection

    return connection


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("by", ["a check", "a run"])
def test_tools_are_masked_before_the_database_is_locked(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of tools it takes half a second, in which a file lets nobody write."""
    server, locked, rows_of = http_server(), list[bool](), toolcache.rows_of

    def note(*arguments: Any) -> list[toolcache.Row]:
        locked.append(connection.in_atomic_block)
        return rows_of(*arguments)

    monkeypatch.setattr(toolcache, "rows_of", note)
    found: Any = Found(FoundServer(), tool_list("a"))  # type: ignore[arg-type]
    if by == "a check":
        check = checks.request_check(server, actor=None, hinted=False)
        checks._succeed(
            check, str(checks._claim(check.pk)), found, None, Masker({}), {"warnings": []}
        )
    else:
        store_run_start(server.pk, 1, found.connection, found.tools, Masker({}))
    assert locked == [False]
    assert Server.objects.get().tool_count == 1
