from .job import (
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    MIN_TIMEOUT,
    Attachment,
    Job,
    JobSecret,
    StateEntry,
)
from .run import Artifact, Blob, Lease, Run, RunEvent, Worker

__all__ = [
    "DEFAULT_TIMEOUT",
    "MAX_TIMEOUT",
    "MIN_TIMEOUT",
    "Artifact",
    "Attachment",
    "Blob",
    "Job",
    "JobSecret",
    "Lease",
    "Run",
    "RunEvent",
    "StateEntry",
    "Worker",
]
