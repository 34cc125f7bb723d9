"""Environments that are deleted while a job chooses them (issue 5, section 1)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from jobs import services as jobs
from jobs.definition import InvalidJob
from jobs.environments import services
from jobs.models import Environment, Job
from jobs.services import current_data
from tests.fakes.runs import make_job
from umpteenth import celery

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Environment:
    monkeypatch.setattr(celery, "send_hint", lambda *words: True)
    return services.create_environment(actor=None, text="name: tools\npython: [humanize]\n")


def choose(job: Job) -> Job:
    data = current_data(job).replace(environment="tools")
    return jobs.update_job(job, actor=None, data=data, version=job.version)


def make_another(job: Job) -> Job:
    data = current_data(job).replace(name="another", environment="tools")
    return jobs.create_job(actor=None, data=data)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_job_that_chooses_one_that_went_a_moment_ago_is_told_so(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    job = make_job()
    columns = jobs._columns

    def go(data: Any) -> Any:
        found = columns(data)
        services.delete_environment(environment, actor=None)
        return found

    monkeypatch.setattr(jobs, "_columns", go)
    with pytest.raises(InvalidJob) as refused:
        make_another(job) if is_new else choose(job)
    assert refused.value.errors == {"environment": "There is no environment named tools."}
    assert Job.objects.get().environment is None


def test_one_that_a_job_is_about_to_choose_stays_and_the_job_is_named(
    environment: Environment,
) -> None:
    job = make_job()
    said: list[str] = []
    begun = threading.Event()

    def delete() -> None:
        begun.set()
        try:
            services.delete_environment(environment, actor=None)
        except services.EnvironmentInUse as error:
            said.append(str(error))
        finally:
            connection.close()

    other = threading.Thread(target=delete)
    with transaction.atomic():
        choose(job)
        other.start()
        assert begun.wait(10)
        other.join(0.2)  # where it does not wait, it is done by then
    other.join(10)
    assert said == [f"Jobs use the environment tools: {job.name}. Give them another one first."]
    assert Environment.objects.exists()
