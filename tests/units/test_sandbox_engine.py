"""What an engine is asked for, and how its answers are taken apart; nothing is started (issue 5,
section 1)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from urllib3.exceptions import ReadTimeoutError

from jobs.sandbox import seccomp
from jobs.sandbox.base import Bind, Limits, SandboxError, SandboxSpec
from jobs.sandbox.egress.base import Egress
from jobs.sandbox.engine import leftovers
from jobs.sandbox.engine.adapter import BLIND, Engine
from jobs.sandbox.engine.client import Client, EngineError
from jobs.sandbox.engine.containers import Host, Image, container, handed_over
from jobs.sandbox.engine.running import Report, received_listener
from jobs.sandbox.engine.streams import Streams, connect
from jobs.sandbox.places import Places
from jobs.sandbox.runtime import runtime_dir

IMAGE = Image("an-image", path="/opt/bin:/bin", volumes=("/data",))
SPEC = SandboxSpec("agent", network=False)


async def nobody(host: str, port: int) -> tuple[str, ...]:
    raise AssertionError


def asked_for(
    spec: SandboxSpec = SPEC, *, host: Host | None = None, **places: Any
) -> dict[str, Any]:
    data_dir = places.pop("data_dir", Path("/nonexistent"))
    return container(
        ["echo", "hi"],
        spec,
        Places(data_dir, **places),
        IMAGE,
        host or Host(0),
        report=Path("/run/report.pipe"),
        lifeline=Path("/run/lifeline.pipe"),
        listener=Path("/run/listener.sock") if spec.egress else None,
        owner="/run/ump-rt-1",
    )


def binds(body: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {
        mount["Target"]: (mount["Source"], mount["ReadOnly"])
        for mount in body["HostConfig"]["Mounts"]
    }


def given(spec: SandboxSpec) -> str:
    return handed_over(spec, Places(Path("/nonexistent")), IMAGE).decode()


def variables(body: dict[str, Any]) -> dict[str, str]:
    return dict(item.split("=", 1) for item in body["Env"])


def test_a_container_has_no_privilege_and_a_root_that_cannot_be_written() -> None:
    """P3, P7."""
    body = asked_for()
    wish = body["HostConfig"]
    assert body["User"] == "1000:1000"
    assert asked_for(replace(SPEC, party="mcp"))["User"] == "1001:1001"
    assert (wish["CapDrop"], wish["CapAdd"]) == (["ALL"], [])
    assert wish["SecurityOpt"] == ["no-new-privileges", f"seccomp={seccomp.profile()}"]
    assert "/proc/keys" in wish["MaskedPaths"]
    assert wish["ReadonlyRootfs"] is True
    assert wish["LogConfig"] == {"Type": "none"}
    assert "Privileged" not in wish


@pytest.mark.parametrize(
    ("spec", "mode"),
    [
        (SPEC, "none"),
        (replace(SPEC, egress=Egress(nobody, lambda _: None)), "none"),
        (replace(SPEC, network=True), "host"),
    ],
)
def test_only_the_unrestricted_network_has_a_route(spec: SandboxSpec, mode: str) -> None:
    """P22."""
    assert asked_for(spec)["HostConfig"]["NetworkMode"] == mode


def test_a_guarded_one_begins_with_its_listener_and_has_the_proxys_variables() -> None:
    body = asked_for(replace(SPEC, egress=Egress(nobody, lambda _: None)))
    assert (body["Cmd"][0], body["Cmd"][-3:]) == ("listen", ["/workspace", "echo", "hi"])
    assert binds(body)["/ump/listener.sock"] == ("/run/listener.sock", False)
    assert variables(body)["HTTPS_PROXY"] == "http://127.0.0.1:3128"
    plain = asked_for()
    assert plain["Cmd"] == ["run", *body["Cmd"][1:]]
    assert "HTTPS_PROXY" not in variables(plain)
    assert "/ump/listener.sock" not in binds(plain)


def test_the_jobs_limits_are_the_engines() -> None:
    limits = Limits(cpus=0.5, memory=64 * 1024**2, processes=20, disk=32 * 1024**2)
    wish = asked_for(replace(SPEC, limits=limits))["HostConfig"]
    assert wish["NanoCpus"] == 500_000_000
    assert wish["Memory"] == wish["MemorySwap"] == limits.memory
    assert wish["PidsLimit"] == 20
    ulimits = {item["Name"]: item["Hard"] for item in wish["Ulimits"]}
    assert ulimits["fsize"] == limits.disk
    assert ulimits["core"] == 0
    # Without these two an engine that may not raise limits starts nothing.
    assert {"nofile", "nproc"} <= set(ulimits)


def test_places_in_memory_have_a_size_also_those_that_the_image_declares() -> None:
    memory = asked_for(replace(SPEC, limits=Limits(memory=64 * 1024**2)))["HostConfig"]["Tmpfs"]
    assert set(memory) == {"/tmp", "/var/tmp", "/data", "/workspace", "/home/agent"}
    assert all(f"size={64 * 1024**2}" in options for options in memory.values())


def test_no_secret_is_in_what_the_engine_is_asked_for() -> None:
    """It would keep that on its disk, and show it."""
    spec = replace(SPEC, env={"TOKEN": "a secret\nin two lines", "LAST": ""})
    assert "secret" not in str(asked_for(spec))
    assert given(spec) == "=TOKEN=a secret\n+in two lines\n.\n=LAST=\n.\n\n"
    assert given(SPEC) == "\n"


def test_what_no_shell_sets_is_the_engines_to_set() -> None:
    spec = replace(SPEC, env={"with.dot": "1", "UID": "5"})
    assert {"with.dot": "1", "UID": "5"}.items() <= variables(asked_for(spec)).items()
    assert given(spec) == "\n"


def test_the_images_path_stands_between_ours() -> None:
    assert variables(asked_for())["PATH"] == "/ump/bin:/opt/bin:/bin:/ump/tools"
    own = asked_for(replace(SPEC, env={"PATH": "/own"}))
    assert "PATH" not in variables(own)
    assert given(replace(SPEC, env={"PATH": "/own"})) == "=PATH=/own\n.\n\n"


def test_what_is_ours_is_covered_where_a_shown_directory_holds_it(tmp_path: Path) -> None:
    """P3."""
    data_dir = tmp_path / "shown" / "data"
    data_dir.mkdir(parents=True)
    config = tmp_path / "shown" / "config.yml"
    config.touch()
    workspace = data_dir / "runs" / "one"
    workspace.mkdir(parents=True)
    body = asked_for(
        replace(SPEC, workspace=workspace),
        data_dir=data_dir,
        readonly=(tmp_path / "shown",),
        hidden=(data_dir, config),
    )
    assert body["HostConfig"]["Tmpfs"][str(data_dir)].startswith("ro,")
    assert binds(body)[str(config)] == ("/dev/null", True)
    assert binds(body)["/workspace"] == (str(workspace), False)


def test_binds_are_what_the_specification_says(tmp_path: Path) -> None:
    spec = replace(SPEC, binds=(Bind(tmp_path, "/a"), Bind(tmp_path, "/b", writable=True)))
    found = binds(asked_for(spec))
    assert (found["/a"], found["/b"]) == ((str(tmp_path), True), (str(tmp_path), False))


@pytest.mark.parametrize(
    ("host", "root", "user", "namespace"),
    [
        (Host(0), False, 1000, None),
        (Host(1500), False, 1500, None),  # of Docker's group: files of the worker are the user's
        (Host(1500, own_user=True), False, 1000, "keep-id:uid=1000,gid=1000"),
        (Host(1500, own_user=True), True, 0, None),
        (Host(0, remaps=True), False, 1000, "host"),
    ],
)
def test_the_user_inside_is_the_one_whose_the_workers_files_are(
    host: Host, root: bool, user: int, namespace: str | None
) -> None:
    """P7, P26."""
    body = asked_for(replace(SPEC, root=root), host=host)
    assert body["User"] == f"{user}:{user}"
    assert body["HostConfig"].get("UsernsMode") == namespace
    passwd = Path(binds(body)["/etc/passwd"][0]).read_text()
    assert ("agent:x:1500:" in passwd) == (user == 1500)


def test_an_image_is_known_by_its_path_and_volumes() -> None:
    found = {"Config": {"Env": ["A=b", "PATH=/x:/y"], "Volumes": {"/data": {}}}}
    assert Image.from_inspection("name", found) == Image("name", "/x:/y", ("/data",))
    assert Image.from_inspection("name", {}).path.startswith("/usr/local/sbin:")


async def connected(limit: int = 1024) -> tuple[Streams, socket.socket]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    return await connect(ours, limit), theirs


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">BxxxI", stream, len(content)) + content


async def test_frames_are_divided_however_they_arrive() -> None:
    streams, theirs = await connected()
    for byte in frame(1, b"out") + frame(2, b"err") + frame(7, b"?") + frame(1, b"put\n"):
        theirs.send(bytes([byte]))
        await asyncio.sleep(0)
    theirs.close()
    assert await streams.stdout.read() == b"output\n"
    assert await streams.stderr.read() == b"err"
    streams.close()


async def test_a_connection_that_breaks_in_a_frame_ends_both_outputs() -> None:
    streams, theirs = await connected()
    theirs.send(frame(1, b"whole") + frame(1, b"half of it")[:-3])
    theirs.close()
    assert await streams.stdout.read() == b"wholehalf of"
    assert await streams.stderr.read() == b""
    streams.close()


async def test_closing_the_input_ends_it_alone() -> None:
    streams, theirs = await connected()
    streams.stdin.write(b"last words")
    streams.stdin.close()
    streams.stdin.close()
    streams.stdin.write(b"too late")
    loop = asyncio.get_running_loop()
    assert await loop.sock_recv(theirs, 100) == b"last words"
    assert await loop.sock_recv(theirs, 100) == b""
    theirs.send(frame(1, b"an answer"))
    theirs.close()
    assert await streams.stdout.read() == b"an answer"
    streams.close()


async def test_what_nobody_reads_is_not_taken_until_the_end_is_wanted() -> None:
    """C15: a script that prints for ever fills no memory."""
    streams, theirs = await connected(limit=1024)
    loop = asyncio.get_running_loop()
    flood = asyncio.create_task(loop.sock_sendall(theirs, frame(1, b"x" * 60_000) * 200))
    done, _ = await asyncio.wait({flood}, timeout=0.2)
    assert not done
    streams.drain()
    await flood
    theirs.close()
    await streams.ended
    assert len(await streams.stdout.read()) == 60_000 * 200
    streams.close()


@pytest.fixture
def report() -> Any:
    made = Report.make(os.geteuid())
    yield made
    made.close()


def test_the_report_is_what_the_first_process_counted(report: Report) -> None:
    with report.path.open("w") as pipe:
        pipe.write("memory oom_kill_disable 0\nmemory oom_kill 2\npids max 0\n")
    assert report.counts("memory", "oom_kill")
    assert not report.counts("pids", "max")
    report.close()
    assert not report.path.exists()
    assert report.counts("memory", "oom_kill")


def test_a_report_full_of_nonsense_says_nothing_and_holds_nobody_up(report: Report) -> None:
    """Whatever runs inside may write to it."""
    assert report.read() == ""
    with report.path.open("wb") as pipe:
        pipe.write(
            b"memory oom_kill\nmemory oom_kill many\n\xff\xfe\nmemory oom_kill 1 2\n" + b"x" * 9000
        )
    assert not report.counts("memory", "oom_kill")


def test_an_answer_that_breaks_off_is_the_engines_fault() -> None:
    client = Client("unix:///nonexistent")
    with pytest.raises(EngineError, match="does not answer"), client.errors():
        raise ReadTimeoutError(None, "/build", "Read timed out.")  # type: ignore[arg-type]


def handed(*descriptors: int) -> socket.socket:
    """What the worker takes where these were handed over."""
    here, there = socket.socketpair()
    with here, there:
        socket.send_fds(there, [b"l"], descriptors)
        return received_listener(here)


def test_the_listener_that_is_taken_is_inherited_by_no_program() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, handed(listener.fileno()) as taken:
        assert taken.getsockname() == listener.getsockname()
        assert not os.get_inheritable(taken.fileno())


def test_what_is_no_listener_of_the_network_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket() as unbound:
        listening.bind(str(tmp_path / "sock"))
        listening.listen()
        with (tmp_path / "file").open("w") as file:
            before = set(os.listdir("/proc/self/fd"))
            for one in (listening, unbound, file):
                with pytest.raises(SandboxError, match="something else"):
                    handed(one.fileno())
            with pytest.raises(SandboxError, match="no listener"):
                handed()
            assert set(os.listdir("/proc/self/fd")) == before


class FakeClient(Client):
    """An engine with these containers, each with its label."""

    def __init__(self, owners: dict[str, str]) -> None:
        super().__init__("unix:///nonexistent")
        self.owners = owners

    def call(self, work: Any) -> Any:
        return work(self)

    def containers(self, **_: Any) -> list[dict[str, Any]]:
        return [
            {"Id": name, "Names": [f"/{name}"], "Labels": {"umpteenth.sandbox": owner}}
            for name, owner in self.owners.items()
        ]

    def remove_container(self, name: str, **_: Any) -> None:
        if name == "stuck":
            raise EngineError("no", 500)
        if name == "gone":
            raise EngineError("no such container", 404)
        if name == "going":
            raise EngineError("1f does not exist in database: no such container", 500)
        del self.owners[name]


def test_only_what_a_dead_worker_of_this_machine_left_is_removed(tmp_path: Path) -> None:
    beside = runtime_dir().parent
    living = beside / "ump-rt-test-living"
    living.mkdir(exist_ok=True)
    (tmp_path / "ump-rt-left").mkdir()
    descriptor = os.open(living, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        client = FakeClient(
            {
                "dead": str(beside / "ump-rt-test-dead"),
                "stuck": str(beside / "ump-rt-test-dead"),
                "gone": str(beside / "ump-rt-test-dead"),
                "going": str(beside / "ump-rt-test-dead"),
                "living": str(living),
                "elsewhere": str(tmp_path / "ump-rt-1"),
                "dead elsewhere": str(tmp_path / "ump-rt-left"),
                "another's": str(tmp_path),
                "nobody's": "",
            }
        )
        assert leftovers.remove_leftovers(client) == 4
    finally:
        os.close(descriptor)
        living.rmdir()
    kept = {"stuck", "gone", "going", "living", "elsewhere", "another's", "nobody's"}
    assert set(client.owners) == kept


def test_what_this_worker_gave_up_is_removed_and_what_it_uses_is_not() -> None:
    """Also one that the engine made after nobody waited for its answer any more."""
    used, given_up = leftovers.new_name(), leftovers.new_name()
    leftovers.give_up(given_up)
    client = FakeClient(dict.fromkeys((used, given_up), str(runtime_dir())))
    assert leftovers.remove_leftovers(client) == 1
    assert list(client.owners) == [used]
    leftovers.give_up(used)
    leftovers.remove_leftovers(client)
    assert not client.owners


class SlowClient(FakeClient):
    """An engine that makes a container, but answers too late, and nothing else in time either."""

    def create_container_from_config(self, body: dict[str, Any], name: str) -> dict[str, Any]:
        self.owners[name] = body["Labels"]["umpteenth.sandbox"]
        raise EngineError("the engine does not answer")

    def inspect_image(self, name: str) -> dict[str, Any]:
        return {"Config": {}}


async def test_a_container_whose_making_was_not_answered_is_removed_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = SlowClient({})
    monkeypatch.setattr("jobs.sandbox.engine.adapter.Client", lambda url: client)
    engine = Engine(Places(Path("/nonexistent")), url=client.url, image="an-image")
    monkeypatch.setattr(engine.trial, "_problem", "")
    with pytest.raises(SandboxError, match="could not be made: the engine does not answer"):
        await engine.start(["true"], SPEC)
    assert len(client.owners) == 1
    engine.tidy()
    assert not client.owners


@pytest.mark.parametrize(("problem", "left"), [(BLIND, 1), ("", 0)])
def test_a_worker_that_cannot_see_removes_nothing(
    problem: str, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its /tmp may be another than that of the workers whose directories it misses."""
    client = FakeClient({"another's": str(runtime_dir().parent / "ump-rt-test-unseen")})
    monkeypatch.setattr("jobs.sandbox.engine.adapter.Client", lambda url: client)
    engine = Engine(Places(Path("/nonexistent")), url=client.url, image="an-image")
    monkeypatch.setattr(engine, "problem", lambda: problem)
    engine.tidy()
    assert len(client.owners) == left


