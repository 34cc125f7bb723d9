"""Settings, API tokens (issue 4, section 6)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
import time_machine
from pytest_django import DjangoAssertNumQueries

from tests.fakes.api_tokens import new_token, with_token
from tests.units.conftest import ClientFor
from umpteenth.accounts.models import ApiToken, User
from umpteenth.accounts.tokens import create_token, revoke_token

pytestmark = pytest.mark.django_db
LIST, NEW = "/settings/tokens/", "/settings/tokens/new/"
HTMX = {"HX-Request": "true"}
NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def token_in(text: str) -> str:
    found = re.search(r'value="(ump_[A-Za-z0-9]{40})"', text)
    assert found
    return found[1]


def test_the_empty_page_teaches_and_offers_the_first_step(client_for: ClientFor, bob: User) -> None:
    text = client_for(bob).get(LIST).content.decode()
    assert "No API tokens yet" in text
    assert f'href="{NEW}"' in text
    assert 'aria-current="page">API tokens</a>' in text


def test_a_token_is_shown_once_and_works(client_for: ClientFor, bob: User) -> None:
    browser = client_for(bob)
    answer = browser.post(NEW, {"name": "night script", "expires": "30"})

    assert answer.status_code == 200
    assert answer["Cache-Control"] == "no-store"
    text = token_in(answer.content.decode())
    assert with_token(text).get("/api/").json()["token"] == "night script"
    token = ApiToken.objects.get()
    assert token.expires_at == token.created_at + timedelta(days=30)

    page = browser.get(LIST).content.decode()
    assert "night script" in page
    assert text[:8] in page
    assert text not in page
    assert text not in str(dict(browser.session))


def test_in_a_dialog_the_list_below_learns_of_it(client_for: ClientFor, bob: User) -> None:
    form = client_for(bob).get(NEW, headers=HTMX).content.decode()
    assert "<html" not in form
    answer = client_for(bob).post(NEW, {"name": "x", "expires": "never"}, headers=HTMX)
    text = answer.content.decode()
    assert token_in(text)
    assert 'id="token-list" hx-swap-oob="true"' in text
    assert "It does not expire." in text


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"name": "", "expires": "30"}, "This field is required."),
        ({"name": "\x1b[0m", "expires": "30"}, "Give the token a name"),
        ({"name": "x" * 101, "expires": "30"}, "at most 100 characters"),
        ({"name": "x", "expires": "31"}, "Select a valid choice."),
        ({"name": "x"}, "This field is required."),
        ({"name": "TAKEN", "expires": "30"}, "You already have a token named TAKEN."),
    ],
)
def test_what_cannot_be_is_said_at_its_field(
    client_for: ClientFor, bob: User, data: dict[str, str], sentence: str
) -> None:
    new_token(bob, "taken")
    answer = client_for(bob).post(NEW, data)
    assert answer.status_code == 422
    assert sentence in answer.content.decode()
    assert ApiToken.objects.count() == 1


def test_members_see_their_own_and_administrators_all(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    new_token(alice, "of-alice")
    new_token(bob, "of-bob")

    seen = client_for(bob).get(LIST).content.decode()
    assert "of-bob" in seen
    assert "of-alice" not in seen
    assert ">Person</th>" not in seen

    seen = client_for(alice).get(LIST).content.decode()
    assert "of-bob" in seen
    assert "of-alice" in seen
    assert ">Person</th>" in seen


def test_revoking_asks_first_and_ends_the_token(client_for: ClientFor, bob: User) -> None:
    text = new_token(bob)
    address = f"{LIST}{ApiToken.objects.get().pk}/revoke/"
    browser = client_for(bob)

    assert "cannot be undone" in browser.get(address).content.decode()
    assert with_token(text).get("/api/").status_code == 200

    answer = browser.post(address)
    assert (answer.status_code, answer["Location"]) == (303, LIST)
    assert with_token(text).get("/api/").status_code == 401
    page = browser.get(LIST).content.decode()
    assert "script has been revoked." in page
    assert "Revoked</span>" in page
    assert address not in page

    browser.post(address)
    assert "script was revoked already." in browser.get(LIST).content.decode()


def test_an_administrator_revokes_what_a_member_cannot(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    new_token(alice, "of-alice")
    new_token(bob, "of-bob")
    of_alice, of_bob = ApiToken.objects.order_by("name")

    assert client_for(bob).post(f"{LIST}{of_alice.pk}/revoke/").status_code == 404
    assert client_for(alice).post(f"{LIST}{of_bob.pk}/revoke/").status_code == 303

    of_alice.refresh_from_db()
    of_bob.refresh_from_db()
    assert of_alice.revoked_at is None
    assert of_bob.revoked_at is not None


def test_states_and_times_are_told(client_for: ClientFor, bob: User) -> None:
    with time_machine.travel(NOON, tick=False) as clock:
        text = new_token(bob, "used", days=7)
        create_token(owner=bob, name="old", days=1, actor=bob)
        token, _ = create_token(owner=bob, name="gone", actor=bob)
        revoke_token(token, actor=bob)
        with_token(text).get("/api/")
        clock.move_to(NOON + timedelta(days=2))
        page = client_for(bob).get(LIST).content.decode()
    assert page.count("Active</span>") == 1
    assert page.count("Expired</span>") == 1
    assert page.count("Revoked</span>") == 1
    assert "in 5 days" in page
    assert page.count("2 days ago") == 4  # made, and used once
    # What lets somebody in stands before what has been revoked.
    assert page.index("used") < page.index("gone")


def test_names_are_escaped(client_for: ClientFor, bob: User) -> None:
    new_token(bob, "<script>alert(1)</script>")
    assert "<script>alert" not in client_for(bob).get(LIST).content.decode()


def test_the_list_asks_equally_often_for_any_number_of_tokens(
    client_for: ClientFor,
    alice: User,
    bob: User,
    empty_registries: None,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    browser = client_for(alice)
    for owner in (alice, bob):
        new_token(owner)
    with django_assert_num_queries(4):
        browser.get(LIST)
    for number in range(60):
        new_token(bob if number % 2 else alice, f"token {number}")
    with django_assert_num_queries(4):
        page = browser.get(LIST).content.decode()
    assert "1 to 50 of 62" in page


def test_the_palette_leads_there(client_for: ClientFor, bob: User) -> None:
    hits = client_for(bob).get("/search", {"q": "api token"}, headers=HTMX).content.decode()
    assert f'href="{LIST}"' in hits
    assert f'href="{NEW}"' in hits
