"""What the fake provider remembers: clients, codes, and families of tokens."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_plus

from joserfc import jwt
from joserfc.jwk import import_key

from tests.fakes.oauth_variant import OMIT, Variant

ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class Refusal(Exception):
    """An answer by RFC 6749, 5.2."""

    def __init__(self, error: str, description: str = "", status: int = 400) -> None:
        super().__init__(error)
        self.error = error
        self.description = description
        self.status = status


@dataclass
class Client:
    client_id: str
    secret: str = ""
    method: str = "none"
    redirect_uris: list[str] = field(default_factory=list)
    name: str = ""
    public_key: str = ""  # PEM, with private_key_jwt
    algorithm: str = "ES256"  # or RS256


@dataclass
class Family:
    """All tokens of one approval."""

    client_id: str
    resource: str
    scope: str
    access: set[str] = field(default_factory=set)
    refresh: str = ""
    used: set[str] = field(default_factory=set)
    revoked: bool = False


@dataclass
class Code:
    client_id: str
    redirect_uri: str
    challenge: str
    resource: str
    scope: str
    used: bool = False
    family: Family | None = None


class Grants:
    """State and rules of the token endpoint."""

    def __init__(self, variant: Variant) -> None:
        self.variant = variant
        self.clients: dict[str, Client] = {}
        self.codes: dict[str, Code] = {}
        self.families: list[Family] = []
        # Everything that must never be seen outside: tokens, secrets, codes, verifiers.
        self.secrets: set[str] = set()
        # (grant type, "ok" or the error), in the order of the answers.
        self.outcomes: list[tuple[str, str]] = []
        self._assertions: set[str] = set()

    def secret(self, kind: str) -> str:
        value = f"{kind}-{secrets.token_urlsafe(24)}"
        self.secrets.add(value)
        return value

    # --- Access tokens, as the MCP server sees them

    def family_of(self, access: str) -> Family | None:
        """The family of a token that is good."""
        for family in self.families:
            if access in family.access and not family.revoked:
                return family
        return None

    def expire_access_tokens(self) -> None:
        """The server takes none of those that are out; refresh tokens go on."""
        for family in self.families:
            family.access.clear()

    def revoke_all(self) -> None:
        """Every login is over: refreshing answers invalid_grant."""
        for family in self.families:
            family.revoked = True
            family.access.clear()

    # --- The token endpoint

    def exchange(
        self, form: Mapping[str, str], authorization: str, resource: str, audiences: set[str]
    ) -> dict[str, Any]:
        grant = form.get("grant_type", "")
        for name in ("code_verifier", "client_secret"):
            if form.get(name):
                self.secrets.add(form[name])
        try:
            client = self.authenticate(form, authorization, audiences)
            if self.variant.strict_resource and form.get("resource") != resource:
                raise Refusal("invalid_target", f"Not my resource: {form.get('resource')}")
            match grant:
                case "authorization_code":
                    family = self._redeem(form, client)
                case "refresh_token":
                    family = self._refresh(form, client)
                case "client_credentials":
                    if client.method == "none":
                        raise Refusal("unauthorized_client")
                    family = Family(
                        client.client_id, form.get("resource", ""), form.get("scope", "")
                    )
                    self.families.append(family)
                case _:
                    raise Refusal("unsupported_grant_type")
        except Refusal as refusal:
            self.outcomes.append((grant, refusal.error))
            raise
        self.outcomes.append((grant, "ok"))
        return self.answer(family, machine=grant == "client_credentials")

    def authenticate(
        self, form: Mapping[str, str], authorization: str, audiences: set[str]
    ) -> Client:
        """The client by whichever method it used; two at once are refused (RFC 6749, 2.3)."""
        used = [
            name
            for name, present in {
                "client_secret_basic": bool(authorization),
                "client_secret_post": "client_secret" in form,
                "private_key_jwt": "client_assertion" in form,
            }.items()
            if present
        ] or ["none"]
        if len(used) > 1:
            raise Refusal("invalid_request", "More than one way to authenticate.")
        if used[0] not in self.variant.auth_methods:
            raise Refusal("invalid_client", "Missing client_id", 401)
        if used[0] == "private_key_jwt":
            return self._asserted(form, audiences)
        client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
        if used[0] == "client_secret_basic":
            client_id, secret = _basic(authorization)
        client = self.known(client_id)
        if client is None or not secrets.compare_digest(client.secret.encode(), secret.encode()):
            raise Refusal("invalid_client", "Unknown client or wrong secret.", 401)
        return client

    def known(self, client_id: str) -> Client | None:
        if self.variant.takes_client_documents and client_id.startswith("https://"):
            fetch = self.variant.client_document
            document = fetch(client_id) if fetch else {}
            uris = document.get("redirect_uris", [])
            return Client(client_id, redirect_uris=list(uris), name=document.get("client_name", ""))
        return self.clients.get(client_id)

    def _asserted(self, form: Mapping[str, str], audiences: set[str]) -> Client:
        """By a signed statement (RFC 7523, 3), each good once."""
        assertion = form["client_assertion"]
        self.secrets.add(assertion)
        try:
            body = assertion.split(".")[1]
            named = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))["sub"]
            client = self.clients[named]
            key = import_key(client.public_key, "RSA" if client.algorithm == "RS256" else "EC")
            claims = jwt.decode(assertion, key, algorithms=[client.algorithm]).claims
            audience = claims["aud"]
            wanted = {audience} if isinstance(audience, str) else set(audience)
            good = (
                form.get("client_assertion_type") == ASSERTION
                and claims["iss"] == named
                and bool(wanted & audiences)
                and claims["exp"] > time.time()
                and claims["jti"] not in self._assertions
            )
        except Exception:  # whatever is wrong with it, it is no good one
            good = False
        if not good:
            raise Refusal("invalid_client", "The assertion is no good.", 401)
        self._assertions.add(claims["jti"])
        return client

    def _redeem(self, form: Mapping[str, str], client: Client) -> Family:
        code = self.codes.get(form.get("code", ""))
        if code is None or code.client_id != client.client_id:
            raise Refusal("invalid_grant", "Unknown code.")
        if code.used:
            if code.family is not None:
                code.family.revoked = True
            raise Refusal("invalid_grant", "The code was used before.")
        verifier = form.get("code_verifier", "")
        digest = hashlib.sha256(verifier.encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != code.challenge:
            raise Refusal("invalid_grant", "The code verifier does not match.")
        if form.get("redirect_uri") != code.redirect_uri:
            raise Refusal("invalid_grant", "Another redirect URI.")
        code.used = True
        code.family = Family(client.client_id, code.resource, code.scope)
        self.families.append(code.family)
        return code.family

    def _refresh(self, form: Mapping[str, str], client: Client) -> Family:
        token = form.get("refresh_token", "")
        family = next((f for f in self.families if token == f.refresh or token in f.used), None)
        if family is None or family.client_id != client.client_id or not token:
            raise Refusal("invalid_grant", "Unknown refresh token.")
        if token in family.used and self.variant.reuse_revokes:
            family.revoked = True
            raise Refusal("invalid_grant", "The refresh token was used before.")
        if family.revoked or token in family.used:
            raise Refusal("invalid_grant", "The refresh token is revoked.")
        if form.get("scope"):
            family.scope = form["scope"]
        return family

    def answer(self, family: Family, *, machine: bool) -> dict[str, Any]:
        access = self._access_token()
        family.access.add(access)
        answer: dict[str, Any] = {"access_token": access, "token_type": "Bearer"}
        if self.variant.expires_in is not OMIT:
            answer["expires_in"] = self.variant.expires_in
        if family.scope:
            answer["scope"] = family.scope
        if self.variant.gives_refresh_token and not machine:
            if not family.refresh:
                family.refresh = answer["refresh_token"] = self.secret("refresh")
            elif self.variant.rotates:
                family.used.add(family.refresh)
                family.refresh = answer["refresh_token"] = self.secret("refresh")
        return laid_over(answer, self.variant.token_answer)

    def _access_token(self) -> str:
        if self.variant.jwt_seconds is None:
            return self.secret("access")
        claims = {"exp": time.time() + self.variant.jwt_seconds, "jti": secrets.token_hex(8)}
        parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
        encoded = [base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts]
        token = ".".join([*encoded, secrets.token_urlsafe(16)])
        self.secrets.add(token)
        return token

    def revoke(self, form: Mapping[str, str], authorization: str, audiences: set[str]) -> None:
        """RFC 7009: a refresh token takes the family with it, an access token only itself."""
        client = self.authenticate(form, authorization, audiences)
        token = form.get("token", "")
        for family in self.families:
            if family.client_id == client.client_id:
                family.access.discard(token)
                if token == family.refresh:
                    family.revoked = True


def laid_over(answer: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**answer, **changes}
    return {name: value for name, value in merged.items() if value is not OMIT}


def _basic(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        raise Refusal("invalid_client", "Neither Basic nor anything known.", 401)
    try:
        name, _, secret = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Refusal("invalid_client", "Not base64.", 401) from None
    return unquote_plus(name), unquote_plus(secret)
