"""`umpteenth env`: build, list, show and remove (issue 5, section 1)."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.environments import builds
from jobs.environments.build import BuildFailed
from jobs.environments.definition import Definition
from jobs.environments.log import BuildLog
from jobs.environments.store import Store
from jobs.models import Environment, EnvironmentBuild, Job, Worker
from jobs.presence import report
from jobs.sandbox import base as sandbox
from tests.fakes.runs import make_job, start_plainly
from umpteenth import celery
from umpteenth.cli import environments
from umpteenth.cli.environments import command
from umpteenth.cli.following import describe
from umpteenth.core.clock import database_now

pytestmark = pytest.mark.django_db(transaction=True)
TEXT = "name: tools\npython: [humanize]\n"


@pytest.fixture(autouse=True)
def failure(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Builds do at once what needs a registry; what is put in here they fail with."""
    sentences: list[str] = []

    async def build(
        definition: Definition, store: Store, log: BuildLog, stopping: Callable[[], bool]
    ) -> int:
        log.begin("Python packages")
        if sentences:
            raise BuildFailed(sentences[0])
        with store.making() as new:
            store.keep(new, definition.digest)
        return 4096

    monkeypatch.setattr(builds, "build_directory", build)
    monkeypatch.setattr(sandbox, "problem", lambda: "")
    monkeypatch.setattr(celery, "send_hint", lambda *words: True)
    monkeypatch.setattr(environments, "POLL", 0.02)
    monkeypatch.setattr(environments, "PATIENCE", 0.1)
    yield sentences
    shutil.rmtree(builds.store().place, ignore_errors=True)


