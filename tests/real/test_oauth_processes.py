"""Processes that find one expired access token: one of them refreshes it, all of them work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.fakes.oauth_server import OAuthServer, Request, Variant, running
from tests.real.conftest import PROJECT, Site, new_database, new_site

NAME = "guarded"
PROCESSES = 5

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["sqlite", "postgres"])
def bare_site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """A site without processes of its own."""
    variables = {}
    if request.param == "postgres":
        port: int = request.getfixturevalue("postgres_port")
        variables["UMPTEENTH_DATABASE__URL"] = new_database(port)
    made = new_site(variables)
    made.migrate()
    yield made
    made.close()


@pytest.fixture
def provider() -> Iterator[OAuthServer]:
    """Its refresh tokens are good once; a second use ends the whole login."""
    with running(OAuthServer(Variant(rotates=True, reuse_revokes=True))) as provider:
        provider.add_client("ours")
        yield provider


def start(site: Site, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.real.oauth_trial", *words],
        env=site.environ,
        cwd=PROJECT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def store_login(site: Site, provider: OAuthServer, *, expires_at: float | None) -> None:
    access, refresh = provider.tokens("ours")
    tokens = {"access_token": access, "refresh_token": refresh, "expires_at": expires_at}
    endpoints = {
        "issuer": provider.issuer,
        "authorization_endpoint": provider.endpoint("authorize"),
        "token_endpoint": provider.endpoint("token"),
    }
    given = {
        "server": NAME,
        "url": provider.url,
        "tokens": {**tokens, "issued_at": time.time() - 7200},
        "provider": endpoints,
        "resource": provider.resource,
    }
    do(site, "put", json.dumps(given))


def do(site: Site, what: str, words: str = "") -> None:
    process = start(site, what)
    _, errors = process.communicate(words, timeout=60)
    assert process.returncode == 0, errors


def begin_calls(site: Site, count: int) -> list[subprocess.Popen[str]]:
    """All at once."""
    processes = [start(site, NAME) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def call_at_once(site: Site, count: int) -> list[dict[str, object]]:
    """The answers of all."""
    answers = []
    for process in begin_calls(site, count):
        out, errors = process.communicate(timeout=90)
        assert process.returncode == 0, errors
        answers.append(json.loads(out))
    return answers


@pytest.mark.parametrize("told", [True, False], ids=["known to be over", "refused with 401"])
def test_five_processes_share_one_refresh(
    bare_site: Site, provider: OAuthServer, *, told: bool
) -> None:
    """A20: the provider revokes the login if a refresh token comes twice."""
    store_login(bare_site, provider, expires_at=time.time() - 3600 if told else None)
    provider.grants.expire_access_tokens()
    answers = call_at_once(bare_site, PROCESSES)
    assert [answer["ok"] for answer in answers] == [True] * PROCESSES, answers
    assert provider.grants.outcomes == [("refresh_token", "ok")]
    # What was rotated is stored: it works the next time, too.
    do(bare_site, "age")
    provider.grants.expire_access_tokens()
    [answer] = call_at_once(bare_site, 1)
    assert answer["ok"], answer
    assert provider.grants.outcomes == [("refresh_token", "ok")] * 2
    assert not provider.grants.families[0].revoked


def test_a_process_that_was_killed_while_it_refreshed_leaves_the_login_to_others(
    bare_site: Site, provider: OAuthServer
) -> None:
    """A20: its lease ends by itself; the refresh token was not used, and is still good."""
    asked, held = threading.Event(), iter([True])

    async def hold_the_first(request: Request) -> None:
        if next(held, False):
            asked.set()
            await asyncio.Event().wait()

    provider.variant.replies = {"/token": hold_the_first}
    store_login(bare_site, provider, expires_at=time.time() - 3600)
    [victim] = begin_calls(bare_site, 1)
    assert asked.wait(60)
    victim.kill()
    victim.communicate()
    do(bare_site, "age")
    [answer] = call_at_once(bare_site, 1)
    assert answer["ok"], answer
    assert provider.grants.outcomes == [("refresh_token", "ok")]
