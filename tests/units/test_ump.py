"""`ump` as scripts call it, against a real broker (P74; reference.md, section 2)."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.broker.server import MAX_OPEN, Broker
from jobs.sandbox.files import UMP_SOURCE, ump_program
from jobs.sandbox.runtime import socket_path
from tests.fakes.run_handler import FakeRun


class Result(NamedTuple):
    code: int
    out: str
    err: str


Ump = Callable[..., Awaitable[Result]]


@pytest.fixture
async def run() -> FakeRun:
    return FakeRun()


@pytest.fixture
async def ump(run: FakeRun) -> AsyncIterator[Ump]:
    async with Broker(run, "a-token", socket_path()) as broker:
        environment = {"UMP_SOCKET": str(broker.socket_path), "UMP_TOKEN": "a-token"}

        async def call(*arguments: str | bytes, stdin: bytes = b"", **variables: str) -> Result:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-ISE",
                str(UMP_SOURCE),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**environment, **variables},
            )
            out, err = await process.communicate(stdin)
            assert process.returncode is not None
            return Result(process.returncode, out.decode(), err.decode())

        yield call


async def test_a_call_prints_the_result_alone(ump: Ump) -> None:
    assert await ump("mcp", "call", "demo", "echo", '{"m": "héllo"}') == (0, '{"m": "héllo"}\n', "")


async def test_a_call_takes_its_arguments_from_standard_input_only_with_a_dash(ump: Ump) -> None:
    assert (await ump("mcp", "call", "demo", "echo", "-", stdin=b'{"n": 1}')).out == '{"n": 1}\n'
    assert (await ump("mcp", "call", "demo", "echo", stdin=b'{"n": 1}')).out == "{}\n"


async def test_an_error_of_the_tool_goes_to_standard_error_with_exit_1(ump: Ump) -> None:
    assert await ump("mcp", "call", "demo", "broken") == (1, "", "ump: it broke\n")


async def test_a_result_without_text_is_printed_as_json(ump: Ump) -> None:
    assert (await ump("mcp", "call", "demo", "structured")).out == '{"n": 1}\n'


async def test_a_whole_result_can_be_had_as_json(ump: Ump) -> None:
    result = await ump("mcp", "call", "demo", "broken", "{}", "--json")
    assert result.code == 1
    assert json.loads(result.out)["error"] == "it broke"


@pytest.mark.parametrize(
    "arguments", ["[1]", "3", "{", "{'a': 1}", '{"a": NaN}', '{"a": -1e999}', "[" * 9999]
)
async def test_arguments_that_are_no_object_are_wrong_usage(
    ump: Ump, run: FakeRun, arguments: str
) -> None:
    result = await ump("mcp", "call", "demo", "echo", arguments)
    assert result.code == 2
    assert result.err.startswith("ump: the arguments of the tool ")
    assert run.calls == []


async def test_tools_are_listed_one_a_line(ump: Ump) -> None:
    assert (await ump("mcp", "tools", "demo")).out == "echo\tRepeats.\nbroken\tBreaks\n"
    assert (await ump("mcp", "tools")).out.splitlines()[0] == "demo\techo\tRepeats."


async def test_tools_can_be_had_whole_as_json(ump: Ump) -> None:
    tools = json.loads((await ump("mcp", "tools", "--json")).out)
    assert [tool["name"] for tool in tools] == ["echo", "broken"]


async def test_an_unknown_server_is_a_failed_call(ump: Ump) -> None:
    result = await ump("mcp", "tools", "other")
    assert (result.code, result.err) == (1, "ump: no server other is attached to this job\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3.5", 3.5),
        ("true", True),
        ("null", None),
        ('"3"', "3"),
        ('{"a": [1]}', {"a": [1]}),
        ("hello world", "hello world"),
        ("{broken", "{broken"),
        ("NaN", "NaN"),
        ("1e999", "1e999"),
        ("", ""),
    ],
)
async def test_json_keeps_its_type_and_the_rest_is_text(
    ump: Ump, run: FakeRun, text: str, value: object
) -> None:
    assert (await ump("output", "set", "name", text)).code == 0
    assert run.calls == [("output_set", "name", value)]
    assert (await ump("state", "set", "key", "-", stdin=text.encode() + b"\n")).code == 0
    assert run.state == {"key": value}


async def test_state_is_read_back(ump: Ump) -> None:
    await ump("state", "set", "text", "a b")
    await ump("state", "set", "list", "[1, 2]")
    assert (await ump("state", "get", "text")).out == "a b\n"
    assert (await ump("state", "get", "list")).out == "[1, 2]\n"
    assert (await ump("state", "list")).out == "list\ntext\n"


async def test_a_missing_key_exits_1(ump: Ump) -> None:
    result = await ump("state", "get", "nope")
    assert (result.code, result.out) == (1, "")
    assert "no key 'nope'" in result.err


async def test_a_text_that_is_left_out_is_read_from_standard_input(ump: Ump, run: FakeRun) -> None:
    await ump("summary", stdin=b"# Done\n\nAll of it.\n")
    await ump("step", "Fetch")
    assert run.calls == [("summary", "# Done\n\nAll of it."), ("step", "Fetch")]


async def test_fail_gives_the_reason_and_exits_1(ump: Ump, run: FakeRun) -> None:
    assert (await ump("fail", "the site is down")).code == 1
    assert run.calls == [("fail", "the site is down")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "unknown command 'nonsense'"),
        (["mcp", "nonsense"], "unknown command 'mcp nonsense'"),
        (["mcp", "call", "demo"], "missing arguments; usage: ump mcp call SERVER TOOL"),
        (["state", "get"], "missing arguments; usage: ump state get KEY"),
        (["state", "list", "x"], "too many arguments; usage: ump state list"),
        (["step", "a", "b"], "too many arguments; usage: ump step NAME"),
        (["output", "set"], "missing arguments; usage: ump output set NAME"),
        (["step"], "name is empty"),
    ],
)
async def test_wrong_usage_exits_2_and_says_the_right_one(
    ump: Ump, arguments: list[str], said: str
) -> None:
    result = await ump(*arguments)
    assert (result.code, result.out) == (2, "")
    assert said in result.err


async def test_help_names_every_command(ump: Ump) -> None:
    text = (await ump("help")).out
    for command in ("mcp tools", "mcp call", "state get", "output set", "step", "fail"):
        assert f"ump {command}" in text
    assert (await ump("state", "--help")).out.count("ump state") == 3
    assert "ump mcp call" in (await ump("help", "mcp", "call")).out
    assert (await ump()).code == 2


async def test_bytes_that_are_no_text_do_not_break_it(ump: Ump, run: FakeRun) -> None:
    assert (await ump("summary", b"caf\xe9")).code == 0
    assert (await ump("summary", stdin=b"caf\xe9\0")).code == 0
    assert run.calls == [("summary", "caf\ufffd"), ("summary", "caf\ufffd")]


async def test_more_than_8_mib_is_refused(ump: Ump) -> None:
    result = await ump("summary", stdin=b"x" * (8 * 1024 * 1024 + 1))
    assert (result.code, result.err) == (2, "ump: standard input is larger than 8 MiB\n")


async def test_outside_of_a_run_it_says_so(ump: Ump) -> None:
    assert "only inside a run" in (await ump("step", "x", UMP_TOKEN="")).err
    result = await ump("step", "x", UMP_SOCKET="/nowhere/broker.sock")
    assert result.code == 1
    assert "/nowhere/broker.sock cannot be reached" in result.err


async def test_another_runs_token_is_refused(ump: Ump) -> None:
    assert (await ump("step", "x", UMP_TOKEN="other")).code == 2


@pytest.mark.parametrize(
    "words",
    [
        ("step", "x"),
        ("state", "list"),
        ("mcp", "call", "demo", "echo", '{"a": [1.5]}', "--json"),
        ("output", "set", "n", "[3]"),
    ],
)
async def test_it_imports_only_what_starts_fast(run: FakeRun, words: tuple[str, ...]) -> None:
    """Its start counts in every call (feasibility, section 18): `json` alone doubles it."""
    async with Broker(run, "a-token", socket_path()) as broker:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-ISE", "-X", "importtime", str(UMP_SOURCE), *words),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={"UMP_SOCKET": str(broker.socket_path), "UMP_TOKEN": "a-token"},
        )
        _, told = await process.communicate()
    assert process.returncode == 0
    imported = {line.rpartition(b"|")[2].strip().decode() for line in told.splitlines()}
    assert "_json" in imported
    assert not imported & {"json", "json.decoder", "re", "enum", "socket", "typing", "argparse"}


async def test_what_the_broker_has_no_room_for_is_busy(ump: Ump) -> None:
    """Also where it does not even read what it is asked."""
    async with Broker(FakeRun(), "a-token", socket_path()) as broker:
        idle = [await asyncio.open_unix_connection(broker.socket_path) for _ in range(MAX_OPEN)]
        text = b"x" * 1_000_000
        result = await ump("summary", stdin=text, UMP_SOCKET=str(broker.socket_path))
        assert (result.code, result.out) == (1, "")
        assert "busy" in result.err
        for _, writer in idle:
            writer.close()


def test_connect_gives_way_to_the_program_beside_it(tmp_path: Path) -> None:
    shutil.copy(UMP_SOURCE, tmp_path / "ump")
    beside = tmp_path / "proxy-connect"
    beside.write_text('#!/bin/sh\necho "$# $1 $2 $(cat)"; exit 3\n')
    beside.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-ISE", tmp_path / "ump", "connect", "host.test", "22"],
        input="said",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "2 host.test 22 said\n", "")


async def test_connect_says_that_there_is_no_proxy(ump: Ump) -> None:
    result = await ump("connect", "host.test", "22")
    assert (result.code, result.out) == (1, "")
    assert "no proxy to connect through" in result.err


@pytest.mark.parametrize("port", ["ssh", "0", "65536", "-1", "٢", ""])
async def test_connect_wants_a_port(ump: Ump, port: str) -> None:
    result = await ump("connect", "host.test", port)
    assert result.code == 2
    assert "PORT must be a number" in result.err


def load_ump(monkeypatch: pytest.MonkeyPatch, *, c_half: object) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "_json", c_half)
    return runpy.run_path(str(UMP_SOURCE))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
# Close to JSON, and often just not.
NEARLY = st.text(st.sampled_from('[]{}":,.-+0123456789eEtrufalsnNI \t\n\r\\\ufeffé'))


class TestJsonByItsCHalf:
    """It is private to CPython: what it does must be what `json` does, with it and without."""

    ump = runpy.run_path(str(UMP_SOURCE))

    @given(JSON, st.booleans())
    def test_it_is_written_as_json_writes_it(self, value: object, only_ascii: bool) -> None:
        assert self.ump["to_json"](value, only_ascii=only_ascii) == json.dumps(
            value, ensure_ascii=only_ascii
        )

    @given(JSON.map(json.dumps) | NEARLY | st.text())
    def test_it_is_read_as_json_reads_it(self, text: str) -> None:
        def outcome(read: Callable[[str], object]) -> str:
            try:
                return repr(read(text))
            except ValueError as error:
                return f"{type(error)}: {error}"

        assert outcome(self.ump["read_json"]) == outcome(json.loads)

    @pytest.mark.parametrize(
        "c_half", [None, SimpleNamespace(), SimpleNamespace(make_scanner=int, make_encoder=int)]
    )
    def test_without_it_or_with_another_one_all_is_the_same(
        self, monkeypatch: pytest.MonkeyPatch, c_half: object
    ) -> None:
        ump = load_ump(monkeypatch, c_half=c_half)
        assert ump["to_json"]({"é": [1.5, None]}) == '{"é": [1.5, null]}'
        assert ump["read_json"](' {"a": [1, 2.5]}\n') == {"a": [1, 2.5]}
        assert ump["typed"]("NaN") == "NaN"
        assert ump["typed"]("[1e999]") == "[1e999]"


def test_it_is_written_in_what_python_3_8_understands() -> None:
    """Sandboxes have the system's Python, whichever that is."""
    text = UMP_SOURCE.read_text()
    ast.parse(text, feature_version=(3, 8))
    assert "from __future__ import annotations" in text


def test_the_copy_for_sandboxes_names_an_interpreter_that_they_have() -> None:
    first, _, rest = ump_program().read_text().partition("\n")
    assert first.startswith("#!/")
    assert first.endswith(" -ISE")
    assert os.access(first[2:].split()[0], os.X_OK)
    assert rest == UMP_SOURCE.read_text().partition("\n")[2]
