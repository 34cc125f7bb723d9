"""The guarded network, tried from inside (issue 5, section 3; P3, P22; feasibility, section 12).

Each trial runs as the user who runs the tests and, where that is root, as a plain user too.
"""

from __future__ import annotations

import asyncio
import http.server
import os
import queue
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.network import NetworkRules
from jobs.sandbox import base as sandbox
from jobs.sandbox import launcher_client, probe
from jobs.sandbox.base import SandboxError, SandboxSpec
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.egress.base import Egress, EgressEvent, Refused
from jobs.sandbox.egress.proxy import Proxy
from jobs.sandbox.egress.rules import EgressRules
from jobs.sandbox.egress.upstream import Upstream
from jobs.sandbox.launcher_client import KILLED, LauncherClient
from jobs.sandbox.places import Places, find_uv, visible_certificates
from tests.fakes.executions import execute, without_a_machine
from tests.fakes.runs import make_job, output_of, payloads_of
from tests.real.registries import registries
from tests.real.sandboxes import User, user_who
from umpteenth.core import addresses

pytestmark = pytest.mark.real

STARTS = 50


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


class _Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(b"a page of the site\n")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])) + b" came\n")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """A site on the host's loopback, which the gate knows as site.test."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Site) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://site.test:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


KNOWN = {"site.test": ["127.0.0.1"]}
URLLIB = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1]).read().decode(), end='')"
# Whatever a program does first, the proxy is there before it.
AT_ONCE = "exec 3<>/dev/tcp/127.0.0.1/3128 && echo there"


def test_programs_find_the_proxy_by_themselves(user: User, site: str) -> None:
    script = (
        f'curl -sS {site}; curl -sS --proxy socks5h://127.0.0.1:3128 {site}; python3 -c "$1" $0'
    )
    result = user.run(["bash", "-c", script, site, URLLIB], egress=KNOWN)
    assert result["out"] == "a page of the site\n" * 3
    assert (result["err"], result["events"]) == ("", [["opened", "site.test", ""]])


def test_a_refusal_says_why(user: User) -> None:
    script = "curl -sS http://other.test/; curl -sS https://other.test/"
    result = user.run(["bash", "-c", script], egress=KNOWN)
    assert result["out"] == "other.test is not among the known ones.\n"
    assert "response 403" in result["err"]
    assert [event[:2] for event in result["events"]] == [["refused", "other.test"]] * 2


def test_what_ignores_the_proxy_has_no_route(user: User, site: str) -> None:
    port = site.rstrip("/").rpartition(":")[2]
    script = f"""
        curl -sS --noproxy '*' http://example.com/; echo $?
        curl -sS --noproxy '*' http://203.0.113.1/; echo $?
        curl -sS --noproxy '*' http://127.0.0.1:{port}/; echo $?
        curl -sS --noproxy '' http://127.0.0.1:{port}/
        tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; tail -n +2 /proc/net/route
    """
    result = user.run(["bash", "-c", script], egress=KNOWN)
    assert result["out"].splitlines() == [
        *("6", "7", "7", "127.0.0.1 is not among the known ones.", "lo")
    ]


def test_nothing_of_the_start_is_left_inside(user: User) -> None:
    open_files = ["python3", "-ISc", "import os; print(sorted(os.listdir('/proc/self/fd')))"]
    nobody: dict[str, list[str]] = {}
    for egress in (None, nobody):
        assert user.run(open_files, egress=egress)["out"] == "['0', '1', '2', '3']\n"
    found = user.run(["bash", "-c", "cat /proc/[0-9]*/comm | sort | uniq -c"], egress={})["out"]
    assert "python" not in found


def test_the_proxy_of_one_sandbox_is_not_that_of_another(user: User) -> None:
    other = {"argv": ["bash", "-c", "echo up; read"], "egress": KNOWN}
    result = user.run(["bash", "-c", AT_ONCE], others=[other])
    assert (result["code"], result["out"]) == (1, "")


def test_a_server_has_it_too(user: User, site: str) -> None:
    """P22."""
    assert user.run(["curl", "-sS", site], egress=KNOWN, party="mcp")["code"] == 0


NODE = """
const get = (client, url) => new Promise((done) => client.get(url, (answer) => {
  answer.resume(); done(answer.statusCode); }).on('error', (error) => done(error.message)));
