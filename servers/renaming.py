"""What a new name of a server changes elsewhere; people are asked before (U37, U38)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from django.urls import reverse

from secrets_vault.models import Secret
from servers.models import Server
from servers.usage import Usage, mentions, usages


def rename_notes(server: Server, new_name: str) -> list[Usage]:
    """What uses the server or names it, each with what the new name does to it.

    Empty for the name it has, and where nothing knows the server.
    """
    if new_name == server.name:
        return []
    attached = [
        replace(usage, note="Stays attached; agents see its tools under new names.")
        for usage in usages(server)
    ]
    return [*attached, *mentions(server), *_secrets_for(server)]


def _secrets_for(server: Server) -> Iterator[Usage]:
    """Secrets that may be used for servers of certain names, this one among them."""
    limited = Secret.objects.exclude(allowed_servers=[]).only("name", "allowed_servers")
    for secret in limited.order_by("name"):
        if server.name in secret.allowed_servers:
            yield Usage(
                "secret",
                secret.name,
                reverse("secrets:edit", args=[secret.pk]),
                f"Is only for servers it names: add the new name, or it stops working for "
                f"{server.name}.",
            )
