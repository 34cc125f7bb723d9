"""A hostile script in a whole run, beside the run of somebody else: what it tries to reach, and
what stops it (issue 5, section 6; P3, P7, P8, P22, P26; C06, C14).

As the user who runs the tests and as a plain user, as user `agent` and as root of the sandbox; and
in a container of an engine. `hostile.py` makes the attempts.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.real.conftest import Site, eventually
from tests.real.engines import running_podman
from tests.real.plain_sites import USERS, site_of
from tests.real.remains import Remains, processes
from tests.real.sandboxes import processes_with

pytestmark = pytest.mark.real

HOSTILE = "#!/usr/bin/python3\n" + Path(__file__).with_name("hostile.py").read_text()
PROXY = "through the proxy"
FAKE = "tests/fakes/mcp_server.py"
VICTIM = """#!/bin/bash
echo 'a private line' > private
echo $UMP_TOKEN > token
echo up
exec sleep {mark}
"""


@dataclass
class Victim:
    """Another run under way, with a server of its own, and where its things are."""

    site: Site
    key_of_server: str
    argument: str
    secret: str
    has_engine: bool
    given: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[int, str]]:
    """A service of the machine, on all of its addresses: the port, and what its page says."""
    text = f"page-{uuid4().hex}"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6

        def server_bind(self) -> None:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    with Server(("::", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1], text
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def abstract() -> Iterator[str]:
    name = f"ump-{uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        yield name


@contextmanager
def site_with(name: str, variables: dict[str, str]) -> Iterator[Site]:
    if name != "engine":
        with site_of(name, variables) as site:
            yield site
        return
    with running_podman() as podman, site_of("own", {**variables, **podman.variables}) as site:
        yield site


@pytest.fixture(scope="module", params=[*USERS, "engine"])
def victim(
    request: pytest.FixtureRequest, service: tuple[int, str], abstract: str
) -> Iterator[Victim]:
    """Its key of a server, its argument and its secret are in no other process's hands."""
    variables = {"UMPTEENTH_MCP__AUTO_CONNECT": "false"}
    with site_with(request.param, variables) as site:
        site.migrate()
        key, argument, secret = (uuid4().hex for _ in range(3))
        found = Victim(site, key, argument, secret, request.param == "engine")
        assert site.run("secret", "set", "TOKEN", input=found.secret).returncode == 0
        assert site.run("secret", "set", "KEY", input=found.key_of_server).returncode == 0
        command = ["/usr/bin/python3", str(site.code / FAKE), json.dumps({"stderr": argument})]
        done = site.run("mcp", "add", "fake", "--env=KEY={{secret:KEY}}", "--", *command)
        assert done.returncode == 0, done.stderr
        worker = site.start("worker")
        eventually(lambda: site.ask("workers"), "the worker's report")
        found.given = begin_victim(site, found, service, abstract)
        yield found
        site.stop(worker)


def begin_victim(
    site: Site, victim: Victim, service: tuple[int, str], abstract: str
) -> dict[str, Any]:
    """What the hostile script is told, so that nothing fails for want of knowing it."""
    mark = f"9{uuid4().int % 10**12}"
    job = {"name": "victim", "script": VICTIM.format(mark=mark), "servers": {"fake": "all"}}
    site.ask("create", json.dumps({**job, "secrets": {"TOKEN": "TOKEN"}}))
    run_id = site.ask("start", "victim")
    private = site.data_dir / "runs" / run_id / "workspace" / "private"
    sleeper = f"sleep {mark}"
    eventually(lambda: any(line.startswith(sleeper) for line in processes_with(mark)), "a victim")
    eventually(lambda: processes_with(victim.argument), "the server of the victim")
    # Containers hand over what they listen on by a socket that goes with that.
    remains = Remains(site)
    eventually(lambda: len(remains.sockets()) == 1, "the broker's socket alone")
    [broker] = remains.sockets()
    pid = process_of(f"sleep\0{mark}".encode())
    port, text = service
    return {
        "data_dir": str(site.data_dir),
        "key": str(site.data_dir / "keyring"),
        "private": str(private),
        "token": private.with_name("token").read_text().strip(),
        "socket": broker,
        "pid": pid,
        "port": port,
        "page": text,
        "address": own_address(),
        "abstract": abstract,
        "server_key": victim.key_of_server,
        "server_argument": victim.argument,
    }


def process_of(command: bytes) -> int:
    """Of the whole machine: an engine's are no descendants of the worker."""
    for pid in processes():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(command):
                return pid
    raise AssertionError(command)