(async () => {
  const url = process.argv[2];
  console.log(await get(require('node:http'), url));
  console.log(await get(require('node:https'), 'https://other.test/'));
  console.log((await (await fetch(url, { method: 'POST', body: 'a body' })).text()).trim());
  const file = new Blob(['x'.repeat(300000)]);
  console.log((await (await fetch(url, { method: 'POST', body: file })).text()).length);
  console.log(await fetch('https://other.test/').catch((error) => error.name));
  console.log(await fetch(url, { signal: AbortSignal.abort() }).catch((error) => error.name));
  console.log(await fetch('http://127.0.0.1:59999/').catch((error) => error.cause.code));
})();
"""


def test_node_goes_through_it_whatever_its_age(user: User, site: str) -> None:
    script = 'echo "$1" > n.cjs; node --no-warnings n.cjs $0'
    result = user.run(["bash", "-c", script, site, NODE], egress=KNOWN)
    http, https, *fetched = result["out"].splitlines()
    assert (http, "403" in https or "tunnel" in https.lower()) == ("200", True), https
    assert fetched == ["a body came", "300006", "TypeError", "AbortError", "ECONNREFUSED"]
    assert result["err"] == ""


def test_own_options_of_node_are_kept(user: User) -> None:
    options = ["bash", "-c", "echo $NODE_OPTIONS"]
    found = user.run(options, egress={}, env={"NODE_OPTIONS": "--no-warnings"})["out"]
    assert found == "--require=/ump/proxy.cjs --no-warnings\n"


def test_what_speaks_for_ssh_joins_both_ways(user: User, site: str) -> None:
    port = site.rstrip("/").rpartition(":")[2]
    script = f"printf 'GET / HTTP/1.0\r\n\r\n' | proxy-connect site.test {port} | tail -n 1"
    assert user.run(["bash", "-c", script], egress=KNOWN)["out"] == "a page of the site\n"
    by_ump = script.replace("proxy-connect", "ump connect")
    assert user.run(["bash", "-c", by_ump], egress=KNOWN)["out"] == "a page of the site\n"
    refused = user.run(["proxy-connect", "other.test", "22"], egress=KNOWN)
    assert (refused["code"], refused["out"]) == (1, "")
    assert refused["err"] == "other.test is not among the known ones.\n"


def test_git_over_ssh_goes_through_it(user: User) -> None:
    fetch = ["git", "ls-remote", "ssh://git@other.test/repository"]
    result = user.run(fetch, egress=KNOWN)
    assert "other.test is not among the known ones." in result["err"]
    assert [event[:2] for event in result["events"]] == [["refused", "other.test"]]


def test_git_over_http_goes_through_it(user: User) -> None:
    result = user.run(["git", "ls-remote", "https://other.test/repository"], egress=KNOWN)
    assert "403" in result["err"]
    assert [event[:2] for event in result["events"]] == [["refused", "other.test"]]


def test_package_managers_go_through_it(user: User) -> None:
    """Issue 5, section 6: packages from both registries."""
    script = """
        cd /tmp
        python3 -m pip install -q --target t six && ls -d t/six.py
        npm init -y > /dev/null && npm install --silent left-pad && ls -d node_modules/left-pad
    """
    result = user.run(["bash", "-c", script], egress={name: [] for name in registries()})
    assert result["out"].splitlines()[-2:] == ["t/six.py", "node_modules/left-pad"], result["err"]
    assert {event[1] for event in result["events"]} <= registries()


@pytest.fixture
def adapter(tmp_path: Path) -> Bubblewrap:
    return Bubblewrap(Places(tmp_path, uv=find_uv(), certificates=visible_certificates(os.environ)))


async def run(
    adapter: Bubblewrap, script: str, rules: EgressRules, upstream: Upstream | None = None
) -> tuple[str, list[EgressEvent]]:
    events: list[EgressEvent] = []
    egress = Egress(rules, events.append, upstream)
    spec = SandboxSpec(party="agent", network=False, egress=egress)
    process = await adapter.start(["bash", "-c", script], spec)
    try:
        out = await process.stdout.read()
        await process.wait()
    finally:
        await process.kill()
    return out.decode(), events


async def test_uv_goes_through_it(tmp_path: Path) -> None:
    """Also where no variable names the certificates: it trusts what the system trusts."""
    adapter = Bubblewrap(Places(tmp_path, uv=find_uv()))
    script = """
        exec 2>&1; cd /tmp
        uv venv -q v; uv pip install -q -p v/bin/python six; ls v/lib/*/*/six.py
    """
    out, events = await run(adapter, script, EgressRules(NetworkRules("internet")))
    assert out.endswith("/six.py\n"), out
    assert {event.host for event in events} <= registries()


async def test_loopback_metadata_and_addresses_are_refused_by_the_rules(
    adapter: Bubblewrap, site: str
) -> None:
    port = site.rstrip("/").rpartition(":")[2]
    script = f"""
        for host in 127.0.0.1 0x7f.1 localhost 169.254.169.254; do
            curl -s --noproxy '' -o /dev/null -w '%{{http_code}} ' http://$host:{port}/; done
    """
    out, events = await run(adapter, script, EgressRules(NetworkRules("internet")))
    assert out == "403 " * 4
    assert [event.kind for event in events] == ["refused"] * 4
    assert "cloud metadata" in events[-1].reason
    out, _ = await run(adapter, script, EgressRules(NetworkRules("internet", allow_private=True)))
    assert out == "200 200 200 403 "


@pytest.mark.parametrize("by_name", [False, True])
async def test_where_the_machine_needs_a_proxy_itself_programs_do_not_notice(
    adapter: Bubblewrap, site: str, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    """For plain HTTP and for tunnels; where it is left names, also for those unknown here."""
    asked: list[EgressEvent] = []
    sought = "site.test" if by_name else "93.184.216.34"

    async def knows(host: str, port: int) -> tuple[str, ...]:
        if host != sought:
            raise Refused("no")
        return ("127.0.0.1",)

    async def resolve(host: str, port: int = 0) -> tuple[str, ...]:
        return {"site.test": ("93.184.216.34",), "evil.test": ("93.184.216.66",)}[host]

    if not by_name:
        monkeypatch.setattr(addresses, "resolve", resolve)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://ann:word@127.0.0.1:{listener.getsockname()[1]}"
    other = Proxy(Egress(knows, asked.append))
    other.serve(listener)
    script = f"curl -sS {site}; curl -sSp {site}; curl -sS http://evil.test/; curl -sS {url}"
    rules = EgressRules(NetworkRules("internet"), upstream=True, by_name=by_name)
    try:
        out, events = await run(adapter, script, rules, Upstream.at(url))
    finally:
        other.close()
    refusal = "no\n" if by_name else "evil.test:80 could not be reached: "
    assert out.startswith("a page of the site\n" * 2 + refusal)
    assert [event.kind for event in asked] == ["opened", "refused"]
    assert asked[0].host == sought
    assert {event.host for event in events} == {"site.test", "evil.test"}


@pytest.mark.django_db(transaction=True)
def test_what_a_run_reached_and_what_it_could_not_is_on_its_timeline(
    site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 5, section 3: from the job's setting to the line that a reader sees."""
    start = sandbox.start
    without_a_machine(monkeypatch)
    monkeypatch.setattr(sandbox, "start", start)
    here = site.replace("site.test", "localhost").rstrip("/")
    script = f"""#!/bin/bash
        for url in {here} {here} http://1.2.3.4/; do
            curl -s --noproxy '' -o /dev/null -w '%{{http_code}} ' $url; done
    """
    allowed = make_job(
        script=script, network="domains", domains=["localhost"], allow_private_network=True
    )
    run = execute(allowed)
    assert output_of(run) == "200 200 403 "
    port = int(here.rpartition(":")[2])
    assert payloads_of(run, "network.connected") == [{"host": "localhost", "port": port}]
    [refused] = payloads_of(run, "network.refused")
    assert refused["host"] == "1.2.3.4"
    assert "only the listed names" in refused["reason"]
    run = execute(make_job(name="other", script=script, network="none"))
    assert output_of(run) == "000 000 000 "


