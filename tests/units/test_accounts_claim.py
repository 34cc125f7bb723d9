"""The one-time link that makes the first administrator (issue 2, sections 1 and 2)."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth import get_user
from django.db import connections
from django.test import Client

from umpteenth.accounts.models import AuditEntry, ClaimLink, User
from umpteenth.accounts.services import (
    ClaimRefused,
    PeopleError,
    claim,
    claim_is_open,
    ensure_claim_link,
)

pytestmark = pytest.mark.django_db
DATA = {"name": "alice", "password": "correct horse battery"}


def _token() -> str:
    token = ensure_claim_link()
    assert token is not None
    return token


def test_the_link_makes_an_administrator_and_signs_them_in(client: Client) -> None:
    response = client.post(f"/claim/{_token()}", DATA)
    assert (response.status_code, response["Location"]) == (303, "/")
    user = User.objects.get()
    assert user.is_administrator
    assert not user.password_is_temporary
    assert get_user(client).pk == user.pk
    assert AuditEntry.objects.get().action == "person.create"


def test_the_link_works_once(client: Client) -> None:
    token = _token()
    client.post(f"/claim/{token}", DATA)
    again = Client().post(f"/claim/{token}", {**DATA, "name": "mallory"})
    assert again.status_code == 404
    assert "no longer works" in again.content.decode()
    assert User.objects.count() == 1


def test_only_the_hash_of_the_token_is_stored() -> None:
    token = _token()
    stored = ClaimLink.objects.get().token_hash
    assert token not in stored
    assert len(stored) == 64


def test_each_start_makes_a_new_link_and_closes_the_old_one(client: Client) -> None:
    first, second = _token(), _token()
    assert client.get(f"/claim/{first}").status_code == 404
    assert client.get(f"/claim/{second}").status_code == 200


def test_there_is_no_link_once_somebody_exists(bob: User) -> None:
    assert ensure_claim_link() is None
    assert not ClaimLink.objects.exists()


def test_a_link_from_before_the_first_person_is_closed(client: Client) -> None:
    """For instance where `umpteenth user add` was quicker."""
    token = _token()
    User.objects.create_user("bob")
    assert client.get(f"/claim/{token}").status_code == 404
    with pytest.raises(ClaimRefused):
        claim(token, **DATA)


def test_the_link_ends_after_24_hours(client: Client) -> None:
    with time_machine.travel("2026-03-01 12:00:00Z", tick=False) as traveller:
        token = _token()
        traveller.shift(timedelta(hours=23, minutes=59))
        assert claim_is_open(token)
        traveller.shift(timedelta(minutes=2))
        assert client.post(f"/claim/{token}", DATA).status_code == 404
    assert not User.objects.exists()


@pytest.mark.parametrize("token", ["x", "é" * 40, "a" * 5000])
def test_a_made_up_link_leads_nowhere(client: Client, token: str) -> None:
    _token()
    assert client.get(f"/claim/{token}").status_code == 404
    assert client.post(f"/claim/{token}", DATA).status_code == 404


def test_a_refused_password_leaves_the_link_open(client: Client) -> None:
    token = _token()
    response = client.post(f"/claim/{token}", {**DATA, "password": "short"})
    assert response.status_code == 422
    assert "at least 10 characters" in response.content.decode()
    assert claim_is_open(token)


def test_a_refused_name_leaves_the_link_open(client: Client) -> None:
    token = _token()
    response = client.post(f"/claim/{token}", {**DATA, "name": "two words"})
    assert response.status_code == 422
    assert "A name has 1 to 150 letters" in response.content.decode()
    assert claim_is_open(token)


def test_a_claim_that_comes_second_is_told_so(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link was open when the form came in, and taken a moment later."""
    monkeypatch.setattr("umpteenth.accounts.views.session.claim_is_open", lambda token: True)
    response = client.post("/claim/taken", DATA)
    assert response.status_code == 404
    assert "no longer works" in response.content.decode()
    assert not User.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_two_claims_at_once_one_wins() -> None:
    token = _token()
    outcomes: list[str] = []
    start = threading.Barrier(2)

    def attempt(name: str) -> None:
        start.wait(10)
        try:
            claim(token, name=name, password=DATA["password"])
            outcomes.append("won")
        except PeopleError:
            outcomes.append("refused")
        finally:
            connections.close_all()

    threads = [threading.Thread(target=attempt, args=(name,)) for name in ("alice", "mallory")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) == ["refused", "won"]
    assert User.objects.count() == 1
