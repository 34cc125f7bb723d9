"""Addresses behind proxies, and what goes with every page."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from pytest_django import Settings

from tests.units.conftest import ClientFor
from umpteenth.accounts.models import User
from umpteenth.core.config import AppOptions
from umpteenth.core.middleware import ClientAddressMiddleware, client_address

PROXIES = ("10.0.0.0/8", "2001:db8:aa::/48")


def _seen(
    rf: RequestFactory, settings: Settings, proxies: tuple[str, ...], **meta: str
) -> HttpRequest:
    app = AppOptions(trusted_proxies=proxies)
    settings.OPTIONS = settings.OPTIONS.model_copy(update={"app": app})
    requests: list[HttpRequest] = []

    def view(request: HttpRequest) -> HttpResponse:
        requests.append(request)
        return HttpResponse()

    extra: dict[str, Any] = {**meta}
    ClientAddressMiddleware(view)(rf.get("/", **extra))
    return requests[0]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        # Nobody is trusted: what the peer says about itself counts for nothing.
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("10.1.1.1", "198.51.100.1", "198.51.100.1"),
        # Right-most address that is no proxy; what stands left of it is hearsay.
        ("10.1.1.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.1.1.1", "1.1.1.1, 198.51.100.1, 10.2.2.2", "198.51.100.1"),
        ("10.1.1.1", "10.3.3.3, 10.2.2.2", "10.3.3.3"),
        ("10.1.1.1", "", "10.1.1.1"),
        ("10.1.1.1", "nonsense", "10.1.1.1"),
        ("10.1.1.1", "198.51.100.1, nonsense, 10.2.2.2", "10.2.2.2"),
        ("10.1.1.1", "198.51.100.1:4711", "198.51.100.1"),
        ("10.1.1.1", "[2001:db8:bb::1]:443", "2001:db8:bb::1"),
        ("::ffff:10.1.1.1", "198.51.100.1", "198.51.100.1"),
        ("2001:db8:aa::1", "2001:db8:bb::1", "2001:db8:bb::1"),
    ],
)
def test_the_client_is_the_nearest_address_that_is_no_proxy(
    rf: RequestFactory, settings: Settings, peer: str, forwarded: str, client: str
) -> None:
    request = _seen(rf, settings, PROXIES, REMOTE_ADDR=peer, HTTP_X_FORWARDED_FOR=forwarded)
    assert request.META["REMOTE_ADDR"] == client


def test_without_trusted_proxies_forwarded_headers_are_dropped(
    rf: RequestFactory, settings: Settings
) -> None:
    request = _seen(
        rf,
        settings,
        (),
        REMOTE_ADDR="127.0.0.1",
        HTTP_X_FORWARDED_FOR="198.51.100.1",
        HTTP_X_FORWARDED_PROTO="https",
        HTTP_X_FORWARDED_HOST="evil.example",
    )
    assert request.META["REMOTE_ADDR"] == "127.0.0.1"
    assert not [name for name in request.META if name.startswith("HTTP_X_FORWARDED")]


def test_a_trusted_proxy_says_whether_the_client_came_by_https(
    rf: RequestFactory, settings: Settings
) -> None:
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    meta = {"HTTP_X_FORWARDED_PROTO": "https"}
    assert _seen(rf, settings, PROXIES, REMOTE_ADDR="10.1.1.1", **meta).is_secure()
    assert not _seen(rf, settings, PROXIES, REMOTE_ADDR="203.0.113.5", **meta).is_secure()


def test_a_request_over_a_unix_socket_has_no_address(
    rf: RequestFactory, settings: Settings
) -> None:
    request = _seen(rf, settings, PROXIES, REMOTE_ADDR="", HTTP_X_FORWARDED_FOR="198.51.100.1")
    assert request.META["REMOTE_ADDR"] == ""
    assert client_address(request) == "0.0.0.0"


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
    ],
)
def test_limits_count_ipv6_by_network(rf: RequestFactory, address: str, counted: str) -> None:
    assert client_address(rf.get("/", REMOTE_ADDR=address)) == counted


@pytest.mark.django_db
def test_no_page_is_stored_by_the_browser(client_for: ClientFor, bob: User) -> None:
    for client in (client_for(bob), Client()):
        for url in ("/", "/sign-in/", "/nowhere"):
            assert client.get(url)["Cache-Control"] == "no-store"


@pytest.mark.django_db
def test_static_files_may_be_stored(client: Client) -> None:
    response = client.get("/static/css/umpteenth.css")
    assert response.status_code == 200
    assert "no-store" not in response["Cache-Control"]
    response.close()


@pytest.mark.django_db
def test_htmx_opens_sign_in_as_a_page_when_the_session_has_ended(client: Client) -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/settings/people/?a=1"}
    response = client.get("/search?q=x", headers=headers)
    assert response.status_code == 200
    assert response["HX-Redirect"] == "/sign-in/?next=/settings/people/%3Fa%3D1"
    assert response.content == b""


@pytest.mark.django_db
def test_a_temporary_password_opens_only_the_form_that_changes_it(
    client_for: ClientFor, bob: User
) -> None:
    User.objects.filter(pk=bob.pk).update(password_is_temporary=True)
    client = client_for(bob)
    assert client.get("/")["Location"] == "/account/password/"
    fragment = client.get("/search?q=x", headers={"HX-Request": "true"})
    assert fragment["HX-Redirect"] == "/account/password/"
    assert client.get("/account/password/").status_code == 200
    assert client.get("/account/password/").content.count(b"First steps") == 0
    assert client.post("/sign-out/").status_code == 303
