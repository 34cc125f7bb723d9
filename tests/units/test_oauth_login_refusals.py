"""Answers that no login may come of (I07, I08, A33; RFC 6749, 4.1.2; RFC 9207)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from threading import Barrier, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.db import connection

from servers.definition import Entry, OAuthClientData, ServerData
from servers.models import Login, PendingLogin, Server
from servers.oauth import pending
from servers.oauth.answer import Answer
from servers.oauth.login import finish_login
from servers.oauth.types import OAuthError
from servers.services import current_data, update_server
from tests.fakes.mcp_http import running
from tests.fakes.oauth_server import OAuthServer, Variant
from tests.fakes.oauth_steps import SESSION, added_server, begin, finish
from umpteenth.accounts.models import User
from umpteenth.accounts.services import create_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def fake() -> Iterator[OAuthServer]:
    with running(OAuthServer()) as server:
        yield server


def params(back: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(back).query, keep_blank_values=True)


def edit(server: Server, **values: Any) -> Server:
    data = ServerData(**{**vars(current_data(server)), **values})
    return update_server(server, actor=None, data=data, version=server.version)


def refused(server: Server, person: User, given: dict[str, list[str]], **values: Any) -> OAuthError:
    with pytest.raises(OAuthError) as caught:
        finish(server, person, "", **{"params": given, **values})
    return caught.value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": []}, "its state is missing"),
        ({"state": [""]}, "its state is missing"),
        ({"state": ["a", "b"]}, "names state twice"),
        ({"code": ["a", "b"]}, "names code twice"),
        ({"code": []}, "neither a code nor an error"),
        ({"code": [""]}, "neither a code nor an error"),
        ({"error": ["access_denied"]}, "both a code and an error"),
        ({"iss": ["a", "b"]}, "names iss twice"),
        ({"state": ["another-state"]}, "No login like this one"),
        ({"state": ["\ud800"]}, "No login like this one"),
    ],
)
def test_an_answer_that_is_none_consumes_nothing(
    change: dict[str, list[str]], words: str, fake: OAuthServer, alice: User
) -> None:
    """I07: a forged callback cannot burn the login that is under way."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    assert words in str(refused(server, alice, {**good, **change}))
    assert fake.count("token") == 0
    finish(server, alice, "", params=good)
    assert Login.objects.exists()


def test_an_answer_counts_once(fake: OAuthServer, alice: User) -> None:
    """I07: a callback that is sent again finishes nothing, and the login stays."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    finish(server, alice, "", params=good)
    assert "finished already" in str(refused(server, alice, good))
    assert fake.count("token") == 1
    assert Login.objects.exists()


def test_another_person_cannot_finish_a_login(fake: OAuthServer, alice: User) -> None:
    """I08: nor does the attempt cost its owner anything."""
    carol = create_user(name="carol", password="a phrase to tell", administrator=True)
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    assert "Somebody else began" in str(refused(server, carol, good))
    finish(server, alice, "", params=good)
    assert Login.objects.get().logged_in_by == alice


def test_another_session_of_the_same_person_cannot_finish_a_login(
    fake: OAuthServer, alice: User
) -> None:
    """I08: an attacker who made a person's other browser open the address gains nothing."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    assert "another browser" in str(refused(server, alice, good, session_key="another"))
    assert PendingLogin.objects.exists()
    assert fake.count("token") == 0


def test_a_login_of_one_server_is_none_of_another(fake: OAuthServer, alice: User) -> None:
    """I08: the state of server 1 used for server 2."""
    server = added_server(fake)
    other = Server.objects.create(
        name="other", transport="http", url=fake.url, private=server.private, key_id=server.key_id
    )
    good = params(fake.visit(begin(server, alice)))
    assert "No login like this one" in str(refused(other, alice, good))
    finish(server, alice, "", params=good)


