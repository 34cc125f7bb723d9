"""Finds out how a server wants people to log in (MCP authorization, all revisions). No Django.

1. The server's own document (RFC 9728): where its challenge points, then at the well-known places
   of its address. It names the authorization servers.
2. Their metadata (RFC 8414, OpenID Connect Discovery), at every place that is in use.
3. No such document at all: the server's own origin is the authorization server, as in revision
   2025-03-26, at last with that revision's default endpoints.

What is not there, no JSON or without the needed fields is noted, and the next place is asked (A08).
What must not be used ends the search where going on would mean to guess: a document about another
resource, metadata of another issuer or without PKCE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from servers.mcp.types import Challenge
from servers.oauth.documents import NoDocument, address_problem, document_client, fetch_document
from servers.oauth.metadata import (
    ForeignDocument,
    Resource,
    base_of,
    default_provider,
    own_address,
    provider_places,
    read_provider,
    read_resource,
    resource_places,
    shown,
)
from servers.oauth.scopes import read_scopes
from servers.oauth.types import Advertised, DiscoveryFailed, Provider
from umpteenth.core import deadlines
from umpteenth.core.addresses import TargetRefused, check_target
from umpteenth.core.http import public_url

if TYPE_CHECKING:
    import httpx2

LIMIT: Final = 5.0  # seconds in all
MAX_TRIED: Final = 40  # lines of an error

_HINT: Final = (
    "Tell whoever runs the server. Where it also takes a key, add an Authorization header instead."
)
_AGAIN: Final = "Test the server again; perhaps it was busy."
_LATER: Final = "Perhaps it is down or busy, and the login works later."
_WITHOUT_PKCE: Final = (
    "The provider does not say whether it supports PKCE; the login uses it (S256) all the same."
)
_GUESSED: Final = (
    "The server publishes nothing about its logins, so the default addresses of revision "
    "2025-03-26 are tried. If it takes a key, add an Authorization header instead."
)


async def discover(
    url: str, challenge: Challenge | None, *, limit: float = LIMIT
) -> Advertised | None:
    """How to log in to the server at `url`, whose query is not sent.

    `challenge` is what the server said to a request without a login (`Challenge()` where it
    said nothing); None where it let us in: then only a document of its own counts (RFC 9728),
    and the answer is None if there is none. Raises `DiscoveryFailed`.
    """
    async with document_client(limit) as client:
        search = _Search(client, url, limit)
        try:
            async with deadlines.timeout(limit):
                await check_target(url)
                return await search.run(challenge)
        except TargetRefused as refused:
            raise search.failed(refused.message, refused.hint) from None
        except TimeoutError:
            raise search.failed(
                f"Looking for a login took longer than {limit:g} seconds.",
                _AGAIN,
            ) from None


class _Search:
    """One search; `tried` is what an error lists."""

    def __init__(self, client: httpx2.AsyncClient, url: str, limit: float) -> None:
        self._client = client
        self._url = url
        self._ends = asyncio.get_running_loop().time() + limit
        self._tried: list[tuple[str, str]] = []
        self._foreign = False  # something was found that must not be used
        self._silent = False  # some place did not answer, where anything may be
        self._forbidden = ""  # the option that does not let us ask some place
        self._advertised = False

    async def run(self, challenge: Challenge | None) -> Advertised | None:
        found = await self._resource(challenge)
        if found is not None:
            self._advertised = True
            return await self._at_its_servers(*found, challenge)
        if challenge is None:
            if not self._silent:
                return None
            raise self.failed("Whether the server has logins could not be read.", _AGAIN)
        if self._foreign:
            self._advertised = True
            raise self.failed(
                "The server's document about its logins is about another address, so it is not "
                "used.",
                "Check the URL. If it is right, tell whoever runs the server.",
            )
        return await self._at_its_origin(challenge)

    def failed(self, message: str, hint: str = _HINT) -> DiscoveryFailed:
        tried = tuple(self._tried[:MAX_TRIED])
        return DiscoveryFailed(
            message, self._forbidden or hint, tried=tried, advertised=self._advertised
        )

    # --- The server's own document

    async def _resource(self, challenge: Challenge | None) -> tuple[str, Resource] | None:
        places = resource_places(self._url)
        pointer = challenge.resource_metadata if challenge else ""
        if pointer:
            self._advertised = True
            if problem := await address_problem(pointer, near=self._url):
                self._note(pointer, f"not asked: an address {problem}")
            else:
                places = list(dict.fromkeys([pointer, *places]))
        for place in places:
            document = await self._document(place)
            if document is None:
                continue
            try:
                return place, read_resource(document, self._url)
            except NoDocument as problem_found:
                self._refuse(place, problem_found)
        return None

    async def _at_its_servers(
        self, place: str, resource: Resource, challenge: Challenge | None
    ) -> Advertised:
        for issuer in resource.authorization_servers:
            provider, warnings = await self._provider([issuer])
            if provider is not None:
                return Advertised(
                    provider=provider,
                    resource=resource.resource,
                    resource_metadata_url=place,
                    challenge_scopes=_challenge_scopes(challenge),
                    resource_scopes=resource.scopes,
                    warnings=(*resource.warnings, *warnings),
                )
        named = " or ".join(public_url(one) for one in resource.authorization_servers)
        raise self.failed(
            f"The server sends people to {named} to log in, but no metadata that can be used were "
            "found there.",
            _LATER if self._silent else _HINT,
        )

    # --- Without one (2025-03-26)

    async def _at_its_origin(self, challenge: Challenge) -> Advertised:
        base, resource = base_of(self._url), own_address(self._url)
        issuers = list(dict.fromkeys([base, resource]))
        provider, warnings = await self._provider(issuers)
        if provider is None and self._silent:
            raise self.failed(
                "The server wants a login, and how to get one could not be read.", _AGAIN
            )
        self._advertised = self._foreign
        if provider is None and (self._foreign or not _may_mean_bearer(challenge)):
            raise self.failed("The server wants a login, and says nowhere how to get one.")
        if provider is None:
            provider, warnings = default_provider(self._url), (_GUESSED,)
        return Advertised(
            provider=provider,
            resource=resource,
            challenge_scopes=_challenge_scopes(challenge),
            warnings=warnings,
        )

    # --- The authorization server's metadata

    async def _provider(self, issuers: Sequence[str]) -> tuple[Provider | None, tuple[str, ...]]:
        """The first description of one of `issuers` that can be used, and what is odd in it. The
        first of them is looked for everywhere."""
        problem = await address_problem(issuers[0], near=self._url)
        if not problem and set("?#") & set(issuers[0]):  # RFC 8414, 2
            problem = "which holds a query or a fragment"
        if problem:
            self._note(issuers[0], f"not asked: an address {problem}")
            return None, ()
        others = [provider_places(issuer)[0] for issuer in issuers[1:]]
        for place in [*provider_places(issuers[0]), *others]:
            document = await self._document(place)
            if document is None:
                continue
            try:
                provider = read_provider(document, issuers, place)
                return await self._with_checked_addresses(provider)
            except NoDocument as problem_found:
                self._refuse(place, problem_found)
        return None, ()

    async def _with_checked_addresses(self, provider: Provider) -> tuple[Provider, tuple[str, ...]]:
        """Without endpoints that cannot be used (I05, I06). Raises `ForeignDocument` for those
        that every login needs."""
        warnings: list[str] = []
        for name in ("authorization_endpoint", "token_endpoint"):
            if problem := await self._endpoint_problem(getattr(provider, name)):
                raise ForeignDocument(f"{name} is an address {problem}")
        usable = {}
        for name in ("registration_endpoint", "revocation_endpoint"):
            usable[name] = getattr(provider, name)
            if problem := await self._endpoint_problem(usable[name]):
                warnings.append(f"The provider's {name} is not used: an address {problem}.")
                usable[name] = ""
        provider = replace(
            provider,
            registration_endpoint=usable["registration_endpoint"],
            revocation_endpoint=usable["revocation_endpoint"],
        )
        if provider.authorization_endpoint and provider.code_challenge_methods is None:
            warnings.append(_WITHOUT_PKCE)
        return provider, tuple(warnings)

    async def _endpoint_problem(self, url: str) -> str:
        if not url:
            return ""
        if problem := await address_problem(url, near=self._url):
            return f"{problem} ({shown(url)})"
        if "#" in url:  # RFC 6749, 3.1 and 3.2
            return f"which holds a fragment ({shown(url)})"
        try:
            await check_target(url)
        except TargetRefused as refused:
            self._forbidden = refused.hint
            return f"that is refused: {refused.message}"
        return ""

    # --- Asking

    async def _document(self, place: str) -> dict[str, Any] | None:
        # One that does not answer leaves time for the others.
        seconds = (self._ends - asyncio.get_running_loop().time()) / 2
        self._note(place, "no answer when the time was over")
        try:
            document, _ = await fetch_document(self._client, place, seconds=seconds)
        except NoDocument as problem:
            self._silent |= not problem.answered
            self._forbidden = problem.forbidden or self._forbidden
            self._note(place, str(problem), again=True)
            return None
        self._note(place, "200 OK", again=True)
        return document

    def _refuse(self, place: str, problem: NoDocument) -> None:
        self._foreign |= isinstance(problem, ForeignDocument)
        self._note(place, str(problem), again=True)

    def _note(self, place: str, answer: str, *, again: bool = False) -> None:
        """`again`: in place of what was noted last."""
        if again:
            self._tried.pop()
        self._tried.append((public_url(place), answer))


def _may_mean_bearer(challenge: Challenge) -> bool:
    """A server that asks for Basic alone has no OAuth, though its answer looks the same."""
    named = challenge.schemes
    return challenge.status == HTTPStatus.UNAUTHORIZED and (not named or "bearer" in named)


def _challenge_scopes(challenge: Challenge | None) -> tuple[str, ...] | None:
    if challenge is None or challenge.scope is None:
        return None
    return read_scopes(challenge.scope.split())
