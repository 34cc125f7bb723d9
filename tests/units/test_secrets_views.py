"""Settings, Secrets, and the list behind the key button (P11, P12)."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from jobs.models import Job, JobSecret
from secrets_vault import keyring, usage
from secrets_vault.models import Secret
from secrets_vault.services import Target, Usage, secret_value
from tests.fakes.secret_pages import CANARY, CREATE, LIST, OPTIONS, QUICK, fill, make, page, post
from tests.fakes.vault import use_ring_in
from umpteenth.accounts.models import User
from umpteenth.core import masking

pytestmark = pytest.mark.django_db
SCRIPT = "<img src=x onerror=alert(1)>\"'&</script>"


@pytest.fixture(autouse=True)
def ring_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(masking, "_known", masking._KnownValues())
    return use_ring_in(monkeypatch, tmp_path)


def toasts(client: Client) -> str:
    return unescape(page(client, LIST))


# Who may


ADMINISTRATORS = ["create", "edit", "delete", "quick"]


def _url(name: str) -> str:
    needs_secret = name in ("edit", "delete")
    return reverse(f"secrets:{name}", args=[make("T").pk] if needs_secret else [])


@pytest.mark.parametrize("name", ["list", "options", *ADMINISTRATORS])
def test_nobody_without_signing_in(client: Client, name: str) -> None:
    response = client.get(_url(name))

    assert response.status_code == 302
    assert response["Location"].startswith("/sign-in/")


@pytest.mark.parametrize("name", ADMINISTRATORS)
def test_members_change_nothing(member_client: Client, name: str) -> None:
    url = _url(name)

    assert "administrator" in page(member_client, url, 403)
    assert member_client.post(url, {"name": "X", "value": CANARY}).status_code == 403
    assert set(Secret.objects.values_list("name", flat=True)) <= {"T"}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("list", "post"),
        ("options", "post"),
        ("create", "put"),
        ("edit", "delete"),
        ("quick", "put"),
    ],
)
def test_other_methods_are_refused(administrator_client: Client, name: str, method: str) -> None:
    assert getattr(administrator_client, method)(_url(name)).status_code == 405


def test_an_unknown_secret_is_not_found(administrator_client: Client) -> None:
    row = "019a0000-0000-7000-8000-000000000001"

    page(administrator_client, reverse("secrets:edit", args=[row]), 404)
    page(administrator_client, reverse("secrets:delete", args=[row]), 404)


# List


def test_an_empty_list_teaches_and_offers_the_first(administrator_client: Client) -> None:
    text = page(administrator_client, LIST)

    assert "No secrets yet" in text
    assert "New secret" in text
    assert "secrets-q" not in text


def test_an_empty_list_tells_members_who_can_add(member_client: Client) -> None:
    text = page(member_client, LIST)

    assert "An administrator can add the first one" in text
    assert CREATE not in text


def test_the_list_shows_everything_but_the_value(
    administrator_client: Client, administrator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = [Usage("job", "digest", "/jobs/d/")] + [
        Usage("server", f"server-{n}", f"/servers/{n}/") for n in range(3)
    ]
    monkeypatch.setattr(usage, "_finders", [lambda names: dict.fromkeys(names, uses)])
    secret = make(
        "TOKEN",
        description="for GitHub",
        open_to_members=True,
        allowed_hosts=["a.example", "b.example", "c.example"],
        allowed_servers=["github"],
        allowed_jobs=["digest"],
    )
    Secret.objects.filter(pk=secret.pk).update(
        updated_by=administrator, last_used_at=timezone.now()
    )

    text = page(administrator_client, LIST)

    for words in (
        "TOKEN", "for GitHub", "Members", "/jobs/d/", "server-0", "2 more", "server-2", "a.example",
        "b.example", "and others", "server github", "job digest", "just now", "by alice",
    ):  # fmt: skip
        assert words in text
    assert "host c.example" not in text


def test_members_read_the_list_without_its_actions(member_client: Client) -> None:
    secret = make("TOKEN", description="for GitHub")

    text = page(member_client, LIST)

    assert "TOKEN" in text
    assert "for GitHub" in text
    assert reverse("secrets:edit", args=[secret.pk]) not in text
    assert reverse("secrets:delete", args=[secret.pk]) not in text


def test_a_secret_that_cannot_be_decrypted_is_marked_and_can_be_entered_again(
    administrator_client: Client,
) -> None:
    """E09."""
    secret = make("BROKEN")
    Secret.objects.filter(pk=secret.pk).update(key_id="gone")

    assert "Cannot be decrypted" in page(administrator_client, LIST)
    url = reverse("secrets:edit", args=[secret.pk])
    text = page(administrator_client, url)
    assert "Secret cannot be decrypted, enter it again" in text
    assert "Key gone is missing" in text

    assert administrator_client.post(url, {"value": "entered again"}).status_code == 303
    assert secret_value(Secret.objects.get(), target=Target()) == "entered again"
    assert "Cannot be decrypted" not in page(administrator_client, LIST)


def test_pages_work_while_the_key_ring_is_away(
    administrator_client: Client, ring_file: Path
) -> None:
    secret = make("T")
    ring_file.unlink()
    keyring.forget_ring()

    assert "Cannot be decrypted" in page(administrator_client, LIST)
    url = reverse("secrets:edit", args=[secret.pk])
    assert "enter it again" in page(administrator_client, url)
    for address in (url, CREATE, QUICK):
        data = {"name": "NEW", "value": CANARY}
        text = unescape(post(administrator_client, address, data, 422))
        assert f"Key {secret.key_id} is missing" in text


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("git", ["GITHUB"]),
        ("GITHUB", ["GITHUB"]),
        ("slack deploy", ["SLACK"]),
        ("e", ["GITHUB", "SLACK"]),
        ("nothing", []),
        ("%", []),
        ("'; DROP TABLE", []),
    ],
)
def test_search_looks_in_names_and_descriptions(
    administrator_client: Client, words: str, found: list[str]
) -> None:
    make("GITHUB", description="the repository")
    make("SLACK", description="deploy channel")

    text = page(administrator_client, f"{LIST}?q={words}")

    assert [name for name in ("GITHUB", "SLACK") if f">{name}<" in text] == found
    assert ("No secret matches" in text) is (not found)


@pytest.mark.parametrize("query", ["?q=" + "x" * 201, "?q=%00", "?page=999", "?page=x"])
def test_odd_queries_show_the_list(administrator_client: Client, query: str) -> None:
    make("TOKEN")

    assert "TOKEN" in page(administrator_client, LIST + query)


def test_htmx_gets_the_table_alone(administrator_client: Client) -> None:
    make("TOKEN")

    text = page(administrator_client, f"{LIST}?q=t", htmx=True)

    assert "TOKEN" in text
    assert "<html" not in text


@pytest.mark.parametrize("address", [LIST, OPTIONS])
def test_a_thousand_secrets_take_as_many_queries_as_ten(
    administrator_client: Client, address: str
) -> None:
    fill(9)
    administrator_client.get(address)
    with CaptureQueriesContext(connection) as ten:
        administrator_client.get(address)
    Secret.objects.all().delete()
    fill(999)
    with CaptureQueriesContext(connection) as thousand:
        response = administrator_client.get(address)

    # The key button counts what it does not show.
    assert len(thousand) - len(ten) in ((0,) if address == LIST else (0, 1))
    assert len(thousand) <= 12
    assert len(response.content) < 120_000


def test_a_long_list_has_pages(administrator_client: Client) -> None:
    fill(119)

    first = page(administrator_client, f"{LIST}?q=S")
    last = page(administrator_client, f"{LIST}?q=S&page=3")

    assert "1 to 50 of 120" in first
    assert 'rel="next"' in first
    assert 'rel="prev"' not in first
    assert "101 to 120 of 120" in last
    assert 'rel="next"' not in last
    assert "q=S&amp;page=2" in last


def test_markup_in_names_and_words_is_shown_as_text(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I10."""
    uses = [Usage("server", SCRIPT, "/servers/1/")]
    monkeypatch.setattr(usage, "_finders", [lambda names: dict.fromkeys(names, uses)])
    secret = make("T", description=SCRIPT, allowed_jobs=[SCRIPT], allowed_servers=[SCRIPT])

    for url in (
        LIST,
        f"{LIST}?q={SCRIPT}",
        OPTIONS,
        f"{OPTIONS}?q={SCRIPT}",
        reverse("secrets:edit", args=[secret.pk]),
        reverse("secrets:delete", args=[secret.pk]),
    ):
        text = page(administrator_client, url)
        assert "<img src=x" not in text
        assert "&lt;img" in text


