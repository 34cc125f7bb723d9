"""The options of single servers, and what holds where nobody set anything; no database."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from servers.effective import in_force, size_words, value_words
from servers.limits import MIB, STANDARD, STRICT, Limits, RetryPolicy
from servers.options import (
    BY_NAME,
    CATALOGUE,
    EVERYWHERE,
    HTTP,
    LIMIT_FIELDS,
    NOT_TESTED,
    STDIO,
    UNIX,
    Option,
    OptionError,
    ServerOptions,
    check,
    parse,
    read,
    typed,
    without_defaults,
)

NUMBERS = [
    option for option in CATALOGUE if option.kind in ("seconds", "milliseconds", "count", "bytes")
]
SWITCHES = [option for option in CATALOGUE if option.kind == "switch"]
CHOICES = [option for option in CATALOGUE if option.kind == "choice"]


def named(option: Option) -> str:
    return option.name


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("start_timeout_secs", 120.0),  # section 0
        ("connect_timeout_secs", 30.0),  # U39
        ("request_timeout_secs", None),  # U40: 60 s, tool calls excepted
        ("tool_timeout_secs", None),  # U44: 120 s, or by the tool's name
        ("max_inflight_calls", 4),  # U5, A38
        ("tool_call_max_attempts", 3),  # U55
        ("tool_call_retry_base_ms", 250),  # U56
        ("tool_call_retry_max_ms", 4000),  # U57
        ("allow_stateless", True),  # U16
        ("reinit_on_expired_session", True),  # U17
        ("initialized_ack_mode", "lenient"),  # U18
        ("token_ref", ""),  # U24
        ("per_actor", False),  # U61
        ("actor_header", "x-ugent-actor"),  # U62
        ("evidence_source", False),  # U67
        ("limits_profile", "standard"),
    ],
)
def test_each_option_has_its_default_wherever_it_is_read(name: str, default: Any) -> None:
    """U14-U18, U39-U48, U55-U57, U61-U62: the catalogue and the typed options agree."""
    assert BY_NAME[name].default == default
    assert getattr(ServerOptions(), name) == default
    assert getattr(read({}), name) == default


def test_the_catalogue_and_the_typed_options_know_the_same_names() -> None:
    plain = {item.name for item in fields(ServerOptions)} - {"limits"}
    assert plain | set(LIMIT_FIELDS) == set(BY_NAME)
    assert {item.name for item in fields(Limits)} == {*LIMIT_FIELDS.values(), "call_seconds"}
    assert set(BY_NAME) > NOT_TESTED


@pytest.mark.parametrize("option", CATALOGUE, ids=named)
def test_each_option_tells_what_it_does_and_what_holds_unset(option: Option) -> None:
    assert option.meaning.endswith(".")
    assert (option.default is None) == bool(option.unset)
    assert set(option.transports) <= set(EVERYWHERE)


@pytest.mark.parametrize("option", NUMBERS, ids=named)
def test_a_number_is_taken_within_its_range_only(option: Option) -> None:
    """An option out of range gets a sentence that names it and the range."""
    assert parse(option.name, f"{option.minimum:.0f}") == option.minimum
    assert parse(option.name, f" {option.maximum:.0f} ") == option.maximum
    outside = [f"{option.minimum - 1:.0f}", f"{option.maximum + 1:.0f}", "", "many", "nan", "inf"]
    for text in [*outside, "9" * 400, "-" + "9" * 400, "9" * 5000]:  # larger than any float
        with pytest.raises(OptionError, match=rf"^{option.name} must be a .*number from .* to "):
            parse(option.name, text)


@pytest.mark.parametrize("option", [o for o in NUMBERS if o.kind != "seconds"], ids=named)
def test_what_is_counted_has_no_fractions(option: Option) -> None:
    assert isinstance(parse(option.name, f"{option.maximum:.0f}"), int)
    with pytest.raises(OptionError, match="a whole number"):
        parse(option.name, "1.5")


def test_seconds_may_have_fractions_and_zero_lifts_the_limit() -> None:
    """U39, U40, U43."""
    assert parse("tool_timeout_secs", "0.25") == 0.25
    for name in ("connect_timeout_secs", "request_timeout_secs", "start_timeout_secs"):
        assert parse(name, "0") == 0


@pytest.mark.parametrize("option", SWITCHES, ids=named)
def test_a_switch_is_on_or_off(option: Option) -> None:
    assert all(parse(option.name, text) is True for text in ("true", "Yes", "on", "1"))
    assert all(parse(option.name, text) is False for text in ("false", "NO", "off", "0"))
    with pytest.raises(OptionError, match=f"{option.name} must be true or false, not 'maybe'"):
        parse(option.name, "maybe")


@pytest.mark.parametrize("option", CHOICES, ids=named)
def test_a_choice_is_one_of_its_words(option: Option) -> None:
    for word in option.choices:
        assert parse(option.name, word) == word
    with pytest.raises(OptionError, match=" or ".join(option.choices)):
        parse(option.name, "other")


def test_an_unknown_option_is_answered_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"no option tool_timeout\..*tool_timeout_secs"):
        parse("tool_timeout", "3")
    assert list(check({"nonsense": 1}, HTTP)) == ["options.nonsense"]


@pytest.mark.parametrize(
    "text", ["ghp_canary", "@", "@a b", "Bearer canary", "@a/b", "@" + "x" * 101]
)
def test_a_token_in_place_of_a_secrets_name_is_refused_and_never_quoted(text: str) -> None:
    """U24, U30, E01: only a handle can be an option."""
    with pytest.raises(OptionError, match="token_ref must name a secret as @NAME") as caught:
        parse("token_ref", text)
    assert "canary" not in str(caught.value)
    assert "canary" not in str(check({"token_ref": text}, HTTP))


def test_a_secrets_name_is_a_token_reference() -> None:
    """U24: an empty one takes the reference away."""
    assert parse("token_ref", " @context_engine_token ") == "@context_engine_token"
    assert parse("token_ref", "") == ""
    assert read({"token_ref": "@a.b"}).token_name == "a.b"


@pytest.mark.parametrize(
    "text",
    [
        *["", "x y", "x:", "ä", "Host", "authorization", "Mcp-Session-Id", "x" * 201],
        # A message has a value of its own for these, which would take the person's place.
        *["Accept", "accept-encoding", "Last-Event-ID", "Cache-Control", "Mcp-Method", "Mcp-Name"],
    ],
)
def test_the_actors_header_must_be_free_for_it(text: str) -> None:
    """U62: a header's name, and none that has another use."""
    with pytest.raises(OptionError, match="actor_header"):
        parse("actor_header", text)
    assert parse("actor_header", "X-User") == "X-User"


