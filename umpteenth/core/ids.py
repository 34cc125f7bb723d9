"""Identifiers: UUID version 7 (RFC 9562), so that new rows sort after old ones."""

from __future__ import annotations

from uuid import UUID

from uuid_utils.compat import uuid7


def new_id() -> UUID:
    return uuid7()
