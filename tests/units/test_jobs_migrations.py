"""What becomes of jobs from before when the database is brought up to date."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.state import StateApps
from django.utils import timezone

from jobs.models import Job, Run, Worker

BEFORE, AFTER = ("jobs", "0002_artifact_span"), ("jobs", "0003_network_rules")


def migrate(target: tuple[str, str]) -> StateApps:
    MigrationExecutor(connection).migrate([target])
    return MigrationExecutor(connection).loader.project_state([target]).apps


@pytest.fixture
def before(transactional_db: None) -> Iterator[StateApps]:
    latest = MigrationExecutor(connection).loader.graph.leaf_nodes("jobs")
    yield migrate(BEFORE)
    MigrationExecutor(connection).migrate(latest)


def test_jobs_from_before_keep_the_network_that_they_had(before: StateApps) -> None:
    """Issue 5, section 3: the new default is for new jobs."""
    old = before.get_model("jobs", "Job")
    old.objects.create(name="by default", script="true\n")
    old.objects.create(name="closed", script="true\n", network="none")
    job = migrate(AFTER).get_model("jobs", "Job")
    assert list(job.objects.order_by("name").values_list("name", "network", "domains")) == [
        ("by default", "unrestricted", []),
        ("closed", "none", []),
    ]
    assert not job.objects.filter(allow_private_network=True).exists()
    assert job.objects.create(name="new", script="true\n").network == "internet"


def test_processes_from_before_still_write_during_an_upgrade(before: StateApps) -> None:
    """A worker on another machine stops later than the database changes."""
    old = migrate(AFTER)
    latest = MigrationExecutor(connection).loader.graph.leaf_nodes("jobs")
    MigrationExecutor(connection).migrate(latest)
    job = old.get_model("jobs", "Job").objects.create(name="old", script="true\n")
    now = timezone.now()
    values = {"trigger": "manual", "trust": "creator", "queued_at": now, "number": 1}
    run = old.get_model("jobs", "Run").objects.create(job=job, **values)
    old.get_model("jobs", "Worker").objects.create(name="w", started_at=now, seen_at=now, slots=1)
    found = Job.objects.get()
    assert (found.cpus, found.memory, found.disk, found.run_as_root) == (1.0, 1024, 2048, False)
    assert Run.objects.get(pk=run.pk).side_effects == {}
    worker = Worker.objects.get()
    assert (worker.sandbox_adapter, worker.sandbox_gaps, worker.programs) == ("", [], [])