@pytest.mark.parametrize("option", CATALOGUE, ids=named)
@pytest.mark.parametrize("transport", EVERYWHERE)
def test_an_option_of_another_transport_is_refused_with_its_own(
    option: Option, transport: str
) -> None:
    """U13, U15, U63: e.g. no token for a command, no HTTP time-outs for a socket."""
    value = option.default
    if value is None:
        value = option.minimum + 1 if option.kind == "seconds" else int(option.minimum + 1)
    fits = transport in option.transports
    if (option.name, transport) == ("connect_timeout_secs", STDIO):
        fits = True  # section 0: there it is another word for start_timeout_secs
    errors = check({option.name: value}, transport)
    assert errors == {} if fits else "servers only; leave it out." in str(errors)


def test_a_connect_limit_of_a_command_limits_its_start() -> None:
    """Section 0, C10; a start limit that is given as well wins."""
    assert without_defaults({"connect_timeout_secs": 45}, STDIO) == {"start_timeout_secs": 45.0}
    both = {"start_timeout_secs": 60.0, "connect_timeout_secs": 45}
    assert without_defaults(both, STDIO) == {"start_timeout_secs": 60.0}
    assert without_defaults({"connect_timeout_secs": 45}, HTTP) == {"connect_timeout_secs": 45}


def test_only_what_differs_is_stored() -> None:
    given = {"max_inflight_calls": 4, "per_actor": True, "tool_timeout_secs": None, "old": 1}
    assert without_defaults(given, HTTP) == {"per_actor": True}
    assert without_defaults({"per_actor": True, "evidence_source": True}, STDIO) == {
        "evidence_source": True
    }


def test_nothing_given_is_nothing_wrong() -> None:
    assert check({"tool_timeout_secs": None}, HTTP) == {}
    assert typed({"tool_timeout_secs": None, "max_tools": "7"}) == {"max_tools": 7}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"tool_call_retry_base_ms": 5000}, True),
        ({"tool_call_retry_max_ms": 100}, True),
        ({"tool_call_retry_base_ms": 5000, "tool_call_retry_max_ms": 5000}, False),
        ({"tool_call_retry_base_ms": 100}, False),
    ],
)
def test_the_first_wait_is_not_longer_than_the_longest(
    options: dict[str, Any], wrong: bool
) -> None:
    """U56, U57."""
    assert ("options.tool_call_retry_base_ms" in check(options, HTTP)) is wrong