def test_two_logins_at_once_are_two_logins(fake: OAuthServer, alice: User) -> None:
    """Two tabs: each comes back to its own; the later one counts."""
    server = added_server(fake)
    first, second = (fake.visit(begin(server, alice)) for _ in range(2))
    finish(server, alice, second)
    late = Login.objects.get()
    finish(server, alice, first)
    assert Login.objects.get().pk != late.pk
    assert Login.objects.count() == 1


@pytest.mark.parametrize(
    ("iss", "sends", "works"),
    [
        (None, None, True),  # A33 (a)
        (None, True, False),  # A33 (b)
        ("https://elsewhere.example", True, False),  # A33 (c)
        ("https://elsewhere.example", None, False),
        ("{issuer}/", True, False),  # simple string comparison (RFC 9207, 2.4)
        ("{issuer}", None, True),
        ("{issuer}", True, True),
    ],
)
def test_the_issuer_of_the_answer_is_checked_before_the_exchange(
    iss: str | None, sends: bool | None, works: bool, alice: User
) -> None:
    """A33, RFC 9207."""
    with running(OAuthServer(Variant(iss=iss, sends_issuer=sends))) as fake:
        server = added_server(fake)
        good = params(fake.visit(begin(server, alice)))
        if works:
            finish(server, alice, "", params=good)
        else:
            refused(server, alice, good)
        assert fake.count("token") == int(works)


def test_nothing_of_an_answer_from_elsewhere_is_shown(alice: User) -> None:
    """RFC 9207: not its error either."""
    variant = Variant(
        iss="https://evil.example", decision="access_denied", error_description="Call +1 900"
    )
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        error = refused(server, alice, params(fake.visit(begin(server, alice))))
    assert "Call" not in error.words
    assert "denied" not in error.words


def test_a_denial_is_told_in_the_providers_words(alice: User) -> None:
    """I07: as text, cleaned and bounded; nothing is stored."""
    words = "<script>alert(1)</script>\x1b[31m\u202e No " + "x" * 5000
    variant = Variant(decision="access_denied", error_description=words)
    with running(OAuthServer(variant)) as fake:
        server = added_server(fake)
        good = params(fake.visit(begin(server, alice)))
        error = refused(server, alice, good)
        host = f"127.0.0.1:{fake.provider.port}"
        assert error.message.startswith(
            f"The login was not approved at {host}: <script>alert(1)</script> No xxx"
        )
        assert len(error.message) < 500
        assert "approve it there" in error.hint
        refused(server, alice, good)  # it is used up
    assert not Login.objects.exists()


@pytest.mark.parametrize("code", ["server_error", "temporarily_unavailable", "unheard_of"])
def test_errors_of_the_provider_are_named(code: str, alice: User) -> None:
    """RFC 6749, 4.1.2.1."""
    with running(OAuthServer(Variant(decision=code))) as fake:
        server = added_server(fake)
        error = refused(server, alice, params(fake.visit(begin(server, alice))))
    assert f"({code}) by 127.0.0.1" in str(error)


def test_a_code_that_is_refused_logs_nobody_in(fake: OAuthServer, alice: User) -> None:
    """In the provider's words, which the exchange reads."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    refused(server, alice, {**good, "code": ["made-up"]})
    assert not Login.objects.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://127.0.0.1:9/other"},
        {"url": "http://127.0.0.1:9/other?key=1", "keep_query": False},
        {"oauth": OAuthClientData(client_id="ours")},
        {"oauth": OAuthClientData(client_id="ours", secret="s")},
        {"oauth": OAuthClientData(scopes="more")},
        {"oauth": OAuthClientData("machine", "ours", "s")},
        {"transport": "stdio", "command": "run"},
    ],
    ids=str,
)
def test_a_server_that_was_changed_meanwhile_gets_no_login(
    change: dict[str, Any], fake: OAuthServer, alice: User
) -> None:
    """Bound to the server's address and client settings (issue 4, section 3; P53)."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    edit(Server.objects.get(), **change)
    refused(server, alice, good)
    assert fake.count("token") == 0
    assert not Login.objects.exists()