# Create


def test_a_secret_is_created_and_told(administrator_client: Client, administrator: User) -> None:
    assert "Create secret" in page(administrator_client, CREATE)

    response = administrator_client.post(
        CREATE,
        {
            "name": "TOKEN",
            "value": f"{CANARY}\r\n",
            "description": "words",
            "open_to_members": "on",
            "allowed_hosts": "a.example\r\nb.example",
            "allowed_servers": "",
            "allowed_jobs": "nightly digest",
        },
    )

    assert (response.status_code, response["Location"]) == (303, LIST)
    secret = Secret.objects.get()
    assert (secret.name, secret.description, secret.open_to_members) == ("TOKEN", "words", True)
    assert secret.allowed_hosts == ["a.example", "b.example"]
    assert secret.allowed_jobs == ["nightly digest"]
    assert secret.updated_by == administrator
    words = toasts(administrator_client)
    assert "Secret TOKEN created." in words
    assert "The line break at the end of the value was removed." in words
    target = Target(job="nightly digest")
    assert secret_value(secret, target=target) == CANARY


def test_line_ends_inside_are_kept_as_they_were_pasted(administrator_client: Client) -> None:
    """Browsers send CRLF for every line end of a text area."""
    administrator_client.post(CREATE, {"name": "KEY", "value": "one\r\ntwo\r\n"})

    assert secret_value(Secret.objects.get(), target=Target()) == "one\ntwo"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"name": ""}, "Enter a name."),
        ({"name": "a b"}, "The name must be 1 to 100 letters"),
        ({"name": "TAKEN"}, "There is already a secret named TAKEN."),
        ({"allowed_hosts": "https://x"}, "is no host name"),
        ({"description": "x" * 501}, "at most 500 characters"),
        ({"description": "a\x00"}, "Null characters are not allowed."),
    ],
)
def test_a_refused_form_says_why_and_asks_for_the_value_again(
    administrator_client: Client, data: dict[str, str], words: str
) -> None:
    """The value is never in a form again (E07)."""
    make("TAKEN")

    text = post(administrator_client, CREATE, {"name": "T", "value": CANARY, **data}, 422)

    assert words in unescape(text)
    assert "Enter the value again" in text
    assert re.search(r"<textarea[^>]*name=\"value\"[^>]*>\s*</textarea>", text)
    assert Secret.objects.count() == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [("", "Enter a value."), ("  ", "The value is empty"), ("x" * 65_537, "at most 65,536")],
)
def test_a_bad_value_is_refused(administrator_client: Client, value: str, words: str) -> None:
    text = post(administrator_client, CREATE, {"name": "T", "value": value}, 422)

    assert words in text
    assert "Enter the value again" not in text


