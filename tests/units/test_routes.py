"""The table of all routes: who may open what (issue 2, section 2).

A new route fails here until it stands in `ROUTES`, so that nobody forgets to decide who may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.http.response import HttpResponseBase
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, reverse
from django.utils import timezone

from jobs.definition import JobData
from jobs.environments.services import create_environment
from jobs.models import Artifact, Blob, Environment, Job, Run, RunEvent
from jobs.services import create_job
from secrets_vault.models import Secret
from secrets_vault.services import ensure_key_ring, set_secret
from servers.definition import ServerData
from servers.models import Check, Server, Tool
from servers.services import create_server
from tests.fakes.login_rows import logged_in
from tests.units.conftest import ClientFor
from umpteenth.accounts.models import ApiToken, User
from umpteenth.accounts.services import create_user
from umpteenth.accounts.tokens import create_token

pytestmark = pytest.mark.django_db

OK, SEE_OTHER, UNSIGNED, FORBIDDEN, NOT_FOUND, WRONG_METHOD = 200, 302, 401, 403, 404, 405


class Things:
    """Something for each address to lead to, made when a route asks for it."""

    @cached_property
    def person(self) -> User:
        return create_user(name="carol", password="a phrase to tell")

    @cached_property
    def token(self) -> ApiToken:
        return create_token(owner=self.person, name="script", actor=None)[0]

    @cached_property
    def server(self) -> Server:
        ensure_key_ring()
        server = create_server(actor=None, data=ServerData("time", "stdio", command="time-server"))
        Tool.objects.create(server=server, position=0, name="now", content_hash="0" * 64)
        return server

    @cached_property
    def check(self) -> Check:
        return Check.objects.create(server=self.server, connection_version=1, status="done")

    @cached_property
    def secret(self) -> Secret:
        ensure_key_ring()
        set_secret(actor=None, name="TOKEN", value="not shown")
        return Secret.objects.get(name="TOKEN")

    @cached_property
    def job(self) -> Job:
        return create_job(actor=None, data=JobData("nightly", "#!/bin/sh\necho hi\n"))

    @cached_property
    def environment(self) -> Environment:
        return create_environment(actor=None, text="name: tools\nnpm: [a]\n")

    @cached_property
    def run(self) -> Run:
        run = Run.objects.create(
            job=self.job,
            number=1,
            status="succeeded",
            trigger="manual",
            trust="creator",
            last_seq=1,
            queued_at=timezone.now(),
            finished_at=timezone.now(),
        )
        RunEvent.objects.create(
            run=run, seq=1, at=timezone.now(), kind="step", payload={"name": "Begin"}
        )
        return run

    @cached_property
    def blob(self) -> Blob:
        path = default_storage.save("runs/blob", ContentFile(b"body"))
        return Blob.objects.create(run=self.run, path=path, size=4)

    @cached_property
    def artifact(self) -> Artifact:
        path = default_storage.save("runs/artifact", ContentFile(b"body"))
        return Artifact.objects.create(
            run=self.run, name="a.txt", media_type="text/plain", path=path, size=4
        )


Arguments = Callable[[Things], dict[str, Any]]
Query = str | Callable[[Things], str]


@dataclass(frozen=True)
class Route:
    """What a GET answers to each kind of person; `post` is a member's POST where it is refused."""

    nobody: int
    member: int
    administrator: int
    arguments: Arguments = lambda things: {}
    query: Query = ""
    member_may_post: bool = True


def everyone(arguments: Arguments = lambda things: {}, query: Query = "") -> Route:
    """A page for everybody who is signed in."""
    return Route(SEE_OTHER, OK, OK, arguments, query)


def action(arguments: Arguments = lambda things: {}) -> Route:
    """Only POST, for everybody who is signed in."""
    return Route(SEE_OTHER, WRONG_METHOD, WRONG_METHOD, arguments)


def api(arguments: Arguments = lambda things: {}) -> Route:
    """A call of the REST API: nobody is led to a form."""
    return Route(UNSIGNED, OK, OK, arguments)


def api_administrators_action(arguments: Arguments = lambda things: {}) -> Route:
    return Route(UNSIGNED, WRONG_METHOD, WRONG_METHOD, arguments, member_may_post=False)


def administrators(arguments: Arguments = lambda things: {}) -> Route:
    """A page for administrators."""
    return Route(SEE_OTHER, FORBIDDEN, OK, arguments, member_may_post=False)


