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

from jobs.sandbox.places import find_uv

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

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/api.sock"

    @property
    def environ(self) -> dict[str, str]:
        names = {"CONTAINERS_CONF": "containers.conf", "CONTAINERS_STORAGE_CONF": "storage.conf"}
        found = {name: str(self.folder / file) for name, file in names.items()}
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder), **found}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            ["podman", *arguments],
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
    folder = Path(tempfile.mkdtemp(prefix="ump-pod-", dir="/tmp"))
    folder.chmod(0o711)
    podman = Podman(folder)
    _configure(folder)
    with (folder / "log").open("wb") as log:
        service = subprocess.Popen(
            ["podman", "system", "service", "--time", "0", podman.url],
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
        yield podman
    finally:
        if service.poll() is None:
            for container in podman.containers():
                podman.run("rm", "--force", "--time", "0", container)
        service.terminate()
        service.wait(20)
        _remove(folder)


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
    podman.run("import", "--quiet", str(path), name)
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
