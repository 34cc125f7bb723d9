"""API tokens as rows: made, hashed, found, used, expired, revoked (issue 4, section 6)."""

from __future__ import annotations

import re
import threading
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from django.db import connection, connections
from pytest_django import DjangoAssertNumQueries

from umpteenth.accounts import tokens
from umpteenth.accounts.models import ApiToken, AuditEntry, User
from umpteenth.accounts.services import activate_user, create_user, deactivate_user
from umpteenth.accounts.tokens import (
    TokenError,
    TokenRefused,
    create_token,
    revoke_token,
    sign_in,
)

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def made(owner: User, name: str = "script", days: int | None = None) -> str:
    return create_token(owner=owner, name=name, days=days, actor=owner)[1]


def why_refused(text: str) -> str:
    with pytest.raises(TokenRefused) as refused:
        sign_in(text)
    return str(refused.value)


def why_not_made(owner: User, name: str = "script", days: int | None = None) -> str:
    with pytest.raises(TokenError) as refused:
        made(owner, name, days)
    return str(refused.value)


def test_a_token_is_long_random_and_kept_as_a_hash(member: User) -> None:
    first, second = made(member, "one"), made(member, "two")

    assert re.fullmatch(r"ump_[A-Za-z0-9]{40}", first)
    assert first != second
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f'SELECT * FROM "{table}"')
            assert first not in str(cursor.fetchall())
    assert ApiToken.objects.get(name="one").hint == first[:8]


def test_a_token_leads_to_its_owner(member: User) -> None:
    assert sign_in(made(member)).owner == member


@pytest.mark.parametrize("text", ["", "ump_", "x", "ump_" + "a" * 40, "\ud800", "a" * 100_000])
def test_an_unknown_token_says_where_tokens_are_made(member: User, text: str) -> None:
    made(member)
    assert "Settings, API tokens" in why_refused(text)


def test_a_token_with_another_ending_is_another_token(member: User) -> None:
    text = made(member)
    for other in (text[:-1], text + "x", text.lower(), f" {text}"):
        assert why_refused(other) == tokens.UNKNOWN


def test_a_token_expires_at_its_moment(member: User) -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        text = made(member, days=7)
        clock.move_to(NOON + timedelta(days=7, microseconds=-1))
        assert sign_in(text).owner == member
        clock.move_to(NOON + timedelta(days=7))
        assert why_refused(text) == "This API token expired on 2026-12-07."


def test_a_token_without_an_end_never_expires(member: User) -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        text = made(member)
        clock.move_to(NOON + timedelta(days=20_000))
        assert sign_in(text).owner == member


def test_a_revoked_token_is_refused_and_says_so(member: User) -> None:
    text = made(member)
    token = ApiToken.objects.get()

    assert revoke_token(token, actor=member)
    assert not revoke_token(token, actor=member)

    assert "has been revoked" in why_refused(text)
    assert AuditEntry.objects.filter(action="token.revoke").count() == 1


def test_the_role_is_the_one_that_the_owner_has_at_that_moment(member: User) -> None:
    text = made(member)
    assert not sign_in(text).owner.is_administrator
    User.objects.update(role="administrator")
    assert sign_in(text).owner.is_administrator
    User.objects.update(role="member")
    assert not sign_in(text).owner.is_administrator


def test_a_person_who_is_not_active_is_not_let_in(member: User) -> None:
    """Whatever made them so."""
    text = made(member)
    User.objects.update(is_active=False)
    assert why_refused(text) == "bob, whose API token this is, is deactivated."


def test_deactivation_revokes_the_tokens_for_good(administrator: User, member: User) -> None:
    text = made(member)
    theirs = made(administrator)

    deactivate_user(member, administrator)
    activate_user(member, administrator)

    assert "has been revoked" in why_refused(text)
    assert sign_in(theirs).owner == administrator
    entry = AuditEntry.objects.get(action="person.deactivate")
    assert entry.facts == ["tokens revoked: 1"]


def test_a_use_is_written_down_at_most_once_a_minute(
    member: User, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        text = made(member)
        assert ApiToken.objects.get().last_used_at is None
        sign_in(text)
        assert ApiToken.objects.get().last_used_at == NOON

        clock.move_to(NOON + timedelta(seconds=59))
        with django_assert_num_queries(1):
            sign_in(text)
        assert ApiToken.objects.get().last_used_at == NOON

        clock.move_to(NOON + timedelta(seconds=60))
        sign_in(text)
        assert ApiToken.objects.get().last_used_at == NOON + timedelta(seconds=60)


def test_the_audit_log_tells_of_a_token_without_it(administrator: User, member: User) -> None:
    text = made(member, days=30)
    revoke_token(ApiToken.objects.get(), actor=administrator)

    revoked, made_one = AuditEntry.objects.order_by("-at", "-id")

    assert (made_one.actor, made_one.words, made_one.object_name) == (member, "created", "script")
    assert [fact.partition(":")[0] for fact in made_one.facts] == ["person", "expires"]
    assert (revoked.actor, revoked.words) == (administrator, "revoked")
    assert revoked.facts == ["person: bob"]
    assert text[8:] not in f"{made_one.details}{revoked.details}"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("", "Give the token a name"),
        (" \x00\x1b[31m ", "Give the token a name"),
        ("x" * 101, "The name has 101 characters; at most 100 are kept."),
    ],
)
def test_a_name_that_cannot_be_is_one_sentence(member: User, name: str, sentence: str) -> None:
    assert sentence in why_not_made(member, name)
    assert not ApiToken.objects.exists()


def test_a_name_is_cleaned(member: User) -> None:
    made(member, "  night\u202e\n script ")
    assert ApiToken.objects.get().name == "night script"


@pytest.mark.parametrize("days", [0, -1, 3651])
def test_an_expiry_that_cannot_be_is_one_sentence(member: User, days: int) -> None:
    assert "1 to 3,650 days" in why_not_made(member, days=days)


def test_names_are_kept_apart_for_each_person(administrator: User, member: User) -> None:
    made(member, "Script")
    made(administrator, "script")

    assert why_not_made(member, "script").startswith("You already have a token named script.")

    revoke_token(ApiToken.objects.get(owner=member), actor=member)
    made(member, "script")


def test_whose_name_it_is_stands_in_the_sentence(member: User) -> None:
    made(member)
    with pytest.raises(TokenError, match="bob already has a token named script"):
        create_token(owner=member, name="script", actor=None)


def test_a_person_has_a_bounded_number_of_usable_tokens(
    member: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "MOST_TOKENS", 2)
    with time_machine.travel(NOON, tick=False) as clock:
        made(member, "a", days=1)
        made(member, "b")
        assert "at most 2 tokens" in why_not_made(member, "c")
        clock.move_to(NOON + timedelta(days=1))
        made(member, "c")


@pytest.mark.django_db(transaction=True)
def test_a_form_that_is_sent_twice_at_once_makes_one_token() -> None:
    owner = create_user(name="bob", password="a long phrase")
    start = threading.Barrier(2)
    refused: list[str] = []

    def make() -> None:
        start.wait(10)
        try:
            made(owner)
        except TokenError as error:
            refused.append(str(error))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(refused) == 1
    assert ApiToken.objects.count() == 1
