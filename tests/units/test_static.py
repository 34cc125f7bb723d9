"""Style sheets, scripts and icons, as a browser asks for them under ASGI."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from django.conf import settings
from django.http import HttpResponse
from django.test import AsyncClient

SHEET = "/static/css/umpteenth.css"
CONTENT = Path(settings.BASE_DIR, "static", "css", "umpteenth.css").read_bytes()


async def _get(path: str = SHEET, method: str = "GET", **headers: str) -> HttpResponse:
    client = AsyncClient()
    return await client.generic(method, path, headers=headers)  # type: ignore[return-value]


async def test_a_file_arrives_whole_and_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = await _get()
    assert response.status_code == 200
    assert response.content == CONTENT
    assert response["Content-Type"].startswith("text/css")
    assert response["Content-Length"] == str(len(CONTENT))


async def test_a_browser_that_has_the_file_is_told_so() -> None:
    first = await _get()
    again = await _get(**{"if-none-match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "Content-Type" not in again


async def test_a_part_of_a_file_can_be_asked_for() -> None:
    response = await _get(range="bytes=10-19")
    assert (response.status_code, response.content) == (206, CONTENT[10:20])


async def test_head_says_how_long_a_file_is_and_sends_nothing() -> None:
    response = await _get(method="HEAD")
    assert response["Content-Length"] == str(len(CONTENT))
    assert response.content == b""


@pytest.mark.parametrize("path", ["/static/css/none.css", "/static/../../manage.py"])
async def test_nothing_else_is_a_static_file(path: str) -> None:
    assert (await _get(path)).status_code in (302, 404)


async def test_a_file_cannot_be_written() -> None:
    assert (await _get(method="PUT")).status_code == 405
