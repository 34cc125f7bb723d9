"""From a stored server to the engine's settings, and what is masked from then on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from secrets_vault.models import Secret
from secrets_vault.services import SecretError, set_secret
from servers.connecting import actor_value, connection_settings
from servers.definition import is_header_value
from servers.limits import STRICT, RetryPolicy
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from servers.models import Server
from tests.fakes.server_rows import http_server, stdio_server, unix_server
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
    """U9-U11, C14, E05: nothing is expanded and nothing is inherited."""
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


@pytest.mark.parametrize(
    "value", ["Basic no-base64!", "Basic /w==", "Token literal-1", "literal-2"]
)
def test_an_odd_credential_is_masked_as_it_stands(value: str) -> None:
    _, mask = connection_settings(http_server(headers={"Authorization": value}))
    assert mask == {"header Authorization of github": value.rpartition(" ")[2]}


def test_what_is_typed_beside_a_reference_is_masked_too() -> None:
    """E11, section 0: the word of a scheme says nothing, everything else may be half a secret."""
    secret("TOKEN", "value-of-token")
    server = http_server(
        headers={
            "Authorization": "Bearer {{secret:TOKEN}}",
            "X-Mix": "literal-head;{{secret:TOKEN}}:literal-tail",
        }
    )
    _, mask = connection_settings(server)
    text = Masker(mask).mask("Bearer literal-head and value-of-token and literal-tail")
    assert "literal" not in text
    assert "value-of-token" not in text
    assert text.startswith("Bearer ")


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


@pytest.mark.parametrize(
    "value",
    ["sk-a\nsk-b", "sk-a\rsk-b", "sk-a\tb", "sk-a \u20ac", "sk-a\x1b[0m", "sk-a\x85b", "sk-a\x7fb"],
)
@pytest.mark.parametrize("options", [{}, {"token_ref": "@TOKEN"}])
def test_no_value_of_a_secret_breaks_a_header(options: dict[str, Any], value: str) -> None:
    """E01: wherever the secret goes to; the sentence names the place and never the value."""
    secret("TOKEN", value)
    headers = {} if options else {"X-Key": "{{secret:TOKEN}}"}
    place = "bearer token" if options else "header X-Key"
    with pytest.raises(ServerUnavailable, match=f"The value of the {place} contains") as caught:
        connection_settings(http_server(headers=headers, options=options))
    assert "sk-" not in str(caught.value) + caught.value.hint


def test_a_header_may_hold_the_upper_half_of_latin_1() -> None:
    secret("TOKEN", "Grüße")
    settings, _ = connection_settings(http_server(headers={"X-Key": "{{secret:TOKEN}}"}))
    assert settings.headers == (("X-Key", "Grüße"),)


def test_nothing_is_expanded_but_references() -> None:
    """E05: neither the process's environment nor half a reference."""
    values = {"X-A": "${SECRET_KEY}", "X-B": "$HOME", "X-C": "%PATH%", "X-D": "{{ HOME }}"}
    settings, _ = connection_settings(http_server(headers=values, url="http://h/?k=${HOME}"))
    assert dict(settings.headers) == values
    assert settings.url == "http://h/?k=${HOME}"


def test_a_value_that_looks_like_a_reference_is_not_looked_into() -> None:
    secret("OUTER", "{{secret:INNER}}")
    secret("INNER", "canary")
    settings, _ = connection_settings(http_server(headers={"X": "{{secret:OUTER}}"}))
    assert settings.headers == (("X", "{{secret:INNER}}"),)


def test_one_reference_that_does_not_resolve_fails_the_server_closed() -> None:
    """Section 0, P11: all or nothing, and the sentence names it."""
    secret("TOKEN", "value-of-token")
    headers = {"Authorization": "Bearer {{secret:TOKEN}}", "X": "{{secret:NOWHERE}}"}
    with pytest.raises(SecretError, match="Secret NOWHERE not found"):
        connection_settings(http_server(headers=headers))


def test_values_of_a_lost_key_do_not_go_out() -> None:
    """E09: neither the server's own nor a secret's ciphertext."""
    secret("TOKEN", "value-of-token")
    server = http_server(headers={"Authorization": "Bearer {{secret:TOKEN}}"})
    Secret.objects.update(key_id="gone")
    with pytest.raises(SecretError, match="Secret TOKEN cannot be decrypted with key gone"):
        connection_settings(server)
    Server.objects.update(key_id="gone")
    with pytest.raises(SecretError, match=r"of github cannot be decrypted: .* enter them again\."):
        connection_settings(Server.objects.get())


