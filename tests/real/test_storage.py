"""Files of runs in a real Postgres and in a bucket, from a worker to who asks for them
(issue 5, section 5)."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.fakes.s3 import ACCESS_KEY, BUCKET, fake_s3
from tests.fakes.storages import StorageBehaviour
from tests.real.conftest import PROJECT, Site, eventually, free_port, new_database, new_site
from tests.real.test_runs import make_job, run_now

# A file of several parts, and a value too large for the timeline.
SCRIPT = """#!/usr/bin/env bash
head -c 3000000 /dev/urandom > /ump/outputs/noise.bin
ump output set digest "$(sha256sum < /ump/outputs/noise.bin | cut -d ' ' -f 1)"
seq 20000 | ump output set numbers -
"""


@pytest.fixture(scope="module", params=["database", "s3"])
def site(request: pytest.FixtureRequest, postgres_port: int) -> Iterator[Site]:
    """On Postgres, with one worker."""
    variables = {"DATABASE__URL": new_database(postgres_port), "STORAGE__BACKEND": request.param}
    variables["APP__BIND"] = f"127.0.0.1:{free_port()}"
    with fake_s3() as bucket:
        if request.param == "s3":
            s3 = {"BUCKET": BUCKET, "ENDPOINT": bucket.endpoint, "REGION": "eu-1"}
            s3 |= {"ACCESS_KEY": ACCESS_KEY, "SECRET_KEY": "hunter22", "ADDRESSING": "path"}
            variables |= {f"STORAGE__S3__{name}": value for name, value in s3.items()}
        made = new_site({f"UMPTEENTH_{name}": value for name, value in variables.items()})
        made.migrate()
        made.start("worker")
        yield made
        made.close()


def test_it_keeps_what_every_storage_promises(site: Site) -> None:
    done = subprocess.run(
        site.command("-m", "tests.real.storage_trial"),
        env=site.environ,
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    promises = [name for name in dir(StorageBehaviour) if name.startswith("test_")]
    assert json.loads(done.stdout) == promises


def test_what_a_worker_keeps_another_process_reads(site: Site) -> None:
    """The data directory has none of it: machines need not share one."""
    shown = run_now(site, make_job(site, SCRIPT))
    assert shown["status"] == "succeeded", shown
    [noise, numbers] = site.ask("stored_files", shown["id"])
    assert noise["name"] == "noise.bin"
    assert noise["size"] == 3_000_000
    assert noise["sha256"] == shown["outputs"]["digest"]
    whole = "\n".join(map(str, range(1, 20_001)))
    assert numbers["sha256"] == hashlib.sha256(whole.encode()).hexdigest()
    assert not (site.data_dir / "files").exists()
    site.start("web")
    key = site.ask("session")
    path = f"/runs/{shown['id']}/artifacts/{noise['id']}/"
    eventually(lambda: answers(site), "the pages")
    # More than there are connections to the database, and none of them reads on.
    waiting = [get(site, path, key) for _ in range(24)]
    begun = [response.read(1000) for response in waiting]
    assert shown["job"].encode() in get(site, "/runs/", key).read()
    for beginning, response in zip(begun, waiting, strict=True):
        assert hashlib.sha256(beginning + response.read()).hexdigest() == noise["sha256"]


def address(site: Site) -> tuple[str, int]:
    host, _, port = site.variables["UMPTEENTH_APP__BIND"].partition(":")
    return host, int(port)


def answers(site: Site) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address(site), 1):
        return True
    return False


def get(site: Site, path: str, session: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*address(site))
    connection.sock = socket.socket()
    connection.sock.settimeout(30)
    # The kernel is not to take in what nobody reads.
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sock.connect(address(site))
    # The response closes the connection, once it is read to its end.
    headers = {"Cookie": f"sessionid={session}", "Connection": "close"}
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_doctor_tries_it(site: Site) -> None:
    findings = site.json("doctor")["findings"]
    [files] = [finding for finding in findings if finding["name"] == "files"]
    assert files["state"] == "ok"
    assert files["text"].endswith("written, read and deleted")
