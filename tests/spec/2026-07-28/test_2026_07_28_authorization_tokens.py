"""MCP 2026-07-28, Authorization: what it wants of clients that send an access token."""

from __future__ import annotations

from tests.spec import authorization_tokens as tokens


class TestTokens(tokens.TokensOfEach):
    revision = "2026-07-28"


class TestRights(tokens.RightsOfNewer):
    revision = "2026-07-28"
