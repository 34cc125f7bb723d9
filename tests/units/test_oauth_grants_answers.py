"""What of a token answer is believed, and what of an error is shown (A22-A24; RFC 6749, 5)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servers.oauth.replies import Reply, read_tokens
from servers.oauth.types import OAuthError, ProviderRefusal, ProviderUnreachable, Tokens
from umpteenth.core.masking import Masker

NOW = 1_800_000_000.0
URL = "https://as.example.org/token?key=hidden"
PLACE = "https://as.example.org/token"
GOOD = {"access_token": "at-1", "token_type": "Bearer"}


def read(body: Any, status: int = 200, *, sent: Masker | None = None) -> Tokens:
    return read_tokens(Reply(URL, status, body), NOW, sent=sent or Masker())


def failed(body: Any, status: int = 200, *, sent: Masker | None = None) -> OAuthError:
    with pytest.raises(OAuthError) as caught:
        read(body, status, sent=sent)
    return caught.value


def jwt(**claims: Any) -> str:
    parts = [json.dumps(part).encode() for part in ({"alg": "RS256"}, claims)]
    return ".".join(
        [*(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts), "c2ln"]
    )


class TestLifetime:
    @pytest.mark.parametrize(
        ("value", "seconds"),
        [(3600, 3600), (5250.5, 5250.5), ("5250", 5250), (" 60 ", 60), (0, 0), ("0", 0)],
    )
    def test_numbers_and_digits_count(self, value: Any, seconds: float) -> None:
        """A22: Entra's texts. A24: 0 has ended already."""
        assert read({**GOOD, "expires_in": value}).expires_at == NOW + seconds

    @pytest.mark.parametrize(
        "value",
        [
            "3600abc", "-1", -1, 1e12, "1000000000000", "9" * 5000, 10**400, None, "", "abc", True,
            [3600], {"seconds": 60}, "3600.5", "٣٦٠٠", float("nan"), float("inf"),
        ],
    )  # fmt: skip
    def test_nonsense_says_nothing(self, value: Any) -> None:
        """A24: the token is used until it is refused; no expiry is made up."""
        assert read({**GOOD, "expires_in": value}).expires_at is None

    def test_a_missing_one_says_nothing(self) -> None:
        """A23 (b), (c); extra fields do not matter (A22)."""
        tokens = read({**GOOD, "ext_expires_in": "5250", "expires_on": "1", "id_token": "x.y.z"})
        assert tokens == Tokens("at-1", issued_at=NOW)

    @pytest.mark.parametrize(
        ("claims", "ends"),
        [
            ({"exp": NOW + 60}, NOW + 60),
            ({"exp": NOW + 60, "iat": NOW}, NOW + 60),
            ({"exp": NOW + 960, "iat": NOW + 900}, NOW + 60),  # their clock is ahead
            ({"exp": NOW + 60, "iat": NOW - 900}, NOW + 60),  # handed out once more
            ({"exp": NOW + 60, "iat": NOW + 90}, NOW + 60),  # iat is nonsense
            ({"exp": NOW - 60, "iat": NOW - 120}, None),  # their clock is behind
            ({"exp": NOW}, None),
            ({"exp": "soon"}, None),
            ({"exp": str(int(NOW + 60))}, None),
            ({"exp": 1e300}, None),
            ({}, None),
        ],
    )
    def test_a_jwt_gives_a_hint(self, claims: dict[str, Any], ends: float | None) -> None:
        """A23 (a): where nothing else says when it ends."""
        assert read({**GOOD, "access_token": jwt(**claims)}).expires_at == ends

    def test_what_the_answer_says_wins_over_the_jwt(self) -> None:
        body = {**GOOD, "access_token": jwt(exp=NOW + 60), "expires_in": 3600}
        assert read(body).expires_at == NOW + 3600
        assert read({**body, "expires_in": "3600abc"}).expires_at == NOW + 60

    @pytest.mark.parametrize(
        "token", ["a.b", "a.b.c", "..", "a.!!!.c", "a.W10.c", "a.MTIz.c", "a.eyJ4.c", "1.2.3.4.5"]
    )
    def test_what_looks_like_a_jwt_and_is_none(self, token: str) -> None:
        assert read({**GOOD, "access_token": token}).expires_at is None

    def test_a_deep_jwt_is_none(self) -> None:
        """Its depth costs no stack."""
        deep = base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("=")
        assert read({**GOOD, "access_token": f"a.{deep}.c"}).expires_at is None

    @given(st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.integers())))
    def test_no_value_breaks_it(self, value: Any) -> None:
        ends = read({**GOOD, "expires_in": value}).expires_at
        assert ends is None or NOW <= ends < NOW * 4


