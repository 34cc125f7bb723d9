"""Pages about people and about the product as a whole."""

from __future__ import annotations

from .errors import csrf_failure, locked_out
from .pages import dashboard

__all__ = ["csrf_failure", "dashboard", "locked_out"]