def test_a_change_of_other_settings_does_not_disturb(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    edit(Server.objects.get(), name="renamed", headers=(Entry("X-More", "1"),))
    finish(server, alice, "", params=good)
    assert Login.objects.exists()


def test_a_change_during_the_exchange_is_seen_before_the_login_is_stored(
    fake: OAuthServer, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P53: the tokens are for the server as it was; they are given back."""
    from servers.oauth import login

    given_back = []
    monkeypatch.setattr(login, "revoke_later", lambda *values: given_back.append(values))
    exchange = login._exchange

    def slow(server: Server, begun: Any, code: str) -> Any:
        tokens = exchange(server, begun, code)
        edit(Server.objects.get(), url="http://127.0.0.1:9/other")
        return tokens

    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    monkeypatch.setattr(login, "_exchange", slow)
    assert "changed during the login" in str(refused(server, alice, good))
    assert not Login.objects.exists()
    assert len(given_back) == 1


def test_a_server_that_was_deleted_meanwhile_is_no_fault(fake: OAuthServer, alice: User) -> None:
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    pk = server.pk
    server.delete()
    with pytest.raises(OAuthError, match="No login like this one"):
        finish_login(pk, person=alice, session_key=SESSION, params=good)


@pytest.mark.django_db(transaction=True)
def test_of_two_callbacks_at_the_same_moment_one_counts(
    fake: OAuthServer, alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I07: single use, whatever the timing: both have found the login before either takes it."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    both, results = Barrier(2), []
    take = pending.take

    def together(row: PendingLogin) -> pending.Begun:
        both.wait(10)
        return take(row)

    monkeypatch.setattr(pending, "take", together)

    def come_back() -> None:
        try:
            results.append(finish(server, alice, "", params=good).again)
        except OAuthError as error:
            results.append(str(error))
        finally:
            connection.close()

    threads = [Thread(target=come_back) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(result == "" for result in results) == [False, True]
    assert fake.count("token") == 1
    assert Login.objects.count() == 1


def test_the_reason_of_a_failure_is_kept_until_somebody_has_logged_in(
    fake: OAuthServer, alice: User
) -> None:
    """The toast that told it is gone by then; an answer that nobody waits for has no say."""
    server = added_server(fake)
    good = params(fake.visit(begin(server, alice)))
    denied = {"state": good["state"], "error": ["access_denied"], "iss": [fake.issuer]}
    refused(server, alice, {**denied, "state": ["another-state"]})
    server.refresh_from_db()
    assert server.oauth_failure == ""
    failure = refused(server, alice, denied)
    server.refresh_from_db()
    assert server.oauth_failure == failure.words != ""
    edited = edit(server, description="Other")
    assert edited.oauth_failure
    finish(server, alice, fake.visit(begin(server, alice)))
    server.refresh_from_db()
    assert server.oauth_failure == ""
    assert server.oauth_failed_at is None
    refused(server, alice, good)
    server.refresh_from_db()
    assert server.oauth_failure == ""


def test_a_failure_is_no_longer_told_once_another_client_is_entered(
    fake: OAuthServer, alice: User
) -> None:
    server = added_server(fake, client_id="ours", secret="{{secret:MISSING}}")
    with pytest.raises(OAuthError, match="Secret MISSING not found"):
        begin(server, alice)
    server.refresh_from_db()
    assert server.oauth_failure.startswith("Secret MISSING not found")
    assert edit(server, oauth=OAuthClientData(client_id="other")).oauth_failure == ""


def test_the_code_is_not_in_the_words_of_an_answer() -> None:
    """U60: whatever prints it."""
    answer = Answer.read({"state": ["s"], "code": ["canary"]})
    assert "canary" not in repr(answer)
    assert "canary" not in repr(replace(answer, state="other"))