def administrators_action(arguments: Arguments = lambda things: {}) -> Route:
    """Only POST, for administrators."""
    return Route(SEE_OTHER, WRONG_METHOD, WRONG_METHOD, arguments, member_may_post=False)


def _person(things: Things) -> dict[str, Any]:
    return {"pk": things.person.pk}


def _logged_in(things: Things) -> dict[str, Any]:
    logged_in(things.server)
    return {"pk": things.server.pk}


def _token(things: Things) -> dict[str, Any]:
    return {"pk": things.token.pk}


def _server(things: Things) -> dict[str, Any]:
    return {"pk": things.server.pk}


def _check(things: Things) -> dict[str, Any]:
    return {"pk": things.check.pk}


def _secret(things: Things) -> dict[str, Any]:
    return {"pk": things.secret.pk}


def _job(things: Things) -> dict[str, Any]:
    return {"pk": things.job.pk}


def _environment(things: Things) -> dict[str, Any]:
    return {"pk": things.environment.pk}


def _run(things: Things) -> dict[str, Any]:
    return {"pk": things.run.pk}


ROUTES: dict[str, Route] = {
    # For everybody
    "healthz": Route(OK, OK, OK),
    "accounts:sign_in": Route(OK, SEE_OTHER, SEE_OTHER),
    "accounts:claim": Route(NOT_FOUND, NOT_FOUND, NOT_FOUND, lambda things: {"token": "used"}),
    "accounts:theme": Route(WRONG_METHOD, WRONG_METHOD, WRONG_METHOD),
    # People
    "dashboard": everyone(),
    "accounts:sign_out": action(),
    "accounts:password": everyone(),
    "accounts:search": everyone(query="?q=a"),
    "accounts:people": everyone(),
    "accounts:person_add": administrators(),
    "accounts:person_role": administrators(_person),
    "accounts:person_password": administrators(_person),
    "accounts:person_deactivate": administrators(_person),
    "accounts:person_activate": Route(
        SEE_OTHER, FORBIDDEN, WRONG_METHOD, _person, member_may_post=False
    ),
    "accounts:settings": Route(SEE_OTHER, SEE_OTHER, SEE_OTHER),
    "accounts:general": everyone(),
    "accounts:audit": administrators(),
    "accounts:tokens": everyone(),
    "accounts:token_create": everyone(),
    # Somebody else's token.
    "accounts:token_revoke": Route(SEE_OTHER, NOT_FOUND, OK, _token),
    # Secrets
    "secrets:list": everyone(),
    "secrets:options": everyone(),
    "secrets:create": administrators(),
    "secrets:quick": administrators(),
    "secrets:edit": administrators(_secret),
    "secrets:delete": administrators(_secret),
    # Servers
    "servers:list": everyone(),
    "servers:changes": everyone(),
    "servers:detail": everyone(_server),
    "servers:news": everyone(_server),
    "servers:row": everyone(_server),
    "servers:tools": everyone(_server),
    "servers:tool": everyone(_server, query="?name=now"),
    "servers:check": everyone(_check),
    "servers:test": action(_server),
    "servers:cancel_check": action(_check),
    "servers:create": administrators(),
    "servers:edit": administrators(_server),
    "servers:delete": administrators(_server),
    "servers:duplicate": administrators_action(_server),
    "servers:enabled": administrators_action(_server),
    "servers:home_size": everyone(_server),
    "servers:clear_home": administrators(_server),
    "servers:log_out": Route(SEE_OTHER, FORBIDDEN, OK, _logged_in),
    "servers_api:oauth_login": api_administrators_action(_server),
    "servers_api:oauth_logout": api_administrators_action(_server),
    # An answer that nobody asked for leads to the list, which says so (303).
    "servers_api:oauth_callback": Route(FORBIDDEN, 303, 303, _server),
    "servers_api:oauth_client": Route(NOT_FOUND, NOT_FOUND, NOT_FOUND, _server),
    # REST API
    "api:about": api(),
    "api:api-root": api(),
    "api:openapi-json": api(),
    "api:servers": api(),
    "api:server": api(lambda things: {"id": things.server.pk}),
    # Jobs
    "jobs:list": everyone(),
    "jobs:create": everyone(),
    "jobs:cron_preview": everyone(query="?cron=0+9+*+*+*&timezone=UTC"),
    "jobs:attachment_row": everyone(query=lambda things: f"?attach={things.server.pk}"),
    "jobs:attachment_tools": action(_server),
    "jobs:detail": everyone(_job),
    "jobs:runs": everyone(_job),
    "jobs:state": everyone(_job),
    "jobs:state_entry": everyone(_job),
    "jobs:state_delete": Route(SEE_OTHER, NOT_FOUND, NOT_FOUND, _job),
    "jobs:settings": everyone(_job),
    "jobs:run_now": everyone(_job),
    "jobs:enabled": action(_job),
    "jobs:delete": everyone(_job),
    "jobs:sandboxes": Route(SEE_OTHER, FORBIDDEN, OK),
    "jobs:environment": everyone(_job),
    # Environments
    "environments:create": administrators(),
    "environments:detail": everyone(_environment),
    "environments:update": administrators_action(_environment),
    "environments:builds": everyone(_environment),
    "environments:build": administrators_action(_environment),
    "environments:delete": administrators(_environment),
    # Runs
    "runs:list": everyone(),
    "runs:detail": everyone(_run),
    "runs:events": everyone(_run),
    "runs:event": everyone(lambda things: {"pk": things.run.pk, "seq": 1}),
    "runs:value": everyone(lambda things: {"pk": things.run.pk, "seq": 1, "key": "name"}),
    "runs:cancel": action(_run),
    "runs:retry": action(_run),
    "runs:raw": everyone(_run),
    "runs:output": everyone(_run),
    "runs:blob": everyone(lambda things: {"pk": things.run.pk, "blob_id": things.blob.pk}),
    "runs:artifact": everyone(
        lambda things: {"pk": things.run.pk, "artifact_id": things.artifact.pk}
    ),
}
PUBLIC = {
    "healthz",
    "accounts:sign_in",
    "accounts:claim",
    "accounts:theme",
    "servers_api:oauth_callback",
    "servers_api:oauth_client",
}


