"""Who calls `/api`: tokens, sessions, nobody (issue 4, section 6; RFC 6750)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.views.decorators.http import require_POST
from ninja.errors import HttpError
from pytest_django import Settings

from tests.fakes.api_tokens import new_token, with_token
from tests.units.conftest import ClientFor
from umpteenth.accounts.middleware import CHOOSE_PASSWORD, UNSIGNED
from umpteenth.accounts.models import ApiToken, User
from umpteenth.accounts.views.errors import FORM_EXPIRED
from umpteenth.api import NO_CSRF, BySession
from umpteenth.core.htmx import Request
from umpteenth.urls import handler400, handler403, handler404, handler500, urlpatterns

pytestmark = pytest.mark.django_db
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ABOUT = "/api/"


def probe(request: Request) -> HttpResponse:
    """A plain view of Django below `/api`, such as those of OAuth logins."""
    token = request.api_token
    return JsonResponse({"person": request.user.username, "token": token.name if token else None})


async def asynchronous_probe(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"person": (await request.auser()).get_username()})


@require_POST
def changing(request: HttpRequest) -> HttpResponse:
    return HttpResponse("changed")


def refusing(request: HttpRequest) -> HttpResponse:
    raise PermissionDenied("An API token cannot start a login.")


def breaking(request: HttpRequest) -> HttpResponse:
    raise ValueError("canary-of-the-inside")


@login_not_required
def public(request: HttpRequest) -> HttpResponse:
    return HttpResponse("for everybody")


extra = [
    path("api/probe", probe),
    path("api/asynchronous-probe", asynchronous_probe),
    path("api/changing", changing),
    path("api/refusing", refusing),
    path("api/breaking", breaking),
    path("api/public", public),
    path("probe-elsewhere", probe),
]


class Urls:
    urlpatterns = [*extra, *urlpatterns]
    handler400, handler403 = handler400, handler403
    handler404, handler500 = handler404, handler500


@pytest.fixture(autouse=True)
def _more_urls(settings: Settings) -> None:
    settings.ROOT_URLCONF = Urls


def detail(response: Any) -> str:
    assert response["Content-Type"] == "application/json"
    assert "no-store" in response["Cache-Control"]
    words: str = json.loads(response.content)["detail"]
    return words


def test_a_token_signs_its_owner_in_below_api(bob: User) -> None:
    client = with_token(new_token(bob))
    answer = client.get(ABOUT)
    assert answer.status_code == 200
    assert answer.json() | {"version": ""} == {
        "version": "",
        "person": "bob",
        "role": "member",
        "token": "script",
        "token_expires_at": None,
    }
    assert not answer.cookies


@pytest.mark.parametrize("scheme", ["bearer", "BEARER", "Bearer "])
def test_the_scheme_is_read_in_any_case(bob: User, scheme: str) -> None:
    """RFC 9110, section 11.1."""
    assert with_token(new_token(bob), scheme).get(ABOUT).status_code == 200


def test_a_plain_view_sees_the_token_and_the_person(bob: User) -> None:
    client = with_token(new_token(bob))
    assert client.get("/api/probe").json() == {"person": "bob", "token": "script"}
    assert client.get("/api/asynchronous-probe").json() == {"person": "bob"}


def test_a_token_needs_no_csrf_token_since_no_browser_sends_it_by_itself(bob: User) -> None:
    assert with_token(new_token(bob)).post("/api/probe").json()["token"] == "script"


def test_a_call_with_a_session_keeps_csrf(bob: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(bob, backend="django.contrib.auth.backends.ModelBackend")

    refused = browser.post("/api/probe")
    assert (refused.status_code, detail(refused)) == (403, FORM_EXPIRED)

    browser.get("/account/password/")
    token = browser.cookies["csrftoken"].value
    allowed = browser.post("/api/probe", headers={"X-CSRFToken": token})
    assert allowed.json() == {"person": "bob", "token": None}


def test_routes_of_the_rest_api_keep_csrf_for_sessions_too(rf: RequestFactory, bob: User) -> None:
    """django-ninja exempts its views from Django's own check."""
    request = rf.post("/api/mcp-servers")
    request.user = bob
    request._dont_enforce_csrf_checks = False  # type: ignore[attr-defined]
    with pytest.raises(HttpError) as refused:
        BySession()(request)
    assert (refused.value.status_code, str(refused.value)) == (403, NO_CSRF)
    assert BySession()(_signed(rf.get("/api/mcp-servers"), bob)) == bob
    assert BySession()(_signed(rf.get("/api/mcp-servers"), AnonymousUser())) is None


def _signed(request: HttpRequest, person: User | AnonymousUser) -> HttpRequest:
    request.user = person
    return request


def test_where_token_and_session_come_the_token_decides(
    client_for: ClientFor, alice: User, bob: User
) -> None:
    browser = client_for(alice)
    token = {"Authorization": f"Bearer {new_token(bob)}"}
    assert browser.get("/api/probe", headers=token).json() == {"person": "bob", "token": "script"}
    ApiToken.objects.all().delete()
    assert browser.get("/api/probe", headers=token).status_code == 401
    assert browser.get("/api/probe").json() == {"person": "alice", "token": None}


def test_a_token_is_looked_at_only_below_api(bob: User) -> None:
    client = with_token(new_token(bob))
    for address in ("/probe-elsewhere", "/", "/settings/tokens/", "/settings/tokens/new/"):
        assert client.get(address)["Location"].startswith("/sign-in/")
    assert ApiToken.objects.get().last_used_at is None


