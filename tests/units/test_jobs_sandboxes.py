"""Settings → Sandboxes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.models import Worker
from umpteenth.core.config import EngineOptions, SandboxOptions, get_options

pytestmark = pytest.mark.django_db

PROBLEM = "bubblewrap (the command bwrap) is not installed; install it"


def worker(name: str, *, problem: str = "", ago: int = 1) -> None:
    now = timezone.now()
    seen = now - timedelta(seconds=ago)
    Worker.objects.create(name=name, started_at=now, seen_at=seen, slots=4, sandbox_problem=problem)


def page(client: Client, **headers: str) -> str:
    answer = client.get(reverse("jobs:sandboxes"), headers=headers)
    assert answer.status_code == 200
    return answer.content.decode()


def test_each_worker_is_shown_with_what_it_found(administrator_client: Client) -> None:
    worker("able")
    worker("unable", problem=PROBLEM)
    worker("gone", ago=3600)
    text = page(administrator_client)
    assert text.count("Ready") == text.count("Cannot start") == text.count("Gone") == 1
    assert PROBLEM in text
    assert "No worker is running" not in text


def test_without_a_worker_the_page_says_how_to_start_one(administrator_client: Client) -> None:
    worker("gone", ago=3600)
    text = page(administrator_client)
    assert "No worker is running" in text
    assert "umpteenth up" in text


def test_the_adapter_and_what_sandboxes_see_are_shown(administrator_client: Client) -> None:
    text = page(administrator_client)
    assert "bubblewrap" in text
    assert "Filtered in every sandbox" in text
    assert "/dev/shm" in text
    assert "docs/examples" in text


def test_what_a_test_of_a_server_has_is_said(administrator_client: Client) -> None:
    """P24."""
    text = page(administrator_client)
    assert "internet access and the private network, the default environment below" in text


def test_an_engine_is_shown_with_its_image(
    administrator_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is asked of the engine: the page speaks of the options."""
    engine = EngineOptions(url="unix:///run/podman/podman.sock", image="an-image:1")
    sandbox = SandboxOptions(adapter="engine", engine=engine, readonly_paths=())
    options = get_options().model_copy(update={"sandbox": sandbox})
    monkeypatch.setattr("jobs.views.sandboxes.get_options", lambda: options)
    text = page(administrator_client)
    for shown in ("unix:///run/podman/podman.sock", "an-image:1", "None but the image"):
        assert shown in text
    assert "A worker whose engine does not filter them says so above." in text


def test_the_table_refreshes_by_itself(administrator_client: Client) -> None:
    worker("able")
    part = page(administrator_client, **{"HX-Request": "true"})
    assert part.lstrip().startswith('<div class="card" id="sandbox-workers"')
    assert "<html" not in part


def test_members_are_told_who_may(member_client: Client) -> None:
    answer = member_client.get(reverse("jobs:sandboxes"))
    assert answer.status_code == 403
    assert "administrator" in answer.content.decode()


def test_nobody_is_sent_to_sign_in(client: Client) -> None:
    assert client.get(reverse("jobs:sandboxes")).status_code == 302


def test_only_reading_is_possible(administrator_client: Client) -> None:
    assert administrator_client.post(reverse("jobs:sandboxes")).status_code == 405


def test_queries_do_not_grow_with_workers(
    administrator_client: Client, django_assert_max_num_queries: object
) -> None:
    for number in range(20):
        worker(f"worker-{number}")
    with django_assert_max_num_queries(8):  # type: ignore[operator]
        page(administrator_client)
