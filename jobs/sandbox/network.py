"""What a sandbox gets of the network under a job's rules, and who hears of what passes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from jobs.network import INTERNET, NetworkRules
from jobs.sandbox.egress.base import Egress, EgressEvent
from jobs.sandbox.egress.rules import rules_for
from umpteenth.core.config import get_options

logger = logging.getLogger(__name__)

Report = Callable[[EgressEvent], None]


@dataclass(frozen=True)
class SandboxNetwork:
    """The machine's own network, a guarded one, or none."""

    unrestricted: bool = False
    egress: Egress | None = None


def network_of(rules: NetworkRules, report: Report) -> SandboxNetwork:
    """For one party of a run; each has a journal of its own."""
    if rules.is_guarded:
        return SandboxNetwork(egress=Egress(rules_for(rules), report))
    return SandboxNetwork(unrestricted=rules.is_unrestricted)


def network_of_a_test() -> SandboxNetwork:
    """P24: internet access whatever the jobs say, and like servers that are called by URL also
    the private network as far as the installation allows it."""
    private = get_options().network.allow_private_targets
    return network_of(NetworkRules(INTERNET, allow_private=private), _log)


def _log(event: EgressEvent) -> None:
    logger.info("network of a server's test: %s %s:%d %s", *_words(event))


def _words(event: EgressEvent) -> tuple[str, str, int, str]:
    return event.kind, event.host, event.port, event.reason
