"""`GET /api/mcp-servers` and `/api/mcp-servers/<id>` (issue 4, section 6)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, get_args
from uuid import uuid4

import jsonschema_rs
import pytest
from click.testing import CliRunner
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from secrets_vault.services import ensure_key_ring, set_secret
from servers import facts
from servers.api import Details, OAuth, State, Summary, Wanted
from servers.api import Login as LoginSchema
from servers.forms.lists import STATES, ServerFilter
from servers.mcp.types import ServerUnavailable
from servers.models import Login, Server
from servers.services import store_failure
from tests.fakes.api_tokens import new_token, with_token
from tests.fakes.login_rows import ACCESS, ISSUER, REFRESH, logged_in, oauth_server
from tests.fakes.server_rows import after_success, http_server, stdio_server
from tests.units.conftest import ClientFor
from umpteenth.accounts.models import User
from umpteenth.accounts.views.errors import FAILED, NO_DATABASE
from umpteenth.cli import mcp, mcp_show
from umpteenth.core import clock

pytestmark = pytest.mark.django_db
CANARY = "canary-value-77d1"


@pytest.fixture(autouse=True)
def _ring(db: None) -> None:
    ensure_key_ring()


@pytest.fixture
def program(member: User) -> Client:
    """A member's: members see servers (I19)."""
    return with_token(new_token(member))


def listed(program: Client, **query: Any) -> list[str]:
    answer = program.get("/api/mcp-servers", query)
    assert answer.status_code == 200, answer.content
    return [server["name"] for server in answer.json()["items"]]


