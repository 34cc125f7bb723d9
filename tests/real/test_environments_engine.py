"""Environments as images of a real Podman: a Dockerfile is built, a run gets it, it is removed
again (issue 5, section 1)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from jobs.sandbox.base import SandboxError
from jobs.sandbox.engine import images
from jobs.sandbox.engine.client import Client
from tests.real.conftest import Site
from tests.real.engines import IMAGE, Podman, running_podman
from tests.real.plain_sites import site_of

pytestmark = pytest.mark.real

DEFINITION = f"""\
name: marked
dockerfile: |
  FROM {IMAGE}
  RUN mkdir /marks && echo made > /marks/mark && chmod -R a+rX /marks
"""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with running_podman() as found:
        yield found


@pytest.fixture(scope="module")
def site(podman: Podman) -> Iterator[Site]:
    options = {
        "UMPTEENTH_SANDBOX__ADAPTER": "engine",
        "UMPTEENTH_SANDBOX__ENGINE__URL": podman.url,
        "UMPTEENTH_SANDBOX__ENGINE__IMAGE": IMAGE,
    }
    with site_of("own", options) as found:
        found.migrate()
        yield found


def test_a_dockerfile_becomes_the_base_of_a_run_and_goes_with_its_name(
    site: Site, podman: Podman
) -> None:
    built = site.run("env", "build", "-", "--wait", input=DEFINITION)
    assert built.returncode == 0, built.stdout + built.stderr
    script = "#!/usr/bin/env bash\ncat /marks/mark; id -u; ump output set done true\n"
    job = {"name": "reads", "script": script, "network": "none", "environment": "marked"}
    site.ask("create", json.dumps(job))
    run = site.json("job", "run", "reads", "--wait")
    assert run["status"] == "succeeded", run["error"]
    assert run["outputs"] == {"done": True}
    said = [e["payload"]["text"] for e in site.ask("events", run["id"]) if e["kind"] == "output"]
    assert "".join(said) == "made\n1000\n"

    assert site.run("job", "remove", "reads", "--yes").returncode == 0
    assert "ump-environment" in podman.run("images")
    assert site.run("env", "remove", "marked", "--yes").returncode == 0
    assert "ump-environment" not in podman.run("images")


def test_what_does_not_build_says_why(site: Site) -> None:
    definition = f"name: bad\ndockerfile: |\n  FROM {IMAGE}\n  RUN echo on no account; exit 3\n"
    done = site.run("env", "build", "-", "--wait", input=definition)
    assert done.returncode == 1
    assert "The engine could not make the image" in done.stderr
    assert "on no account" in done.stdout


def test_lists_of_packages_are_refused_in_words(site: Site) -> None:
    done = site.run("env", "build", "-", "--wait", input="name: lists\npython: [humanize]\n")
    assert done.returncode == 1
    assert "name an image or write a dockerfile instead" in done.stderr


def test_a_step_that_says_nothing_does_not_outlast_its_time(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman carries that step to its end, but nobody waits for it."""
    monkeypatch.setattr(images, "_client", lambda: Client(podman.url))
    lines: list[str] = []
    started = time.monotonic()
    with pytest.raises(SandboxError):
        images.make_image(
            tag="ump-environment:silent",
            dockerfile=f"FROM {IMAGE}\nRUN sleep 30\n",
            say=lines.append,
            stopping=lambda: any("sleep" in line for line in lines),
        )
    assert time.monotonic() - started < 20


def test_an_image_is_made_anew_where_it_is_asked_for_again(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no registry has stays as it is."""
    monkeypatch.setattr(images, "_client", lambda: Client(podman.url))
    lines: list[str] = []
    made = []
    for _ in range(2):
        images.make_image(
            tag="ump-environment:twice",
            dockerfile=f"FROM {IMAGE}\nRUN cat /proc/sys/kernel/random/uuid > /mark\n",
            say=lines.append,
            stopping=lambda: False,
        )
        made.append(podman.run("inspect", "--format", "{{.Id}}", "ump-environment:twice"))
    podman.run("rmi", "--force", "ump-environment:twice")
    assert made[0] != made[1]
