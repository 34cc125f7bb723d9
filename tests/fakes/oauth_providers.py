"""The provider of a fake as discovery would describe it, and endpoints that answer as told."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

from servers.oauth.types import Provider
from tests.fakes.mcp_http import JSON, FakeHttp, Reply, Request
from tests.fakes.oauth_server import OAuthServer

CALLBACK = "https://ump.example.org/api/mcp-servers/1/oauth/callback"
RESOURCE = "https://mcp.example.org/mcp"


def provider_of(fake: OAuthServer, **changes: Any) -> Provider:
    document = fake.provider_document()
    methods = document.get("token_endpoint_auth_methods_supported")
    values: dict[str, Any] = {
        "issuer": document["issuer"],
        "authorization_endpoint": document["authorization_endpoint"],
        "token_endpoint": document["token_endpoint"],
        "registration_endpoint": document.get("registration_endpoint", ""),
        "revocation_endpoint": document.get("revocation_endpoint", ""),
        "token_auth_methods": None if methods is None else tuple(methods),
        "metadata_url": f"{document['issuer']}/.well-known/oauth-authorization-server",
    }
    return Provider(**{**values, **changes})


def json_reply(body: Any, status: int = 200, **headers: str) -> Reply:
    return Reply(status, {"content-type": JSON, **headers}, json.dumps(body).encode())


@dataclass
class Endpoint:
    """One address that answers each request with the next reply, the last one again and again."""

    replies: list[Reply | Any]
    requests: list[Request] = field(default_factory=list)
    http: FakeHttp = field(init=False)

    def __post_init__(self) -> None:
        self.http = FakeHttp(script=self._answer)

    def _answer(self, request: Request) -> Reply:
        self.requests.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        return reply if isinstance(reply, Reply) else json_reply(reply)

    async def __aenter__(self) -> Endpoint:
        await self.http.__aenter__()
        return self

    async def __aexit__(self, *reason: Any) -> None:
        await self.http.__aexit__(*reason)

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.http.port}"

    @property
    def provider(self) -> Provider:
        """A provider all of whose endpoints are this one."""
        url = f"{self.origin}/endpoint"
        return Provider(
            issuer=self.origin,
            authorization_endpoint=url,
            token_endpoint=url,
            registration_endpoint=url,
            revocation_endpoint=url,
        )

    def forms(self) -> list[dict[str, str]]:
        return [
            dict(parse_qsl(request.body.decode(), keep_blank_values=True))
            for request in self.requests
        ]


async def pieces(piece: bytes, count: int) -> AsyncGenerator[bytes, None]:
    for _ in range(count):
        yield piece
