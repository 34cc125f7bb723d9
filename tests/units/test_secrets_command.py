"""`umpteenth secret …` (design, section 6)."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from secrets_vault import keyring, usage
from secrets_vault.models import Key, Secret
from secrets_vault.services import Target, Usage, secret_value, set_secret
from tests.fakes.vault import ring_with, use_ring_in
from umpteenth.cli import secrets
from umpteenth.cli.output import is_terminal
from umpteenth.core.config import ConfigError

pytestmark = pytest.mark.django_db
CANARY = "canary-value-91c2"


@pytest.fixture(autouse=True)
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(usage, "_finders", [])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return use_ring_in(monkeypatch, tmp_path / "data")


def run(*arguments: str, stdin: str | bytes = "", status: int = 0) -> Result:
    result = CliRunner().invoke(secrets.command, arguments, input=stdin)
    assert result.exit_code == status, result.output
    assert CANARY not in result.output
    return result


def value_of(name: str) -> str:
    return secret_value(Secret.objects.get(name=name), target=Target())


def used_by_github(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [Usage("server", "github", "/servers/1/")]
    monkeypatch.setattr(usage, "_finders", [lambda names: dict.fromkeys(names, uses)])


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits there and types what a test gives as `stdin`."""
    monkeypatch.setattr(secrets, "is_terminal", lambda: True)


def test_set_reads_the_value_from_standard_input_and_tells_what_it_trimmed() -> None:
    """E01."""
    result = run("set", "TOKEN", stdin=f"{CANARY}\n")

    assert result.output == (
        "Secret TOKEN created.\nThe line break at the end of the value was removed.\n"
    )
    assert value_of("TOKEN") == CANARY


def test_set_again_replaces_the_value_and_keeps_the_rest() -> None:
    run("set", "TOKEN", "--description", "words", "--host", "a.example", "--members", stdin="one")

    result = run("set", "TOKEN", stdin="two")

    assert result.output == "Secret TOKEN has a new value.\n"
    secret = Secret.objects.get()
    assert (secret.description, secret.open_to_members) == ("words", True)
    assert secret.allowed_hosts == ["a.example"]


def test_limits_are_set_and_taken_away() -> None:
    run("set", "T", "--host", "a.example", "--host", "b.example", "--job", "j", stdin="x")
    secret = Secret.objects.get()
    assert (secret.allowed_hosts, secret.allowed_jobs) == (["a.example", "b.example"], ["j"])

    run("set", "T", "--server", "s", stdin="x")
    secret.refresh_from_db()
    assert (secret.allowed_hosts, secret.allowed_servers) == ([], ["s"])

    run("set", "T", "--anywhere", "--no-members", stdin="x")
    secret.refresh_from_db()
    assert not secret.is_limited


def test_contradicting_limits_are_a_usage_error() -> None:
    assert "exclude each other" in run("set", "T", "--anywhere", "--job", "j", status=2).output


@pytest.mark.parametrize(
    ("stdin", "words"),
    [
        ("", "The value is empty"),
        (b"\xff\xfe", "The value is not text in UTF-8"),
        ("x" * 70_000, "has 70,000 bytes"),
        ("x" * 1_100_000, "more than 1 MB"),
    ],
)
def test_a_bad_value_is_one_sentence(stdin: str | bytes, words: str) -> None:
    result = run("set", "T", stdin=stdin, status=1)

    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_a_bad_name_is_one_sentence() -> None:
    assert "The name must be" in run("set", "a b", stdin="x", status=1).stderr


@pytest.mark.usefixtures("terminal")
def test_at_a_terminal_the_value_is_asked_for_unseen() -> None:
    run("set", "TOKEN", stdin=f"{CANARY}\n")

    assert value_of("TOKEN") == CANARY


def test_list_shows_names_and_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY, description="words")
    used_by_github(monkeypatch)

    text = run("list").output

    assert "TOKEN" in text
    assert "words" in text
    assert "server github" in text
    assert "never" in text


def test_list_as_json_is_one_document() -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY, allowed_jobs=["j"])
    value_of_a_secret = Secret.objects.get()
    secret_value(value_of_a_secret, target=Target(job="j"))

    (row,) = json.loads(run("list", "--json").output)

    assert row.pop("last_used_at")[:2] == "20"
    assert row.pop("updated_at")[:2] == "20"
    assert row == {
        "name": "TOKEN",
        "description": "",
        "used_by": [],
        "open_to_members": False,
        "hosts": [],
        "servers": [],
        "jobs": ["j"],
    }