def env(*words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(command, list(words), input=input)


def as_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_file_makes_an_environment_and_says_who_builds_it(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text(TEXT)
    done = env("build", str(path))
    assert (done.exit_code, done.stdout) == (0, "Environment tools stored.\n")
    assert "No worker is running" in done.stderr
    report(database_now(), slots=1, problem="")
    Worker.objects.update(machine="m1")
    done = env("build", str(path))
    assert done.stderr == "1 machine builds it now. See: umpteenth env show tools\n"
    assert Environment.objects.count() == 1
    assert EnvironmentBuild.objects.get().status == "queued"


def test_a_changed_file_changes_the_environment_of_that_name() -> None:
    env("build", "-", input=TEXT)
    env("build", "-", input="name: tools\nnpm: [a]\n")
    assert Environment.objects.get().version == 2


def test_waiting_builds_it_here_and_prints_the_log() -> None:
    done = env("build", "-", "--wait", input=TEXT)
    assert done.exit_code == 0
    assert done.stdout == "== Python packages\nEnvironment tools is ready.\n"
    shape = as_json(env("build", "-", "--wait", "--json", input=TEXT))
    assert [build["status"] for build in shape["builds"]] == ["ready"]


def test_a_build_that_fails_ends_with_1_and_the_reason(failure: list[str]) -> None:
    failure.append("Python packages: no such package.")
    done = env("build", "-", "--wait", input=TEXT)
    assert done.exit_code == 1
    assert done.stderr.endswith("Python packages: no such package.\n")
    done = env("build", "-", "--wait", "--json", input=TEXT)
    assert done.exit_code == 1
    assert json.loads(done.stdout)["builds"][0]["error"] == "Python packages: no such package."


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"name: x\npython: [--evil]\n", "python: '--evil' is no package"),
        (b"\xff", "- is not text in UTF-8."),
        (b"name: x\n#" + b"x" * 70_000, "The definition is larger than 64 KiB."),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(content: bytes, sentence: str) -> None:
    done = CliRunner().invoke(command, ["build", "-"], input=content)
    assert done.exit_code == 1
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_all_are_listed_with_where_they_are_built() -> None:
    env("build", "-", "--wait", input=TEXT)
    make_job(environment=Environment.objects.get())
    assert "ready" in env("list").stdout
    (shape,) = as_json(env("list", "--json"))
    assert (shape["name"], shape["python"], shape["jobs"]) == ("tools", ["humanize"], ["digest"])


def test_a_list_of_many_takes_as_many_queries_as_of_one_and_reads_no_logs() -> None:
    def queries(*words: str) -> list[str]:
        with CaptureQueriesContext(connection) as asked:
            assert env("list", *words).exit_code == 0
        return [query["sql"] for query in asked]

    env("build", "-", "--wait", input=TEXT)
    make_job(name="a", environment=Environment.objects.get())
    few = {words: len(queries(*words)) for words in [(), ("--json",)]}
    for number in range(5):
        env("build", "-", "--wait", input=f"name: e{number}\nnpm: [a{number}]\n")
        make_job(name=f"a{number}", environment=Environment.objects.get(name=f"e{number}"))
    for words, count in few.items():
        asked = queries(*words)
        assert len(asked) == count
        assert not [sql for sql in asked if '"log"' in sql or '"script"' in sql]


def test_each_machine_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--wait` this one, too, whether a worker lives on it or not."""
    hints: list[tuple[str, ...]] = []
    asked: list[tuple[str, bool]] = []
    request = builds.request

    def noted(text: str, digest: str, machine: str, **options: Any) -> Any:
        asked.append((machine, options["again"]))
        return request(text, digest, machine, **options)

    monkeypatch.setattr(celery, "send_hint", lambda *words: hints.append(words))
    monkeypatch.setattr(builds, "request", noted)
    report(database_now(), slots=1, problem="")
    here = builds.store().machine()
    for machine, machines in [("other", ["other", here]), (here, [here])]:
        Worker.objects.update(machine=machine)
        asked.clear()
        hints.clear()
        assert env("build", "-", "--wait", input=TEXT).exit_code == 0
        assert asked == [(name, True) for name in machines]
        assert len(hints) == 1


def test_one_is_shown_with_the_log_of_this_machine() -> None:
    env("build", "-", "--wait", input=TEXT)
    shown = env("show", "tools").stdout
    assert shown.startswith("id: ")
    assert shown.endswith("\n== Python packages\n")
    assert as_json(env("show", "tools", "--json"))["name"] == "tools"


def test_one_that_is_removed_leaves_nothing_on_the_disk() -> None:
    env("build", "-", "--wait", input=TEXT)
    digest = Environment.objects.get().digest
    assert builds.store().find(digest) is not None
    assert as_json(env("remove", "tools", "--json")) == {"removed": "tools"}
    assert builds.store().find(digest) is None
    assert not EnvironmentBuild.objects.exists()


def test_one_that_jobs_use_stays() -> None:
    env("build", "-", input=TEXT)
    make_job(environment=Environment.objects.get())
    done = env("remove", "tools", "--yes")
    assert (done.exit_code, Environment.objects.count()) == (1, 1)
    assert "Jobs use the environment tools: digest." in done.stderr
    assert Job.objects.get().environment is not None


@pytest.mark.parametrize("words", [("show", "x"), ("remove", "x")])
def test_an_unknown_name_ends_with_1(words: tuple[str, ...]) -> None:
    done = env(*words)
    assert done.exit_code == 1
    assert "There is no environment named x." in done.stderr


def test_a_run_that_waits_for_it_is_followed_in_words() -> None:
    payload = {"environment": "tools", "message": "npm packages"}
    assert describe("sandbox.image_wait", payload) == "tools: npm packages"
    assert describe("sandbox.image_wait", {"environment": "tools", "done": True}) == "tools: ready"


def test_programs_of_the_default_environment_come_with_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """P20."""
    from jobs.sandbox.programs import default_environment

    for name, script in {
        "node": "echo v20.1.2",
        "jq": "echo jq-1.6",
        "git": "echo no >&2; exit 1",
        "curl": "echo 'curl 7.88 (x) libcurl/9.99'; while read line; do :; done",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "start", start_plainly)
    found = dict(asyncio.run(default_environment()))
    assert (found["Node"], found["jq"], found["git"]) == ("20.1.2", "1.6", "?")
    assert (found["curl"], found["ripgrep"]) == ("7.88", "")
    monkeypatch.setattr(sandbox, "problem", lambda: "No sandbox starts.")
    assert asyncio.run(default_environment()) == []