class TestTokens:
    @pytest.mark.parametrize("kind", ["Bearer", "bearer", "BEARER", None, ""])
    def test_bearer_tokens_in_any_case(self, kind: Any) -> None:
        """RFC 6749, 5.1. Many leave the type out."""
        assert read({**GOOD, "token_type": kind}).access_token == "at-1"

    @pytest.mark.parametrize("kind", ["DPoP", "mac", "N_A", 7, ["bearer"]])
    def test_no_others(self, kind: Any) -> None:
        error = failed({**GOOD, "token_type": kind})
        assert "Bearer tokens only" in error.message
        assert "at-1" not in error.message

    @pytest.mark.parametrize(
        "token", ["a b", "a\r\nX: y", "é", "a\x00", "\ud800", "x" * 65_537, 7, ["t"], {"t": 1}]
    )
    def test_what_no_header_can_hold_is_refused(self, token: Any) -> None:
        """Nothing of a provider's ends a header of ours."""
        error = failed({**GOOD, "access_token": token})
        assert isinstance(error, ProviderUnreachable)
        assert "cannot be sent in a header" in error.message

    @pytest.mark.parametrize("refresh", [None, "", 7, ["r"], "\ud800", "r" * 65_537])
    def test_what_is_no_refresh_token_is_left(self, refresh: Any) -> None:
        assert read({**GOOD, "refresh_token": refresh}).refresh_token == ""

    def test_a_refresh_token_may_hold_anything_else(self) -> None:
        """RFC 6749 says nothing of its characters that all keep to; it goes in a form."""
        assert read({**GOOD, "refresh_token": "a b+é/="}).refresh_token == "a b+é/="

    @pytest.mark.parametrize(
        ("scope", "scopes"),
        [
            ("read write", ("read", "write")),
            ("read  read\nwrite", ("read", "write")),
            (["read", "write"], ("read", "write")),
            ("", ()),
            (None, None),
            (7, None),
            (["read", 7], None),
        ],
    )
    def test_scopes_as_granted(self, scope: Any, scopes: tuple[str, ...] | None) -> None:
        """RFC 6749, 5.1: where none are named, they are as asked for."""
        assert read({**GOOD, "scope": scope}).scopes == scopes

    def test_very_many_scopes_are_bounded(self) -> None:
        scopes = read({**GOOD, "scope": " ".join(map(str, range(1_000_000)))}).scopes
        assert scopes is not None
        assert len(scopes) < 16 * 1024

    def test_an_empty_error_is_none(self) -> None:
        assert read({**GOOD, "error": None, "ok": True}).access_token == "at-1"

    def test_tokens_are_not_shown(self) -> None:
        """P43: a token in a log or traceback shows nothing."""
        tokens = read({**GOOD, "refresh_token": "rt-1"})
        assert "at-1" not in repr(tokens)
        assert "rt-1" not in repr(tokens)


