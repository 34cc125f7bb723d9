"""What reaches the log from requests that anybody may send."""

from __future__ import annotations

import io
import logging
import logging.config
from typing import Any

import pytest
from django.conf import settings
from django.test import Client


def test_a_request_for_another_host_leaves_one_line(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: dict[str, Any] = settings.LOGGING
    configurator = logging.config.DictConfigurator(wanted)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    for name in wanted["handlers"]["console"]["filters"]:
        handler.addFilter(configurator.configure_filter(dict(wanted["filters"][name])))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400
    [line] = stream.getvalue().splitlines()
    assert "evil.example" in line
