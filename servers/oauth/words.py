"""Sentences about logins that runs, checks and pages share."""

from __future__ import annotations

from servers.mcp.types import Challenge, LoginRequired

# P71, word for word.
EXPIRED = "The OAuth login expired. Log in again under MCP Servers."
NOT_LOGGED_IN = "Nobody is logged in to this server. Log in under MCP Servers."
NO_REFRESH = "The access token is over, and the provider gave no refresh token."


def login_over(reason: str, challenge: Challenge | None = None) -> LoginRequired:
    """The login has ended; `reason` in the words of whoever ended it."""
    error = LoginRequired(EXPIRED, reason)
    error.challenge = challenge
    return error