class RefusingClient(Client):
    """An engine that answers questions and makes no container."""

    def __init__(self, words: str, security: tuple[str, ...] = (), name: str = "Engine") -> None:
        super().__init__("unix:///nonexistent")
        self._words, self._security, self._name = words, security, name

    def call(self, work: Any) -> Any:
        return work(self)

    def info(self) -> dict[str, Any]:
        return {"SecurityOptions": list(self._security)}

    def version(self) -> dict[str, Any]:
        return {"Components": [{"Name": self._name}]}

    def inspect_image(self, name: str) -> dict[str, Any]:
        return {"Config": {}}

    def create_container_from_config(self, body: dict[str, Any], name: str) -> dict[str, Any]:
        raise EngineError(self._words, 400)


@pytest.mark.parametrize(
    ("client", "expected"),
    [
        (
            RefusingClient("invalid mount config: bind source path does not exist: /data/x"),
            "does not see this worker's files",
        ),
        (RefusingClient('exec: "/bin/sh": stat /bin/sh: no such file'), "has no /bin/sh"),
        (RefusingClient("the disk is full"), "could not be made: the disk is full"),
        (RefusingClient("", security=("name=rootless",)), "Docker in rootless mode"),
    ],
)
def test_why_no_container_starts_is_a_sentence_with_what_to_do(
    client: Client, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.sandbox.engine.adapter.Client", lambda url: client)
    engine = Engine(Places(Path("/nonexistent")), url=client.url, image="an-image")
    left = set(os.listdir(runtime_dir()))
    assert expected in engine.problem()
    assert {name for name in os.listdir(runtime_dir()) if name.endswith(".pipe")} <= left


def test_root_is_possible_where_the_engine_is_the_workers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """P26: rootless Podman's root is the user who runs it."""
    client = RefusingClient("later", security=("name=rootless",), name="Podman Engine")
    monkeypatch.setattr("jobs.sandbox.engine.adapter.Client", lambda url: client)
    engine = Engine(Places(Path("/nonexistent")), url=client.url, image="an-image")
    assert "later" in engine.problem()
    assert engine.root_problem() == ""


def test_authorities_of_this_machine_count_where_their_bundle_is_shown(tmp_path: Path) -> None:
    bundle = tmp_path / "authorities.pem"
    bundle.write_text("")
    own = asked_for(certificates={"SSL_CERT_FILE": str(bundle)})
    assert binds(own)[str(bundle)] == (str(bundle), True)
    assert variables(own)["SSL_CERT_FILE"] == str(bundle)
    assert "UV_SYSTEM_CERTS" not in variables(asked_for())
