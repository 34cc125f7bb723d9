"""What somebody inside may do to the proxy of a sandbox, and git over ssh through it, each as
the user who runs the tests and as a plain one (issue 5, sections 3 and 6)."""

from __future__ import annotations

import getpass
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jobs.sandbox.spawner import make_spawner
from tests.real.conftest import free_port
from tests.real.sandboxes import User, user_who
from umpteenth.core.ids import new_id

pytestmark = pytest.mark.real

CLIENT = Path(__file__).with_name("hostile_client.py").read_text()
KNOWN = {"site.test": ["127.0.0.1"]}


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"a page")

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 256


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with Server(("127.0.0.1", 0), Site) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://site.test:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (("together", "200"), "200 {'a page'}\n"),
        (("crowd",), "HTTP/1.1 503\na page\n"),
        (("flood",), "a page\n"),
    ],
)
def test_a_crowd_is_served_or_turned_away_and_the_proxy_goes_on(
    user: User, site: str, attack: tuple[str, ...], expected: str
) -> None:
    name, *more = attack
    result = user.run(["python3", "-c", CLIENT, name, site, *more], egress=KNOWN)
    assert (result["out"], result["err"]) == (expected, "")
    assert ["opened", "site.test", ""] in result["events"]
    assert {event[0] for event in result["events"]} <= {"opened", "failed"}


async def test_a_test_tells_what_its_server_was_refused() -> None:
    """From inside to the notices beside its result."""
    told: list[str] = []
    spawn = make_spawner(new_id(), tell=told.append)
    process = await spawn(["curl", "-sS", "http://169.254.169.254/"], {})
    try:
        answer = (await process.stdout.read()).decode()
        await process.wait()
    finally:
        await process.kill()
    assert "points to a cloud metadata address" in answer
    assert told == [answer.strip()]


@dataclass(frozen=True)
class Repository:
    """Where it is, and the key that opens it."""

    url: str
    key: Path


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    """A repository behind a real sshd on the host's loopback."""
    for name in ("host", "key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it locks itself into; made by no package
    port = free_port()
    config = tmp_path / "config"
    options = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": tmp_path / "host",
        "AuthorizedKeysFile": tmp_path / "key.pub",
        "PidFile": "none",
        "UsePAM": "no",
        "StrictModes": "no",
        "PermitRootLogin": "prohibit-password",
    }
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    place = tmp_path / "letters"
    identity = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    commit = [*identity, "commit", "-q", "--allow-empty", "-m", "first words"]
    for words in (["init", "-q", str(place)], ["-C", str(place), *commit]):
        subprocess.run(["git", *words], check=True)
    public = tmp_path / "public"
    public.write_bytes((tmp_path / "key").read_bytes())
    public.chmod(0o644)  # so that a plain user's sandbox can be shown it, too
    server = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    try:
        assert "listening" in server.stderr.readline()
        yield Repository(f"ssh://{getpass.getuser()}@site.test:{port}{place}", public)
    finally:
        server.kill()
        server.communicate()


def test_git_over_ssh_clones_through_it(user: User, repository: Repository) -> None:
    script = """
        mkdir -m 700 ~/.ssh; install -m 600 /key ~/.ssh/id_ed25519
        printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nLogLevel ERROR\\n' \
            > ~/.ssh/config
        git clone -q "$0" /tmp/letters && git -C /tmp/letters log --format=%s
    """
    key = user.data_dir.parent / "key"
    key.write_bytes(repository.key.read_bytes())
    key.chmod(0o644)
    result = user.run(
        ["bash", "-c", script, repository.url], egress=KNOWN, binds=[[str(key), "/key"]]
    )
    assert (result["out"], result["err"]) == ("first words\n", "")
    assert result["events"] == [["opened", "site.test", ""]]
