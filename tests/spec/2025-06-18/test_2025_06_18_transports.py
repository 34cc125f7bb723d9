"""MCP 2025-06-18, Transports: Streamable HTTP."""

from __future__ import annotations

from tests.spec import streamable


class TestSending(streamable.SendingOfStreamable):
    revision = "2025-06-18"


class TestListening(streamable.ListeningOfStreamable):
    revision = "2025-06-18"


class TestSessions(streamable.SessionsOfStreamable):
    revision = "2025-06-18"


class TestResuming(streamable.ResumingOfStreamable):
    revision = "2025-06-18"


class TestVersionHeader(streamable.VersionHeaderOfStreamable):
    revision = "2025-06-18"


class TestCompatibility(streamable.CompatibilityOfStreamable):
    revision = "2025-06-18"
