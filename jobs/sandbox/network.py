"""What a sandbox gets of the network under a job's rules, and who hears of what passes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from jobs.network import INTERNET, NetworkRules
from jobs.sandbox.egress.base import Egress, EgressEvent
from jobs.sandbox.egress.rules import rules_for, upstream_proxy
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
    guard = None
    if rules.is_guarded:
        guard = Egress(rules_for(rules), report, upstream_proxy())
    return SandboxNetwork(rules.is_unrestricted, guard)


def network_of_a_test(tell: Callable[[str], None] | None = None) -> SandboxNetwork:
    """P24: internet access whatever the jobs say. `tell` gets a sentence for each connection
    that was refused or could not be made: without it nobody sees why a server is silent."""

    def report(event: EgressEvent) -> None:
        logger.info(
            "network of a server's test: %s %s:%d %s",
            *(event.kind, event.host, event.port, event.reason),
        )
        if tell is not None and event.reason:
            tell(event.reason)

    return network_for_packages(report)


def network_for_packages(report: Report) -> SandboxNetwork:
    """Internet access, and like servers that are called by URL also the private network as far
    as the installation allows it: that is where registries of a firm's own are."""
    private = get_options().network.allow_private_targets
    return network_of(NetworkRules(INTERNET, allow_private=private), report)
