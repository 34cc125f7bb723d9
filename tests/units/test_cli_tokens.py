"""`umpteenth token` (issue 4, section 6)."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from click.testing import CliRunner, Result
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries

from tests.fakes.api_tokens import new_token, with_token
from umpteenth.accounts.models import ApiToken, AuditEntry, User
from umpteenth.cli import suggestion, tokens
from umpteenth.core import clock

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test database is there already."""
    monkeypatch.setattr(tokens, "setup", lambda: None)


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(tokens.command, arguments)
    assert result.exit_code == status, result.output
    return result


def test_create_prints_the_token_alone_on_standard_output(member: User) -> None:
    result = run("create", "night script", "--user", "BOB")

    assert with_token(result.stdout.strip()).get("/api/").json()["person"] == "bob"
    assert result.stdout.count("\n") == 1
    assert result.stderr == "A token of bob, named night script. It is not shown again.\n"
    assert AuditEntry.objects.get().actor_name == "command line"


def test_create_needs_no_user_where_there_is_one(member: User) -> None:
    User.objects.create_user("carol", is_active=False)
    run("create", "script")
    assert ApiToken.objects.get().owner == member


def test_create_asks_whose_it_is_where_there_are_several(member: User, administrator: User) -> None:
    assert "--user NAME" in run("create", "script", status=1).stderr
    assert not ApiToken.objects.exists()


def test_create_as_json_is_one_document(member: User) -> None:
    made = json.loads(run("create", "script", "--days", "7", "--json").stdout)
    token = ApiToken.objects.get()
    assert with_token(made.pop("token")).get("/api/").status_code == 200
    assert made == {
        "id": str(token.pk),
        "name": "script",
        "user": "bob",
        "hint": f"{token.hint}…",
        "state": "active",
        "created_at": token.created_at.isoformat(timespec="seconds"),
        "last_used_at": None,
        "expires_at": token.expires_at and token.expires_at.isoformat(timespec="seconds"),
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["script", "--user", "nobody"], "There is no active person named nobody."),
        (["script", "--days", "0"], "1 to 3,650 days"),
        (["taken"], "bob already has a token named taken."),
        ([""], "Give the token a name"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(
    member: User, arguments: list[str], sentence: str
) -> None:
    new_token(member, "taken")
    result = run("create", *arguments, status=1)
    assert sentence in result.stderr
    assert result.stdout == ""


def test_list_shows_states_and_no_token(member: User) -> None:
    text = new_token(member, "one", days=7)
    new_token(member, "two")
    with_token(text).get("/api/")
    run("remove", "two")

    printed = run("list").output
    assert text not in printed
    assert [line.split()[0] for line in printed.splitlines()] == ["NAME", "one", "two"]
    assert "revoked" in printed
    assert printed.count("never") == 2  # of `two`: last used, expires

    rows = json.loads(run("list", "--json").stdout)
    assert [(row["name"], row["state"]) for row in rows] == [("one", "active"), ("two", "revoked")]


def test_list_asks_for_tokens_and_for_the_time_once(
    member: User,
    monkeypatch: pytest.MonkeyPatch,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for name in ("one", "two", "three"):
        new_token(member, name)
    asked: list[datetime] = []

    def now() -> datetime:
        asked.append(timezone.now())
        return asked[-1]

    # With Postgres each time is a question of its own.
    monkeypatch.setattr(clock, "database_now", now)
    with django_assert_num_queries(1):
        run("list")
    assert len(asked) == 1


def test_an_empty_list_says_how_to_make_the_first() -> None:
    result = run("list")
    assert "umpteenth token create NAME" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


@pytest.mark.parametrize("by", ["name", "id"])
def test_remove_ends_a_token(member: User, by: str) -> None:
    text = new_token(member, "Script")
    name = "script" if by == "name" else str(ApiToken.objects.get().pk)

    assert run("remove", name).output == "Revoked Script of bob.\n"

    assert with_token(text).get("/api/").status_code == 401
    assert "was revoked already" in run("remove", name, status=1).stderr


def test_remove_means_the_token_that_still_works(member: User) -> None:
    new_token(member)
    run("remove", "script")
    text = new_token(member)
    run("remove", "script")
    assert with_token(text).get("/api/").status_code == 401


def test_remove_asks_whose_where_several_people_have_the_name(
    member: User, administrator: User
) -> None:
    new_token(member)
    kept = new_token(administrator)

    assert "alice, bob. Say whose" in run("remove", "script", status=1).stderr
    run("remove", "script", "--user", "bob")

    assert with_token(kept).get("/api/").status_code == 200


def test_remove_of_what_is_not_there_is_one_sentence() -> None:
    assert "There is no such token: script." in run("remove", "script", status=1).stderr


@pytest.mark.parametrize("word", ["tokens", "api", "tokn"])
def test_a_word_that_comes_near_leads_there(word: str) -> None:
    assert suggestion(word) == "token"
