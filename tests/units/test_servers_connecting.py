"""From a stored server to the engine's settings, and what is masked from then on."""

from __future__ import annotations

import pytest

from secrets_vault.services import SecretError, set_secret
from servers.connecting import connection_settings
from servers.mcp.types import ServerUnavailable
from tests.fakes.server_rows import http_server, stdio_server
from umpteenth.core.masking import Masker, known_values

pytestmark = pytest.mark.django_db


def secret(name: str, value: str, **scopes: list[str]) -> None:
    set_secret(actor=None, name=name, value=value, **scopes)  # type: ignore[arg-type]


def test_references_in_headers_and_query_are_resolved() -> None:
    """P11, U8."""
    secret("TOKEN", "tok en&1")
    server = http_server(
        headers={"Authorization": "Bearer {{ secret:TOKEN }}"},
        url="https://h.example/mcp?a=%20b&key={{secret:TOKEN}}&flag",
    )
    settings, mask = connection_settings(server)
    assert settings.url == "https://h.example/mcp?a=%20b&key=tok%20en%261&flag"
    assert settings.headers == (("Authorization", "Bearer tok en&1"),)
    assert mask["TOKEN"] == "tok en&1"
    assert settings.transport == "http"


def test_a_command_gets_exactly_its_arguments_and_its_environment() -> None:
    """U9, U11, C14: nothing is expanded and nothing is inherited."""
    secret("BRAVE", "value-of-brave")
    env = {"BRAVE_API_KEY": "{{secret:BRAVE}}", "HOME": "~", "X": "${PATH}"}
    settings, _ = connection_settings(stdio_server(args=("~", "$HOME", ""), env=env))
    assert settings.args == ("~", "$HOME", "")
    assert settings.env == {"BRAVE_API_KEY": "value-of-brave", "HOME": "~", "X": "${PATH}"}


def test_an_unknown_secret_is_an_error_that_names_it() -> None:
    server = http_server(headers={"Authorization": "Bearer {{secret:NOWHERE}}"})
    with pytest.raises(SecretError, match="NOWHERE"):
        connection_settings(server)


@pytest.mark.parametrize(
    ("scopes", "fits"),
    [
        ({"allowed_hosts": ["api.example.org"]}, True),
        ({"allowed_hosts": ["other.example.org"]}, False),
        ({"allowed_servers": ["github"]}, True),
        ({"allowed_servers": ["gitlab"]}, False),
        ({"allowed_jobs": ["nightly"]}, True),
        ({"allowed_jobs": ["weekly"]}, False),
    ],
)
def test_a_secret_resolves_only_where_it_is_for(scopes: dict[str, list[str]], fits: bool) -> None:
    secret("TOKEN", "value-of-token", **scopes)
    server = http_server(headers={"Authorization": "Bearer {{secret:TOKEN}}"})
    if fits:
        connection_settings(server, job_name="nightly")
    else:
        with pytest.raises(SecretError, match="TOKEN"):
            connection_settings(server, job_name="nightly")


def test_literal_values_are_masked_like_secrets() -> None:
    server = http_server(
        headers={"Authorization": "Bearer literal-token", "X-Api-Key": "literal-key"},
        url="https://h.example/?key=literal%20query",
    )
    _, mask = connection_settings(server)
    masker = Masker(mask)
    text = masker.mask("literal-token literal-key literal query")
    assert "literal" not in text
    assert "[secret header Authorization of github]" in text
    assert known_values().mask("literal-key") != "literal-key"


def test_the_password_of_a_basic_header_is_masked_in_the_clear_too() -> None:
    server = http_server(headers={"Authorization": "Basic bWU6aHVudGVyMjI="})
    _, mask = connection_settings(server)
    assert "hunter22" not in Masker(mask).mask("password hunter22")


def test_variables_are_masked() -> None:
    _, mask = connection_settings(stdio_server(env={"KEY": "literal-variable"}))
    assert "literal" not in Masker(mask).mask("my literal-variable")


def test_a_secret_that_no_header_can_hold_is_refused_without_its_value() -> None:
    """E01."""
    secret("TOKEN", "sk-first\nsk-second")
    server = http_server(headers={"Authorization": "Bearer {{secret:TOKEN}}"})
    with pytest.raises(ServerUnavailable, match="Authorization contains a line break") as caught:
        connection_settings(server)
    assert "sk-" not in str(caught.value)
