"""`/api/mcp-servers`: what is registered, and how each server goes. No secrets."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from servers import facts
from servers.models import Server
from servers.queries import find_servers
from servers.status import Auth
from servers.views.common import get_server
from umpteenth.core.rest import reads

router = Router(tags=["MCP servers"])
PER_PAGE, MOST_PER_PAGE = 50, 200
# Far beyond what anybody registers, and within what databases count.
MOST_OFFSET = 1_000_000

State = Literal[
    "untested", "connected", "login_required", "failed", "trouble", "login_ending", "disabled"
]
Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Wanted(Schema):
    """The filter of the page MCP Servers, and which of those that match."""

    q: str = Field(
        "",
        max_length=200,
        pattern=r"^[^\x00]*$",
        description="Words in name, description, address, command or arguments",
    )
    transport: Server.Transport | None = None
    auth: Auth | None = None
    state: State | None = None
    limit: int = Field(PER_PAGE, ge=1, le=MOST_PER_PAGE)
    offset: int = Field(0, ge=0, le=MOST_OFFSET)


class Summary(Schema):
    """A server in a list."""

    id: UUID
    name: str
    transport: str
    endpoint: str = Field(description="The URL without its query, the socket, or the command line")
    enabled: bool
    auth: str
    tools: int | None = Field(description="How many; null before the first successful test")
    tested_at: Moment | None = Field(description="The last success")
    state: str


class SomeServers(Schema):
    items: list[Summary]
    count: int = Field(description="How many match, on all pages together")


class Limit(Schema):
    """An option that counts for the server, and where its value comes from."""

    name: str
    value: Any
    words: str
    source: str


class Tool(Schema):
    """A tool as the last success listed it; hints that the server did not give are null."""

    name: str
    title: str
    description: str
    read_only: bool | None
    destructive: bool | None
    open_world: bool | None
    restricted: str = Field(description="What the policy says; empty: every run may use it")


class OAuth(Schema):
    """What the server says of logins, and the operator's own client; what is empty is left out."""

    advertised: bool | None = None
    issuer: str | None = None
    error: str | None = None
    kind: str | None = None
    client_id: str | None = None
    scopes: str | None = None
    missing_scopes: str | None = Field(None, description="For lack of which a call was refused")
    login_failure: str | None = Field(None, description="Of the last attempt, until one succeeds")


class Login(Schema):
    """The login without its tokens; empty where there is none, and what is empty is left out."""

    state: str | None = None
    issuer: str | None = None
    client: str | None = None
    scopes: str | None = None
    since: Moment | None = None
    by: str | None = None
    expires_at: Moment | None = Field(None, description="Of the access token")
    refreshes: bool | None = Field(None, description="Whether it is renewed without a person")
    refreshed_at: Moment | None = None
    ended_at: Moment | None = None
    ended_reason: str | None = None
    warning: str | None = None


class Details(Summary):
    """One server with its settings, limits, health and tools."""

    description: str
    socket_path: str
    secrets: list[str] = Field(description="Names of the secrets that it uses")
    credentials: str = Field(description="Which credential is sent, in a sentence")
    oauth: OAuth
    login: Login
    options: dict[str, Any]
    limits: list[Limit]
    policy: dict[str, Any]
    restricted_tools: int
    checked_at: Moment | None = Field(description="The last check, whatever its outcome")
    last_error: str
    failures: int = Field(description="Checks that failed one after the other")
    next_check_at: Moment | None
    found_how: str
    found_transport: str
    protocol_version: str
    server_name: str
    server_version: str
    instructions: str
    tool_list: list[Tool]


@reads(router, "", refusals=(422,), response=SomeServers, url_name="servers")
def list_servers(request: HttpRequest, wanted: Query[Wanted]) -> dict[str, Any]:
    """Registered MCP servers by name."""
    filters = wanted.model_dump(exclude={"limit", "offset"}, exclude_none=True)
    found = find_servers(**{name: str(value) for name, value in filters.items()})
    page = found[wanted.offset : wanted.offset + wanted.limit]
    return {"items": [facts.summary(server) for server in page], "count": found.count()}


@reads(
    router,
    "/{uuid:id}",
    refusals=(404,),
    response=Details,
    exclude_unset=True,
    url_name="server",
)
def show_server(request: HttpRequest, id: UUID) -> dict[str, Any]:
    """One MCP server."""
    server = get_server(id)
    return {**facts.summary(server), **facts.details(server)}
