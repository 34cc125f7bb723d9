"""The network choices of the job form: what each means, and which of them the person has."""

from __future__ import annotations

from dataclasses import dataclass

from jobs import definition
from jobs.forms.job import JobForm
from jobs.models import Job
from umpteenth.accounts.models import User

Network = Job.Network
MEANINGS = {
    Network.NONE: "Nothing outside of the sandbox. ump and HTTP servers work all the same: "
    "Umpteenth itself calls them.",
    Network.INTERNET: "Every public host, through a proxy that records each host and refuses "
    "private addresses.",
    Network.DOMAINS: "Through the same proxy to the domains listed, and nowhere else; never to "
    "an address without a name.",
    Network.UNRESTRICTED: "This machine's own network, its local services and neighbours too. "
    "Nothing is refused or recorded.",
}
ADMINISTRATORS = "Only administrators can choose this."
ADMINISTRATORS_PRIVATE = "Only administrators can allow it."
SWITCHED_OFF = (
    "Switched off on this installation (sandbox.allow_unrestricted_network), so that runs of this "
    "job fail. Choose another."
)
PRIVATE_OFF = "Switched off on this installation (network.allow_private_targets is false)."


@dataclass(frozen=True)
class NetworkChoice:
    """`problem`: why the person does not have it, or why it does not work here."""

    value: str
    label: str
    meaning: str
    is_checked: bool
    is_disabled: bool = False
    problem: str = ""


def network_choices(form: JobForm, person: User, job: Job | None) -> list[NetworkChoice]:
    """Those of the installation, and what the job has already."""
    chosen = str(form["network"].value() or "")
    kept = job is not None and job.network == Network.UNRESTRICTED
    rows = []
    for value, label in Network.choices:
        problem, disabled = "", False
        if value == Network.UNRESTRICTED:
            if not definition.unrestricted_allowed() and not kept:
                continue
            disabled = not (person.is_administrator or kept)
            problem = ADMINISTRATORS if disabled else ""
            problem = problem if definition.unrestricted_allowed() else SWITCHED_OFF
        meaning = MEANINGS[Network(value)]
        rows.append(NetworkChoice(value, label, meaning, value == chosen, disabled, problem))
    return rows


def private_problem(person: User, job: Job | None) -> str:
    """Why the person cannot allow the private network; empty if they can, or may keep it."""
    if not definition.private_allowed():
        return PRIVATE_OFF
    kept = job is not None and job.allow_private_network
    return "" if person.is_administrator or kept else ADMINISTRATORS_PRIVATE