def token_server(**values: Any) -> Server:
    return http_server(options={"token_ref": "@TOKEN"}, **values)


@pytest.mark.parametrize("make", [http_server, unix_server])
def test_a_token_reference_becomes_a_bearer_token(make: Any) -> None:
    """U24, U25: when it connects, so that a rotated secret counts at once."""
    server = make(options={"token_ref": "@TOKEN"})
    for value in ("value-one", "value-two"):
        secret("TOKEN", value)
        settings, mask = connection_settings(server)
        assert settings.headers == (("Authorization", f"Bearer {value}"),)
        assert settings.warnings == ()
        assert mask["TOKEN"] == value
        assert known_values().mask(value) != value


@pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
def test_an_authorization_header_wins_over_the_token_reference(name: str) -> None:
    """U26, E15: there is one such header on the wire, and the secret is not even opened."""
    secret("TOKEN", "value-of-token")
    settings, mask = connection_settings(token_server(headers={name: "Bearer own-token"}))
    assert settings.headers == ((name, "Bearer own-token"),)
    assert "TOKEN" not in mask
    assert Secret.objects.get().last_used_at is None


@pytest.mark.parametrize("trouble", ["absent", "elsewhere", "unreadable"])
def test_a_token_that_does_not_resolve_is_dropped_and_named(
    trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U27: logged, left out, and never sent as it stands."""
    if trouble == "elsewhere":
        secret("TOKEN", "value-of-token", allowed_hosts=["other.example.org"])
    elif trouble == "unreadable":
        secret("TOKEN", "value-of-token")
        Secret.objects.update(key_id="gone")
    settings, mask = connection_settings(token_server(headers={"X-Key": "plain-value"}))
    assert settings.headers == (("X-Key", "plain-value"),)
    [warning] = settings.warnings
    assert warning.startswith("token_ref @TOKEN is left out, no token is sent: Secret TOKEN ")
    assert "MCP server github: token_ref is left out. Secret TOKEN" in caplog.text
    assert "value-of-token" not in caplog.text + warning + str(mask)


def test_a_token_for_hosts_does_not_resolve_for_a_socket() -> None:
    """U12: what listens there need not be the host that the address names."""
    secret("TOKEN", "value-of-token", allowed_hosts=["api.example.org"])
    server = unix_server(url="http://api.example.org/mcp", options={"token_ref": "@TOKEN"})
    settings, _ = connection_settings(server)
    assert settings.headers == ()
    assert "may not be used for server engine" in settings.warnings[0]


def test_a_socket_is_connected_to_by_its_path() -> None:
    """U12, U8."""
    secret("KEY", "value-of-key")
    settings, _ = connection_settings(unix_server(url="http://localhost/rpc?k={{secret:KEY}}"))
    assert (settings.transport, settings.socket_path) == ("unix", "/run/engine/mcp.sock")
    assert settings.url == "http://localhost/rpc?k=value-of-key"


def test_a_socket_is_refused_at_connect_while_private_targets_are(settings: Settings) -> None:
    """Section 1 of the issue: the option may have changed since the server was saved."""
    server = unix_server()
    network = settings.OPTIONS.network.model_copy(update={"allow_private_targets": False})
    settings.OPTIONS = settings.OPTIONS.model_copy(update={"network": network})
    with pytest.raises(ServerUnavailable, match=r"network\.allow_private_targets is false"):
        connection_settings(server)


def test_a_socket_is_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """U12: Unix platforms only."""
    server = unix_server()
    monkeypatch.delattr("servers.access.socket.AF_UNIX")
    with pytest.raises(ServerUnavailable, match="This machine has no Unix sockets"):
        connection_settings(server)


def actor_headers(actor: str, make: Any = http_server, **values: Any) -> dict[str, str]:
    settings, _ = connection_settings(make(**values), actor=actor)
    return dict(settings.headers)


@pytest.mark.parametrize("make", [http_server, unix_server])
def test_each_actor_is_named_in_the_header_where_the_server_wants_it(make: Any) -> None:
    """U61, U62."""
    assert actor_headers("alice", make, options={"per_actor": True}) == {"x-ugent-actor": "alice"}


def test_the_actors_header_can_have_another_name() -> None:
    """U62."""
    options = {"per_actor": True, "actor_header": "X-User"}
    assert actor_headers("alice", options=options) == {"X-User": "alice"}


@pytest.mark.parametrize(("per_actor", "actor"), [(True, ""), (False, "alice"), (False, "")])
def test_without_an_actor_or_without_the_wish_no_header_is_sent(
    per_actor: bool, actor: str
) -> None:
    """U61, U64."""
    assert actor_headers(actor, options={"per_actor": per_actor}) == {}


def test_a_command_has_no_actor() -> None:
    """U63."""
    settings, _ = connection_settings(stdio_server(), actor="alice")
    assert settings.headers == ()


def test_no_stored_header_passes_for_the_actor() -> None:
    """U62: the form refuses it; a row that was written otherwise sends one value all the same."""
    server = http_server(headers={"X-User": "root", "X-Key": "k"})
    server.options = {"per_actor": True, "actor_header": "x-user"}
    settings, _ = connection_settings(server, actor="alice")
    assert settings.headers == (("X-Key", "k"), ("x-user", "alice"))


@pytest.mark.parametrize(
    ("actor", "value"),
    [
        ("alice", "alice"),
        ("token nightly@site", "token nightly@site"),
        ("Jürgen", "J%C3%BCrgen"),
        ("a\r\nX: 1", "a%0D%0AX: 1"),
        (" a ", "%20a%20"),
        ("100%", "100%25"),
        ("~/x", "~/x"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_an_actor_is_written_as_a_header_can_hold_it(actor: str, value: str) -> None:
    """U62, E01."""
    assert actor_value(actor) == value


@given(st.text(), st.text())
def test_two_actors_never_share_a_header_value(first: str, second: str) -> None:
    """U61: the server filters by it."""
    values = actor_value(first), actor_value(second)
    assert (values[0] == values[1]) is (first == second)
    assert all(is_header_value(value) and value.isascii() for value in values)
    assert all(value == value.strip() for value in values)


def settings_with(**options: Any) -> ConnectionSettings:
    return connection_settings(http_server(options=options))[0]


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({"connect_timeout_secs": 0.0}, "connect_timeout", 0.0),  # U39
        ({"request_timeout_secs": 300.0}, "request_timeout", 300.0),  # U40
        ({"request_timeout_secs": 0.0}, "request_timeout", 0.0),  # U43
        ({"tool_timeout_secs": 300.0}, "tool_timeout", 300.0),  # U44
        ({"max_inflight_calls": 1}, "max_inflight", 1),  # U5
        ({"allow_stateless": False}, "allow_stateless", False),  # U16
        ({"reinit_on_expired_session": False}, "reinit_on_expired_session", False),  # U17
        ({"initialized_ack_mode": "strict"}, "strict_initialized_ack", True),  # U18
        ({"tool_call_max_attempts": 1}, "retry", RetryPolicy(attempts=1)),  # U55
        ({"tool_call_retry_base_ms": 10}, "retry", RetryPolicy(base_ms=10)),  # U56
        ({"tool_call_retry_max_ms": 9000}, "retry", RetryPolicy(max_ms=9000)),  # U57
        ({"limits_profile": "strict"}, "limits", STRICT),  # A37-A43
    ],
)
def test_each_option_reaches_the_engine(options: dict[str, Any], name: str, value: Any) -> None:
    """U14-U18, U39-U48, U55-U57."""
    changed = settings_with(**options)
    assert getattr(changed, name) == value
    assert getattr(ConnectionSettings("github", "http"), name) != value


def test_a_command_carries_no_credential_of_its_own() -> None:
    """U13: not even where a row claims one."""
    secret("TOKEN", "value-of-token")
    server = stdio_server()
    server.options = {"token_ref": "@TOKEN"}
    settings, mask = connection_settings(server)
    assert (settings.headers, settings.url, settings.warnings) == ((), "", ())
    assert mask == {}


def test_a_start_limit_reaches_the_engine() -> None:
    """C10, section 0: under either name."""
    for name in ("start_timeout_secs", "connect_timeout_secs"):
        server = stdio_server(f"a-{name}", options={name: 7.5})
        assert connection_settings(server)[0].start_timeout == 7.5


def test_without_options_the_engines_defaults_hold() -> None:
    """Stored defaults and the engine's own cannot drift apart."""
    engine = ConnectionSettings("github", "http")
    ours = settings_with()
    names = (
        "start_timeout connect_timeout request_timeout tool_timeout limits retry max_inflight "
        "allow_stateless reinit_on_expired_session strict_initialized_ack warnings"
    )
    assert {name: getattr(ours, name) for name in names.split()} == {
        name: getattr(engine, name) for name in names.split()
    }
