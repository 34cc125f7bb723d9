"""The MCP servers card and the Secrets card: rows of the job form that are not single fields.

A row posts `server` (its id); `all-<id>` for all tools, otherwise one `tool-<id>` for each
allowed tool, or `tools-<id>`, their names as JSON, while its checklist is not on the page: that
of a server with very many tools comes when somebody opens it. `attach` adds a server and `detach`
removes one where there is no script.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from django.http import QueryDict

from jobs.forms.skeleton import Call, call_of
from jobs.models import Job
from jobs.services import AttachmentData, SecretData
from jobs.skipping import skipped_among
from secrets_vault.models import Secret
from secrets_vault.services import may_use
from servers.models import Server, Tool
from servers.oauth.shown import login_problem
from servers.policy import TRUST_LEVELS, Policy
from servers.status import token_exists
from umpteenth.accounts.models import User
from umpteenth.core import clock
from umpteenth.core.text import clean

MAX_ROWS = 200
# Of one server, on the page of the form.
MAX_LISTED = 200
MAX_CALLS = 100
# A server, and its allowed tools; None: all.
Chosen = tuple[UUID, tuple[str, ...] | None]


@dataclass(frozen=True)
class ToolChoice:
    """A tool to pick; `tool` None: allowed earlier, and not in the server's list any more."""

    name: str
    tool: Tool | None = None
    is_allowed: bool = True
    # What the server's policy says beyond this job's list: in a word or two, and in a sentence.
    restriction: str = ""
    reason: str = ""

    @property
    def is_gone(self) -> bool:
        return self.tool is None


@dataclass
class AttachmentRow:
    """A server on the card. `allowed` None: all tools."""

    server: Server
    allowed: tuple[str, ...] | None
    offered: frozenset[str] = frozenset()
    # The checklist; empty where it `is_late`.
    tools: list[ToolChoice] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    is_late: bool = False
    # Why runs cannot use the login of the server, or soon cannot.
    login_problem: str = ""
    # Whether runs as root go without the server (P26).
    is_skipped_as_root: bool = False

    @property
    def is_tested(self) -> bool:
        return self.server.tested_at is not None

    @property
    def all_tools(self) -> bool:
        return self.allowed is None

    @property
    def label(self) -> str:
        """What the tools button reads (P65-P68)."""
        if self.allowed is None:
            return "All tools"
        return f"{len(self.offered.intersection(self.allowed))} of {len(self.offered)} tools"

    @property
    def gone(self) -> int:
        """Allowed tools that the last successful test missed; before any test nobody knows."""
        return len(set(self.allowed or ()) - self.offered) if self.is_tested else 0

    @property
    def allowed_json(self) -> str:
        return json.dumps(self.allowed or [], ensure_ascii=False)

    @property
    def has_more_calls(self) -> bool:
        return len(self.calls) == MAX_CALLS < len(self.offered)


def stored_attachments(job: Job) -> list[Chosen]:
    rows = job.attachments.values_list("server_id", "allowed_tools")
    return [(pk, None if tools is None else tuple(tools)) for pk, tools in rows]


def posted_attachments(data: QueryDict, stored: Sequence[Chosen] = ()) -> list[Chosen]:
    """What the card posted, in its order, each server once.

    Every tool ticked by hand is all tools (P68). A list that is as it was `stored` stays a list:
    that its server offers just these tools today must not open it to all future ones.
    """
    gone = set(data.getlist("detach"))
    found: dict[UUID, tuple[str, ...] | None] = {}
    for text in [*data.getlist("server"), data.get("attach", "")][:MAX_ROWS]:
        pk = uuid_of(text)
        if pk is None or text in gone or pk in found:
            continue
        # A server that was just attached allows all (P64).
        everything = f"all-{text}" in data or text == data.get("attach")
        found[pk] = None if everything else tuple(_posted_tools(data, text))
    kept = {pk: set(names) for pk, names in stored if names is not None}
    listed = [pk for pk, names in found.items() if names and set(names) != kept.get(pk)]
    for pk, offered in _offered(listed).items():
        if offered == set(found[pk] or ()):
            found[pk] = None
    return list(found.items())


def _posted_tools(data: QueryDict, server: str) -> list[str]:
    names = data.getlist(f"tool-{server}")
    try:
        late = json.loads(data.get(f"tools-{server}", "[]"))
    except (ValueError, RecursionError):
        late = []
    names += [name for name in late if isinstance(name, str)] if isinstance(late, list) else []
    return [clean(name) for name in names]


def _offered(servers: Sequence[UUID]) -> dict[UUID, set[str]]:
    names: dict[UUID, set[str]] = {}
    if servers:
        rows = Tool.objects.filter(server__in=servers).values_list("server_id", "name")
        for pk, name in rows.order_by("server_id"):
            names.setdefault(pk, set()).add(name)
    return names


