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
    """The machine's own network, a guarded one, or none. `base` is `SandboxSpec.base`: which
    programs a run's stdio servers have beside the machine's."""

    unrestricted: bool = False
    egress: Egress | None = None
    base: str = ""


def network_of(rules: NetworkRules, report: Report, base: str = "") -> SandboxNetwork:
    """For one party of a run; each has a journal of its own."""
    if rules.is_guarded:
        return SandboxNetwork(egress=Egress(rules_for(rules), report), base=base)
    return SandboxNetwork(unrestricted=rules.is_unrestricted, base=base)


def network_of_a_test() -> SandboxNetwork:
    """P24: internet access whatever the jobs say."""
    return network_for_packages(_log)


def network_for_packages(report: Report) -> SandboxNetwork:
    """Internet access, and like servers that are called by URL also the private network as far
    as the installation allows it: that is where registries of a firm's own are."""
    private = get_options().network.allow_private_targets
    return network_of(NetworkRules(INTERNET, allow_private=private), report)


def _log(event: EgressEvent) -> None:
    logger.info("network of a server's test: %s %s:%d %s", *_words(event))


def _words(event: EgressEvent) -> tuple[str, str, int, str]:
    return event.kind, event.host, event.port, event.reason
