"""`umpteenth user` (design, section 6)."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from umpteenth.accounts.models import AuditEntry, User
from umpteenth.cli import people

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test database is there already."""
    monkeypatch.setattr(people, "setup", lambda: None)


def _run(*arguments: str, given: str = "") -> Result:
    return CliRunner().invoke(people.command, arguments, input=given)


def test_add_reads_the_password_from_standard_input() -> None:
    result = _run("add", "carol", "--admin", given="a long phrase\n")
    assert (result.exit_code, result.stdout) == (0, "Added carol, administrator.\n")
    carol = User.objects.get()
    assert carol.is_administrator
    assert carol.check_password("a long phrase")
    assert not carol.password_is_temporary
    assert AuditEntry.objects.get().actor_name == "command line"


def test_add_prints_one_json_document() -> None:
    result = _run("add", "carol", "--json", given="a long phrase\n")
    carol = User.objects.get()
    assert json.loads(result.stdout) == {
        "id": str(carol.pk),
        "name": "carol",
        "role": "member",
        "active": True,
    }


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("bob", "a long phrase\n", "There is already a person named bob."),
        ("carol", "", "No password was given; write it to standard input."),
        ("carol", "short\n", "It must contain at least 10 characters."),
        ("carol", "a long\x00 phrase\n", "must not contain a null character"),
        ("two words", "a long phrase\n", "A name has 1 to 150 letters"),
    ],
)
def test_add_refuses_in_one_sentence(bob: User, name: str, given: str, sentence: str) -> None:
    result = _run("add", name, given=given)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stdout == ""
    assert User.objects.count() == 1


def test_list_shows_everybody(alice: User, bob: User) -> None:
    result = _run("list")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "alice", "bob"]
    assert json.loads(_run("list", "--json").stdout)[1] == {
        "id": str(bob.pk),
        "name": "bob",
        "role": "member",
        "active": True,
    }


def test_deactivate_shuts_a_person_out(bob: User) -> None:
    assert _run("deactivate", "Bob").stdout == "Deactivated bob.\n"
    bob.refresh_from_db()
    assert not bob.is_active


def test_deactivate_refuses_strangers_and_the_last_administrator(alice: User) -> None:
    assert "There is no person named nobody." in _run("deactivate", "nobody").stderr
    result = _run("deactivate", "alice")
    assert (result.exit_code, "last active administrator" in result.stderr) == (1, True)


def test_a_terminal_asks_twice_and_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["a long phrase", "a long phrase", "a long phrase", "a long phrose"]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: answers.pop(0))
    assert people._read_password() == "a long phrase"
    with pytest.raises(SystemExit):
        people._read_password()
