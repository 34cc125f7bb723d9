"""A provider of OAuth logins and an MCP server that it protects, each on a port of its own.

    with running(OAuthServer(Variant(issuer_path="/r", metadata_at=("oidc-appended",)))) as fake:
        fake.url                    # the MCP server
        back = fake.visit(address)  # the person approves: where the browser is sent to
        fake.count("token")         # calls of the token endpoint
        fake.grants.outcomes        # [("authorization_code", "ok"), ("refresh_token", "ok"), …]

It is at once a context manager for tests with a loop of their own (`async with OAuthServer(…)`),
and with `running` it has a thread and a loop of its own, which suits every kind of test. How it
differs from a well-behaved provider says its `Variant`, which may also be changed while it runs.

    fake.add_client("id", secret="s", redirect_uris=[…])   an operator's client
    fake.tokens("id")             access and refresh token as after a login, without one
    fake.grants.expire_access_tokens()   the server takes none of those any more
    fake.grants.revoke_all()             every login is over
    fake.forget_clients()                all client identifiers are unknown (A29)
    fake.grants.secrets           whatever must never be seen outside

Clients are checked, PKCE, redirect URIs and codes as well: a mistake is answered as RFC 6749 has
it. As a process it prints the address of the MCP server:

    python -m tests.fakes.oauth_server '{"decision": "ask"}'
"""

from __future__ import annotations

import asyncio
import html
import json
import secrets
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.fakes.mcp_http import JSON, FakeHttp, Reply, Request, running
from tests.fakes.oauth_grants import Client, Code, Family, Grants, Refusal, laid_over
from tests.fakes.oauth_variant import OMIT, PLACES, RESOURCE_PLACES, Answer, Variant

__all__ = ["OMIT", "Client", "OAuthServer", "Reply", "Request", "Variant", "running"]

ENDPOINTS = ("register", "authorize", "decide", "token", "revoke")


