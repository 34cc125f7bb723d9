"""What an outdated form would overwrite. Values that nobody sees are only called changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import QueryDict

from servers.definition import HTTP, STDIO, UNIX, OAuthClientData, refers
from servers.forms.options import LABELS, written
from servers.forms.rows import Row, shown_argument, value_digest
from servers.forms.server import ServerForm
from servers.models import Server
from servers.options import without_defaults
from servers.policy import Policy
from servers.private import Private
from umpteenth.core.edits import Difference


def differences(form: ServerForm, current: Server, stored: Private) -> list[Difference]:
    """Field by field, in the order of the form."""
    data = form.server_data()
    found = _plain(form, current)
    if data.transport == STDIO:
        found += _row_differences("Variable", form.env, stored.env)
    else:
        found += _row_differences("Header", form.headers, stored.headers)
    if data.options is not None:
        mine = without_defaults(data.options, data.transport)
        found += _mapped(current.options, mine, LABELS, "default")
    if data.policy is not None:
        found += _mapped(_policy_words(current.policy), _policy_words(data.policy.as_json()))
    if data.oauth is not None:
        found += _client_differences(data.oauth, current, stored)
    return found


def _client_differences(
    data: OAuthClientData, current: Server, stored: Private
) -> list[Difference]:
    labels = dict(Server.LoginKind.choices)
    kinds = [labels.get(kind, kind) for kind in (current.oauth_kind, data.kind)]
    pairs = {
        "Who logs in": (kinds[0], kinds[1]),
        "Client ID": (current.oauth_client_id, data.client_id),
        "Scopes": (current.oauth_scopes, data.scopes),
    }
    if data.secret is not None and data.secret != stored.client_secret:
        theirs = _words(stored.client_secret) if stored.client_secret else "none"
        mine = data.secret if refers(data.secret) or not data.secret else "a new value"
        pairs["Client secret"] = (theirs, mine or "none")
    return [Difference(label, *pair) for label, pair in pairs.items() if pair[0] != pair[1]]


def _plain(form: ServerForm, current: Server) -> list[Difference]:
    data = form.server_data()
    pairs: dict[str, tuple[str, str]] = {
        "Name": (current.name, data.name),
        "Description": (current.description, data.description),
        "Transport": (current.get_transport_display(), Server.Transport(data.transport).label),
    }
    address = (current.url, data.url.partition("?")[0])
    if data.transport == HTTP:
        pairs["URL"] = address
    elif data.transport == UNIX:
        pairs |= {"Socket": (current.socket_path, data.socket_path), "URI": address}
    else:
        pairs["Command"] = (current.command, data.command)
        pairs["Arguments"] = (_joined(current.args), _joined(data.args))
    return [Difference(label, *pair) for label, pair in pairs.items() if pair[0] != pair[1]]


def _joined(args: Any) -> str:
    return " ".join(shown_argument(str(arg)) for arg in args)


def _mapped(
    theirs: Mapping[str, Any],
    mine: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    absent: str = "",
) -> list[Difference]:
    found = []
    for name in dict.fromkeys([*theirs, *mine]):
        pair = [written(side[name]) if name in side else absent for side in (theirs, mine)]
        if pair[0] != pair[1]:
            found.append(Difference((labels or {}).get(name, name), *pair))
    return found


def _policy_words(stored: Mapping[str, Any]) -> dict[str, str]:
    policy = Policy.from_json(stored)
    allowed, levels = policy.allowed_tools, policy.allowed_trust_levels
    return {
        "Tool policy": policy.trust,
        "Allowed tools": "all" if allowed is None else ", ".join(allowed) or "none",
        "Blocked tools": ", ".join(policy.blocked_tools),
        "Trust levels": "by the server's marks" if levels is None else ", ".join(levels),
        "Levels of single tools": "\n".join(
            f"{name}: {', '.join(given)}" for name, given in policy.tool_levels.items()
        ),
    }


def _row_differences(
    label: str, rows: list[Row], stored: tuple[tuple[str, str], ...]
) -> list[Difference]:
    theirs = dict(stored)
    mine = {row.name: row for row in rows}
    found = []
    for name in [*theirs, *(name for name in mine if name not in theirs)]:
        if name not in mine:
            found.append(Difference(f"{label} {name}", _words(theirs[name]), "not there"))
        elif name not in theirs:
            found.append(Difference(f"{label} {name}", "not there", _row_words(mine[name])))
        elif not _same(mine[name], theirs[name]):
            words = _words(theirs[name])
            theirs_words = "changed" if words == "a hidden value" else words
            found.append(Difference(f"{label} {name}", theirs_words, _row_words(mine[name])))
    return found


def _same(row: Row, value: str) -> bool:
    if row.kept and not row.value:
        return row.digest == value_digest(value)
    return row.value == value


def _words(value: str) -> str:
    return value if refers(value) else "a hidden value"


def _row_words(row: Row) -> str:
    if row.kept and not row.value:
        return "as it was"
    return row.value if refers(row.value) else "a new value"


def refresh_kept_rows(
    form: ServerForm, data: QueryDict, current: Server, stored: Private
) -> ServerForm:
    """The same entries over what is stored now, so that saving again is not outdated."""
    data = data.copy()
    data["version"] = str(current.version)
    fresh = ServerForm(data, server=current, private=stored)
    fresh.is_valid()
    values = {**dict(stored.headers), **dict(stored.env)}
    for row in (*fresh.headers, *fresh.env):
        if row.kept in values:
            row.digest = value_digest(values[row.kept])
    return fresh
