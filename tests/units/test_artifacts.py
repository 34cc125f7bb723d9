"""Files of runs: they never act as pages of this site (design, section 3; I10)."""

from __future__ import annotations

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from django.http import HttpRequest
from django.test import AsyncRequestFactory, Client

from jobs.models import Artifact, Blob, Run
from jobs.views.files import send_pieces
from tests.fakes.runs import make_job
from tests.fakes.timelines import HOSTILE, run_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def run() -> Run:
    return run_of(make_job())


def stored(run: Run, name: str, media_type: str, body: bytes = b"body") -> Artifact:
    path = default_storage.save(f"runs/{run.pk}/a", ContentFile(body))
    return Artifact.objects.create(
        run=run, name=name, media_type=media_type, size=len(body), path=path
    )


def url_of(item: Artifact) -> str:
    return f"/runs/{item.run_id}/artifacts/{item.pk}/"


@pytest.mark.parametrize(
    "media_type",
    ["text/html", "image/svg+xml", "application/xhtml+xml", "application/javascript", "a b/c", ""],
)
@pytest.mark.parametrize("query", ["", "?inline=1"])
def test_a_page_made_by_a_script_is_a_download_in_a_sandbox(
    member_client: Client, run: Run, media_type: str, query: str
) -> None:
    item = stored(run, "page.html", media_type, b"<script>alert(1)</script>")
    response = member_client.get(url_of(item) + query)
    assert response["Content-Disposition"] == 'attachment; filename="page.html"'
    assert response["Content-Type"] == "application/octet-stream"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert response.getvalue() == b"<script>alert(1)</script>"


@pytest.mark.parametrize("media_type", ["application/gzip", "application/pdf", "video/mp4"])
@pytest.mark.parametrize("query", ["", "?inline=1"])
def test_a_file_that_nothing_runs_is_a_download_of_its_own_type(
    member_client: Client, run: Run, media_type: str, query: str
) -> None:
    response = member_client.get(url_of(stored(run, "calls/s1-1.gz", media_type)) + query)
    assert response["Content-Disposition"] == 'attachment; filename="s1-1.gz"'
    assert response["Content-Type"] == media_type
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "sandbox; default-src 'none'"


@pytest.mark.parametrize("media_type", ["image/png", "image/WEBP", "audio/mpeg"])
def test_images_and_sound_may_be_shown_in_place(
    member_client: Client, run: Run, media_type: str
) -> None:
    item = stored(run, "x", media_type)
    shown = member_client.get(url_of(item) + "?inline=1")
    assert shown["Content-Disposition"].startswith("inline")
    assert shown["Content-Type"] == media_type.lower()
    assert shown["Content-Security-Policy"] == "sandbox; default-src 'none'"
    assert member_client.get(url_of(item))["Content-Disposition"].startswith("attachment")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("sub/dir/report.csv", 'filename="report.csv"'),
        ('a"b\r\nSet-Cookie: x.txt', "filename"),
        ("über.txt", "filename*=utf-8''%C3%BCber.txt"),
        (HOSTILE, "filename"),
    ],
)
def test_a_name_of_any_kind_stays_in_its_header(
    member_client: Client, run: Run, name: str, expected: str
) -> None:
    response = member_client.get(url_of(stored(run, name, "text/plain")))
    assert response.status_code == 200
    assert expected in response["Content-Disposition"]
    assert "Set-Cookie" not in response


def test_the_size_is_announced(member_client: Client, run: Run) -> None:
    response = member_client.get(url_of(stored(run, "x", "text/plain", b"12345")))
    assert response["Content-Length"] == "5"


def test_a_large_body_comes_in_pieces(member_client: Client, run: Run) -> None:
    response = member_client.get(url_of(stored(run, "x", "text/plain", b"x" * 200_000)))
    pieces = list(response)
    assert len(pieces) > 1
    assert sum(map(len, pieces)) == 200_000


def test_a_file_that_is_gone_is_not_found(member_client: Client, run: Run) -> None:
    item = stored(run, "x", "text/plain")
    default_storage.delete(item.path)
    assert member_client.get(url_of(item)).status_code == 404


def test_a_file_is_found_only_under_its_own_run(member_client: Client, run: Run) -> None:
    item = stored(run, "x", "text/plain")
    other = run_of(run.job, 2)
    assert member_client.get(f"/runs/{other.pk}/artifacts/{item.pk}/").status_code == 404


def test_a_stored_body_goes_out_as_plain_text(member_client: Client, run: Run) -> None:
    path = default_storage.save(f"runs/{run.pk}/b", ContentFile(b"<script>alert(1)</script>"))
    blob = Blob.objects.create(run=run, path=path, size=25)
    response = member_client.get(f"/runs/{run.pk}/blobs/{blob.pk}/")
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Security-Policy"] == "sandbox; default-src 'none'"


async def test_under_asgi_a_file_is_never_read_as_a_whole() -> None:
    request: HttpRequest = AsyncRequestFactory().get("/")
    response = send_pieces(
        request, lambda: iter([b"one", b"two"]), name="x", media_type="text/plain"
    )
    assert response.is_async
    assert [part async for part in response] == [b"one", b"two"]


def test_the_outputs_tab_lists_files_values_and_summary(member_client: Client, run: Run) -> None:
    item = stored(run, "report.csv", "text/csv")
    picture = stored(run, "chart.png", "image/png")
    Run.objects.filter(pk=run.pk).update(summary="All went well.", outputs={"count": 12})
    html = member_client.get(f"/runs/{run.pk}/?tab=outputs").content.decode()
    assert "All went well." in html
    assert '<span class="json-number">12</span>' in html
    assert f'href="{url_of(item)}" download' in html
    assert f'<img src="{url_of(picture)}?inline=1"' in html


def test_a_run_without_outputs_teaches_how_to_leave_some(member_client: Client, run: Run) -> None:
    html = member_client.get(f"/runs/{run.pk}/?tab=outputs").content.decode()
    assert "ump output set" in html