def test_the_list_tells_what_mcp_list_tells(
    program: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server looks the same from every side."""
    after_success(stdio_server("everything"), "a", "b")
    http_server("github", headers={"Authorization": f"Bearer {CANARY}"})
    monkeypatch.setattr(mcp, "setup", lambda: None)

    answer = program.get("/api/mcp-servers").json()

    printed = CliRunner().invoke(mcp.command, ["list", "--json"])
    assert answer == {"items": json.loads(printed.stdout), "count": 2}
    assert [server["auth"] for server in answer["items"]] == ["none", "bearer_token"]


def test_one_server_is_told_as_mcp_show_tells_it(
    program: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = after_success(stdio_server("everything", env={"KEY": CANARY}), "a", "b")
    monkeypatch.setattr(mcp_show, "setup", lambda: None)

    answer = program.get(f"/api/mcp-servers/{server.pk}").json()

    printed = json.loads(CliRunner().invoke(mcp.command, ["show", "everything", "--json"]).stdout)
    only_operators = {"headers", "env", "has_query", "client_secret"}
    assert {**answer, **{key: printed[key] for key in only_operators}} == printed
    assert [tool["name"] for tool in answer["tool_list"]] == ["a", "b"]


def test_every_fact_stands_in_the_openapi_document() -> None:
    """What a schema does not name would be left out without a word."""
    server = http_server()
    assert set(facts.summary(server)) == set(Summary.model_fields)
    assert {*facts.summary(server), *facts.details(server)} == set(Details.model_fields)


def test_the_list_takes_every_filter_that_the_page_has() -> None:
    assert get_args(State) == tuple(name for name, _ in STATES)
    assert set(ServerFilter.base_fields) < set(Wanted.model_fields)


def test_no_secret_is_told(program: Client) -> None:
    set_secret(actor=None, name="TOKEN", value=CANARY)
    server = http_server(
        headers={"X-Key": CANARY, "X-Other": "{{secret:TOKEN}}"},
        url=f"https://user.example/mcp?key={CANARY}",
    )
    stdio_server(env={"KEY": CANARY})

    for address in ("/api/mcp-servers", f"/api/mcp-servers/{server.pk}"):
        text = program.get(address).content.decode()
        assert CANARY not in text
    one = program.get(f"/api/mcp-servers/{server.pk}").json()
    assert one["secrets"] == ["TOKEN"]
    assert one["endpoint"] == "https://user.example/mcp"


@pytest.fixture
def logged_in_server(member: User) -> Server:
    """With everything that can be told of a login."""
    server = oauth_server(
        oauth_error="Nothing at https://a.example",
        oauth_client_id="own-client",
        oauth_scopes="read",
        oauth_wanted="admin",
        oauth_failure="It was not approved.",
    )
    logged_in(
        server,
        lasts=timedelta(hours=1),
        logged_in_by=member,
        scopes="read",
        refreshed_at=clock.now(),
        refresh_failures=1,
    )
    return server


def test_a_login_is_told_without_its_tokens(program: Client, logged_in_server: Server) -> None:
    answer = program.get(f"/api/mcp-servers/{logged_in_server.pk}")
    told = answer.json()
    assert told["auth"] == "oauth"
    assert told["login"]["state"] == "usable"
    assert told["login"]["by"] == "bob"
    assert told["login"]["warning"].startswith("The login could not be refreshed")
    assert told["oauth"]["issuer"] == told["login"]["issuer"] == ISSUER
    for secret in (ACCESS, REFRESH):
        assert secret not in answer.content.decode()


def test_every_fact_of_a_login_stands_in_the_openapi_document(logged_in_server: Server) -> None:
    told = facts.details(logged_in_server)
    assert set(told["oauth"]) == set(OAuth.model_fields)
    Login.objects.update(ended="refused", ended_at=clock.now(), ended_reason="invalid_grant")
    over = facts.details(Server.objects.get())
    assert {*told["login"], *over["login"]} == set(LoginSchema.model_fields)


def test_a_failure_is_told_in_the_servers_words(program: Client) -> None:
    server = http_server()
    store_failure(server, ServerUnavailable('It said <b>"no"</b>'))
    one = program.get(f"/api/mcp-servers/{server.pk}").json()
    assert (one["state"], one["last_error"], one["failures"]) == (
        "failed",
        'It said <b>"no"</b>',
        1,
    )
    assert one["checked_at"].startswith(f"{clock.now():%Y-}")


def test_pages_follow_one_another(program: Client) -> None:
    for number in range(5):
        http_server(f"s{number}")

    assert listed(program, limit=2) == ["s0", "s1"]
    assert listed(program, limit=2, offset=4) == ["s4"]
    assert listed(program, offset=5) == []
    assert program.get("/api/mcp-servers", {"limit": 1}).json()["count"] == 5


def test_the_list_is_filtered_like_the_page(program: Client) -> None:
    http_server("github", description="issues and code")
    stdio_server("everything")
    Server.objects.filter(name="everything").update(enabled=False)

    assert listed(program, q="code git") == ["github"]
    assert listed(program, transport="stdio") == ["everything"]
    assert listed(program, auth="none") == ["everything"]
    assert listed(program, state="disabled") == ["everything"]
    assert listed(program, state="trouble") == []
    assert listed(program, state="login_ending") == []


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 201}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"offset": -1}, "offset"),
        ({"offset": 10**30}, "offset"),
        ({"transport": "telepathy"}, "transport"),
        ({"auth": "x"}, "auth"),
        ({"state": "fine"}, "state"),
        ({"q": "\x00"}, "q"),
        ({"q": "x" * 201}, "q"),
    ],
)
def test_a_wrong_parameter_is_named(program: Client, query: dict[str, Any], field: str) -> None:
    answer = program.get("/api/mcp-servers", query)
    assert answer.status_code == 422
    fault = answer.json()
    assert fault["detail"].startswith(f"{field}: ")
    assert {one["field"] for one in fault["errors"]} == {field}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("0190a0b0-0000-7000-8000-000000000000", "deleted it"),
        ("github", "The address is wrong"),
        ("../../etc", "The address is wrong"),
    ],
)
def test_a_server_that_is_not_there_is_404(program: Client, name: str, words: str) -> None:
    answer = program.get(f"/api/mcp-servers/{name}")
    assert answer.status_code == 404
    assert words in answer.json()["detail"]


@pytest.mark.parametrize(
    ("failure", "status", "words"),
    [
        (OperationalError("canary-of-the-inside"), 503, NO_DATABASE["text"]),
        (ValueError("canary-of-the-inside"), 500, FAILED["text"]),
    ],
)
def test_a_failure_inside_a_route_is_json_without_its_inside(
    program: Client,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    status: int,
    words: str,
) -> None:
    def fail(**filters: str) -> None:
        raise failure

    monkeypatch.setattr("servers.api.find_servers", fail)
    program.raise_request_exception = False
    answer = program.get("/api/mcp-servers")
    assert (answer.status_code, answer.json()) == (status, {"detail": words})


def test_only_reading_is_offered_so_far(program: Client) -> None:
    server = http_server()
    for address in ("/api/mcp-servers", f"/api/mcp-servers/{server.pk}"):
        for method in (program.post, program.put, program.patch, program.delete):
            answer = method(address)
            assert (answer.status_code, answer["Allow"]) == (405, "GET, HEAD")
            assert answer.json() == {"detail": "This address takes GET, HEAD only."}
    assert Server.objects.count() == 1


def test_every_route_that_is_read_answers_head_as_get(
    program: Client, document: dict[str, Any]
) -> None:
    """RFC 9110, section 9.1."""
    server = http_server()
    read = [path for path, operations in document["paths"].items() if "get" in operations]
    assert len(read) >= 3
    for path in read:
        address = path.replace("{id}", str(server.pk))
        answer = program.head(address)
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer["Content-Type"] == program.get(address)["Content-Type"]
    assert program.head("/api/mcp-servers", {"limit": 0}).status_code == 422


def test_a_browsers_session_reads_it_too(client_for: ClientFor, bob: User) -> None:
    http_server()
    assert client_for(bob).get("/api/mcp-servers").json()["count"] == 1


def test_the_list_asks_equally_often_for_any_number_of_servers(program: Client) -> None:
    counts = []
    for number in range(3):
        after_success(http_server(f"s{number}", options={"token_ref": "@TOKEN"}), "a")
        with CaptureQueriesContext(connection) as asked:
            listed(program)
        counts.append(len(asked))
    # The first call writes down that the token was used.
    assert counts[1:] == [counts[1]] * 2
    assert counts[1] <= 4


def test_one_server_asks_equally_often_for_any_number_of_tools(program: Client) -> None:
    few = after_success(http_server("few"), "a")
    many = after_success(http_server("many"), *(f"tool_{number}" for number in range(40)))
    listed(program)
    counts = []
    for server in (few, many):
        with CaptureQueriesContext(connection) as asked:
            program.get(f"/api/mcp-servers/{server.pk}")
        counts.append(len(asked))
    assert counts[0] == counts[1] <= 6


@pytest.fixture
def document(program: Client) -> dict[str, Any]:
    document: dict[str, Any] = program.get("/api/openapi.json").json()
    return document


def test_the_openapi_document_names_routes_and_ways_to_sign_in(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.")
    assert {"/api/", "/api/mcp-servers", "/api/mcp-servers/{id}"} <= set(document["paths"])
    schemes = document["components"]["securitySchemes"]
    assert schemes["ByToken"] == {"type": "http", "scheme": "bearer"}
    assert schemes["BySession"] == {"type": "apiKey", "in": "cookie", "name": "sessionid"}
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["security"] == [{"ByToken": []}, {"BySession": []}]


def test_answers_are_what_the_openapi_document_says(
    program: Client, document: dict[str, Any]
) -> None:
    server = after_success(stdio_server(), "a")
    for address, path in (
        ("/api/", "/api/"),
        ("/api/mcp-servers", "/api/mcp-servers"),
        (f"/api/mcp-servers/{server.pk}", "/api/mcp-servers/{id}"),
    ):
        answer = document["paths"][path]["get"]["responses"]["200"]
        schema = answer["content"]["application/json"]["schema"]
        whole = {**schema, "components": document["components"]}
        jsonschema_rs.validate(whole, program.get(address).json())


def test_refusals_are_what_the_openapi_document_says(
    program: Client, document: dict[str, Any]
) -> None:
    """Generators of clients make types of them."""
    nobody = f"/api/mcp-servers/{uuid4()}"
    for client, address, path, status in (
        (Client(), "/api/", "/api/", 401),
        (Client(), "/api/mcp-servers", "/api/mcp-servers", 401),
        (Client(), nobody, "/api/mcp-servers/{id}", 401),
        (program, nobody, "/api/mcp-servers/{id}", 404),
        (program, "/api/mcp-servers?limit=0&state=odd", "/api/mcp-servers", 422),
    ):
        answer = client.get(address)
        assert answer.status_code == status
        described = document["paths"][path]["get"]["responses"][str(status)]
        assert described["description"]
        schema = described["content"]["application/json"]["schema"]
        jsonschema_rs.validate({**schema, "additionalProperties": False}, answer.json())


def test_no_page_loads_anything_from_elsewhere(program: Client) -> None:
    """The documentation pages of django-ninja would."""
    assert program.get("/api/docs").status_code == 404
