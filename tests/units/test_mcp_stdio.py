"""stdio servers: what they print, how they end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from servers.mcp.client import Connection, connect
from servers.mcp.types import (
    CallTimedOut,
    ConnectionLost,
    ConnectionSettings,
    ServerError,
    ServerUnavailable,
)
from tests.fakes.mcp_helpers import Recorder, shell_settings, stdio_settings
from tests.fakes.mcp_server import Behaviour
from tests.fakes.spawner import BareProcess, BareSpawner

MIB = 1024 * 1024


@asynccontextmanager
async def connected(behaviour: Behaviour | None = None) -> AsyncIterator[Connection]:
    async with connect(stdio_settings(behaviour), spawn=BareSpawner()) as connection:
        yield connection


async def test_a_server_is_started_listed_called_and_gone() -> None:
    """P70, U9, U22."""
    spawn, observer = BareSpawner(), Recorder()
    async with connect(stdio_settings(), spawn=spawn, observer=observer) as connection:
        listed = await connection.list_tools()
        result = await connection.call_tool("echo", {"message": "hi"})
    assert [tool.name for tool in listed.tools][:2] == ["echo", "content"]
    assert listed.warnings == []
    assert json.loads(result.text) == {"message": "hi"}
    assert result.structured == {"message": "hi"}
    assert result.duration_ms > 0
    assert observer.steps == ["Starting", "Connecting", "Listing tools"]
    assert (connection.server_name, connection.server_version) == ("fake", "1.2.3")
    assert connection.remembered == {"transport": "stdio", "mode": "handshake"}
    assert spawn.alive() == []


async def test_noise_on_standard_output_is_skipped_and_shown() -> None:
    """C01."""
    noise = ["Server started… 🚀", "", '{"level":"info"}', "123", "null", "[]"]
    observer = Recorder()
    settings = stdio_settings(Behaviour(noise=noise))
    async with connect(settings, spawn=BareSpawner(), observer=observer) as connection:
        listed = await connection.list_tools()
        assert (await connection.call_tool("echo", {})).ok
    assert listed.tools
    assert "5 lines to standard output that are no messages" in listed.warnings[0]
    assert "Server started… 🚀" in listed.warnings[0]
    assert '{"level":"info"}' in observer.lines


@pytest.mark.parametrize("no_newline", [False, True])
async def test_a_flood_on_standard_error_blocks_nothing(no_newline: bool) -> None:
    """C03: a pipe holds 64 KiB; 10 MiB are written, 8 KiB are kept."""
    async with connected() as connection:
        arguments = {"bytes": 10 * MIB, "no_newline": no_newline}
        assert (await connection.call_tool("stderr", arguments)).text == "written"
        assert (await connection.call_tool("echo", {})).ok
        assert 0 < len(connection.stderr_tail) <= 8192


@pytest.mark.parametrize("code", [0, 1, 42])
async def test_a_server_that_ends_at_once_is_explained_within_a_second(code: int) -> None:
    """C06."""
    behaviour = Behaviour(start="die", exit_code=code, stderr="BRAVE_API_KEY is required\n")
    start = time.monotonic()
    with pytest.raises(ServerUnavailable) as caught:
        async with connected(behaviour):
            pass
    assert time.monotonic() - start < 5
    assert str(caught.value) == (
        f"The server ended with exit code {code}: BRAVE_API_KEY is required"
    )
    assert caught.value.exit_code == code
    assert caught.value.stderr_tail == "BRAVE_API_KEY is required\n"


async def test_a_server_that_ends_in_mid_call_fails_the_call_at_once() -> None:
    """C06."""
    async with connected() as connection:
        waiting = asyncio.create_task(connection.call_tool("hang", {}))
        await connection.call_tool("echo", {})
        with pytest.raises(ConnectionLost, match="exit code 7: out of memory") as caught:
            await connection.call_tool("exit", {"code": 7, "words": "out of memory\n"})
        assert caught.value.exit_code == 7
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost, match=r"7: out of memory\. The call did not happen\.$"):
            await connection.call_tool("echo", {})


async def test_a_server_ended_by_a_signal_says_which() -> None:
    """C06."""
    with pytest.raises(ServerUnavailable, match=r"signal 9 \(SIGKILL\)"):
        async with connect(shell_settings("kill -9 $$"), spawn=BareSpawner()):
            pass


async def test_a_server_that_closes_its_output_and_lives_on_fails_the_call() -> None:
    """C06."""
    spawn = BareSpawner()
    async with connect(stdio_settings(), spawn=spawn) as connection:
        with pytest.raises(ConnectionLost, match="closed its standard output"):
            await connection.call_tool("close_stdout", {})
    assert spawn.alive() == []


async def test_what_a_server_started_is_gone_with_it() -> None:
    """C09."""
    spawn = BareSpawner()
    async with connect(stdio_settings(), spawn=spawn) as connection:
        await connection.call_tool("fork", {})
    assert spawn.alive() == []


async def test_a_server_that_ignores_the_end_of_its_input_is_killed() -> None:
    """C09, C24."""
    spawn = BareSpawner()
    start = time.monotonic()
    async with connect(stdio_settings(Behaviour(ignore_eof=True)), spawn=spawn):
        pass
    assert time.monotonic() - start < 5
    assert spawn.alive() == []


async def test_nothing_is_left_after_a_failed_or_cancelled_connect() -> None:
    """C09, C24, F15."""
    spawn = BareSpawner()
    settings = stdio_settings(Behaviour(start="mute"), start_timeout=0.3)
    with pytest.raises(ServerUnavailable, match=r"within 0.3 seconds \(start_timeout_secs\)"):
        async with connect(settings, spawn=spawn):
            pass

    async def hopeless() -> None:
        async with connect(stdio_settings(Behaviour(start="mute")), spawn=spawn):
            pass

    spawn.news.clear()
    task = asyncio.create_task(hopeless())
    await spawn.news.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert spawn.alive() == []


async def test_a_slow_start_is_not_a_failure_and_shows_its_last_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C10: both the probe and the handshake wait for it."""
    monkeypatch.setattr("servers.mcp.handshake.PROBE_PATIENCE", 0.1)
    observer = Recorder()
    settings = stdio_settings(Behaviour(delay=0.5, stderr="installing packages\n"))
    async with connect(settings, spawn=BareSpawner(), observer=observer) as connection:
        assert connection.protocol_version == "2025-11-25"
    assert observer.lines[-1] == "installing packages"


