"""The filter of system calls, tried from inside, as the user who runs the tests and as a plain
user, and in a container of an engine; and that ordinary programs do not notice it (P3, P8, P20).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyseccomp
import pytest

from jobs.sandbox import inside, mounts, seccomp
from jobs.sandbox.base import USER_IDS
from jobs.sandbox.places import find_uv
from tests.real.adapters import tried
from tests.real.engines import running_podman
from tests.real.sandboxes import User, user_who

pytestmark = pytest.mark.real

ATTEMPTS = Path(__file__).with_name("escapes.py").read_text()
OTHER_OUTCOMES = {
    "clone3": "ENOSYS",
    "clone3 of a user namespace": "ENOSYS",
    "io_uring": "ENOSYS",
    "AF_PACKET": "EAFNOSUPPORT",
    "AF_PACKET, disguised": "EAFNOSUPPORT",
    "AF_ALG": "EAFNOSUPPORT",
    "AF_VSOCK": "EAFNOSUPPORT",
    "AF_VSOCK, disguised": "EAFNOSUPPORT",
    "AF_KEY": "EAFNOSUPPORT",
    "a call of 32 bits": "SIGSYS",
    "a call of x32": "SIGSYS",
}


@pytest.fixture(scope="module", params=["own", "plain"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    with user_who(request.param) as user:
        yield user


def attempt(user: User, **request: Any) -> dict[str, str]:
    """What each attempt came to."""
    names = (*seccomp.REFUSED, *seccomp.ABSENT, "clone", "ioctl", "socket", "getppid")
    numbers = {
        name: seccomp.NUMBERS.get(name) or pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name)
        for name in names
    }
    known = json.dumps(numbers), json.dumps(seccomp.NEW_NAMESPACES)
    result = user.run(["python3", "-c", ATTEMPTS, *known], **request)
    assert (result["code"], result["err"]) == (0, "")
    outcomes: dict[str, str] = json.loads(result["out"])
    return outcomes


@pytest.mark.parametrize("party", USER_IDS)
def test_what_could_lead_out_is_refused(user: User, party: str) -> None:
    outcomes = attempt(user, party=party)
    assert len(outcomes) >= 38
    assert outcomes == {name: OTHER_OUTCOMES.get(name, "EPERM") for name in outcomes}


def test_an_engine_refuses_the_same() -> None:
    with running_podman() as podman, tried("engine", podman) as user:
        outcomes = attempt(user)
    assert len(outcomes) >= 38
    assert outcomes == {name: OTHER_OUTCOMES.get(name, "EPERM") for name in outcomes}


def test_without_the_filter_it_would_not_be(user: User) -> None:
    """And the adapter notices: the trial asserts the sentence. A plain user's second lock holds."""
    outcomes = attempt(user, unfiltered=True)
    assert outcomes["clone3"] == "done"
    assert list(outcomes.values()).count("done") > 5
    mapped = user.run(["cat", "/proc/self/uid_map"])["out"].split()
    if mapped[0] == str(USER_IDS["agent"]) and mounts._can_close_namespaces():
        for name in ("clone3 of a user namespace", "unshare of a user namespace"):
            assert outcomes[name] == "ENOSPC"


def test_every_process_of_a_sandbox_is_behind_the_filter(user: User) -> None:
    """bwrap's own, which is process 1 inside, too."""
    script = """
        for process in /proc/[0-9]*; do grep Seccomp: $process/status; done
        sh -c 'setsid grep Seccomp: /proc/self/status'
    """
    lines = user.run(["bash", "-c", script])["out"].splitlines()
    assert len(lines) >= 3
    assert {line.split("\t")[1] for line in lines} == {"2"}


def test_user_namespaces_are_closed_in_words_that_a_person_reads(user: User) -> None:
    result = user.run(["unshare", "-Ur", "true"])
    assert (result["code"], result["out"]) == (1, "")
    assert "not permitted" in result["err"]


def test_a_sandbox_within_a_sandbox_does_not_start(user: User) -> None:
    nested = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
    assert user.run(nested)["code"] != 0


PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/workspace", "/home/agent")


