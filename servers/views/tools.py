"""A server's tools: the list in pages, with what the policy and the last changes say of each, and
one tool with its schemas."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.paginator import Page, Paginator
from django.db.models import Q
from django.http import Http404, HttpResponse
from django.views.decorators.http import require_GET

from servers.forms.lists import ToolFilter, ToolForm
from servers.models import Check, Server, Tool
from servers.policy import Policy
from servers.queries import latest_news
from servers.schema import parameters
from servers.views.common import get_server, hinted_tools
from umpteenth.core import clock
from umpteenth.core.htmx import Request, render_page

PER_PAGE = 50
# Schemas fill megabytes, and lists show none.
_SCHEMAS = ("input_schema", "output_schema")


@dataclass(frozen=True)
class Tools:
    """Some of a server's tools. `restricted` counts all that the policy keeps from some run."""

    server: Server
    page: Page[Tool]
    words: str
    restricted: int
    news: Check | None

    @property
    def total(self) -> int:
        return self.server.tool_count

    @property
    def is_searchable(self) -> bool:
        return self.total > 8

    @property
    def shown(self) -> list[Tool]:
        return list(self.page.object_list)


def tools_of(server: Server, *, words: str = "", number: int = 1, news: Check | None) -> Tools:
    """A page of them in the server's order, marked by what `news` found new or changed."""
    policy = Policy.from_json(server.policy)
    page = Paginator(_found(server, words), PER_PAGE).get_page(number)
    marks = _marks(news)
    # Evaluated once: the marks are set on these very rows.
    page.object_list = list(page.object_list)
    for tool in page.object_list:
        tool.mark = marks.get(tool.name, "")
        tool.restriction = policy.restriction(tool)
    return Tools(server, page, words, _restricted(server, policy), news)


@require_GET
def tools(request: Request, pk: UUID) -> HttpResponse:
    """The list on a page of its own; for htmx the list, or (`page`) the lines that follow."""
    server = get_server(pk)
    form = ToolFilter(request.GET)
    number = form.page_number()
    news = latest_news(pk, clock.now())
    found = tools_of(server, words=form.words(), number=number, news=news)
    partial = "servers/tool_lines.html" if number > 1 else "servers/tool_list.html"
    response = render_page(
        request,
        "servers/tools_page.html",
        {"server": server, "tools": found},
        partial=partial,
    )
    if request.htmx:
        response["HX-Trigger"] = json.dumps({"announce": _words(found)})
    return response


@require_GET
def tool(request: Request, pk: UUID) -> HttpResponse:
    """A tool's schemas, fetched when somebody opens it: hundreds of them would fill a page."""
    server = get_server(pk)
    form = ToolForm(request.GET)
    tool = server.tools.filter(name=form.cleaned_data["name"]).first() if form.is_valid() else None
    if tool is None:
        raise Http404("The server no longer lists this tool.")
    tool.restriction = Policy.from_json(server.policy).restriction(tool)
    context = {"server": server, "tool": tool, "parameters": parameters(tool.input_schema)}
    return render_page(request, "servers/tool.html", context, partial="servers/tool_part.html")


def _found(server: Server, words: str) -> Any:
    found = server.tools.defer(*_SCHEMAS)
    for word in words.split()[:10]:
        found = found.filter(
            Q(name__icontains=word) | Q(title__icontains=word) | Q(description__icontains=word)
        )
    return found


def _marks(news: Check | None) -> dict[str, str]:
    changes = news.changes if news else {}
    return {
        **dict.fromkeys(changes.get("added", []), "New"),
        **dict.fromkeys(changes.get("changed", []), "Changed"),
    }


def _restricted(server: Server, policy: Policy) -> int:
    if policy == Policy():
        return 0
    return sum(1 for tool in hinted_tools(server) if policy.restriction(tool))


def _words(found: Tools) -> str:
    page = found.page
    return f"{page.end_index()} of {page.paginator.count} tools shown"
