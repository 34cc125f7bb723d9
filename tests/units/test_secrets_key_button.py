"""The key button: a list of secrets by name, and a small form for a new one (P12)."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest
from django.test import Client

from secrets_vault.models import Secret
from secrets_vault.services import Target, secret_value
from tests.fakes.secret_pages import CANARY, CREATE, OPTIONS, QUICK, fill, make, page, post
from tests.fakes.vault import use_ring_in
from umpteenth.core import masking

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(masking, "_known", masking._KnownValues())
    return use_ring_in(monkeypatch, tmp_path)


def test_the_key_button_offers_secrets_by_name(administrator_client: Client) -> None:
    make("GITHUB", description="the repository")
    make("SLACK")

    text = page(administrator_client, f"{OPTIONS}?q=git")

    assert 'data-secret="GITHUB"' in text
    assert "the repository" in text
    assert "SLACK" not in text
    assert "New secret…" in text


def test_members_are_offered_what_is_open_to_them(member_client: Client) -> None:
    make("CLOSED")
    assert "No secret is open to members" in page(member_client, OPTIONS)
    make("OPEN", open_to_members=True)

    text = page(member_client, OPTIONS)

    assert 'data-secret="OPEN"' in text
    assert "CLOSED" not in text
    assert "New secret" not in text


def test_many_options_are_cut_and_counted(administrator_client: Client) -> None:
    fill(39)

    text = page(administrator_client, OPTIONS)

    assert text.count("data-secret=") == 30
    assert "10 more; type to find them." in text


def test_no_options_say_so(administrator_client: Client) -> None:
    assert "No secrets yet." in page(administrator_client, OPTIONS)
    text = page(administrator_client, f"{OPTIONS}?q=zzz")
    assert "No secret matches “zzz”." in text


def test_a_new_secret_is_made_at_the_key_button(administrator_client: Client) -> None:
    assert 'value="TOKEN"' in page(administrator_client, f"{QUICK}?q=TOKEN")

    text = post(administrator_client, QUICK, {"name": "TOKEN", "value": f" {CANARY}"}, 200)

    assert 'data-secret-created="TOKEN"' in text
    assert "Spaces and line breaks around the value were removed." in text
    assert secret_value(Secret.objects.get(), target=Target()) == CANARY


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": "TAKEN", "value": CANARY}, "There is already a secret named TAKEN."),
        ({"name": "a b", "value": CANARY}, "The name must be"),
        ({"name": "T", "value": ""}, "Enter a value."),
    ],
)
def test_the_key_buttons_form_says_what_is_wrong(
    administrator_client: Client, data: dict[str, str], words: str
) -> None:
    make("TAKEN")

    text = post(administrator_client, QUICK, data, 422)

    assert words in unescape(text)
    assert "data-secret-created" not in text


def test_ids_of_the_forms_do_not_meet_those_of_the_page_below(
    administrator_client: Client,
) -> None:
    for url in (CREATE, QUICK):
        assert 'id="id_name"' not in page(administrator_client, url)