def test_the_strict_profile_has_the_limits_of_the_requirements() -> None:
    """A37-A43."""
    options = read({"limits_profile": "strict"})
    assert options.limits == STRICT
    assert options.call_timeout == 30
    assert options.max_inflight_calls == 4
    assert (STRICT.tools, STRICT.tool_pages, STRICT.depth, STRICT.nodes) == (64, 20, 32, 10_000)
    sizes = (STRICT.result_bytes, STRICT.schema_bytes, STRICT.argument_bytes, STRICT.message_bytes)
    assert sizes == (128 * 1024, 16 * 1024, 64 * 1024, 256 * 1024)


def test_the_standard_profile_has_the_limits_of_section_0() -> None:
    options = read({})
    assert options.limits == STANDARD
    assert options.call_timeout is None
    sizes = (STANDARD.definition_bytes, STANDARD.message_bytes, STANDARD.result_bytes)
    assert (STANDARD.tools, STANDARD.tool_pages) == (512, 100)
    assert sizes == (8 * MIB, 16 * MIB, 16 * MIB)


@pytest.mark.parametrize("name", LIMIT_FIELDS)
@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_single_limit_replaces_the_profiles(name: str, profile: str) -> None:
    options = read({"limits_profile": profile, name: 300})
    assert getattr(options.limits, LIMIT_FIELDS[name]) == 300
    others = set(LIMIT_FIELDS.values()) - {LIMIT_FIELDS[name]}
    base = STRICT if profile == "strict" else STANDARD
    assert all(getattr(options.limits, item) == getattr(base, item) for item in others)


def test_a_set_call_limit_wins_over_the_strict_profiles() -> None:
    """U44, U48, A37; 0 lifts it."""
    strict = {"limits_profile": "strict"}
    assert read({**strict, "tool_timeout_secs": 300.0}).call_timeout == 300
    assert read({**strict, "tool_timeout_secs": 0}).call_timeout == 0


def test_what_an_older_version_stored_is_ignored() -> None:
    assert read({"forgotten_option": 3, "limits_profile": "lavish"}) == ServerOptions(
        limits_profile="lavish"
    )


def test_retries_are_read_as_one_policy() -> None:
    """U55-U57."""
    options = read({"tool_call_max_attempts": 1, "tool_call_retry_max_ms": 300})
    assert options.retry == RetryPolicy(1, 250, 300)


def test_each_value_tells_where_it_comes_from() -> None:
    options = {"limits_profile": "strict", "max_tools": 9, "connect_timeout_secs": 0.0}
    found = {one.name: (one.words, one.source) for one in in_force(options, HTTP)}
    assert found["max_tools"] == ("9", "set here")
    assert found["connect_timeout_secs"] == ("no limit", "set here")
    assert found["max_message_bytes"] == ("256 KiB", "profile")
    assert found["tool_timeout_secs"] == ("30 s", "profile")
    assert found["max_inflight_calls"] == ("4", "default")
    assert found["request_timeout_secs"] == ("60 s, tool calls excepted", "default")


@pytest.mark.parametrize("transport", EVERYWHERE)
def test_what_holds_is_told_of_every_option_of_the_transport(transport: str) -> None:
    """U13, U15: and of no other."""
    names = [one.name for one in in_force({}, transport)]
    assert names == [option.name for option in CATALOGUE if transport in option.transports]
    assert all(one.words and one.source == "default" for one in in_force({}, transport))
    assert ("connect_timeout_secs" in names) is (transport == HTTP)
    assert ("token_ref" in names) is (transport in (HTTP, UNIX))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("tool_timeout_secs", 0.0, "no limit"),
        ("tool_timeout_secs", None, "120 s, 300 or 900 by the tool's name"),
        ("start_timeout_secs", 1.5, "1.5 s"),
        ("tool_call_retry_base_ms", 1250, "1,250 ms"),
        ("allow_stateless", False, "off"),
        ("token_ref", "", "none"),
        ("max_tools", None, "the profile's"),
        ("max_result_bytes", 128 * 1024, "128 KiB"),
    ],
)
def test_values_are_told_in_words(name: str, value: Any, words: str) -> None:
    assert value_words(BY_NAME[name], value) == words


def test_sizes_are_told_in_whole_units_or_to_the_byte() -> None:
    sizes = {0: "0 bytes", 1500: "1,500 bytes", 1536: "1,536 bytes", 16 * MIB: "16 MiB"}
    assert {size: size_words(size) for size in sizes} == sizes
    assert size_words(1024 * MIB) == "1 GiB"