async def test_a_time_out_at_the_start_shows_what_the_server_wrote() -> None:
    """C10, P34."""
    settings = stdio_settings(Behaviour(start="mute", stderr="waiting for db\n"), start_timeout=1)
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(settings, spawn=BareSpawner()):
            pass
    assert caught.value.stderr_tail == "waiting for db\n"


async def test_a_server_sees_its_own_environment_and_no_other() -> None:
    """C14, U10."""
    os.environ["UMPTEENTH_CANARY"] = "secret"
    try:
        settings = stdio_settings(env={"API_KEY": "k"})
        async with connect(settings, spawn=BareSpawner()) as connection:
            environ = json.loads((await connection.call_tool("environ", {})).text)
    finally:
        del os.environ["UMPTEENTH_CANARY"]
    assert environ["API_KEY"] == "k"
    assert "UMPTEENTH_CANARY" not in environ


async def test_arguments_reach_the_server_literally() -> None:
    """U9, U11."""
    script = 'printf "%s|" "$@" >&2; exit 1'
    arguments = ("-c", script, "sh", "~/a b", "$HOME")
    settings = ConnectionSettings(name="x", transport="stdio", command="sh", args=arguments)
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(settings, spawn=BareSpawner()):
            pass
    assert caught.value.stderr_tail == "~/a b|$HOME|"


@pytest.mark.parametrize("size", [65_000, 65_536, 5 * MIB, 15 * MIB])
async def test_long_lines_are_read(size: int) -> None:
    """C15."""
    async with connected() as connection:
        assert len((await connection.call_tool("big", {"bytes": size})).text) == size


async def test_an_answer_over_the_limit_fails_alone() -> None:
    """C15."""
    async with connected() as connection:
        other = asyncio.create_task(connection.call_tool("sleep", {"seconds": 0.5}))
        with pytest.raises(ServerError, match="larger than 16 MiB"):
            await connection.call_tool("big", {"bytes": 17 * MIB})
        assert (await other).text == "slept"
        assert (await connection.call_tool("echo", {})).ok


@pytest.mark.parametrize(
    "behaviour", [Behaviour(line_end="\r\n"), Behaviour(dribble=True, tools=[])]
)
async def test_any_cut_of_the_stream_is_put_together(behaviour: Behaviour) -> None:
    """C16."""
    async with connected(behaviour) as connection:
        assert (await connection.call_tool("echo", {"text": "ä" * 100})).ok


async def test_two_messages_in_one_write_are_both_read() -> None:
    """C16."""
    message = b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}\n'
    async with connected() as connection:
        assert (await connection.call_tool("bytes", {"hex": (message * 2).hex()})).ok
        assert (await connection.list_tools()).warnings == []


