"""Whole journeys with providers of every kind: a test, a login, the tools, and a token renewed.

Each part has tests of its own; these are about what lies between them.
"""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import timedelta
from typing import Any

import pytest

from servers.connecting import connection_settings
from servers.mcp.client import connect
from servers.mcp.types import MoreRightsRequired
from servers.models import Login
from servers.oauth.types import OAuthError
from tests.fakes.oauth_server import OMIT, Reply, Variant
from tests.fakes.oauth_steps import begun
from umpteenth.accounts.models import User
from umpteenth.core.clock import database_now

pytestmark = pytest.mark.django_db(transaction=True)

HTML = Reply(200, {"content-type": "text/html"}, b"<h1>Sign in</h1>")
CASES = {
    "A01 root document by the pointer": Variant(pointer="root", resource_at=("root",)),
    "A01 no pointer, document at the root": Variant(pointer="", resource_at=("root",)),
    "A01 no pointer, document at the path": Variant(pointer=""),
    "A01 document elsewhere": Variant(pointer="elsewhere", resource_at=("elsewhere",)),
    "A04 resource without a path": Variant(resource="{server}", strict_resource=True),
    "A04 resource byte for byte": Variant(strict_resource=True),
    "A07 Keycloak": Variant(issuer_path="/realms/r", metadata_at=("oidc-appended",)),
    "A07 inserted": Variant(issuer_path="/realms/r"),
    "A07 OIDC inserted": Variant(issuer_path="/realms/r", metadata_at=("oidc-inserted",)),
    "A07 appended": Variant(issuer_path="/realms/r", metadata_at=("oauth-appended",)),
    "A08 400": Variant(metadata_at=("oidc-inserted",), missing=Reply(400)),
    "A08 401": Variant(metadata_at=("oidc-inserted",), missing=Reply(401)),
    "A08 500": Variant(metadata_at=("oidc-inserted",), missing=Reply(500)),
    "A08 HTML": Variant(metadata_at=("oidc-inserted",), missing=HTML),
    "A14 no secret": Variant(
        registration_status=200,
        registration_answer={"client_secret": OMIT, "token_endpoint_auth_method": OMIT},
    ),
    "A14 null": Variant(
        auth_methods=("none",),
        registration_answer={"client_secret": None, "token_endpoint_auth_method": "none"},
    ),
    "A15 the answer wins": Variant(
        auth_methods=("client_secret_post",),
        advertised_auth_methods=("none",),
        registration_answer={
            "client_secret": "s" * 20,
            "token_endpoint_auth_method": "client_secret_post",
        },
    ),
    "A16 Basic does not work": Variant(
        auth_methods=("client_secret_post",),
        advertised_auth_methods=("client_secret_basic", "client_secret_post"),
        registration_answer={"token_endpoint_auth_method": "client_secret_basic"},
    ),
    "A16 only Basic works": Variant(auth_methods=("client_secret_basic",)),
    "A22": Variant(expires_in="5250", token_answer={"ext_expires_in": "0", "expires_on": "1"}),
    "A23 unknown": Variant(expires_in=OMIT),
    "A23 JWT": Variant(expires_in=OMIT, jwt_seconds=3600),
    "A24 zero": Variant(expires_in=0),
    "A24 nonsense": Variant(expires_in="3600abc"),
    "A24 negative": Variant(expires_in=-1),
    "A24 huge": Variant(expires_in=1e12),
    "A24 null": Variant(expires_in=None),
    "A33 not advertised": Variant(sends_issuer=None, iss=None),
    "A33 sent": Variant(),
    "no rotation": Variant(rotates=False),
    "events": Variant(answer="sse"),
    "2025-03-26 with metadata": Variant(same_origin=True, pointer="", resource_at=()),
    "2025-03-26 without": Variant(
        same_origin=True, pointer="", resource_at=(), metadata_at=(), iss=None
    ),
}


@pytest.fixture
def alice(db: None) -> User:
    return User.objects.create_user("alice", password="x" * 12, role=User.Role.ADMINISTRATOR)


@pytest.mark.parametrize("variant", CASES.values(), ids=CASES)
def test_from_a_test_to_the_tools_and_on_with_a_new_token(variant: Variant, alice: User) -> None:
    """P36, P38, P39, P44; A01, A04, A07, A08, A14-A16, A22-A24, A33: one provider for each."""
    with begun(variant, alice) as journey:
        check = journey.test()
        assert check.outcome == "login_required", (check.error, check.hint)
        assert journey.server.oauth_advertised, (check.error, check.hint)
        journey.log_in()
        journey.expect_connected()
        journey.fake.grants.expire_access_tokens()
        Login.objects.update(refreshed_at=None)  # a token that is new may not be refused (A36)
        journey.expect_connected()
        assert journey.fake.grants.outcomes[-1] == ("refresh_token", "ok")
        assert not journey.server.oauth_error