def test_a_token_cannot_make_tokens(bob: User) -> None:
    program = with_token(new_token(bob))
    program.handler.enforce_csrf_checks = False  # it is not that alone which stops it
    answer = program.post("/settings/tokens/new/", {"name": "more", "expires": "30"})
    assert answer["Location"].startswith("/sign-in/")
    assert ApiToken.objects.count() == 1


def test_a_token_in_the_address_counts_for_nothing(bob: User) -> None:
    """It would stand in logs of proxies."""
    text = new_token(bob)
    for name in ("access_token", "token", "api_key"):
        assert Client().get("/api/probe", {name: text}).status_code == 401


@pytest.mark.parametrize("text", ["", "ump_wrong", "a b c", "ump_x,Bearer ump_y", "ü", "x" * 5000])
def test_a_bad_token_is_401_with_the_challenge_of_rfc_6750(bob: User, text: str) -> None:
    answer = with_token(text).get(ABOUT)
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == 'Bearer realm="Umpteenth", error="invalid_token"'
    assert "This API token is unknown" in detail(answer)


def test_a_bad_token_is_refused_also_where_everybody_may_come(bob: User) -> None:
    assert with_token("ump_wrong").get("/api/public").status_code == 401
    assert with_token("ump_wrong").get("/healthz").status_code != 401


def test_a_refusal_never_shows_the_token(bob: User) -> None:
    text = new_token(bob)
    ApiToken.objects.update(revoked_at="2026-01-01T00:00Z")
    answer = with_token(text).get(ABOUT)
    assert "revoked" in detail(answer)
    assert text not in f"{answer.content!r}{answer.headers}"


@pytest.mark.parametrize("scheme", ["Basic", "Digest", "Bearerump"])
def test_another_scheme_is_a_proxys_and_left_alone(
    client_for: ClientFor, bob: User, scheme: str
) -> None:
    headers = {"Authorization": f"{scheme} Ym9iOmJvYg=="}
    assert client_for(bob).get("/api/probe", headers=headers).json()["person"] == "bob"
    assert Client().get("/api/probe", headers=headers).status_code == 401


@pytest.mark.parametrize("method", ["get", "post", "put", "delete", "options", "head"])
@pytest.mark.parametrize("address", ["/api/probe", "/api/mcp-servers", "/api/openapi.json"])
def test_nobody_gets_401_and_never_a_redirect(method: str, address: str) -> None:
    answer = getattr(Client(), method)(address)
    assert answer.status_code == 401
    # No error code where nothing was sent (RFC 6750, section 3).
    assert answer["WWW-Authenticate"] == 'Bearer realm="Umpteenth"'
    if method != "head":
        assert detail(answer) == UNSIGNED


def test_a_browser_of_nobody_reads_a_page_that_says_to_sign_in() -> None:
    answer = Client().get("/api/probe", headers=BROWSER)
    assert answer.status_code == 401
    assert 'href="/sign-in/"' in answer.content.decode()


def test_htmx_of_nobody_goes_to_sign_in_and_back_to_its_page() -> None:
    headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/servers/"}
    answer = Client().post("/api/probe", headers=headers)
    assert answer["HX-Redirect"] == "/sign-in/?next=/servers/"


def test_what_is_for_everybody_stays_so() -> None:
    assert Client().get("/api/public").content == b"for everybody"


def test_who_must_choose_a_password_first_is_told(client_for: ClientFor, bob: User) -> None:
    """An administrator who sets a one-time password stops the tokens until it is changed."""
    client = with_token(new_token(bob))
    User.objects.update(password_is_temporary=True)
    for answer in (client.get("/api/probe"), client.get(ABOUT, headers=BROWSER)):
        assert (answer.status_code, detail(answer)) == (403, CHOOSE_PASSWORD)
    assert detail(client_for(bob).get("/api/probe")) == CHOOSE_PASSWORD
    page = client_for(bob).get("/api/probe", headers=BROWSER)
    assert page["Location"] == "/account/password/"


def test_errors_are_json_for_programs_and_pages_for_browsers(
    client_for: ClientFor, bob: User
) -> None:
    program = with_token(new_token(bob))
    refused = program.get("/api/refusing")
    assert (refused.status_code, detail(refused)) == (403, "An API token cannot start a login.")
    missing = program.get("/api/nowhere")
    assert (missing.status_code, detail(missing)[:9]) == (404, "The addre")
    assert Client().get("/api/nowhere").status_code == 404

    page = client_for(bob).get("/api/refusing", headers=BROWSER)
    assert (page.status_code, page["Content-Type"][:9]) == (403, "text/html")
    fragment = client_for(bob).get("/api/refusing", headers={"HX-Request": "true"})
    assert "alert-danger" in fragment.content.decode()


def test_a_method_that_does_not_fit_is_told_with_those_that_do(
    client_for: ClientFor, bob: User
) -> None:
    """RFC 9110, section 15.5.6; of Django's own views below `/api`, too."""
    answer = with_token(new_token(bob)).get("/api/changing")
    assert (answer.status_code, answer["Allow"]) == (405, "POST")
    assert detail(answer) == "This address takes POST only."

    browser = client_for(bob).get("/api/changing", headers=BROWSER)
    assert (browser.status_code, browser["Content-Type"][:9]) == (405, "text/html")


def test_a_failure_inside_is_json_without_its_inside(bob: User) -> None:
    program = with_token(new_token(bob))
    program.raise_request_exception = False
    answer = program.get("/api/breaking")
    assert answer.status_code == 500
    assert answer.json() == {
        "detail": "The request was not finished. The server's log says what went wrong."
    }


def test_elsewhere_errors_stay_pages_whatever_is_accepted(client_for: ClientFor, bob: User) -> None:
    page = client_for(bob).get("/nowhere", headers={"Accept": "application/json"})
    assert page["Content-Type"].startswith("text/html")
