"""The broker: token, limits and arguments (reference.md, section 2; P74)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.broker import protocol
from jobs.broker.server import MAX_OPEN, Broker, new_token
from jobs.sandbox.runtime import socket_path
from tests.fakes.run_handler import FakeRun

DEEP = json.loads("[" * 201 + "]" * 201)
TOKEN = "a-token-for-tests-only"  # fixed: it is part of parametrised names


@pytest.fixture
async def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
async def broker(run: FakeRun) -> AsyncIterator[Broker]:
    async with Broker(run, TOKEN, socket_path()) as broker:
        yield broker


async def send(broker: Broker, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_unix_connection(broker.socket_path, limit=2**25)
    writer.write(line)
    with contextlib.suppress(ConnectionError):  # refused before all of it was sent
        await writer.drain()
    answer = await reader.readline()
    writer.close()
    loaded: dict[str, Any] = json.loads(answer)
    return loaded


async def ask(broker: Broker, command: str, token: Any = TOKEN, **args: Any) -> dict[str, Any]:
    request = {"token": token, "command": command, "args": args}
    return await send(broker, json.dumps(request).encode() + b"\n")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 (several connections, no single event)
            await asyncio.sleep(0.005)


async def test_a_call_returns_what_the_tool_answered(broker: Broker, run: FakeRun) -> None:
    answer = await ask(broker, "mcp_call", server="demo", tool="echo", arguments={"a": 1})
    assert answer == {
        "ok": True,
        "result": {"ok": True, "text": '{"a": 1}', "structured": None, "error": ""},
    }


async def test_an_error_that_the_tool_reports_is_a_result(broker: Broker) -> None:
    answer = await ask(broker, "mcp_call", server="demo", tool="broken")
    assert answer["ok"] is True
    assert (answer["result"]["ok"], answer["result"]["error"]) == (False, "it broke")


async def test_arguments_reach_the_tool_as_they_are(broker: Broker, run: FakeRun) -> None:
    arguments = {"text": "a\r\nb\x1b[1m\t\0", "deep": [{"n": 1.5, "none": None}, float("inf")]}
    await ask(broker, "mcp_call", server="demo", tool="echo", arguments=arguments)
    assert run.calls == [("mcp_call", "demo", "echo", arguments)]


async def test_what_no_database_stores_is_taken_out_of_values(broker: Broker, run: FakeRun) -> None:
    assert (await ask(broker, "state_set", key="k", value="a\0\ud800😀"))["ok"] is True
    assert run.state == {"k": "a\ufffd😀"}


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], None, 7, ["x"], "é"])
async def test_another_token_is_refused(broker: Broker, run: FakeRun, token: Any) -> None:
    answer = await ask(broker, "step", token=token, name="x")
    assert answer == {"ok": False, "error": "the token is not this run's", "exit": 2}
    assert run.calls == []


@pytest.mark.parametrize(
    "line",
    [b"\n", b"{\n", b"[]\n", b"null\n", b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'"text"\n'],
)
async def test_a_malformed_request_is_refused(broker: Broker, line: bytes) -> None:
    answer = await send(broker, line)
    assert (answer["ok"], answer["exit"]) == (False, 2)


@pytest.mark.parametrize(
    ("command", "args", "fault"),
    [
        ("nonsense", {}, "unknown command"),
        ("__class__", {}, "unknown command"),
        ("mcp_call", {"tool": "echo"}, "server is missing"),
        ("mcp_call", {"server": " ", "tool": "echo"}, "server is empty"),
        ("mcp_call", {"server": "demo", "tool": "echo", "arguments": [1]}, "JSON object"),
        ("mcp_call", {"server": "demo", "tool": 5}, "tool is missing"),
        ("state_set", {"key": "k"}, "value is missing"),
        ("state_set", {"key": "k" * 201, "value": 1}, "at most 200 characters"),
        ("step", {"name": "s" * 201}, "at most 200 bytes"),
        ("step", {"name": "é" * 101}, "at most 200 bytes"),
        ("summary", {"text": "s" * 16_385}, "at most 16 KiB"),
        ("summary", {}, "text is missing"),
    ],
)
async def test_arguments_that_make_no_sense_are_named(
    broker: Broker, command: str, args: dict[str, Any], fault: str
) -> None:
    answer = await ask(broker, command, **args)
    assert fault in answer["error"]
    assert answer["exit"] == 2


async def test_arguments_that_are_no_object_are_refused(broker: Broker) -> None:
    line = json.dumps({"token": TOKEN, "command": "step", "args": ["x"]}).encode() + b"\n"
    assert (await send(broker, line))["exit"] == 2


async def test_a_request_above_8_mib_is_refused_and_others_go_on(broker: Broker) -> None:
    answer = await ask(broker, "state_set", key="k", value="x" * protocol.MAX_REQUEST)
    assert answer == {"ok": False, "error": "the request is larger than 8 MiB", "exit": 2}
    assert (await ask(broker, "state_list"))["ok"] is True


async def test_a_request_that_unfolds_in_the_worker_is_refused_before_anything_is_asked(
    broker: Broker, run: FakeRun
) -> None:
    """8 MiB of `{}` become 200 MiB in the worker, which other runs share."""
    many: list[Any] = [{}] * protocol.MAX_VALUES
    answer = await ask(broker, "mcp_call", server="demo", tool="echo", arguments={"x": many})
    assert answer == {
        "ok": False,
        "error": f"the request holds more than {protocol.MAX_VALUES:,} values",
        "exit": 2,
    }
    assert run.calls == []


async def test_a_value_of_1_mib_may_hold_nothing_but_digits(broker: Broker, run: FakeRun) -> None:
    digits = [1] * (protocol.MAX_STATE_VALUE // 3)  # with a comma and a blank each
    assert (await ask(broker, "state_set", key="k", value=digits))["ok"] is True
    assert run.state == {"k": digits}


async def test_a_value_above_1_mib_is_refused(broker: Broker, run: FakeRun) -> None:
    answer = await ask(broker, "state_set", key="k", value="x" * protocol.MAX_STATE_VALUE)
    assert answer["error"] == "the value is larger than 1 MiB"
    assert run.state == {}


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ("state_set", {"key": "k", "value": DEEP}),
        ("output_set", {"name": "n", "value": DEEP}),
        ("mcp_call", {"server": "everything", "tool": "echo", "arguments": {"a": DEEP}}),
    ],
)
async def test_json_nested_too_deeply_is_refused_and_not_cut(
    broker: Broker, run: FakeRun, command: str, args: dict[str, Any]
) -> None:
    answer = await ask(broker, command, **args)
    assert answer == {"ok": False, "error": "the JSON is nested deeper than 200 levels", "exit": 2}
    assert run.calls == []


async def test_an_unknown_key_of_the_state_is_named(broker: Broker) -> None:
    answer = await ask(broker, "state_get", key="nope")
    assert answer == {"ok": False, "error": "the job's state has no key 'nope'", "exit": 1}


async def test_a_run_has_at_most_100_outputs_but_may_replace_them(
    broker: Broker, run: FakeRun
) -> None:
    for number in range(100):
        assert (await ask(broker, "output_set", name=f"n{number}", value=number))["ok"]
    assert "100 outputs" in (await ask(broker, "output_set", name="more", value=1))["error"]
    assert (await ask(broker, "output_set", name="n5", value="new"))["ok"] is True
    assert run.calls[-1] == ("output_set", "n5", "new")


async def test_outputs_hold_1_mib_together(broker: Broker) -> None:
    half = "x" * (protocol.MAX_OUTPUT_BYTES // 2)
    assert (await ask(broker, "output_set", name="a", value=half))["ok"] is True
    assert "1 MiB together" in (await ask(broker, "output_set", name="b", value=half))["error"]


async def test_a_run_has_at_most_1000_steps(broker: Broker) -> None:
    for number in range(1000):
        await ask(broker, "step", name=f"step {number}")
    assert "1000 steps" in (await ask(broker, "step", name="one more"))["error"]


async def test_a_long_reason_of_a_failure_is_cut(broker: Broker, run: FakeRun) -> None:
    await ask(broker, "fail", reason="r" * 3000)
    assert len(run.calls[0][1]) == 2000


async def test_a_bug_of_ours_is_an_error_without_its_text(broker: Broker) -> None:
    answer = await ask(broker, "mcp_call", server="demo", tool="crash")
    assert "inside Umpteenth" in answer["error"]
    assert "secret" not in json.dumps(answer)


async def test_eight_calls_run_at_once_64_wait_and_more_are_refused(
    broker: Broker, run: FakeRun
) -> None:
    def slow() -> Awaitable[dict[str, Any]]:
        return ask(broker, "mcp_call", server="demo", tool="slow")

    calls = [asyncio.ensure_future(slow()) for _ in range(72)]
    await until(lambda: run.running == 8 and len(broker._connections) == 72)
    refused = await slow()
    assert "busy" in refused["error"]
    assert refused["exit"] == 1
    run.release.set()
    answers = await asyncio.gather(*calls)
    assert all(answer["ok"] for answer in answers)
    assert run.most_running == 8


async def test_a_flood_of_connections_takes_few_files_of_the_worker(broker: Broker) -> None:
    """Its other runs open files, too."""

    async def idle() -> asyncio.StreamWriter | None:
        with contextlib.suppress(OSError):
            return (await asyncio.open_unix_connection(broker.socket_path))[1]
        return None

    opened = [await idle() for _ in range(400)]
    most = len(broker._connections)
    assert 72 < most <= MAX_OPEN
    for writer in opened:
        if writer is not None:
            writer.close()
    await until(lambda: not broker._connections)
    assert (await ask(broker, "state_list"))["ok"]


async def test_a_client_that_hangs_up_cancels_its_call(broker: Broker, run: FakeRun) -> None:
    args = {"server": "demo", "tool": "slow"}
    _, writer = await asyncio.open_unix_connection(broker.socket_path)
    request = {"token": TOKEN, "command": "mcp_call", "args": args}
    writer.write(json.dumps(request).encode() + b"\n")
    await until(lambda: run.running == 1)
    writer.close()
    await until(lambda: run.cancelled == 1)


async def test_closing_cancels_calls_and_removes_the_socket(run: FakeRun) -> None:
    broker = Broker(run, TOKEN, socket_path())
    await broker.start()
    call = asyncio.ensure_future(ask(broker, "mcp_call", server="demo", tool="slow"))
    await until(lambda: run.running == 1)
    await broker.close()
    await broker.close()
    assert run.cancelled == 1
    assert not broker.socket_path.exists()
    with pytest.raises(json.JSONDecodeError):
        await call


def test_tokens_are_long_and_never_the_same() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 256 bits


async def test_only_the_owner_may_connect_to_the_socket(broker: Broker) -> None:
    assert stat.S_IMODE(broker.socket_path.stat().st_mode) == 0o600
    assert stat.S_IMODE(broker.socket_path.parent.stat().st_mode) == 0o700


def test_a_socket_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        Broker(FakeRun(), TOKEN, Path("/tmp") / ("x" * 104))