UNUSABLE = {
    "javascript": Variant(metadata={"authorization_endpoint": "javascript:alert(1)"}),
    "javascript hidden": Variant(metadata={"authorization_endpoint": "\tJaVaScRiPt:alert(1)"}),
    "data": Variant(metadata={"authorization_endpoint": "data:text/html,x"}),
    "no scheme": Variant(metadata={"authorization_endpoint": "//evil.test/"}),
    "file": Variant(metadata={"authorization_endpoint": "file:///etc/passwd"}),
    "metadata address": Variant(metadata={"token_endpoint": "http://169.254.169.254/latest"}),
    "plain PKCE": Variant(metadata={"code_challenge_methods_supported": ["plain"]}),
    "another issuer": Variant(metadata={"issuer": "https://evil.test"}),
    "provider at metadata address": Variant(
        authorization_servers=("http://169.254.169.254/latest/meta-data",)
    ),
    "the same, mapped": Variant(authorization_servers=("http://[::ffff:169.254.169.254]/",)),
    "another resource": Variant(resource="https://evil.test/mcp"),
    "no document": Variant(metadata_at=()),
}


@pytest.mark.parametrize("variant", UNUSABLE.values(), ids=UNUSABLE)
def test_a_provider_that_may_not_be_used_is_told_and_never_visited(
    variant: Variant, alice: User
) -> None:
    """I05, I06, A04, A08; RFC 8414, 3.3."""
    with begun(variant, alice) as journey:
        check = journey.test()
        assert check.outcome == "login_required"
        assert journey.server.oauth_error
        with pytest.raises(OAuthError):
            journey.begin()
        fake = journey.fake
        assert (fake.count("register"), fake.count("authorize"), fake.count("token")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("variant", "words", "exchanges"),
    [
        (Variant(token_answer={"access_token": OMIT, "error": "No luck"}), "No luck", 1),
        (Variant(token_answer={"access_token": OMIT}), "nothing that OAuth knows", 1),
        (Variant(token_answer={"token_type": "mac"}), "mac", 1),
        (Variant(iss=None), "issuer", 0),
        (Variant(iss="https://evil.test"), "another", 0),
        (Variant(iss="{issuer}/"), "another", 0),
        (Variant(sends_issuer=None, iss="https://evil.test"), "another", 0),
    ],
)
def test_an_answer_that_is_no_login_stores_nothing(
    variant: Variant, words: str, exchanges: int, alice: User
) -> None:
    """A24, A33."""
    with begun(variant, alice) as journey:
        journey.test()
        with pytest.raises(OAuthError, match=words):
            journey.log_in()
        assert not Login.objects.exists()
        assert journey.fake.count("token") == exchanges


def test_a_method_with_a_secret_and_no_secret_fails_at_the_registration(alice: User) -> None:
    """A14."""
    answer = {"client_secret": OMIT, "token_endpoint_auth_method": "client_secret_post"}
    with begun(Variant(registration_answer=answer), alice) as journey:
        journey.test()
        with pytest.raises(OAuthError, match="secret"):
            journey.begin()
        assert journey.fake.count("authorize") == 0


def test_a_server_that_takes_no_token_asks_for_a_login_after_one_refresh(alice: User) -> None:
    """A36: the count of calls at the token endpoint stays at two."""
    with begun(Variant(), alice) as journey:
        journey.test()
        journey.log_in()
        journey.fake.variant.refuses_every_token = True
        for _ in range(3):
            assert journey.test().outcome == "login_required"
        assert journey.fake.count("token") <= 2
        assert Login.objects.get().ended == "refused"


def test_a_client_that_is_forgotten_is_registered_anew(alice: User) -> None:
    """A29: its refresh ends the login, and the next one is by another client."""
    with begun(Variant(), alice) as journey:
        journey.test()
        journey.log_in()
        journey.fake.forget_clients()
        Login.objects.update(expires_at=database_now() - timedelta(hours=1))
        assert journey.test().outcome == "login_required"
        journey.log_in()
        journey.expect_connected()
        assert journey.fake.count("register") == 2


def test_a_call_for_more_rights_leads_to_a_login_that_has_both(alice: User) -> None:
    """Step-up of the MCP specification: what was asked for before is asked for again."""

    async def call() -> Any:
        settings, _ = await asyncio.to_thread(connection_settings, journey.server)
        async with connect(settings) as connection:
            return await connection.call_tool("echo", {"message": "hello"})

    variant = Variant(challenge_scope="read", tool_scopes={"echo": "write"})
    with begun(variant, alice) as journey:
        journey.test()
        journey.log_in()
        with pytest.raises(MoreRightsRequired) as refused:
            asyncio.run(call())
        assert refused.value.scopes == "write"
        assert "write" in f"{refused.value.message} {refused.value.hint}"
        journey.log_in()
        assert asyncio.run(call()).ok
        asked = [set(form["scope"].split()) for form in journey.fake.sent("authorize")]
        assert asked == [{"read"}, {"read", "write"}]


def test_tokens_in_the_shape_of_a_jwt_tell_when_they_end(alice: User) -> None:
    """A23: the claim is a hint, and nothing of the token is kept in the open."""
    with begun(Variant(expires_in=OMIT, jwt_seconds=3600), alice) as journey:
        journey.test()
        journey.log_in()
        login = Login.objects.get()
        assert login.expires_at is not None
        left = (login.expires_at - database_now()).total_seconds()
        assert 3500 < left <= 3600
        [token] = [each for each in journey.fake.grants.secrets if each.count(".") == 2]
        body = token.split(".")[1]
        assert json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["exp"]
        assert token.encode() not in bytes(login.private)
