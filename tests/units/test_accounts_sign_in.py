"""Signing in and out (issue 2, section 2: People)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.conf import settings
from django.contrib.auth import get_user
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from tests.conftest import PASSWORD
from tests.units.conftest import ClientFor
from umpteenth.accounts import limits
from umpteenth.accounts.forms import WRONG
from umpteenth.accounts.models import SignInAttempt, User
from umpteenth.accounts.services import deactivate_user
from umpteenth.accounts.views.errors import TOO_MANY

pytestmark = pytest.mark.django_db
URL = "/sign-in/"


def _try(client: Client, name: str, password: str, **meta: Any) -> int:
    data = {"name": name, "password": password}
    return client.post(URL, data, **meta).status_code


def test_a_person_signs_in_and_lands_on_the_dashboard(client: Client, bob: User) -> None:
    response = client.post(URL, {"name": "bob", "password": PASSWORD})
    assert response.status_code == 303
    assert response["Location"] == "/"
    assert get_user(client).pk == bob.pk


def test_the_name_may_be_typed_in_any_case(client: Client, bob: User) -> None:
    assert _try(client, "BOB", PASSWORD) == 303


@pytest.mark.parametrize(
    ("name", "password"), [("bob", "wrong"), ("nobody", PASSWORD), ("left", PASSWORD)]
)
def test_wrong_unknown_and_deactivated_get_the_same_sentence(
    client: Client, bob: User, alice: User, name: str, password: str
) -> None:
    left = User.objects.create_user("left", password=PASSWORD)
    deactivate_user(left, alice)
    response = client.post(URL, {"name": name, "password": password})
    assert response.status_code == 422
    content = response.content.decode()
    assert WRONG in content
    assert "deactivated" not in content.lower()
    assert "_auth_user_id" not in client.session


def test_an_unknown_name_costs_a_password_check_as_well(
    client: Client, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the answer must not tell whether the name exists."""
    hashed: list[str] = []
    monkeypatch.setattr(User, "set_password", lambda self, raw: hashed.append(raw))
    _try(client, "nobody", "some password")
    assert hashed == ["some password"]


@pytest.mark.parametrize("name", ["", "a" * 151, "nul\x00byte"])
def test_a_name_that_cannot_be_is_refused_without_a_fault(client: Client, name: str) -> None:
    assert _try(client, name, PASSWORD) == 422


def test_a_password_of_a_megabyte_is_refused_before_it_is_hashed(client: Client, bob: User) -> None:
    assert _try(client, "bob", "x" * 1_000_000) == 422
    assert not SignInAttempt.objects.exists()


@pytest.mark.parametrize(
    "following",
    [
        "https://evil.example/",
        "//evil.example/",
        r"\\evil.example",
        "/\\evil.example",
        "javascript:alert(1)",
        "http:///evil.example",
        "///evil.example",
    ],
)
def test_sign_in_leads_to_no_other_site(client: Client, bob: User, following: str) -> None:
    response = client.post(URL, {"name": "bob", "password": PASSWORD, "next": following})
    assert response["Location"] == "/"


def test_sign_in_leads_back_to_the_page_that_was_asked_for(client: Client, bob: User) -> None:
    asked = client.get("/settings/people/?page=2")
    assert asked["Location"] == "/sign-in/?next=/settings/people/%3Fpage%3D2"
    form = client.get(asked["Location"])
    assert 'value="/settings/people/?page=2"' in form.content.decode()
    data = {"name": "bob", "password": PASSWORD, "next": "/settings/people/?page=2"}
    assert client.post(URL, data)["Location"] == "/settings/people/?page=2"


def test_signed_in_people_skip_the_form(client_for: ClientFor, bob: User) -> None:
    client = client_for(bob)
    assert client.get(f"{URL}?next=/settings/people/")["Location"] == "/settings/people/"
    assert client.get(f"{URL}?next=https://evil.example/")["Location"] == "/"


def test_signing_in_changes_the_session_key(client: Client, bob: User) -> None:
    """A session that somebody planted in the browser before is of no use afterwards."""
    session = client.session
    session["planted"] = True
    session.save()
    planted = session.session_key
    client.cookies[settings.SESSION_COOKIE_NAME] = planted or ""
    _try(client, "bob", PASSWORD)
    assert client.cookies[settings.SESSION_COOKIE_NAME].value != planted
    assert not client.session.exists(planted or "")