def own_address() -> str:
    """One of this machine's that is not loopback; where there is none, loopback's neighbour."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("203.0.113.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.2"
        address: str = probe.getsockname()[0]
        return address


def attack(victim: Victim, name: str, what: str = "", **columns: Any) -> tuple[str, list[Any]]:
    """A run of the hostile script: its id and events. `what` is in the names of its attempts."""
    site = victim.site
    site.ask("create", json.dumps({"name": name, "script": HOSTILE}))
    site.ask("set_job", name, columns)
    run_id = site.ask("start", name, {"input": {**victim.given, "attempts": what}})
    eventually(lambda: site.ask("show", run_id)["finished_at"], "the attack's end", 100)
    return run_id, site.ask("events", run_id)


def outcomes_of(events: list[Any]) -> dict[str, str]:
    lines = "".join(event["payload"]["text"] for event in events if event["kind"] == "output")
    assert lines, events
    found: dict[str, str] = json.loads(lines)
    return found


EXPECTED = {
    "the data directory": "No such file",
    "the database": "No such file",
    "the key": "No such file",
    "another run's files": "No such file",
    "another run's files through /proc": "nothing there",
    "/etc/shadow": "Permission denied",
    "root's home": "Permission denied|No such file|nothing there",
    "another party's environment": "nothing there",
    "another party's arguments": "nothing there",
    "another run's environment": "nothing there",
    "a signal to another run": "No such process",
    "memory of another run": "No such file",
    "a place to write to": "nothing there",
    "a socket or a device": "nothing there",
    "a setting of the kernel": "Permission denied|Read-only",
    "sysrq": "Permission denied|Read-only|No such file",
    "the kernel's log": "not permitted|Permission denied|No such file",
    "the machine's memory": "not permitted|Permission denied|No such file",
    "the keys of others": "Permission denied",
    "how many keys others have": "Permission denied",
    "the kernel's addresses": "Permission denied|No such file",
    "the host's name": "not permitted",
    "a device": "not permitted",
    "real time": "not permitted",
    "another user by su": "Authentication failure|cannot set groups",
    "a mount": "not permitted|must be superuser|permission denied",
    "a user namespace": "not permitted|No space left",
    "a service on loopback": "Connection refused",
    "a service on loopback, IPv6": "Connection refused|Cannot assign|unreachable",
    "the machine by its address": "unreachable|refused",
    "an abstract socket": "Connection refused",
    "another run's broker": "No such file",
    "another run's token": "the token is not this run's",
    "loopback through the proxy": "address of this machine|private|local",
    "localhost through the proxy": "address of this machine|private|local",
    "an odd loopback through the proxy": "address of this machine|private|local",
    "loopback in IPv6 through the proxy": "address of this machine|private|local",
    "the machine through the proxy": "address of this machine|private|local",
    "a private address through the proxy": "private|local",
    "cloud metadata through the proxy": "cloud metadata",
    "an address of the internet through the proxy": "^PermissionError",  # nothing is there
    "links in outputs": "nothing there",
}
# What an engine hides can be opened, and is empty. Its listener was handed over through a socket
# that nobody listens on any more.
OF_AN_ENGINE = EXPECTED | {
    "the keys of others": "nothing there",
    "how many keys others have": "nothing there",
    "the kernel's addresses": "nothing there",
    "a socket or a device": r"^got through: \['/ump/listener.sock'\]$",
    "another user by su": "Critical error",
}


@pytest.mark.parametrize("root", [False, True], ids=["agent", "root"])
def test_what_a_hostile_script_gets(victim: Victim, root: bool) -> None:
    name = f"hostile {root}"
    run_id, events = attack(victim, name, run_as_root=root)
    if root and victim.has_engine:
        assert "root of this machine too" in victim.site.ask("show", run_id)["error"]
        return
    expected = OF_AN_ENGINE if victim.has_engine else EXPECTED
    found = outcomes_of(events)
    assert set(found) == set(expected)
    assert {name: said for name, said in found.items() if not re.search(expected[name], said)} == {}
    # Nothing but the honest file, and each of the others is missed aloud.
    kept = [event["payload"]["name"] for event in events if event["kind"] == "artifact"]
    assert kept == ["..name"]
    missed = "".join(event["payload"]["message"] for event in events if event["kind"] == "error")
    assert all(f"'{link}'" in missed for link in ("shadow", "etc", "key", "pipe"))
    assert victim.site.ask("show", run_id)["status"] == "succeeded"


def test_an_address_does_not_pass_for_an_allowed_domain(victim: Victim) -> None:
    _, events = attack(victim, "hostile domains", PROXY, network="domains", domains=["a.test"])
    found = outcomes_of(events)
    assert "only the listed names" in found["an address of the internet through the proxy"]
    assert "only the listed names" in found["loopback through the proxy"]


def test_the_private_network_does_not_lead_to_the_clouds_metadata(victim: Victim) -> None:
    _, events = attack(victim, "hostile private", PROXY, allow_private_network=True)
    found = outcomes_of(events)
    assert found["loopback through the proxy"].startswith("got through")  # as an administrator says
    assert "cloud metadata" in found["cloud metadata through the proxy"]


def test_without_a_network_there_is_no_proxy(victim: Victim) -> None:
    _, events = attack(victim, "hostile alone", PROXY, network="none")
    found = outcomes_of(events)
    assert len(found) >= 7
    assert all("onnect to server" in s or "onnection refused" in s for s in found.values()), found


def test_no_secret_is_in_the_arguments_of_any_process(victim: Victim) -> None:
    """While runs and their servers start and end: of a job, of a server, of the broker."""
    secrets = (victim.secret, victim.key_of_server, victim.given["token"])
    seen: list[str] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            for secret in secrets:
                seen.extend(processes_with(secret))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        site = victim.site
        job = {"name": "watched", "script": "sleep 0.2\n", "servers": {"fake": "all"}}
        site.ask("create", json.dumps({**job, "secrets": {"TOKEN": "TOKEN"}}))
        for _ in range(3):
            run_id = site.ask("start", "watched")
            eventually(lambda: site.ask("show", run_id)["finished_at"], "a run's end")  # noqa: B023
    finally:
        ended.set()
        watcher.join()
    assert seen == []


def test_the_victim_noticed_nothing(victim: Victim) -> None:
    assert Path(victim.given["private"]).read_text() == "a private line\n"
    os.kill(victim.given["pid"], 0)
