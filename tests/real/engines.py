"""A Podman of the tests' own, with images of this machine's programs: no registry is asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jobs.sandbox.engine.client import Client
from jobs.sandbox.places import find_uv
from tests.real.sandboxes import PLAIN_ID

IMAGE = "ump-tests:programs"
BARE_IMAGE = "ump-tests:bare"  # a shell and hardly more: no Python
PROGRAMS = (
    *("sh", "bash", "cat", "chmod", "curl", "env", "grep", "head", "id", "ls", "mkdir", "mount"),
    *("nohup", "python3", "rm", "seq", "setsid", "sleep", "su", "touch", "tr", "true", "unshare"),
    "wc",
)
BARE_PROGRAMS = ("sh", "cat", "id", "ls", "sleep")
_DIRECTORIES = ("dev", "etc", "home", "proc", "root", "run", "sys")
_LEFT_OUT = ("__pycache__", "dist-packages", "/test", "/idlelib", "/lib2to3", "/config-3")


@dataclass(frozen=True)
class Podman:
    """A service that answers the Docker API. Its containers, images and locks are its own."""

    folder: Path
    prefix: tuple[str, ...] = ()  # to become its user

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/api.sock"

    @property
    def environ(self) -> dict[str, str]:
        names = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        found = {name: str(self.folder / file) for name, file in names.items()}
        own = {"HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder / "xdg")}
        return {"PATH": os.environ["PATH"], **own, **found}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self.prefix, "podman", *arguments],
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def containers(self) -> list[str]:
        return self.run("ps", "--all", "--quiet", "--no-trunc").split()

    @property
    def options(self) -> dict[str, str]:
        return {"url": self.url, "image": IMAGE}

    @property
    def variables(self) -> dict[str, str]:
        """The options of a whole site."""
        options = {"ADAPTER": "engine", "ENGINE__URL": self.url, "ENGINE__IMAGE": IMAGE}
        return {f"UMPTEENTH_SANDBOX__{name}": value for name, value in options.items()}


@contextmanager
def running_podman() -> Iterator[Podman]:
    """Started, with both images; everything of it is gone afterwards. A machine without a usable
    Podman fails here (`.ci/setup test` installs it)."""
    podman = Podman(_new_folder())
    try:
        with _service(podman) as service:
            yield podman
            if service.poll() is None:
                for container in podman.containers():
                    podman.run("rm", "--force", "--time", "0", container)
    finally:
        _remove(podman.folder)


@contextmanager
def rootless_podman() -> Iterator[Podman]:
    """The same of the plain user. The accounts and the ranges of users that it needs are there for
    it alone, in a mount namespace; and its processes, some of which stay, end with another."""
    if os.geteuid() != 0:
        with running_podman() as podman:
            yield podman
        return
    folder = _new_folder()
    user = str(PLAIN_ID)
    etc = folder / "etc"
    etc.mkdir()
    lines = {"passwd": f"plain:x:{user}:{user}::{folder}:/bin/sh", "group": f"plain:x:{user}:"}
    lines |= dict.fromkeys(("subuid", "subgid"), "plain:200000:65536")
    for name, line in lines.items():
        Path("/etc", name).touch()  # something to mount on
        (etc / name).write_text(f"{Path('/etc', name).read_text()}{line}\n")
    subprocess.run(["chown", "-R", f"{user}:{user}", folder], check=True)
    script = "".join(f"mount --bind {etc / name} /etc/{name}; " for name in lines)
    script += 'mount -t proc proc /proc; "$@"; exit'
    drop = ("setpriv", "--reuid", user, "--regid", user, "--clear-groups")
    apart = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private")
    podman = Podman(folder, (*apart, "sh", "-ec", script, "sh", *drop))
    try:
        with _service(podman):
            yield podman
    finally:
        _remove(folder)


def _new_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="ump-pod-", dir="/tmp"))
    folder.chmod(0o711)
    (folder / "xdg").mkdir(mode=0o700)
    _configure(folder)
    return folder


@contextmanager
def _service(podman: Podman) -> Iterator[subprocess.Popen[bytes]]:
    """Running, with both images."""
    folder = podman.folder
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            [*podman.prefix, "podman", "system", "service", "--time", "0", podman.url],
            env=podman.environ,
            # Where it notes that something ran out of memory.
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 30
        while not (folder / "api.sock").exists():
            words = (folder / "log").read_text(errors="replace")
            assert service.poll() is None, f"Podman did not start: {words}"
            assert time.monotonic() < deadline, f"Podman does not answer: {words}"
            time.sleep(0.05)
        for name, programs in ((IMAGE, PROGRAMS), (BARE_IMAGE, BARE_PROGRAMS)):
            import_image(podman, name, programs)
        yield service
    finally:
        if podman.prefix:
            service.kill()  # and the whole namespace with it, whose first process is the shell
        else:
            service.terminate()
        service.wait(20)


def _remove(folder: Path) -> None:
    # Podman keeps its overlays mounted in one place of its own, and tidies up behind containers
    # that have ended in processes of their own.
    deadline = time.monotonic() + 20
    while folder.exists():
        place = str(folder / "graph" / "overlay")
        subprocess.run(["umount", "--recursive", place], check=False, stderr=subprocess.DEVNULL)
        try:
            shutil.rmtree(folder)
        except OSError:
            assert time.monotonic() < deadline, f"{folder} could not be removed"
            time.sleep(0.1)


def _configure(folder: Path) -> None:
    # runc, for crun refuses this kind of control groups; a file for its locks, which are shared by
    # all Podmans of a machine otherwise.
    engine = {
        "runtime": "runc",
        "cgroup_manager": "cgroupfs",
        "events_logger": "none",
        "lock_type": "file",
        "static_dir": str(folder / "static"),
        "tmp_dir": str(folder / "tmp"),
        "volume_path": str(folder / "volumes"),
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in engine.items()]
    (folder / "containers.conf").write_text("\n".join(["[engine]", *lines]))
    storage = {"driver": "overlay", "graphroot": f"{folder}/graph", "runroot": f"{folder}/run"}
    lines = [f"{name} = {json.dumps(value)}" for name, value in storage.items()]
    (folder / "storage.conf").write_text("\n".join(["[storage]", *lines]))


def import_image(podman: Podman, name: str, programs: Sequence[str]) -> None:
    path = podman.folder / "image.tar"
    with tarfile.open(path, "w", dereference=True) as archive:
        _Tree(archive).fill(programs)
    client = Client(podman.url)
    repository, _, tag = name.partition(":")
    # Podman passes over the tag.
    client.call(lambda api: api.import_image_from_file(str(path), repository))
    client.call(lambda api: api.tag(f"{repository}:latest", repository, tag))
    path.unlink()


class _Tree:
    """Programs of this machine with the libraries that they need, as a root directory."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._added: set[str] = set()

    def fill(self, programs: Sequence[str]) -> None:
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                self._entry(name, tarfile.SYMTYPE, os.readlink(Path("/", name)))
        for name in _DIRECTORIES:
            self._entry(name, tarfile.DIRTYPE)
        for name in ("tmp", "var/tmp"):
            self._entry(name, tarfile.DIRTYPE, mode=0o1777)
        self._entry("etc/shadow", tarfile.REGTYPE, mode=0o640)
        for name in programs:
            path = shutil.which(name, path="/usr/bin:/usr/sbin")
            assert path is not None, f"{name} is not installed"
            self._add(path)
            self._libraries(path)
            if name == "python3":
                self._python(Path(path).resolve())
                # uv is shown to sandboxes as this machine has it.
                self._libraries(str(find_uv()))

    def _python(self, program: Path) -> None:
        library = f"/usr/lib/{program.name}"
        self._archive.add(library, library[1:], filter=_without_ballast)
        for extension in Path(library, "lib-dynload").glob("*.so"):
            self._libraries(str(extension))

    def _libraries(self, path: str) -> None:
        said = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for word in said.split():
            if word.startswith("/"):
                self._add(word)

    def _add(self, path: str) -> None:
        place = str(Path(path).parent.resolve() / Path(path).name)
        if place not in self._added:
            self._added.add(place)
            self._archive.add(place, place[1:])

    def _entry(self, name: str, kind: bytes, target: str = "", mode: int = 0o755) -> None:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname, entry.mode = kind, target, mode
        self._archive.addfile(entry)


def _without_ballast(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if any(part in entry.name for part in _LEFT_OUT) else entry