def test_the_session_lasts_seven_days_and_is_out_of_scripts_reach(
    client: Client, bob: User
) -> None:
    _try(client, "bob", PASSWORD)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    assert cookie["max-age"] == 7 * 24 * 3600
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_sign_in_needs_the_forms_token(bob: User) -> None:
    client = Client(enforce_csrf_checks=True)
    response = client.post(URL, {"name": "bob", "password": PASSWORD})
    assert response.status_code == 403
    assert "Reload the page" in response.content.decode()


def test_sign_out_ends_the_session(client_for: ClientFor, bob: User) -> None:
    client = client_for(bob)
    key = client.session.session_key or ""
    response = client.post("/sign-out/")
    assert response["Location"] == URL
    assert not client.session.exists(key)


def test_sign_out_by_a_link_is_refused(client_for: ClientFor, bob: User) -> None:
    """Another site's image must not sign people out."""
    client = client_for(bob)
    assert client.get("/sign-out/").status_code == 405
    assert client.get("/").status_code == 200


def test_the_twenty_first_attempt_of_a_minute_is_refused(client: Client, bob: User) -> None:
    statuses = [_try(client, f"guess{number}", "wrong") for number in range(20)]
    assert set(statuses) == {422}
    response = client.post(URL, {"name": "bob", "password": PASSWORD})
    assert response.status_code == 429
    assert TOO_MANY in response.content.decode()
    assert response["Retry-After"] == "60"
    assert "_auth_user_id" not in client.session


def test_another_address_is_not_held_up(client: Client, bob: User) -> None:
    for _ in range(21):
        _try(client, "bob", "wrong")
    assert _try(client, "bob", PASSWORD, REMOTE_ADDR="203.0.113.9") == 303


def test_a_forged_forwarding_header_does_not_evade_the_limit(client: Client, bob: User) -> None:
    statuses = [
        _try(client, "bob", "wrong", HTTP_X_FORWARDED_FOR=f"198.51.100.{number}")
        for number in range(21)
    ]
    assert statuses[-1] == 429


def test_addresses_of_one_ipv6_network_count_together(client: Client, bob: User) -> None:
    statuses = [
        _try(client, "bob", "wrong", REMOTE_ADDR=f"2001:db8:1:2::{number + 1:x}")
        for number in range(21)
    ]
    assert statuses[-1] == 429
    assert _try(client, "bob", "wrong", REMOTE_ADDR="2001:db8:1:3::1") == 422


def test_after_a_minute_the_address_may_try_again(client: Client, bob: User) -> None:
    with time_machine.travel("2026-03-01 12:00:00Z", tick=False) as traveller:
        for _ in range(20):
            _try(client, "bob", "wrong")
        traveller.shift(timedelta(seconds=59))
        assert _try(client, "bob", PASSWORD) == 429
        traveller.shift(timedelta(seconds=2))
        assert _try(client, "bob", PASSWORD) == 303
        assert SignInAttempt.objects.count() == 1


def test_slow_failures_never_add_up(client: Client, bob: User) -> None:
    """One failure every 50 seconds is two in any minute, however long it goes on."""
    with time_machine.travel("2026-03-01 12:00:00Z", tick=False) as traveller:
        for _ in range(40):
            assert _try(client, "bob", "wrong") == 422
            traveller.shift(timedelta(seconds=50))


def test_refused_attempts_do_not_prolong_the_wait() -> None:
    with time_machine.travel("2026-03-01 12:00:00Z", tick=False) as traveller:
        admitted = [limits.admit("192.0.2.1") for _ in range(30)]
        assert admitted == [True] * 20 + [False] * 10
        traveller.shift(timedelta(seconds=61))
        assert limits.admit("192.0.2.1")


@pytest.mark.django_db(transaction=True)
def test_of_forty_attempts_at_once_at_most_twenty_are_admitted() -> None:
    results: list[bool] = []
    start = threading.Barrier(8)

    def attempt() -> None:
        start.wait(10)
        try:
            for _ in range(5):
                results.append(limits.admit("192.0.2.7"))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    connection.close()
    assert len(results) == 40
    assert 1 <= sum(results) <= 20


def test_an_idle_session_has_ended_after_seven_days(client: Client, bob: User) -> None:
    now = timezone.now()
    with time_machine.travel(now, tick=False) as traveller:
        _try(client, "bob", PASSWORD)
        traveller.shift(timedelta(days=6, hours=23))
        assert client.get("/").status_code == 200
        traveller.shift(timedelta(hours=2))
        assert client.get("/").status_code == 302
