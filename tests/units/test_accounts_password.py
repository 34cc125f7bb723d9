"""One's own password."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.conftest import PASSWORD
from tests.units.conftest import ClientFor
from umpteenth.accounts.models import AuditEntry, User

pytestmark = pytest.mark.django_db
URL = "/account/password/"
NEW = "another long phrase"


def test_a_change_keeps_this_session_and_ends_the_others(client_for: ClientFor, bob: User) -> None:
    here, elsewhere = client_for(bob), client_for(bob)
    response = here.post(URL, {"current": PASSWORD, "password": NEW})
    assert response.status_code == 303
    assert here.get("/").status_code == 200
    assert elsewhere.get("/").status_code == 302
    assert Client().post("/sign-in/", {"name": "bob", "password": NEW}).status_code == 303
    assert AuditEntry.objects.get().action == "person.password"


@pytest.mark.parametrize(
    ("current", "new", "sentence"),
    [
        ("wrong", NEW, "The current password is wrong."),
        (PASSWORD, "short", "at least 10 characters"),
        (PASSWORD, "password123", "too common"),
        (PASSWORD, PASSWORD, "the same as the current one"),
        (PASSWORD, "nul\x00nul nul nul", "Null characters are not allowed."),
        ("", NEW, "This field is required."),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(
    client_for: ClientFor, bob: User, current: str, new: str, sentence: str
) -> None:
    response = client_for(bob).post(URL, {"current": current, "password": new})
    assert response.status_code == 422
    content = response.content.decode()
    assert sentence in content
    assert 'aria-invalid="true"' in content
    bob.refresh_from_db()
    assert bob.check_password(PASSWORD)


def test_the_current_password_cannot_be_tried_out(client_for: ClientFor, bob: User) -> None:
    client = client_for(bob)
    data = {"current": "wrong", "password": NEW}
    statuses = [client.post(URL, data).status_code for _ in range(21)]
    assert statuses == [422] * 20 + [429]
