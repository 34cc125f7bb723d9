"""MCP 2025-06-18, Authorization: what it wants of clients that send an access token."""

from __future__ import annotations

from tests.spec import authorization_tokens as tokens


class TestTokens(tokens.TokensOfEach):
    revision = "2025-06-18"
