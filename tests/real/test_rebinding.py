"""A name that stands for another address with each look (issue 5, section 6; I02)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from jobs.network import NetworkRules
from jobs.sandbox.base import SandboxSpec
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.egress.base import Egress, EgressEvent
from jobs.sandbox.egress.rules import EgressRules
from jobs.sandbox.places import Places
from tests.fakes.mcp_http import FakeHttp, Reply, running
from tests.fakes.names import Names

pytestmark = pytest.mark.real


async def test_a_name_that_changes_its_address_gains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked at is dialled, without a second question; the next connection is looked at
    anew."""
    names, events = Names(), list[EgressEvent]()
    names.set_in_turn("rebind.test", ["127.0.0.1"], ["169.254.169.254"])
    monkeypatch.setattr(socket, "getaddrinfo", names)
    gate = EgressRules(NetworkRules("internet", allow_private=True))
    spec = SandboxSpec(party="agent", network=False, egress=Egress(gate, events.append))
    with running(FakeHttp(script=lambda _: Reply(200, {}, b"a page\n"))) as server:
        url = f"http://rebind.test:{server.port}/"
        script = f"curl -sS {url}; curl -sS {url}"
        process = await Bubblewrap(Places(tmp_path)).start(["bash", "-c", script], spec)
        try:
            out, code = await asyncio.gather(process.stdout.read(), process.wait())
        finally:
            await process.kill()
    first, second = out.decode().splitlines()
    assert (first, code, names.asked) == ("a page", 0, ["rebind.test"] * 2)
    assert "cloud metadata" in second
    assert [event.kind for event in events] == ["opened", "refused"]
