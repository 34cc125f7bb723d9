"""Which process a stdio server gets, and whose home it finds."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from servers import spawning
from servers.mcp.types import ConnectionSettings, ServerUnavailable
from servers.spawning import get_spawner, register_spawner
from umpteenth.core.ids import new_id

STDIO = ConnectionSettings(name="files", transport="stdio", command="npx")
HTTP = ConnectionSettings(name="web", transport="http", url="https://example.com/mcp")


@pytest.fixture(autouse=True)
def _nobody_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spawning, "_factories", [])


def test_a_server_is_known_by_its_id_and_not_by_its_name() -> None:
    asked: list[tuple[UUID, object]] = []
    spawner: Any = object()

    def factory(server_id: UUID, network: object, tell: object) -> Any:
        asked.append((server_id, network))
        return spawner

    register_spawner(factory)
    first, second = new_id(), new_id()
    assert get_spawner(settings=STDIO, server_id=first) is spawner
    get_spawner(settings=STDIO, server_id=second, terms="guarded")
    assert asked == [(first, None), (second, "guarded")]


def test_a_server_over_http_starts_no_process() -> None:
    assert get_spawner(settings=HTTP, server_id=new_id()) is None


def test_without_a_sandbox_the_error_says_what_to_run() -> None:
    with pytest.raises(ServerUnavailable) as caught:
        get_spawner(settings=STDIO, server_id=new_id())
    assert caught.value.hint == "Run: umpteenth doctor"