async def test_the_proxy_is_there_before_the_command(adapter: Bubblewrap) -> None:
    for _ in range(20):
        assert (await run(adapter, AT_ONCE, EgressRules(NetworkRules("internet"))))[0] == "there\n"


async def test_starts_and_kills_leave_no_descriptor(adapter: Bubblewrap) -> None:
    """A listener that stays open holds the network namespace of its sandbox."""
    await run(adapter, "true", EgressRules(NetworkRules("internet")))
    launcher = adapter._launcher._connection
    assert launcher is not None

    def held() -> tuple[int, int]:
        init = _child_of(launcher.process.pid)
        return len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{init}/fd"))

    before = held()
    spec = SandboxSpec(
        party="agent",
        network=False,
        egress=Egress(EgressRules(NetworkRules("internet")), lambda event: None),
    )
    for number in range(STARTS):
        process = await adapter.start(["bash", "-c", f"{AT_ONCE}; sleep 999"], spec)
        if number % 2:
            assert await process.stdout.readline() == b"there\n"
        await process.kill()  # half of them before the listener has come
    # Once more, so that all answers of the launcher have been read.
    await run(adapter, "true", EgressRules(NetworkRules("internet")))
    await asyncio.sleep(0)
    assert held() == before


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


async def test_a_network_is_guarded_or_not(adapter: Bubblewrap) -> None:
    spec = SandboxSpec(
        party="agent", network=True, egress=Egress(EgressRules(NetworkRules("internet")), print)
    )
    with pytest.raises(SandboxError, match="either"):
        await adapter.start(["true"], spec)