class TestFailures:
    @pytest.mark.parametrize("status", [200, 400, 401, 403])
    def test_oauths_own_words(self, status: int) -> None:
        """RFC 6749, 5.2; with status 200 as well (A24, GitHub)."""
        body = {"error": "invalid_grant", "error_description": "Gone.", "access_token": "at-1"}
        error = failed(body, status)
        assert isinstance(error, ProviderRefusal)
        assert (error.error, error.status) == ("invalid_grant", status)
        assert error.message == f"{PLACE} refused the request: Gone (invalid_grant)."
        assert error.hint == "Log in again."

    @pytest.mark.parametrize(
        ("theirs", "oauths"),
        [
            ("bad_refresh_token", "invalid_grant"),
            ("invalid_refresh_token", "invalid_grant"),
            ("token_expired", "invalid_grant"),
            ("bad_verification_code", "invalid_grant"),
            ("incorrect_client_credentials", "invalid_client"),
            ("something_else", "something_else"),
        ],
    )
    def test_other_words_for_the_same(self, theirs: str, oauths: str) -> None:
        """What follows does not depend on a provider's dialect; its own word is shown."""
        error = failed({"ok": False, "error": theirs})
        assert isinstance(error, ProviderRefusal)
        assert error.error == oauths
        assert theirs in error.message

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({"message": "Unrecognized client_id"}, "Unrecognized client_id"),
            ({"detail": "No."}, "No."),
            ({"error": {"code": "invalid_grant", "message": "Over."}}, "Over."),
            ({"title": "Bad Request", "status": 400}, "Bad Request"),
            ({"errors": [1]}, "status 422"),
        ],
    )
    def test_other_shapes_of_errors(self, body: dict[str, Any], words: str) -> None:
        """A29: raw JSON of frameworks."""
        error = failed(body, 422)
        assert isinstance(error, ProviderRefusal)
        assert words in error.message

    @pytest.mark.parametrize("status", [400, 401, 422])
    def test_a_forgotten_client_in_other_words(self, status: int) -> None:
        """A29: so that it is registered anew."""
        error = failed({"message": "Unrecognized client_id"}, status)
        assert isinstance(error, ProviderRefusal)
        assert error.error == "invalid_client"

    def test_a_gateway_does_not_end_a_login(self) -> None:
        """401 without OAuth's word may be anybody's: nothing is thrown away for it."""
        error = failed({"message": "Unauthorized"}, 401)
        assert isinstance(error, ProviderRefusal)
        assert (error.error, error.status) == ("", 401)

    @pytest.mark.parametrize("body", [{"token_type": "bearer"}, {}, {"access_token": ""}])
    def test_success_without_a_token_is_none(self, body: dict[str, Any]) -> None:
        """A24: nothing is stored."""
        error = failed(body)
        assert isinstance(error, ProviderUnreachable)
        assert error.message == (
            f"{PLACE} answered with status 200, and with nothing that OAuth knows."
        )

    @pytest.mark.parametrize("status", [200, 204, 302, 400, 401, 404])
    def test_what_is_no_object_is_no_answer(self, status: int) -> None:
        assert isinstance(failed(None, status), ProviderUnreachable)

    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
    @pytest.mark.parametrize("body", [None, {"error": "invalid_grant"}, {"message": "Busy"}])
    def test_a_busy_provider_has_not_refused(self, status: int, body: Any) -> None:
        """A login does not end because a provider is down."""
        error = failed(body, status)
        assert isinstance(error, ProviderUnreachable)
        assert f"answered with status {status}" in error.message

    def test_words_are_cleaned_and_bounded(self) -> None:
        words = "\x1b[31mred\x00\u202e" + "x" * 10_000
        error = failed({"error": "e" * 500, "error_description": words}, 400)
        assert isinstance(error, ProviderRefusal)
        assert "red" in error.message
        assert not set("\x1b\x00\u202e") & set(error.message)
        assert len(error.message) < 700
        assert len(error.error) <= 100

    @pytest.mark.parametrize("given", [7, ["a"], {"a": 1}, True, ""])
    def test_words_that_are_no_text_are_left(self, given: Any) -> None:
        error = failed({"error": "invalid_grant", "error_description": given}, 400)
        assert error.message == f"{PLACE} refused the request: invalid_grant."

    @pytest.mark.parametrize("form", ["{}", "token {} is bad", "%7B{}%7D"])
    def test_what_was_sent_does_not_come_back(self, form: str) -> None:
        """U60's neighbour: some providers repeat what they refuse."""
        secret = "refresh+token/with=signs"
        sent = Masker({"refresh_token": secret})
        body = {"error": "invalid_grant", "error_description": form.format(secret)}
        error = failed(body, 400, sent=sent)
        assert secret not in error.message
        assert "[secret refresh_token]" in error.message

    @pytest.mark.parametrize("before", [0, 60, 450, 1990])
    def test_no_part_of_it_does_either(self, before: int) -> None:
        """It is taken out before words are cut."""
        secret = "".join(f"{number:03d}-" for number in range(100))
        words = f"{secret} " + "." * before + secret
        error = failed({"error": words, "message": words}, 400, sent=Masker({"token": secret}))
        assert isinstance(error, ProviderRefusal)
        assert "000-001-" not in error.message + error.error

    @pytest.mark.parametrize("name", ["access_token", "refresh_token", "id_token", "client_secret"])
    @pytest.mark.parametrize("said", [{"error": "confused"}, {"token_type": "{}"}])
    def test_nor_does_what_was_given(self, name: str, said: dict[str, str]) -> None:
        """P43: some answer with tokens and an error, or mix up their fields."""
        secret = "given-in-this-answer"
        body = {**GOOD, name: secret, "error_description": f"{secret} is bad", **said}
        body["token_type"] = body["token_type"].replace("{}", secret)
        error = failed(body)
        assert secret not in error.message
        assert f"[secret {name}]" in error.message

    def test_what_was_sent_is_no_type_of_token(self) -> None:
        sent = Masker({"refresh_token": "sent-to-the-provider"})
        error = failed({**GOOD, "token_type": "sent-to-the-provider"}, sent=sent)
        assert "[secret refresh_token]" in error.message

    def test_addresses_are_shown_without_their_query(self) -> None:
        """U60."""
        assert "hidden" not in failed({"error": "invalid_grant"}, 400).message
