"""What the sandboxes of a run have alike: the script's own, and those of its stdio servers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jobs.sandbox.base import Limits, SandboxSpec
from jobs.sandbox.network import SandboxNetwork


@dataclass(frozen=True)
class Terms:
    """Without any: no network, this machine's own programs, and the limits of a Test."""

    network: SandboxNetwork = field(default_factory=SandboxNetwork)
    base: str = ""
    limits: Limits = field(default_factory=Limits)

    def applied_to(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(
            spec,
            network=self.network.unrestricted,
            egress=self.network.egress,
            base=self.base,
            limits=self.limits,
        )
