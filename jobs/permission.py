"""What a run may do with one of its servers, at one moment (P59-P69, A12-A15, A25, A29-A36).

The order: server enabled, attached to the job, tool on the attachment's list, the names of the
server's policy, trust. This module imports no Django.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from servers.policy import Hinted, Policy


class Denied(Exception):
    """Nothing of the server may be used at all; the message is a `problem`."""


@dataclass(frozen=True)
class Permission:
    """`problem`: why nothing at all may be used. `allowed_tools` None: all, also future ones."""

    trust: str
    allowed_tools: tuple[str, ...] | None = None
    policy: Policy = field(default_factory=Policy)
    problem: str = ""

    def refusal(self, tool: Hinted) -> str:
        """Why the tool may not be used, in words that continue a sentence; empty if it may."""
        if self.problem:
            return self.problem
        if self.allowed_tools is not None and tool.name not in self.allowed_tools:
            return "it is not among the tools that the job may use"
        return self.policy.refusal(tool, self.trust)


DISABLED = "the server is disabled"
DETACHED = "the server is not attached to the job any more"