def _names(resolver: URLResolver, space: str = "") -> Iterator[str]:
    # django-ninja has an entry for each method of a route.
    seen = set()
    for entry in resolver.url_patterns:
        if isinstance(entry, URLPattern):
            if (entry.name, str(entry.pattern)) not in seen:
                yield f"{space}{entry.name}"
            seen.add((entry.name, str(entry.pattern)))
        else:
            yield from _names(entry, f"{entry.namespace}:" if entry.namespace else space)


def _url(name: str, things: Things) -> str:
    route = ROUTES[name]
    query = route.query if isinstance(route.query, str) else route.query(things)
    return reverse(name, kwargs=route.arguments(things)) + query


def _status(response: HttpResponseBase) -> int:
    response.close()
    return response.status_code


def test_every_route_stands_in_the_table_once() -> None:
    names = list(_names(get_resolver()))
    assert sorted(names) == sorted(ROUTES)


def test_only_the_listed_routes_are_public() -> None:
    closed = (SEE_OTHER, UNSIGNED)
    assert {name for name, route in ROUTES.items() if route.nobody not in closed} == PUBLIC


@pytest.mark.parametrize("name", sorted(ROUTES))
def test_a_route_answers_each_person_as_the_table_says(
    name: str, client_for: ClientFor, alice: User, bob: User
) -> None:
    url, route = _url(name, Things()), ROUTES[name]
    answers = [client_for(person).get(url) for person in (None, bob, alice)]
    locations = [answer.get("Location", "") for answer in answers]
    statuses = [_status(answer) for answer in answers]
    assert statuses == [route.nobody, route.member, route.administrator]
    if route.nobody == SEE_OTHER:
        assert locations[0].startswith("/sign-in/?next=/")


@pytest.mark.parametrize("name", sorted(set(ROUTES) - PUBLIC))
def test_nobody_changes_anything(name: str, client: Client) -> None:
    url = _url(name, Things())
    for method in (client.post, client.put, client.patch, client.delete):
        response = method(url)
        assert _status(response) == ROUTES[name].nobody
        assert response.get("Location", "/sign-in/").startswith("/sign-in/")


@pytest.mark.parametrize(
    "name", sorted(name for name, route in ROUTES.items() if not route.member_may_post)
)
def test_a_member_does_not_do_what_is_for_administrators(
    name: str, client_for: ClientFor, bob: User
) -> None:
    assert _status(client_for(bob).post(_url(name, Things()))) == FORBIDDEN


@pytest.mark.parametrize("name", sorted(set(ROUTES) - {"healthz"}))
def test_every_form_needs_its_token(name: str, alice: User) -> None:
    """Another site cannot make a signed-in person's browser change anything."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice, backend="django.contrib.auth.backends.ModelBackend")
    assert _status(browser.post(_url(name, Things()))) in (FORBIDDEN, WRONG_METHOD)
