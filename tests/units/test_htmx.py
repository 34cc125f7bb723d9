"""Whole page or fragment, toasts and redirects."""

from __future__ import annotations

import pytest
from django.contrib.messages.storage.session import SessionStorage
from django.contrib.sessions.backends.db import SessionStore
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django_htmx.middleware import HtmxDetails

from tests.units.conftest import ClientFor
from umpteenth.accounts.forms import RoleForm
from umpteenth.accounts.models import User
from umpteenth.core.htmx import hx_redirect, render_form, render_page, toast, wants_fragment

pytestmark = pytest.mark.django_db


def _request(rf: RequestFactory, bob: User, **headers: str) -> HttpRequest:
    request = rf.get("/search", headers=headers)
    request.user = bob
    request.session = SessionStore()
    request._messages = SessionStorage(request)  # type: ignore[attr-defined]
    request.htmx = HtmxDetails(request)  # type: ignore[attr-defined]
    request.resolver_match = None
    return request


PAGE = ("accounts/search.html", {"words": "", "hits": []})


def test_a_browser_gets_the_page_and_htmx_the_fragment(rf: RequestFactory, bob: User) -> None:
    whole = render_page(_request(rf, bob), *PAGE, partial="accounts/_hits.html")
    assert b"<html" in whole.content
    headers = {"HX-Request": "true"}
    part = render_page(_request(rf, bob, **headers), *PAGE, partial="accounts/_hits.html")
    assert b"<html" not in part.content
    assert (whole["Vary"], part["Vary"]) == ("HX-Request", "HX-Request")


@pytest.mark.parametrize("header", ["HX-Boosted", "HX-History-Restore-Request"])
def test_htmx_gets_the_page_where_it_shows_a_page(
    rf: RequestFactory, bob: User, header: str
) -> None:
    request = _request(rf, bob, **{"HX-Request": "true", header: "true"})
    assert not wants_fragment(request)
    assert b"<html" in render_page(request, *PAGE, partial="accounts/_hits.html").content


def test_a_page_without_fragment_is_whole_for_htmx_too(rf: RequestFactory, bob: User) -> None:
    assert b"<html" in render_page(_request(rf, bob, **{"HX-Request": "true"}), *PAGE).content


@pytest.mark.parametrize(
    ("form", "refused", "status"),
    [(RoleForm(), False, 200), (RoleForm(), True, 422), (RoleForm({}), False, 422)],
    ids=["shown", "refused", "sent"],
)
def test_a_form_comes_as_page_or_fragment_and_says_whether_it_was_refused(
    rf: RequestFactory, bob: User, form: RoleForm, refused: bool, status: int
) -> None:
    template, context = "accounts/person_role.html", {"form": form, "person": bob}
    whole = render_form(_request(rf, bob), template, context, refused=refused)
    fragment = _request(rf, bob, **{"HX-Request": "true"})
    part = render_form(fragment, template, context, refused=refused)
    assert (whole.status_code, part.status_code) == (status, status)
    assert b"<html" in whole.content
    assert b"<html" not in part.content
    assert b"<form" in part.content


def test_toasts_go_along_with_a_fragment_and_are_shown_once(rf: RequestFactory, bob: User) -> None:
    request = _request(rf, bob, **{"HX-Request": "true"})
    toast(request, "github <b>is</b> enabled.", undo_url="/servers/1/enabled/")
    content = render_page(request, *PAGE, partial="accounts/_hits.html").content.decode()
    assert 'hx-swap-oob="beforeend:#toasts"' in content
    assert "github &lt;b&gt;is&lt;/b&gt; enabled." in content
    assert 'action="/servers/1/enabled/"' in content
    assert "Undo" in content
    request._messages.update(HttpResponse())  # type: ignore[attr-defined]
    later = _request(rf, bob, **{"HX-Request": "true"})
    later.session = request.session
    later._messages = SessionStorage(later)  # type: ignore[attr-defined]
    again = render_page(later, *PAGE, partial="accounts/_hits.html").content.decode()
    assert "enabled." not in again


@pytest.mark.parametrize("level", ["success", "error", "info"])
def test_a_toast_has_its_level(rf: RequestFactory, bob: User, level: str) -> None:
    request = _request(rf, bob)
    toast(request, "words", level=level)  # type: ignore[arg-type]
    content = render_page(request, *PAGE).content.decode()
    assert f"toast-{level}" in content
    assert "Undo" not in content


def test_a_redirect_waits_with_its_toast_for_the_next_page(
    client_for: ClientFor, alice: User
) -> None:
    client = client_for(alice)
    data = {"name": "carol", "password": "a phrase to tell", "role": "member"}
    response = client.post("/settings/people/add/", data, headers={"HX-Request": "true"})
    assert (response.status_code, response["HX-Redirect"]) == (200, "/settings/people/")
    assert "carol can sign in now." in client.get("/settings/people/").content.decode()


def test_a_redirect_without_htmx_is_see_other(rf: RequestFactory, bob: User) -> None:
    response = hx_redirect(_request(rf, bob), "/jobs/")
    assert (response.status_code, response["Location"]) == (303, "/jobs/")