def attachment_rows(
    chosen: Sequence[Chosen], listed: Collection[UUID | None] = ()
) -> list[AttachmentRow]:
    """Rows with the tools to pick from; a server that was deleted meanwhile is left out.

    Of more than `MAX_LISTED` tools the checklist is left out, unless the server is in `listed`.
    """
    found = Server.objects.select_related("login").annotate(token_exists=token_exists())
    found = found.defer("instructions", "login__private")
    servers = found.in_bulk([pk for pk, _ in chosen])
    tools: dict[UUID, list[Tool]] = {}
    # Not their schemas: a server may have thousands of tools.
    light = Tool.objects.only("server", "name", "read_only", "destructive", "open_world")
    for tool in light.filter(server__in=servers).order_by("server_id", "position"):
        tools.setdefault(tool.server_id, []).append(tool)
    rows = [
        _row(servers[pk], names, tools.get(pk, []), pk in listed)
        for pk, names in chosen
        if pk in servers
    ]
    skipped = skipped_among(servers.values())
    for row in rows:
        row.is_skipped_as_root = row.server.pk in skipped
    _add_calls({row.server.pk: row for row in rows}, tools)
    return rows


def _row(
    server: Server, allowed: tuple[str, ...] | None, tools: list[Tool], is_listed: bool
) -> AttachmentRow:
    row = AttachmentRow(server, allowed, frozenset(tool.name for tool in tools))
    row.login_problem = login_problem(server, clock.now())
    row.is_late = len(tools) > MAX_LISTED and not is_listed
    if not row.is_late:
        picked = row.offered if allowed is None else set(allowed)
        policy = Policy.from_json(server.policy)
        row.tools = [_choice(tool, policy, tool.name in picked) for tool in tools]
        row.tools += [ToolChoice(name) for name in allowed or () if name not in row.offered]
    return row


def _add_calls(rows: dict[UUID, AttachmentRow], tools: dict[UUID, list[Tool]]) -> None:
    """A ready call of each server's first tools that any run may use."""
    wanted = [
        tool
        for pk, row in rows.items()
        for tool in islice(_usable(row.server, tools.get(pk, [])), MAX_CALLS)
    ]
    keys = [tool.pk for tool in wanted]
    schemas = dict(Tool.objects.filter(pk__in=keys).values_list("pk", "input_schema"))
    for tool in wanted:
        row = rows[tool.server_id]
        row.calls.append(call_of(row.server.name, tool.name, schemas.get(tool.pk)))


def _usable(server: Server, tools: Iterable[Tool]) -> Iterator[Tool]:
    policy = Policy.from_json(server.policy)
    for tool in tools:
        if not all(policy.refusal(tool, level) for level in TRUST_LEVELS):
            yield tool


def _choice(tool: Tool, policy: Policy, is_allowed: bool) -> ToolChoice:
    refusals = [policy.refusal(tool, level) for level in TRUST_LEVELS]
    reason = next(filter(None, refusals), "")
    return ToolChoice(
        tool.name,
        tool,
        is_allowed,
        policy.restriction(tool),
        _sentence(reason) if reason else "",
    )


def _sentence(reason: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}."


def attachments_data(rows: Iterable[AttachmentRow]) -> list[AttachmentData]:
    return [AttachmentData(row.server.name, row.allowed) for row in rows]


def attachable(rows: Iterable[AttachmentRow]) -> list[tuple[UUID, str]]:
    """Servers for the `Attach a server...` list."""
    attached = {row.server.pk for row in rows}
    names = Server.objects.values_list("pk", "name")
    return [(pk, name) for pk, name in names if pk not in attached]


@dataclass(frozen=True)
class SecretRow:
    variable: str = ""
    secret: str = ""


@dataclass(frozen=True)
class SecretOption:
    name: str
    # Only administrators may map it (the service enforces that as well).
    is_closed: bool = False


def stored_secrets(job: Job) -> list[SecretRow]:
    rows = job.secrets.select_related("secret").only("variable", "secret__name")
    return [SecretRow(row.variable, row.secret.name) for row in rows]


def posted_secrets(data: QueryDict) -> list[SecretRow]:
    """Rows that hold anything. A secret without a variable gets its own name."""
    pairs = list(zip(data.getlist("variable"), data.getlist("secret"), strict=False))
    rows = [SecretRow(clean(v).strip(), clean(s).strip()) for v, s in pairs[:MAX_ROWS]]
    return [SecretRow(row.variable or row.secret, row.secret) for row in rows if row != SecretRow()]


def secrets_data(rows: Iterable[SecretRow]) -> list[SecretData]:
    return [SecretData(row.variable, row.secret) for row in rows]


def incomplete(rows: Iterable[SecretRow]) -> str:
    """A sentence about the first row without a secret; empty if there is none."""
    for row in rows:
        if not row.secret:
            return f"Choose a secret for the variable {row.variable[:100]}, or empty the row."
    return ""


def secret_options(person: User) -> list[SecretOption]:
    secrets = Secret.objects.only("name", "open_to_members")
    return [SecretOption(secret.name, not may_use(secret, person)) for secret in secrets]


def uuid_of(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