@pytest.mark.parametrize("raw", [b"\xff\xfe\n", b'{"jsonrpc": "2.0", \xb1\n'])
async def test_invalid_bytes_harm_no_call(raw: bytes) -> None:
    """C17."""
    async with connected() as connection:
        assert (await connection.call_tool("bytes", {"hex": raw.hex()})).text == "written"
        assert len((await connection.list_tools()).warnings) == 1


async def test_invalid_bytes_in_a_result_are_replaced() -> None:
    """C17: answers to identifiers that nobody asked with are dropped."""
    answer = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"a\xb1b"}]}}\n'
    answers = b"".join(answer % identity for identity in range(1, 20))
    async with connected() as connection:
        result = await connection.call_tool("bytes", {"hex": answers.hex()})
    assert result.text == "a\ufffdb"


async def test_nul_and_surrogates_never_reach_the_caller() -> None:
    """C17, H16."""
    async with connected() as connection:
        result = await connection.call_tool("ugly", {})
    assert result.text == "ab \ufffd red"
    assert result.content == [{"type": "text", "text": "ab \ufffd red"}]


async def test_a_command_that_is_missing_is_named(tmp_path: Path) -> None:
    """P27: each cause has its own sentence."""
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for command, words in [
        ("no-such-command", "Command not found: no-such-command"),
        (str(plain), f"{plain} cannot be executed: permission denied."),
        (str(tmp_path), f"{tmp_path} cannot be executed: permission denied."),
    ]:
        settings = ConnectionSettings(name="x", transport="stdio", command=command)
        with pytest.raises(ServerUnavailable, match=re.escape(words)):
            async with connect(settings, spawn=BareSpawner()):
                pass


@pytest.mark.parametrize(
    ("code", "words", "message", "hint"),
    [
        (127, "sh: 1: foo: not found", "Command not found: foo", "Check the spelling"),
        (
            127,
            "command not found: foo (a sandbox sees /usr and /etc)",
            "Command not found: foo",
            "A sandbox sees /usr and /etc.",
        ),
        (126, "sh: 1: exec: foo: Permission denied", "foo cannot be executed", "executable"),
        (
            127,
            "run.sh: 3: bar: not found",
            "The server ended with exit code 127: run.sh: 3: bar: not found",
            "",
        ),
        (
            127,
            "foo: 1: vm: not found",
            "The server ended with exit code 127: foo: 1: vm: not found",
            "",
        ),
        (137, "", "The server ended with exit code 137 (SIGKILL).", "nothing to standard error"),
        (
            1,
            r"npm error code E404\nnpm error 404 Not Found - GET x\nnpm error 404\n"
            r"npm error A complete log of this run can be found in: y\n",
            "The server ended with exit code 1: npm error 404 Not Found - GET x",
            "",
        ),
        (
            1,
            r"Error: again\n  throw err;\n\nError [X]: no key\n    at z\n}\n\nNode.js v20.1.0\n",
            "The server ended with exit code 1: Error [X]: no key",
            "",
        ),
        (1, r"Node.js v20.1.0\n", "The server ended with exit code 1: Node.js v20.1.0", ""),
    ],
)
async def test_what_a_sandbox_says_of_the_command_is_understood(
    code: int, words: str, message: str, hint: str
) -> None:
    """P27: and a command that is missing is not started again."""
    started = BareSpawner()

    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> BareProcess:
        return await started(["sh", "-c", f"printf '{words}' >&2; exit {code}"], env)

    settings = ConnectionSettings(name="x", transport="stdio", command="foo")
    with pytest.raises(ServerUnavailable) as caught:
        async with connect(settings, spawn=spawn):
            pass
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert len(started.started) == (1 if code in (126, 127) else 2)


async def test_a_deaf_server_delays_no_time_out() -> None:
    """F06: its input is full, so that even the request cannot be written."""
    observer = Recorder()
    async with connect(stdio_settings(), spawn=BareSpawner(), observer=observer) as connection:
        blocked = asyncio.create_task(connection.call_tool("block", {"seconds": 30}))
        await observer.news.wait()
        start = time.monotonic()
        with pytest.raises(CallTimedOut):
            await connection.call_tool("echo", {"text": "x" * 3 * MIB}, timeout=0.3)
        assert time.monotonic() - start < 5
    with pytest.raises(ConnectionLost):
        await blocked


async def test_an_error_without_an_identifier_belongs_to_the_only_one_who_waits() -> None:
    """B02: and to no one where several wait."""
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Bad request"}}\n'
    async with connected() as connection:
        result = await connection.call_tool("bytes", {"hex": error.hex()}, timeout=10)
        assert result.error == "Bad request (-32600)"
        other = asyncio.create_task(connection.call_tool("sleep", {"seconds": 0.2}))
        await connection.call_tool("echo", {})
        result = await connection.call_tool("bytes", {"hex": error.hex()}, timeout=10)
        assert result.text == "written"
        assert (await other).text == "slept"


