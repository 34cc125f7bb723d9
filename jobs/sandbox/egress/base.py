"""What a guarded sandbox may reach: a gate that decides, and a journal of what came to it.

Standard library only, for the proxy is tried from a copy without the rest of the product.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from jobs.sandbox.egress.upstream import Upstream

logger = logging.getLogger(__name__)

MAX_HOSTS = 200  # hosts that a journal names
MAX_REFUSALS = 200
MAX_FAILURES = 50


class Refused(Exception):
    """No connection may be made; the message is a sentence for a person."""


@dataclass(frozen=True)
class Proxied:
    """The upstream proxy goes there: to one of these addresses, all of them checked, or without
    any by the name, which it then resolves itself."""

    addresses: tuple[str, ...] = ()


class Gate(Protocol):
    """Decides where a connection may go. Raises `Refused`, and `OSError` for unknown names."""

    async def __call__(self, host: str, port: int) -> tuple[str, ...] | Proxied:
        """The addresses to dial, all of them checked, in the order to try them."""
        ...


@dataclass(frozen=True)
class EgressEvent:
    """Something for the timeline.

    `opened`: the first connection to a host. `refused`: a connection that the rules forbid.
    `failed`: one that could not be made. `more`: the journal is full, once for each of these;
    `reason` then says what is left out from now on.
    """

    kind: Literal["opened", "refused", "failed", "more"]
    host: str
    port: int
    reason: str = ""


class Egress:
    """The guarded network of one party, or of several that share a journal.

    `report` is called in the event loop of the sandbox and must not block.
    """

    def __init__(
        self,
        gate: Gate,
        report: Callable[[EgressEvent], None],
        upstream: Upstream | None = None,
    ) -> None:
        self.gate = gate
        self.upstream = upstream
        self._report = report
        self._hosts: set[str] = set()
        self._failed: set[tuple[str, int, str]] = set()
        self._refusals = 0
        self._full: set[str] = set()

    def opened(self, host: str, port: int) -> None:
        """A connection stands."""
        if host in self._hosts:
            return
        if len(self._hosts) >= MAX_HOSTS:
            self._more(f"Connections to more than {MAX_HOSTS} hosts: no further one is named.")
            return
        self._hosts.add(host)
        self._tell(EgressEvent("opened", host, port))

    def refused(self, host: str, port: int, reason: str) -> None:
        """The rules forbid a connection."""
        if self._refusals >= MAX_REFUSALS:
            self._more(f"More than {MAX_REFUSALS} connections were refused: no further is named.")
            return
        self._refusals += 1
        self._tell(EgressEvent("refused", host, port, reason))

    def failed(self, host: str, port: int, reason: str) -> None:
        """A connection that the rules allow could not be made; each way of it is told once."""
        failure = (host, port, reason)
        if failure in self._failed:
            return
        if len(self._failed) >= MAX_FAILURES:
            self._more(f"More than {MAX_FAILURES} connections failed: no further one is named.")
            return
        self._failed.add(failure)
        self._tell(EgressEvent("failed", host, port, reason))

    def _more(self, reason: str) -> None:
        if reason not in self._full:
            self._full.add(reason)
            self._tell(EgressEvent("more", "", 0, reason))

    def _tell(self, event: EgressEvent) -> None:
        try:
            self._report(event)
        except Exception:  # the connection does not depend on it
            logger.exception("a connection of a sandbox could not be recorded")
