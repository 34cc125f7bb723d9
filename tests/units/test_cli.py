"""The command line's manners: exit codes, one sentence of error, quick help (design 6)."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from django.db import OperationalError

from umpteenth import cli
from umpteenth.cli import COMMANDS, bootstrap, doctor
from umpteenth.cli.output import emit_json, fail, table
from umpteenth.core import checks
from umpteenth.core.config import AppOptions, ConfigError, NetworkOptions, Options, get_options


@pytest.fixture(autouse=True)
def _own_umask() -> Iterator[None]:
    """`main` narrows it for the whole process, in which other tests make files."""
    before = os.umask(0)
    os.umask(before)
    yield
    os.umask(before)


def run_main(monkeypatch: pytest.MonkeyPatch, callback: Any) -> int:
    """The exit status of `umpteenth trial`, a command that calls `callback`."""

    @click.command()
    @click.option("--number", type=int)
    def trial(number: int | None) -> Any:
        return callback()

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: trial)
    with pytest.raises(SystemExit) as caught:
        cli.main(["trial"])
    assert isinstance(caught.value.code, int)
    return caught.value.code


def raising(error: BaseException) -> Any:
    def callback() -> None:
        raise error

    return callback


def test_a_command_that_returns_nothing_exits_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, lambda: None) == 0


def test_a_command_may_choose_its_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_main(monkeypatch, lambda: 3) == 3


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (ConfigError("app.bind: must be host:port."), 1, "app.bind: must be host:port."),
        (OperationalError("no\nroute"), 1, "The database cannot be used: no route"),
        (ZeroDivisionError("x"), 1, "Unexpected ZeroDivisionError: x"),
        (FileExistsError(17, "File exists", "/d"), 1, "/d cannot be used: File exists."),
        (
            UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"),
            1,
            "An argument is not text in UTF-8.",
        ),
        (click.UsageError("No such thing."), 2, "No such thing."),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_is_one_sentence_on_standard_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    sentence: str,
) -> None:
    assert run_main(monkeypatch, raising(error)) == status
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_a_database_that_cannot_be_reached_is_one_sentence_too(tmp_path: Path) -> None:
    """No line of a connection pool before it, and no 20 seconds of its patience."""
    variables = {
        "UMPTEENTH_DATA_DIR": str(tmp_path),
        "UMPTEENTH_DATABASE__URL": "postgresql://somebody:hunter22@127.0.0.1:1/nothing",
    }
    done = subprocess.run(
        [sys.executable, "-m", "umpteenth", "migrate"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("The database cannot be used: connection failed")
    assert "hunter22" not in line


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("server", "mcp"),
        ("servers", "mcp"),
        ("jobs", "job"),
        ("runs", "run"),
        ("secrets", "secret"),
        ("users", "user"),
        ("Job", "job"),
        ("docter", "doctor"),
        ("migrat", ""),
        ("frobnicate", ""),
    ],
)
def test_an_unknown_command_points_at_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], word: str, meant: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([word, "list"])
    assert caught.value.code == 2
    hint = f" Did you mean {meant}?" if meant else ""
    assert f"No such command '{word}'.{hint}\n" in capsys.readouterr().err


def test_an_error_does_not_show_a_secret(capsys: pytest.CaptureFixture[str]) -> None:
    from umpteenth.core.masking import known_values

    known_values().add("GREETING", "hunter22hunter22")
    with pytest.raises(SystemExit):
        fail("It said hunter22hunter22.")
    assert capsys.readouterr().err == "It said [secret GREETING].\n"


def test_help_names_every_command_without_loading_any() -> None:
    program = (
        "import sys; from umpteenth.cli import main\n"
        "try: main(['--help'])\n"
        "finally: print(sorted(n for n in ('django', 'celery', 'mcp') if n in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    for name in COMMANDS:
        assert f"  {name} " in done.stdout
    assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_help_names_exists_and_explains_itself(name: str) -> None:
    result = CliRunner().invoke(cli.cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith(f"Usage: cli {name}")


def test_an_unknown_command_is_wrong_usage() -> None:
    result = CliRunner().invoke(cli.cli, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.output


def test_json_keeps_every_language_and_every_value(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"text": "Grüße, 世界", "path": Path("/x")}
    emit_json(value)
    emit_json(value, compact=True)
    whole, line = capsys.readouterr().out.rsplit("}\n", 2)[0:2]
    assert json.loads(whole + "}") == {"text": "Grüße, 世界", "path": "/x"}
    assert line == '{"text": "Grüße, 世界", "path": "/x"'


def test_a_table_has_columns_and_no_line_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    table([("a", 1), ("long name", None), ("two\nlines", 3)], ("NAME", "N"))
    assert capsys.readouterr().out.splitlines() == [
        "NAME       N",
        "a          1",
        "long name",
        "two lines  3",
    ]


def test_a_missing_migration_is_applied_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    applied: list[str] = []
    missing = iter([True, True, False])
    monkeypatch.setattr(bootstrap, "has_missing_migrations", lambda: next(missing))
    monkeypatch.setattr(
        "django.core.management.call_command", lambda name, **_: applied.append(name)
    )
    monkeypatch.setattr(
        "secrets_vault.services.ensure_key_ring", lambda: applied.append("first key")
    )
    options = Options(data_dir=tmp_path)
    assert bootstrap.migrate_database(options) is True
    assert bootstrap.migrate_database(options) is False
    assert applied == ["migrate", "first key"]


def test_a_migration_that_another_process_applied_meanwhile_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing = iter([True, False])
    monkeypatch.setattr(bootstrap, "has_missing_migrations", lambda: next(missing))
    monkeypatch.setattr(
        "django.core.management.call_command", lambda *_, **__: pytest.fail("applied twice")
    )
    assert bootstrap.migrate_database(Options(data_dir=tmp_path)) is False


# doctor


def environment_with(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """What sandboxes see beside it: the usual programs."""
    found = {"Python": "3.11.2", "Node": "20.1.0", "npm": "9.2.0", "uv": "0.9.1", **changes}

    async def programs() -> list[tuple[str, str]]:
        return list(found.items())

    monkeypatch.setattr("jobs.sandbox.programs.default_environment", programs)


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch, db: None) -> None:
    monkeypatch.setattr("jobs.sandbox.base.problem", lambda: "")
    monkeypatch.setattr("jobs.sandbox.base.gaps", lambda: ())
    monkeypatch.setattr("jobs.sandbox.base.root_problem", lambda: "")
    environment_with(monkeypatch, jq="")
    monkeypatch.setattr("secrets_vault.services.ensure_key_ring", lambda: None)


def examine() -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in doctor.examine()}


@pytest.mark.usefixtures("healthy")
def test_doctor_finds_nothing_where_nothing_is_missing() -> None:
    result = CliRunner().invoke(cli.cli, ["doctor", "--json"], standalone_mode=False)
    report = json.loads(result.output)
    assert result.return_value == 0
    assert report["ok"] is True
    names = {finding["name"] for finding in report["findings"]}
    assert {
        "Python",
        "bubblewrap",
        "default environment",
        "database",
        "queue",
        "keys",
        "sandbox",
    } <= names
    assert examine()["sandbox"].text == "starts; its system calls are filtered"


@pytest.mark.usefixtures("healthy")
def test_doctor_tells_limits_from_running_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """P26."""
    assert examine()["run as root"].state == doctor.OK
    monkeypatch.setattr("jobs.sandbox.base.gaps", lambda: ("No processors.", "No root."))
    monkeypatch.setattr("jobs.sandbox.base.root_problem", lambda: "No root.")
    found = examine()
    assert found["limits and walls"] == doctor.Finding(
        "limits and walls", doctor.WARNING, "No processors."
    )
    assert found["run as root"] == doctor.Finding("run as root", doctor.WARNING, "No root.")


@pytest.mark.usefixtures("healthy")
def test_doctor_exits_1_where_no_sandbox_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.sandbox.base.problem", lambda: "bubblewrap may not unshare.")
    result = CliRunner().invoke(cli.cli, ["doctor"], standalone_mode=False)
    assert result.return_value == 1
    assert "✗ sandbox: bubblewrap may not unshare." in result.output


@pytest.mark.usefixtures("healthy")
def test_doctor_names_a_program_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = examine()
    words = "has Python 3.11.2, Node 20.1.0, npm 9.2.0, uv 0.9.1; lacks jq"
    assert found["default environment"] == doctor.Finding("default environment", doctor.OK, words)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    environment_with(monkeypatch, Node="", npm="")
    found = examine()
    assert found["bubblewrap"].state == doctor.PROBLEM
    assert found["bubblewrap"].remedy == "apt-get install bubblewrap"
    assert found["default environment"].state == doctor.WARNING
    assert found["default environment"].text.endswith("; lacks Node, npm")
    assert found["default environment"].remedy.endswith("apt-get install nodejs npm.")


@pytest.mark.usefixtures("healthy")
def test_doctor_goes_on_where_one_part_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ConfigError("The key k1 is missing.")

    monkeypatch.setattr("secrets_vault.services.ensure_key_ring", broken)
    found = examine()
    assert found["keys"] == doctor.Finding("keys", doctor.PROBLEM, "The key k1 is missing.")
    assert found["sandbox"].state == doctor.OK


def test_doctor_says_why_the_database_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable() -> doctor.Finding:
        raise OperationalError("connection refused")

    monkeypatch.setitem(doctor.LOOKS, "database", unreachable)
    found = examine()
    assert found["database"] == doctor.Finding("database", doctor.PROBLEM, "connection refused")
    assert "worker" not in found


def test_doctor_calls_a_new_data_directory_no_fault(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "umpteenth", "doctor", "--json"],
        env={**os.environ, "UMPTEENTH_DATA_DIR": str(tmp_path / "new")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert found["database"]["state"] == doctor.OK
    assert found["database"]["text"] == "SQLite, made at the first `umpteenth up`"


@pytest.mark.usefixtures("healthy")
def test_doctor_sees_a_worker_that_reports() -> None:
    from django.utils import timezone

    from jobs import presence

    assert examine()["worker"].state == doctor.WARNING
    presence.report(timezone.now(), slots=4, problem="")
    assert examine()["worker"] == doctor.Finding("worker", doctor.OK, presence.worker_name())


def test_doctor_reports_options_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise ConfigError("app.bind: must be host:port.")

    monkeypatch.setattr(doctor, "load_django", refuse)
    assert examine()["configuration"].text == "app.bind: must be host:port."


# advice about options

PROXIES = tuple(f(f"{n}_proxy") for n in ("http", "https", "all") for f in (str.lower, str.upper))


def advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **app: Any) -> list[str | None]:
    options = Options(data_dir=tmp_path, app=AppOptions(**app))
    monkeypatch.setattr(checks, "get_options", lambda: options)
    return [message.id for message in checks.check_options()]


@pytest.mark.parametrize(
    ("app", "ids"),
    [
        ({}, []),
        ({"url": "https://ump.example.org", "bind": "0.0.0.0:80"}, []),
        ({"bind": "0.0.0.0:80"}, ["umpteenth.W002"]),
        ({"bind": "0.0.0.0:80", "debug": True}, ["umpteenth.W001", "umpteenth.W002"]),
        ({"url": "http://ump.example.org"}, ["umpteenth.W003"]),
        ({"url": "http://localhost:1"}, []),
    ],
)
def test_unwise_addresses_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, app: dict[str, Any], ids: list[str]
) -> None:
    tmp_path.chmod(0o700)
    assert advice(tmp_path, monkeypatch, **app) == ids


def test_a_data_directory_open_to_others_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    assert advice(tmp_path, monkeypatch) == ["umpteenth.W004"]


@pytest.mark.parametrize(
    ("url", "ids"),
    [(None, ["umpteenth.W007"]), ("sqlite:////a/b", ["umpteenth.W007"]), ("postgresql://h/n", [])],
)
def test_files_in_sqlite_are_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, ids: list[str]
) -> None:
    tmp_path.chmod(0o700)
    sections = {"storage": {"backend": "database"}, "database": {"url": url}}
    options = Options.model_validate({"data_dir": tmp_path, **sections})
    monkeypatch.setattr(checks, "get_options", lambda: options)
    assert [message.id for message in checks.check_options()] == ids


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_proxy_that_is_not_used_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """P77: where the only way out leads through it, every server times out."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv(variable, "http://proxy.example:3128")
    assert advice(tmp_path, monkeypatch) == ["umpteenth.W006"]
    proxied = {"sandbox_proxy": "http://proxy.example:3128"}
    ruled_out: list[dict[str, Any]] = [
        {"allow_private_targets": False, **proxied},
        {"blocked_targets": ("10.0.0.0/8",), **proxied},
    ]
    for network in ruled_out:
        options = Options(data_dir=tmp_path, network=NetworkOptions(**network))
        monkeypatch.setattr(checks, "get_options", lambda options=options: options)
        assert [message.id for message in checks.check_options()] == ["umpteenth.W005"]
    options = Options(data_dir=tmp_path, network=NetworkOptions.model_validate(proxied))
    monkeypatch.setattr(checks, "get_options", lambda: options)
    assert checks.check_options() == []
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    assert advice(tmp_path, monkeypatch) == []


def test_the_tests_own_data_directory_is_private() -> None:
    assert stat.S_IMODE(get_options().data_dir.stat().st_mode) == 0o700