class OAuthServer:
    def __init__(self, variant: Variant | None = None) -> None:
        self.variant = variant or Variant()
        self.grants = Grants(self.variant)
        self.counts: Counter[str] = Counter()
        # (endpoint, its parameters), in the order in which they came.
        self.calls: list[tuple[str, dict[str, str]]] = []
        self.mcp = FakeHttp(
            self.variant.behaviour, answer=self.variant.answer, script=self._at_server
        )
        self.provider = FakeHttp(script=self._at_provider)

    async def __aenter__(self) -> Self:
        await self.mcp.__aenter__()
        await self.provider.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.mcp.__aexit__(exc_type, exc, traceback)
        await self.provider.__aexit__(exc_type, exc, traceback)

    # --- Addresses

    @property
    def url(self) -> str:
        return self.mcp.url

    @property
    def server_origin(self) -> str:
        return f"http://127.0.0.1:{self.mcp.port}"

    @property
    def origin(self) -> str:
        """The provider's."""
        return self.server_origin if self.variant.same_origin else self._provider_origin

    @property
    def _provider_origin(self) -> str:
        return f"http://127.0.0.1:{self.provider.port}"

    @property
    def issuer(self) -> str:
        return self.origin + self.variant.issuer_path

    @property
    def resource(self) -> str:
        return self._filled(self.variant.resource)

    def endpoint(self, name: str) -> str:
        return f"{self.origin}{self.variant.issuer_path}/{name}"

    def _filled(self, text: str) -> str:
        pointer = RESOURCE_PLACES.get(self.variant.pointer, "")
        words = {
            "{resource}": self.variant.resource,
            "{server}": self.server_origin,
            "{provider}": self.origin,
            "{url}": self.url,
            "{issuer}": self.issuer,
            "{pointer}": self.server_origin + pointer,
        }
        for word, meaning in words.items():
            text = text.replace(word, meaning)
        return text

    def _filled_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._filled(value)
        if isinstance(value, Mapping):
            return {name: self._filled_all(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._filled_all(item) for item in value]
        return value

    # --- What tests do

    def count(self, endpoint: str) -> int:
        """Calls of `register`, `authorize`, `token` or `revoke`; of another, by its path."""
        return self.counts[endpoint]

    def sent(self, endpoint: str) -> list[dict[str, str]]:
        """The parameters of each call of an endpoint."""
        return [form for name, form in self.calls if name == endpoint]

    def add_client(
        self,
        client_id: str,
        *,
        secret: str = "",
        method: str = "",
        redirect_uris: Sequence[str] = (),
        public_key: str = "",
        algorithm: str = "ES256",
    ) -> Client:
        method = method or ("client_secret_basic" if secret else "none")
        client = Client(client_id, secret, method, list(redirect_uris), "", public_key, algorithm)
        self.grants.clients[client_id] = client
        if secret:
            self.grants.secrets.add(secret)
        return client

    def forget_clients(self) -> None:
        self.grants.clients.clear()

    def tokens(self, client_id: str, *, scope: str = "") -> tuple[str, str]:
        """An access and a refresh token, as if somebody had logged in."""
        family = Family(client_id, self.resource, scope)
        self.grants.families.append(family)
        answer = self.grants.answer(family, machine=False)
        return answer["access_token"], answer.get("refresh_token", "")

    def visit(self, address: str, *, decision: str = "") -> str:
        """A person's browser opens an authorization URL: where the provider sends it back to.

        Raises `AssertionError` with the page where it stays at the provider.
        """
        parts = urlsplit(address)
        assert f"{parts.scheme}://{parts.netloc}" == self.origin, f"Not the provider: {address}"
        form = dict(parse_qsl(parts.query, keep_blank_values=True))
        self._note("authorize", form)
        reply = self._authorize(form, decision or "approve" if self._asks() else decision)
        assert "location" in reply.headers, f"{reply.status} {reply.body!r}"
        return reply.headers["location"]

    def _asks(self) -> bool:
        return self.variant.decision == "ask"

    def _note(self, endpoint: str, form: dict[str, str]) -> None:
        self.counts[endpoint] += 1
        self.calls.append((endpoint, form))

    # --- The MCP server

    async def _at_server(self, request: Request) -> Reply | None:
        path = request.path.partition("?")[0]
        scripted = await self._scripted(path, request)
        if scripted is not None:
            return scripted
        if self.variant.same_origin and (found := self._provider_reply(path, request)):
            return found
        if path in {RESOURCE_PLACES[place] for place in self.variant.resource_at}:
            self.counts[path] += 1
            return _json(self.resource_document())
        if path != "/mcp":
            self.counts[path] += 1
            return self.variant.missing
        return self._guard(request)

    async def _scripted(self, path: str, request: Request) -> Reply | None:
        answer: Answer | None = self.variant.replies.get(path)
        if answer is None:
            return None
        if isinstance(answer, Reply):
            found: Reply | None = answer
        else:
            reply = answer(request)
            found = await reply if isinstance(reply, Awaitable) else reply
        if found is not None:
            endpoint = path.rpartition("/")[2]
            self._note(endpoint if endpoint in ENDPOINTS else path, _form(request))
        return found

    def resource_document(self) -> dict[str, Any]:
        variant = self.variant
        document: dict[str, Any] = {
            "resource": self.resource,
            "authorization_servers": [self._filled(one) for one in variant.authorization_servers],
            "bearer_methods_supported": ["header"],
        }
        if variant.resource_scopes is not None:
            document["scopes_supported"] = list(variant.resource_scopes)
        return laid_over(document, _kept(variant.resource_document, self._filled_all))

    def _guard(self, request: Request) -> Reply | None:
        """None lets the request through to the MCP server."""
        if self.variant.lets_in:
            return None
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        family = self.grants.family_of(token) if scheme.lower() == "bearer" else None
        if family is None or self.variant.refuses_every_token:
            self.counts["refused"] += 1
            return self._refused("invalid_token" if token else "")
        missing = self._missing_scope(request, family)
        return self._insufficient(missing) if missing else None

    def _missing_scope(self, request: Request, family: Family) -> str:
        if request.rpc != "tools/call":
            return ""
        needed = self.variant.tool_scopes.get(request.message["params"]["name"], "")
        return needed if not set(needed.split()) <= set(family.scope.split()) else ""

    def _refused(self, error: str) -> Reply:
        headers = {"content-type": JSON}
        challenge = self._challenge(error, self.variant.challenge_scope)
        if challenge:
            headers["www-authenticate"] = challenge
        return Reply(self.variant.refusal_status, headers, b'{"error":"invalid_token"}')

    def _challenge(self, error: str, scope: str | None) -> str:
        if self.variant.challenge is not None:
            return self._filled(self.variant.challenge)
        parts = [f'error="{error}"'] if error else []
        if self.variant.pointer:
            parts.append(self._filled('resource_metadata="{pointer}"'))
        if scope is not None:
            parts.append(f'scope="{scope}"')
        return f"Bearer {', '.join(parts)}".rstrip()

    def _insufficient(self, scope: str) -> Reply:
        self.counts["insufficient"] += 1
        challenge = self._challenge("insufficient_scope", scope)
        return Reply(
            403,
            {"content-type": JSON, "www-authenticate": challenge},
            b'{"error":"insufficient_scope"}',
        )

    # --- The provider

    async def _at_provider(self, request: Request) -> Reply:
        path = request.path.partition("?")[0]
        scripted = await self._scripted(path, request)
        if scripted is not None:
            return scripted
        if not self.variant.same_origin and (found := self._provider_reply(path, request)):
            return found
        self.counts[path] += 1
        return self.variant.missing

    def _provider_reply(self, path: str, request: Request) -> Reply | None:
        variant = self.variant
        places = [PLACES[place].format(path=variant.issuer_path) for place in variant.metadata_at]
        if request.method == "GET" and path in places:
            self.counts[path] += 1
            return _json(self.provider_document())
        before, _, endpoint = path.rpartition("/")
        if before != variant.issuer_path or endpoint not in ENDPOINTS:
            return None
        form = _form(request)
        self._note(endpoint, form)
        answers: dict[str, Callable[[], Reply | None]] = {
            "register": lambda: self._register(request),
            "authorize": lambda: self._authorize(form),
            "decide": lambda: self._authorize(form, form.pop("decision", "")),
            "token": lambda: self._token(request, form),
            "revoke": lambda: self._revoke(request, form),
        }
        return answers[endpoint]()

    def provider_document(self) -> dict[str, Any]:
        variant = self.variant
        advertised = variant.advertised_auth_methods
        methods = variant.auth_methods if advertised is None else advertised
        document: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": self.endpoint("authorize"),
            "token_endpoint": self.endpoint("token"),
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": list(methods),
        }
        if variant.registration == "open":
            document["registration_endpoint"] = self.endpoint("register")
        if variant.revocation:
            document["revocation_endpoint"] = self.endpoint("revoke")
        if variant.scopes_supported is not None:
            document["scopes_supported"] = list(variant.scopes_supported)
        if variant.sends_issuer is not None:
            name = "authorization_response_iss_parameter_supported"
            document[name] = variant.sends_issuer
        if variant.takes_client_documents:
            document["client_id_metadata_document_supported"] = True
        return laid_over(document, _kept(variant.metadata, self._filled_all))

    def _register(self, request: Request) -> Reply | None:
        if self.variant.registration != "open":
            return None
        asked: dict[str, Any] = json.loads(request.body)
        method = str(asked.get("token_endpoint_auth_method", "client_secret_basic"))
        answer = {**asked, "client_id": f"client-{secrets.token_hex(6)}"}
        if method != "none":
            answer |= {"client_secret": self.grants.secret("secret"), "client_secret_expires_at": 0}
        answer = laid_over(answer, self.variant.registration_answer)
        if self.variant.registration_status < 400:
            client = self.add_client(
                str(answer.get("client_id", "")),
                secret=str(answer.get("client_secret") or ""),
                method=str(answer.get("token_endpoint_auth_method", method)),
                redirect_uris=asked.get("redirect_uris", ()),
            )
            client.name = str(asked.get("client_name", ""))
        return _json(answer, self.variant.registration_status)

    def _authorize(self, form: dict[str, str], decision: str = "") -> Reply:
        """The page where a person decides, or the way back with what was decided."""
        client = self.grants.known(form.get("client_id", ""))
        if client is None:
            return _json({"message": "Unrecognized client_id"}, 422)
        if form.get("redirect_uri") not in client.redirect_uris:
            return _json({"message": "The redirect URI does not match."}, 400)
        error = self._fault(form)
        decision = decision or self.variant.decision
        if not error and decision == "ask":
            return self._page(form, client)
        if not error and decision not in {"approve", "ask"}:
            error = decision
        back = {"state": form["state"]} if "state" in form else {}
        if self.variant.iss is not None:
            back["iss"] = self._filled(self.variant.iss)
        if error:
            back |= {"error": error, "error_description": self.variant.error_description}
        else:
            back["code"] = self._code(form)
        separator = "&" if "?" in form["redirect_uri"] else "?"
        location = f"{form['redirect_uri']}{separator}{urlencode(back)}"
        return Reply(302, {"location": location})

    def _fault(self, form: Mapping[str, str]) -> str:
        if form.get("response_type") != "code":
            return "unsupported_response_type"
        if form.get("code_challenge_method") != "S256" or not form.get("code_challenge"):
            return "invalid_request"
        if self.variant.strict_resource and form.get("resource") != self.resource:
            return "invalid_target"
        return "invalid_scope" if self.variant.refuses_scopes and form.get("scope") else ""

    def _code(self, form: Mapping[str, str]) -> str:
        code = self.grants.secret("code")
        self.grants.codes[code] = Code(
            client_id=form["client_id"],
            redirect_uri=form["redirect_uri"],
            challenge=form["code_challenge"],
            resource=form.get("resource", ""),
            scope=form.get("scope", ""),
        )
        return code

    def _page(self, form: Mapping[str, str], client: Client) -> Reply:
        fields = "".join(
            f'<input type="hidden" name="{html.escape(name)}" value="{html.escape(value)}">'
            for name, value in form.items()
        )
        page = f"""<!doctype html><title>Approve</title><link rel="icon" href="data:,">
<h1>Let {html.escape(client.name or client.client_id)} in?</h1>
<p>Scopes: {html.escape(form.get("scope", "")) or "none"}</p>
<form method="post" action="{self.endpoint("decide")}">{fields}
<button name="decision" value="approve">Approve</button>
<button name="decision" value="access_denied">Deny</button></form>"""
        return Reply(200, {"content-type": "text/html; charset=utf-8"}, page.encode())

    def _token(self, request: Request, form: dict[str, str]) -> Reply:
        authorization = request.headers.get("authorization", "")
        try:
            answer = self.grants.exchange(form, authorization, self.resource, self._audiences())
        except Refusal as refusal:
            return _refusal(refusal)
        return _json(answer, self.variant.token_status)

    def _revoke(self, request: Request, form: dict[str, str]) -> Reply | None:
        if not self.variant.revocation:
            return None
        authorization = request.headers.get("authorization", "")
        try:
            self.grants.revoke(form, authorization, self._audiences())
        except Refusal as refusal:
            return _refusal(refusal)
        return Reply(200)

    def _audiences(self) -> set[str]:
        return {self.issuer, self.endpoint("token")}


def _kept(changes: Mapping[str, Any], filled: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: value if value is OMIT else filled(value) for name, value in changes.items()}


def _form(request: Request) -> dict[str, str]:
    query = dict(parse_qsl(urlsplit(request.path).query, keep_blank_values=True))
    if "json" in request.headers.get("content-type", ""):
        return query
    return query | dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))


def _json(document: Any, status: int = 200) -> Reply:
    headers = {"content-type": JSON, "cache-control": "no-store"}
    return Reply(status, headers, json.dumps(document).encode())


def _refusal(refusal: Refusal) -> Reply:
    words = {"error": refusal.error, "error_description": refusal.description}
    reply = _json(words, refusal.status)
    if refusal.status == 401:
        reply.headers["www-authenticate"] = "Basic"
    return reply


async def _main(options: dict[str, Any]) -> None:
    async with OAuthServer(Variant(**options)) as fake:
        print(fake.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1] if len(sys.argv) > 1 else "{}")))
