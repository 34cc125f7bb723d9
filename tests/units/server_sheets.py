"""The sheet of a server, as people read it."""

from __future__ import annotations

import re

from django.test import Client
from django.urls import reverse

from servers.models import Server


def sheet(client: Client, server: Server) -> str:
    return client.get(reverse("servers:detail", args=[server.pk])).content.decode()


def plain(html: str) -> str:
    """What a person reads of it."""
    html = re.sub(r"<(template|script|svg).*?</\1>", " ", html, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def facts_of(client: Client, server: Server) -> dict[str, str]:
    html = sheet(client, server)
    pairs = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", html, flags=re.S)
    return {name: plain(value).strip() for name, value in pairs}
