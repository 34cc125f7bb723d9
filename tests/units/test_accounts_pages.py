"""The dashboard, search, theme, general facts, the audit log and the pages of errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from django.core.exceptions import SuspiciousOperation
from django.db import OperationalError
from django.http import Http404, HttpResponse
from django.test import Client, RequestFactory
from pytest_django import DjangoAssertNumQueries, Settings

from tests.units.conftest import ClientFor
from umpteenth.accounts import context, dashboard, search
from umpteenth.accounts.access import ADMINISTRATORS_ONLY
from umpteenth.accounts.models import AuditEntry, User
from umpteenth.accounts.places import SETTINGS
from umpteenth.accounts.search import Hit
from umpteenth.accounts.services import record_audit
from umpteenth.accounts.views import errors, pages

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


def test_a_banner_stands_on_every_page_while_it_is_true(
    client_for: ClientFor, bob: User, empty_registries: None
) -> None:
    words: list[str | None] = ["No worker has been seen for a minute. Start one: umpteenth up."]
    context.register_banner(lambda request: words[0])
    assert "No worker has been seen" in client_for(bob).get("/").content.decode()
    assert "No worker has been seen" not in Client().get("/sign-in/").content.decode()
    words[0] = None
    assert "No worker has been seen" not in client_for(bob).get("/").content.decode()


def test_steps_show_until_all_are_done(
    client_for: ClientFor, bob: User, empty_registries: None
) -> None:
    step = {"title": "Add a server", "text": "…", "url": "/servers/new/", "action": "Add server"}
    done = {"value": False}
    dashboard.register_step(lambda request: {**step, "done": done["value"]})
    assert "First steps" in client_for(bob).get("/").content.decode()
    done["value"] = True
    assert "First steps" not in client_for(bob).get("/").content.decode()


def test_an_empty_dashboard_says_what_will_be_there(
    client_for: ClientFor, bob: User, empty_registries: None
) -> None:
    assert "Nothing to show yet" in client_for(bob).get("/").content.decode()


def test_search_asks_each_source_for_the_person_and_bounds_it(
    client_for: ClientFor, bob: User, empty_registries: None
) -> None:
    asked: list[tuple[User, str]] = []

    def source(user: User, words: str) -> Iterator[Hit]:
        asked.append((user, words))
        for number in range(10_000):
            yield Hit("Job", f"job {number}", "<b>nightly</b>", f"/jobs/{number}/")

    search.register_source(source)
    search.register_source(source)
    response = client_for(bob).get("/search?q= nightly ", headers=HTMX)
    content = response.content.decode()
    assert asked == [(bob, "nightly")]
    assert content.count('role="option"') == search.MOST_PER_SOURCE
    assert "&lt;b&gt;nightly" in content
    assert "<html" not in content


def test_search_finds_pages_by_their_words_and_role(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    assert "Audit log" in client_for(alice).get("/search?q=audit", headers=HTMX).content.decode()
    assert (
        "Nothing matches" in client_for(bob).get("/search?q=audit", headers=HTMX).content.decode()
    )


def test_search_offers_what_the_person_may_do(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    for person, offered in ((alice, True), (bob, False)):
        content = client_for(person).get("/search?q=person", headers=HTMX).content.decode()
        assert ("Add person" in content) is offered
    content = client_for(bob).get("/search?q=change+pass", headers=HTMX).content.decode()
    assert 'href="/account/password/"' in content


@pytest.mark.parametrize("words", ["\x00", "x" * 5000, "%", "'; --"])
def test_search_takes_any_words(client_for: ClientFor, bob: User, words: str) -> None:
    assert client_for(bob).get("/search", {"q": words}).status_code == 200


def test_the_theme_is_remembered_and_rendered_by_the_server(
    client_for: ClientFor, bob: User
) -> None:
    client = client_for(bob)
    assert 'data-bs-theme="' not in client.get("/").content.decode()
    response = client.post("/account/theme/", {"theme": "dark", "next": "/settings/people/"})
    assert response["Location"] == "/settings/people/"
    assert '<html lang="en" data-bs-theme="dark">' in client.get("/").content.decode()


def test_the_theme_form_leads_to_no_other_site_and_takes_no_other_theme(client: Client) -> None:
    data = {"theme": '"><script>', "next": "https://evil.example/"}
    response = client.post("/account/theme/", data)
    assert response["Location"] == "/"
    assert "theme" not in response.cookies
    client.cookies["theme"] = '"><script>alert(1)</script>'
    assert "<script>alert" not in client.get("/sign-in/").content.decode()


def test_settings_begin_with_the_first_page_that_the_person_may_see(
    client_for: ClientFor, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client_for(bob).get("/settings/")["Location"] == "/settings/secrets/"
    for_administrators_first = sorted(SETTINGS, key=lambda place: not place.administrators)
    monkeypatch.setattr(pages, "SETTINGS", for_administrators_first)
    assert client_for(alice).get("/settings/")["Location"] == "/settings/sandboxes/"
    assert client_for(bob).get("/settings/")["Location"] == "/settings/secrets/"


def test_general_tells_harmless_facts_only(
    client_for: ClientFor, bob: User, settings: Settings
) -> None:
    content = client_for(bob).get("/settings/general/").content.decode()
    assert "SQLite" in content
    assert "Embedded" in content
    assert str(settings.DATA_DIR) not in content
    assert settings.SECRET_KEY not in content


def test_the_audit_log_is_paged_newest_first(
    client_for: ClientFor,
    alice: User,
    empty_registries: None,
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for number in range(60):
        record_audit(
            actor=alice,
            action="job.create",
            kind="job",
            object_id=number,
            object_name=f"job-{number}",
        )
    client = client_for(alice)
    with django_assert_num_queries(4):
        first = client.get("/settings/audit/").content.decode()
    assert "job-59" in first
    assert "1 to 50 of 60" in first
    assert "job-9<" in client.get("/settings/audit/?page=2").content.decode()
    assert client.get("/settings/audit/?page=nonsense").status_code == 200


@pytest.mark.parametrize(
    ("action", "details", "words", "facts"),
    [
        ("server.create", {"copy_of": "time"}, "created", "copy of: time"),
        ("server.update", {"changed": ["name", "url"]}, "changed", "changed: name, url"),
        (
            "server.polished_up",
            {"a": True, "b": None, "c": False},
            "polished up",
            "a: yes; b: none",
        ),
    ],
)
def test_the_audit_log_speaks_in_words(
    client_for: ClientFor,
    alice: User,
    action: str,
    details: dict[str, object],
    words: str,
    facts: str,
) -> None:
    record_audit(
        actor=None,
        action=action,
        kind="server",
        object_id=1,
        object_name="<b>",
        details=details,
    )
    content = client_for(alice).get("/settings/audit/").content.decode()
    assert f"<td>{words}</td>" in content
    assert facts in content
    assert "&lt;b&gt;" in content
    assert "command line" in content


def test_an_audit_entry_keeps_the_name_of_somebody_who_is_gone(bob: User) -> None:
    record_audit(actor=bob, action="x" * 100, kind="job", object_id=1, object_name="y" * 999)
    bob.delete()
    entry = AuditEntry.objects.get()
    assert (entry.actor, entry.actor_name) == (None, "bob")
    assert (len(entry.action), len(entry.object_name)) == (60, 200)


def test_a_page_that_is_not_there_says_so_within_the_frame(
    client_for: ClientFor, bob: User
) -> None:
    response = client_for(bob).get("/nowhere")
    assert response.status_code == 404
    content = response.content.decode()
    assert "Nothing is here" in content
    assert 'class="sidebar"' in content
    stranger = Client().get("/nowhere")
    assert stranger.status_code == 404
    assert 'class="sidebar"' not in stranger.content.decode()


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (Http404("There is no such server. Somebody may have deleted it."), "There is no such ser"),
        (Http404("No Run matches the given query."), "The address is wrong"),
        (Http404(), "The address is wrong"),
    ],
)
def test_a_view_may_say_what_is_gone(rf: RequestFactory, raised: Http404, words: str) -> None:
    content = errors.not_found(rf.get("/"), raised).content.decode()
    assert words in content
    assert "Run matches" not in content


def test_a_refusal_says_who_may(client_for: ClientFor, bob: User) -> None:
    response = client_for(bob).get("/settings/audit/")
    assert response.status_code == 403
    assert ADMINISTRATORS_ONLY in response.content.decode()


def test_htmx_gets_only_the_sentence_of_an_error(client_for: ClientFor, bob: User) -> None:
    content = client_for(bob).get("/settings/audit/", headers=HTMX).content.decode()
    assert "<html" not in content
    assert "data-error" in content
    assert ADMINISTRATORS_ONLY in content


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (400, lambda request: errors.bad_request(request, SuspiciousOperation("odd"))),
        (404, lambda request: errors.not_found(request, Http404())),
        (500, errors.server_error),
    ],
)
def test_errors_have_a_page_each_also_without_session_or_database(
    rf: RequestFactory, status: int, answer: object
) -> None:
    response = answer(rf.get("/"))  # type: ignore[operator]
    assert isinstance(response, HttpResponse)
    assert response.status_code == status
    assert "<h1>" in response.content.decode()


def test_an_exception_becomes_the_page_of_500(
    client_for: ClientFor, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(request: object) -> list[object]:
        raise RuntimeError("a private detail")

    monkeypatch.setattr(dashboard, "_panels", [broken])
    client = client_for(bob)
    client.raise_request_exception = False
    response = client.get("/")
    assert response.status_code == 500
    assert "Something failed on the server" in response.content.decode()
    assert "private detail" not in response.content.decode()
    fragment = client.get("/", headers=HTMX)
    assert (fragment.status_code, "<html" in fragment.content.decode()) == (500, False)


def test_a_database_that_is_away_is_said_and_may_come_back(
    client_for: ClientFor, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(request: object) -> list[object]:
        raise OperationalError("connection refused by 10.0.0.7")

    monkeypatch.setattr(dashboard, "_panels", [away])
    client = client_for(bob)
    client.raise_request_exception = False
    response = client.get("/")
    assert response.status_code == 503
    assert "The database does not answer" in response.content.decode()
    assert "10.0.0.7" not in response.content.decode()
    fragment = client.get("/", headers=HTMX)
    assert (fragment.status_code, "<html" in fragment.content.decode()) == (503, False)


def test_no_page_has_inline_script_or_style(client_for: ClientFor, alice: User) -> None:
    """The content security policy would drop them."""
    client = client_for(alice)
    for url in ("/", "/settings/people/", "/settings/people/add/", "/search", "/nowhere"):
        content = client.get(url).content.decode()
        assert not re.search(r"<[^>]+\s(style|on[a-z]+)=", content), url
        assert not re.search(r"<script(?![^>]*\ssrc=)", content), url
        assert "<style" not in content, url


def test_the_policy_allows_nothing_inline(client: Client) -> None:
    policy = client.get("/sign-in/")["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_the_current_place_is_marked(client_for: ClientFor, alice: User) -> None:
    content = client_for(alice).get("/settings/people/").content.decode()
    marked = re.findall(r'<a href="([^"]+)" class="is-current"', content)
    assert marked[-1] == "/settings/people/"
    assert len(marked) == 2
