"""What a run says where its sandbox came to a limit of the job."""

from __future__ import annotations

from jobs.sandbox.base import Exit

KILLED = 128 + 9
# Exit codes of programs that get no more memory and end themselves: abort, segmentation fault.
_GAVE_UP = (128 + 6, 128 + 11)


def broken_limit(ended: Exit) -> str:
    """Which limit of the job the script itself was ended for: `memory`, `disk` or none."""
    if ended.broken_limit and not ended.out_of_memory:
        return "disk"
    return "memory" if ended.out_of_memory and ended.code == KILLED else ""


def failure(ended: Exit) -> str:
    """Why the script failed, going by how its sandbox ended; empty if it did not."""
    memory = "Memory in the job's settings"
    if limit := broken_limit(ended):
        setting = memory if limit == "memory" else "Disk in the job's settings"
        return f"the script was ended: {ended.broken_limit} ({setting})"
    if ended.code == 0:
        return ""
    words = f"the script ended with exit code {ended.code}"
    if ended.out_of_memory:
        return f"{words}; a process of it was ended: {ended.broken_limit} ({memory})"
    if ended.is_memory_per_process and ended.code in _GAVE_UP:
        return f"{words}, as programs do that get no more memory ({memory})"
    return words


def notices(ended: Exit) -> list[str]:
    """What else its owner should know, whether it failed or not."""
    found = []
    if ended.out_of_memory and ended.code == 0:
        found.append(f"A process of the script was ended: {ended.broken_limit}.")
    if ended.processes_refused:
        found.append("The script was refused processes: it had as many as it may have at once.")
    return found
