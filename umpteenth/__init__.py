"""Umpteenth: MCP servers, jobs that use them, and the timeline of every run."""

__version__ = "0.1.0"