def test_where_no_network_can_be_guarded_the_problem_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any run, with the remedy: `umpteenth doctor` and Settings → Sandboxes show it."""
    entering = '_checked(_libc.setns(descriptor, CLONE_NEWNET), "entering a network namespace")'
    text = launcher_client.LAUNCHER.read_text()
    assert entering in text
    broken = tmp_path / "launcher.py"
    broken.write_text(text.replace(entering, 'raise OSError(errno.EPERM, "not permitted")'))
    monkeypatch.setattr(launcher_client, "LAUNCHER", broken)
    monkeypatch.setattr(probe, "in_container", lambda: False)
    client = LauncherClient()
    try:
        problem = Bubblewrap(Places(tmp_path), client).problem()
    finally:
        client.close()
    assert problem.startswith(probe.NO_LISTENER)
    assert "not permitted" in problem


@pytest.mark.parametrize("isolation", [["--unshare-pid"], []])
def test_a_sandbox_without_a_listener_is_ended(isolation: list[str]) -> None:
    """The launcher never listens in the network that it is in itself."""
    client = LauncherClient()
    exits: queue.Queue[tuple[int, str]] = queue.Queue()
    listeners: list[socket.socket] = []
    bwrap = shutil.which("bwrap")
    assert bwrap is not None
    options = ["--info-fd", "3", "--block-fd", "4", "--ro-bind", "/", "/", *isolation]
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        client.start(
            [bwrap, *options, "sleep", "999"],
            [nothing] * 3,
            lambda code, error: exits.put((code, error)),
            listen=(3128, listeners.append),
        )
        code, error = exits.get(timeout=10)
    finally:
        os.close(nothing)
        client.close()
    assert (code, listeners) == (KILLED, [])
    assert "the sandbox has no network of its own" in error
