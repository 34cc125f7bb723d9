"""Settings, People: adding, roles, one-time passwords, deactivation."""

from __future__ import annotations

import threading

import pytest
from django.db import connections
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from tests.conftest import PASSWORD
from tests.units.conftest import ClientFor
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.accounts.services import (
    LAST_ADMINISTRATOR,
    PeopleError,
    activate_user,
    create_user,
    deactivate_user,
    set_role,
)

pytestmark = pytest.mark.django_db
NEW = {"name": "carol", "password": "a phrase to tell", "role": "member"}


def test_everybody_sees_the_list_and_only_administrators_the_actions(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    seen = client_for(bob).get("/settings/people/").content.decode()
    assert "alice" in seen
    assert "Add person" not in seen
    assert "Deactivate" not in seen
    assert "Add person" in client_for(alice).get("/settings/people/").content.decode()


def test_the_list_asks_the_database_equally_often_for_any_number_of_people(
    client_for: ClientFor,
    alice: User,
    empty_registries: None,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    client = client_for(alice)
    with django_assert_num_queries(3):
        client.get("/settings/people/")
    for number in range(30):
        User.objects.create_user(f"person{number}")
    with django_assert_num_queries(3):
        client.get("/settings/people/")


def test_an_administrator_adds_a_person_who_must_choose_a_password(
    client_for: ClientFor, alice: User
) -> None:
    response = client_for(alice).post("/settings/people/add/", NEW)
    assert (response.status_code, response["Location"]) == (303, "/settings/people/")
    carol = User.objects.get(username="carol")
    assert (carol.role, carol.password_is_temporary) == ("member", True)
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.action, entry.object_name) == (alice, "person.create", "carol")
    assert NEW["password"] not in str(entry.details)

    browser = Client()
    browser.post("/sign-in/", {"name": "carol", "password": NEW["password"]})
    assert browser.get("/settings/people/")["Location"] == "/account/password/"
    assert "one-time password" in browser.get("/account/password/").content.decode()
    changed = {"current": NEW["password"], "password": "my own choice"}
    assert browser.post("/account/password/", changed).status_code == 303
    assert browser.get("/settings/people/").status_code == 200


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("alice", "There is already a person named alice."),
        ("ALICE", "There is already a person named ALICE."),
        ("two words", "A name has 1 to 150 letters"),
        ("", "This field is required."),
        ("nul\x00", "Null characters are not allowed."),
    ],
)
def test_a_name_that_cannot_be_is_refused_at_its_field(
    client_for: ClientFor, alice: User, name: str, sentence: str
) -> None:
    response = client_for(alice).post("/settings/people/add/", {**NEW, "name": name})
    assert response.status_code == 422
    assert sentence in response.content.decode()
    assert User.objects.count() == 1


def test_the_password_is_never_sent_back(client_for: ClientFor, alice: User) -> None:
    response = client_for(alice).post("/settings/people/add/", {**NEW, "name": "two words"})
    assert NEW["password"] not in response.content.decode()


def test_a_password_like_the_name_is_refused(client_for: ClientFor, alice: User) -> None:
    data = {**NEW, "name": "carolina.mueller", "password": "carolina.muel"}
    response = client_for(alice).post("/settings/people/add/", data)
    assert "too similar to the username" in response.content.decode()


def test_a_role_changes_at_once(client_for: ClientFor, alice: User, bob: User) -> None:
    browser = client_for(bob)
    assert browser.get("/settings/audit/").status_code == 403
    client_for(alice).post(f"/settings/people/{bob.pk}/role/", {"role": "administrator"})
    assert browser.get("/settings/audit/").status_code == 200
    client_for(alice).post(f"/settings/people/{bob.pk}/role/", {"role": "member"})
    assert browser.get("/settings/audit/").status_code == 403
    assert AuditEntry.objects.filter(action="person.role").count() == 2


def test_a_role_that_does_not_exist_is_refused(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    response = client_for(alice).post(f"/settings/people/{bob.pk}/role/", {"role": "god"})
    assert response.status_code == 422
    bob.refresh_from_db()
    assert bob.role == "member"


def test_deactivation_ends_the_sessions_at_once(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    browser = client_for(bob)
    assert browser.get("/").status_code == 200
    client_for(alice).post(f"/settings/people/{bob.pk}/deactivate/")
    assert browser.get("/").status_code == 302
    # Activation lets the person in again, but not the old session.
    client_for(alice).post(f"/settings/people/{bob.pk}/activate/")
    assert browser.get("/").status_code == 302
    assert browser.post("/sign-in/", {"name": "bob", "password": PASSWORD}).status_code == 303


def test_the_last_administrator_is_neither_deactivated_nor_demoted(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    client = client_for(alice)
    for response in (
        client.post(f"/settings/people/{alice.pk}/deactivate/"),
        client.post(f"/settings/people/{alice.pk}/role/", {"role": "member"}),
    ):
        assert response.status_code == 422
        assert LAST_ADMINISTRATOR in response.content.decode()
    alice.refresh_from_db()
    assert alice.is_administrator


def test_a_deactivated_administrator_does_not_count_as_one_left(alice: User) -> None:
    other = create_user(name="otto", password="a long phrase", administrator=True)
    deactivate_user(other, alice)
    with pytest.raises(PeopleError):
        deactivate_user(alice, alice)
    activate_user(other, alice)
    deactivate_user(alice, other)
    with pytest.raises(PeopleError):
        set_role(other, "member", actor=other)


@pytest.mark.django_db(transaction=True)
def test_two_administrators_cannot_remove_each_other_at_once() -> None:
    pair = [
        create_user(name=name, password="a long phrase", administrator=True)
        for name in ("anna", "otto")
    ]
    start = threading.Barrier(2)

    def remove(user: User) -> None:
        start.wait(10)
        try:
            deactivate_user(user)
        except PeopleError:
            pass
        finally:
            connections.close_all()

    threads = [threading.Thread(target=remove, args=(user,)) for user in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert User.objects.filter(is_active=True, role="administrator").count() == 1


def test_repeated_deactivation_writes_one_line(alice: User, bob: User) -> None:
    deactivate_user(bob, alice)
    deactivate_user(bob, alice)
    assert AuditEntry.objects.filter(action="person.deactivate").count() == 1


def test_a_new_one_time_password_ends_the_sessions_of_its_person(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    browser = client_for(bob)
    data = {"password": "a phrase to tell"}
    client_for(alice).post(f"/settings/people/{bob.pk}/password/", data)
    assert browser.get("/").status_code == 302
    bob.refresh_from_db()
    assert bob.password_is_temporary
    assert bob.check_password("a phrase to tell")


@pytest.mark.parametrize("path", ["role", "password", "deactivate"])
def test_the_forms_open_as_pages_and_as_fragments(
    client_for: ClientFor, alice: User, bob: User, path: str
) -> None:
    client = client_for(alice)
    page = client.get(f"/settings/people/{bob.pk}/{path}/").content.decode()
    fragment = client.get(
        f"/settings/people/{bob.pk}/{path}/", headers={"HX-Request": "true"}
    ).content.decode()
    assert "<html" in page
    assert "<html" not in fragment
    assert 'id="dialog-title"' in fragment