def test_a_description_too_long_after_cleaning_is_no_server_error(
    administrator_client: Client,
) -> None:
    data = {"name": "T", "value": CANARY, "description": "\ud7ff" * 500}

    assert administrator_client.post(CREATE, data).status_code == 303


def test_the_dialog_gets_the_form_alone(administrator_client: Client) -> None:
    text = page(administrator_client, CREATE, htmx=True)

    assert "dialog-foot" in text
    assert "<html" not in text


def test_htmx_is_sent_back_to_the_list(administrator_client: Client) -> None:
    response = administrator_client.post(
        CREATE, {"name": "T", "value": CANARY}, headers={"HX-Request": "true"}
    )

    assert response["HX-Redirect"] == LIST


# Edit


def test_editing_keeps_the_value_unless_there_is_a_new_one(administrator_client: Client) -> None:
    secret = make("TOKEN", description="old", allowed_hosts=["a.example"])
    url = reverse("secrets:edit", args=[secret.pk])
    form = page(administrator_client, url)
    assert "old" in form
    assert "a.example" in form
    assert 'secret-limits" open' in form

    administrator_client.post(url, {"description": "new"})

    secret.refresh_from_db()
    assert (secret.description, secret.allowed_hosts) == ("new", [])
    assert secret_value(secret, target=Target()) == CANARY
    assert "Secret TOKEN saved." in toasts(administrator_client)

    administrator_client.post(url, {"value": " next "})

    secret.refresh_from_db()
    assert secret_value(secret, target=Target()) == "next"
    words = toasts(administrator_client)
    assert "Secret TOKEN has a new value. Spaces and line breaks" in words


def test_a_refused_edit_changes_nothing(administrator_client: Client) -> None:
    secret = make("TOKEN")
    url = reverse("secrets:edit", args=[secret.pk])

    text = post(administrator_client, url, {"value": "x", "allowed_hosts": "a b"}, 422)

    assert "is no host name" in text
    assert "a b" in text
    assert secret_value(secret, target=Target()) == CANARY


# Delete


def test_deleting_asks_and_says_that_nothing_uses_it(administrator_client: Client) -> None:
    url = reverse("secrets:delete", args=[make("TOKEN").pk])

    assert "Nothing uses it." in page(administrator_client, url)
    assert Secret.objects.exists()

    assert administrator_client.post(url).status_code == 303
    assert not Secret.objects.exists()
    assert "Secret TOKEN deleted." in toasts(administrator_client)


def test_deleting_says_what_uses_it(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    uses = [Usage("server", "github", "/servers/1/")]
    monkeypatch.setattr(usage, "_finders", [lambda names: dict.fromkeys(names, uses)])
    url = reverse("secrets:delete", args=[make("TOKEN").pk])

    text = page(administrator_client, url)

    assert "github" in text
    assert "stop working until a secret named TOKEN exists again" in text


def test_a_secret_in_a_jobs_environment_must_be_taken_out_first(
    administrator_client: Client,
) -> None:
    secret = make("TOKEN")
    job = Job.objects.create(name="digest", script="#!/bin/sh")
    JobSecret.objects.create(job=job, variable="TOKEN", secret=secret)
    url = reverse("secrets:delete", args=[secret.pk])

    text = page(administrator_client, url)
    assert "digest" in text
    assert "Take it out of the job" in text
    assert "Delete secret" not in text

    assert "mapped into jobs" in post(administrator_client, url, {}, 422)
    assert Secret.objects.exists()