def test_an_empty_list_says_how_to_make_the_first() -> None:
    result = run("list")

    assert "umpteenth secret set NAME" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_remove_deletes_what_nothing_uses() -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY)

    assert run("remove", "TOKEN").output == "Secret TOKEN deleted.\n"
    assert not Secret.objects.exists()


def test_remove_of_an_unknown_name_fails() -> None:
    assert run("remove", "NONE", status=1).stderr == "There is no secret named NONE.\n"


def test_remove_refuses_what_is_used_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY)
    used_by_github(monkeypatch)

    assert "is used by server github; add --yes" in run("remove", "TOKEN", status=1).stderr
    assert Secret.objects.exists()

    run("remove", "TOKEN", "--yes")
    assert not Secret.objects.exists()


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "left"), [("n", 1), ("y", 0)])
def test_remove_asks_at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str, left: int) -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY)
    used_by_github(monkeypatch)

    run("remove", "TOKEN", stdin=f"{answer}\n", status=left)

    assert Secret.objects.count() == left


def test_remove_of_a_secret_in_a_jobs_environment_fails() -> None:
    from jobs.models import Job, JobSecret

    secret = set_secret(actor=None, name="TOKEN", value=CANARY).secret
    job = Job.objects.create(name="digest", script="#!/bin/sh")
    JobSecret.objects.create(job=job, variable="T", secret=secret)

    assert "mapped into jobs" in run("remove", "TOKEN", "--yes", status=1).stderr


def test_rotate_keys_says_what_it_did(ring_file: Path) -> None:
    run("set", "TOKEN", stdin=CANARY)
    (old,) = keyring.read_ring().ids
    old_material = ring_file.read_text().split()[1]

    text = run("rotate-keys").output

    (new,) = keyring.read_ring().ids
    assert f"Key {new} is in use now." in text
    assert "1 secret encrypted again." in text
    assert "Waiting 30 s" in text
    assert f"Key {old} is no longer used and has been removed." in text
    assert old_material not in text
    assert ring_file.read_text().split()[1] not in text
    assert value_of("TOKEN") == CANARY


def test_rotate_keys_fails_where_something_cannot_be_read() -> None:
    run("set", "TOKEN", stdin=CANARY)
    Secret.objects.update(key_id="gone")

    result = run("rotate-keys", "--wait", "0", status=1)

    assert "These cannot be decrypted and were left as they are: secret TOKEN." in result.stderr


def test_rotate_keys_refuses_in_one_sentence(tmp_path: Path) -> None:
    result = run("rotate-keys", "--output", str(tmp_path / "x"), status=1)

    assert "--output is for a key ring given by security.key_ring" in result.stderr


def test_rotate_keys_tells_the_next_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_ring_in(monkeypatch, tmp_path, given=ring_with("k1").to_text())

    text = run("rotate-keys", "--output", str(tmp_path / "new.txt")).output

    assert f"{tmp_path / 'new.txt'} holds the ring with a new key." in text


def test_a_lost_key_stops_every_command_but_forget_key(ring_file: Path) -> None:
    run("set", "TOKEN", stdin=CANARY)
    (key_id,) = keyring.read_ring().ids
    ring_file.unlink()
    keyring.forget_ring()
    stopped = CliRunner().invoke(secrets.command, ["list"])
    assert isinstance(stopped.exception, ConfigError)
    assert key_id in str(stopped.exception)

    assert f"1 values need key {key_id}" in run("forget-key", key_id, status=1).stderr
    text = run("forget-key", key_id, "--yes").output

    assert "Values to enter again: 1." in text
    assert Key.objects.get(pk=key_id).retired_at is not None
    run("set", "TOKEN", stdin="again")
    assert value_of("TOKEN") == "again"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answer", ["n", "y"])
def test_forget_key_asks_at_a_terminal(answer: str) -> None:
    run("list")
    (key_id,) = keyring.read_ring().ids

    run("forget-key", key_id, stdin=f"{answer}\n", status=int(answer == "n"))

    assert (Key.objects.get().retired_at is None) is (answer == "n")


def test_forget_key_of_an_unknown_key_fails() -> None:
    assert "is not among the keys" in run("forget-key", "none", "--yes", status=1).stderr


def test_a_pipe_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())

    assert not is_terminal()


def test_every_command_explains_itself() -> None:
    commands: dict[str, Any] = dict(secrets.command.commands)
    assert set(commands) == {"set", "list", "remove", "rotate-keys", "forget-key"}
    for command in commands.values():
        assert isinstance(command, click.Command)
        assert command.help