@pytest.mark.parametrize("place", PLACES)
def test_a_place_in_memory_holds_no_more_than_its_size(user: User, place: str) -> None:
    size = inside.memory_size()
    script = f"df -B1 --output=size {place} | tail -1; fallocate -l {size + 4096} {place}/big"
    result = user.run(["bash", "-c", script])
    assert int(result["out"]) == size
    assert (result["code"], "No space left" in result["err"]) == (1, True)


def test_what_covers_a_hidden_directory_holds_nothing(user: User) -> None:
    place = user.data_dir / "new"
    result = user.run(["touch", str(place)], readonly=[str(user.data_dir.parent)])
    assert result["code"] == 1
    # The plain user owns it inside.
    assert "Read-only" in result["err"] or "denied" in result["err"]


PYTHON = """
import asyncio, concurrent.futures, multiprocessing, socket, sqlite3, subprocess, threading
seen = []
threads = [threading.Thread(target=seen.append, args=(n,)) for n in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
assert sorted(seen) == list(range(8))
assert subprocess.run(["sh", "-c", "echo up"], capture_output=True).stdout == b"up\\n"
assert subprocess.run(["true"], start_new_session=True, close_fds=True).returncode == 0
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
with concurrent.futures.ProcessPoolExecutor(
    2, mp_context=multiprocessing.get_context("spawn")
) as pool:
    assert pool.submit(abs, -3).result() == 3
async def child():
    process = await asyncio.create_subprocess_exec("echo", "a", stdout=-1)
    return (await process.communicate())[0]
assert asyncio.run(child()) == b"a\\n"
for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK):
    socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM)
assert socket.if_nameindex()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname())
sqlite3.connect("/workspace/db").execute("pragma journal_mode=wal")
print("fine")
"""
BASH = """
set -m; (sleep 0.05; exit 4) & wait $!; echo $?
sleep 60 & jobs -r | wc -l; kill %1; wait %1; echo $?
sleep 0.05 & fg >/dev/null; echo $?
seq 3 | xargs -P 3 -I{} sh -c 'exit 0'; diff <(echo a) <(echo a)
script -qec 'tty' /dev/null | grep -c pts
"""
NODE = """
const { Worker } = require('worker_threads'); const { spawnSync, fork } = require('child_process');
if (spawnSync('echo', ['a']).stdout.toString() !== 'a\\n') process.exit(1);
require('fs').promises.readFile('/etc/passwd').then(() => {
  const code = 'require("worker_threads").parentPort.postMessage("fine")';
  const worker = new Worker(code, { eval: true });
  worker.on('message', (text) => { console.log(text); worker.terminate(); });
});
"""


def test_python_works(user: User) -> None:
    """Threads without clone3, processes by fork and spawn, sockets of the usual families."""
    result = user.run(["python3", "-c", PYTHON])
    assert result == {"code": 0, "out": "fine\n", "err": ""}


def test_bash_has_job_control(user: User) -> None:
    result = user.run(["bash", "-c", BASH])
    assert (result["out"].split(), result["code"]) == (["4", "1", "143", "0", "1"], 0)


def test_node_works(user: User) -> None:
    result = user.run(["node", "-e", NODE])
    assert result == {"code": 0, "out": "fine\n", "err": ""}


def test_npm_runs_scripts(user: User) -> None:
    script = "npm init -y >/dev/null && npm pkg set scripts.up='node -p 6*7' && npm run --silent up"
    result = user.run(["bash", "-c", script])
    assert (result["code"], result["out"]) == (0, "42\n"), result


def test_uv_makes_environments(user: User) -> None:
    script = "/tmp/uv venv --quiet /tmp/env && /tmp/env/bin/python -c 'print(42)'"
    program = user.data_dir.parent / "uv"
    shutil.copy(find_uv() or "uv", program)
    result = user.run(["bash", "-c", script], binds=[[str(program), "/tmp/uv"]])
    assert (result["code"], result["out"]) == (0, "42\n"), result


def test_git_works(user: User) -> None:
    script = """
        git init -q a && cd a && git config user.name a && git config user.email a@b && echo 1 > f
        git add f && git commit -qm one && git gc -q && git clone -q . ../b && cat ../b/f
    """
    result = user.run(["bash", "-c", script])
    assert (result["code"], result["out"]) == (0, "1\n"), result