async def test_a_system_that_cannot_start_the_command_is_quoted() -> None:
    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> BareProcess:
        raise OSError(11, "Resource temporarily unavailable")

    with pytest.raises(ServerUnavailable, match="cannot be started: Resource temporarily"):
        async with connect(stdio_settings(), spawn=spawn):
            pass


async def test_arguments_that_are_no_json_are_refused() -> None:
    async with connected() as connection:
        for arguments in ({"a": float("nan")}, {"a": {1, 2}}):
            with pytest.raises(ServerError, match="cannot be sent as JSON"):
                await connection.call_tool("echo", arguments)
        assert (await connection.call_tool("echo", {"a": "\ud800"})).text == '{"a": "\\ud800"}'


async def test_a_call_over_its_limit_is_cancelled_at_the_server() -> None:
    """F05, F06, U44: the connection goes on."""
    async with connected() as connection:
        start = time.monotonic()
        with pytest.raises(CallTimedOut, match=r"within 0.2 seconds \(the limit given"):
            await connection.call_tool("hang", {}, timeout=0.2)
        assert time.monotonic() - start < 5
        assert (await connection.call_tool("echo", {})).ok


async def test_a_call_that_timed_out_is_not_sent_again() -> None:
    """F10, A49."""
    async with connected() as connection:
        with pytest.raises(CallTimedOut):
            await connection.call_tool("hang", {}, timeout=0.2)
        calls = json.loads((await connection.call_tool("calls", {})).text)
    assert calls["hang"] == 1


async def test_progress_renews_the_limit() -> None:
    """Section 0 of the requirements, "Time limits"."""
    seen: list[tuple[float, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, message))

    async with connected() as connection:
        arguments = {"steps": 6, "interval": 0.25}
        result = await connection.call_tool(
            "progress", arguments, timeout=1.2, on_progress=on_progress
        )
    assert result.text == "done"
    assert seen[0] == (1.0, "step 1")


async def test_progress_does_not_renew_for_ever() -> None:
    """F06: ten times the limit at most."""
    async with connected() as connection:
        with pytest.raises(CallTimedOut):
            await connection.call_tool("progress", {"steps": 100, "interval": 0.05}, timeout=0.1)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("ping", {}),
        ("elicitation/create", {"action": "decline"}),
        ("sampling/createMessage", {"error": -32601}),
        ("roots/list", {"error": -32601}),
        ("made/up", {"error": -32601}),
    ],
)
async def test_questions_of_the_server_are_answered(
    method: str, expected: dict[str, object]
) -> None:
    async with connected() as connection:
        result = await connection.call_tool("ask", {"method": method})
    answer = json.loads(result.text)
    if "error" in answer:
        answer = {"error": answer["error"]["code"]}
    assert answer == expected


async def test_connections_close_in_any_order_and_from_any_task() -> None:
    """F15."""
    problems: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    first = connect(stdio_settings(), spawn=BareSpawner())
    second = connect(stdio_settings(), spawn=BareSpawner())
    one = await first.__aenter__()
    two = await asyncio.create_task(_enter(second))
    call = asyncio.create_task(two.call_tool("hang", {}))
    await two.call_tool("echo", {})
    with pytest.raises(ConnectionLost):
        await one.call_tool("exit", {})
    await first.__aexit__(None, None, None)
    call.cancel()
    assert (await two.call_tool("echo", {})).ok
    await asyncio.create_task(_leave(second))
    await asyncio.gather(call, return_exceptions=True)
    gc.collect()
    await asyncio.sleep(0)
    assert problems == []


async def test_a_call_still_waiting_when_the_connection_closes_fails() -> None:
    """F15."""
    async with connected() as connection:
        waiting = asyncio.create_task(connection.call_tool("hang", {}))
        await connection.call_tool("echo", {})
    with pytest.raises(ConnectionLost):
        await waiting


async def test_an_error_in_the_block_leaves_as_it_is() -> None:
    """F15: no exception group, and the server is gone."""
    spawn = BareSpawner()
    with pytest.raises(KeyError, match="mine"):
        async with connect(stdio_settings(), spawn=spawn):
            raise KeyError("mine")
    assert spawn.alive() == []


async def _enter(manager: object) -> Connection:
    return await manager.__aenter__()  # type: ignore[attr-defined, no-any-return]


async def _leave(manager: object) -> None:
    await manager.__aexit__(None, None, None)  # type: ignore[attr-defined]
