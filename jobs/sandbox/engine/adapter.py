"""Sandboxes as containers of Docker or Podman, through the API that both speak.

A container is made, its three streams are connected, and then it is started: its first process is
a shell of ours, the command its child. When the command ends, so does the container, and with it
everything in it. Unlike a launcher an engine outlives its worker: inside, somebody waits for the
worker's end to end everything; what is left is removed by the next one (`leftovers`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from jobs.sandbox.base import (
    LINE_LIMIT,
    Bind,
    Facts,
    SandboxError,
    SandboxProcess,
    SandboxSpec,
    SandboxUnavailable,
    Trial,
    check,
)
from jobs.sandbox.egress.proxy import Proxy
from jobs.sandbox.engine import leftovers
from jobs.sandbox.engine.client import ENDS, Client, EngineError
from jobs.sandbox.engine.containers import NO_PYTHON, Host, Image, container, handed_over
from jobs.sandbox.engine.running import (
    Control,
    Made,
    Pipe,
    Report,
    close_listening,
    finished,
    in_pool,
    listening,
)
from jobs.sandbox.engine.streams import Streams, connect
from jobs.sandbox.places import Places
from jobs.sandbox.runtime import runtime_dir, small_file

logger = logging.getLogger(__name__)

IMAGES_KEPT = 30.0  # seconds until an image is looked at again, which may be another by then
LISTENER_TIMEOUT = 30.0  # seconds for a guarded sandbox to hand over its listener
_SEEN = "/ump/seen"
_PROBE = """
[ "$(cat /ump/seen 2>/dev/null)" = "$1" ] || echo blind
command -v python3 >/dev/null || echo snakeless
while read -r name value; do [ "$name$value" = Seccomp:2 ] && exit 0; done </proc/self/status
echo unfiltered
"""

CHECK = "See sandbox.engine in the configuration."
CGROUPS = "Give it the controllers of cgroups that this needs."
_LIMITS = {
    "MemoryLimit": "The engine does not limit the memory of sandboxes.",
    "PidsLimit": "The engine does not limit the number of processes of sandboxes.",
    "CPUCfsQuota": "The engine does not limit the processors of sandboxes.",
}
UNFILTERED = (
    "The engine does not filter the system calls of sandboxes, although it is told which; "
    "use a runtime and a kernel with seccomp."
)
# Runtimes with a kernel of their own for each sandbox, which is what a filter is there for.
OWN_KERNEL = ("runsc", "kata")
BLIND = (
    "The engine does not see this worker's files. It has to run on the worker's machine; a worker "
    "in a container needs the data directory and /tmp at the same paths as the engine."
)
ROOTLESS_DOCKER = (
    "Docker in rootless mode cannot give a sandbox's user files of this worker; use rootless "
    "Podman, a Docker that runs as root, or sandbox.adapter: bubblewrap."
)
OTHER_RUNTIME = (
    "Podman passes over sandbox.engine.runtime; name the runtime in its own containers.conf, and "
    "leave that option empty."
)
ROOT_IS_ROOT = (
    "Jobs cannot run as root with this engine, whose root would be root of this machine too; use "
    "rootless Podman or sandbox.adapter: bubblewrap."
)
NO_PYTHON_WORDS = (
    "The image has no python3 on its path, without which a sandbox has no guarded network; add it, "
    "or set the job to No network."
)


class Engine:
    """The adapter. `image` is that of sandboxes without an environment of their own."""

    name = "engine"

    def __init__(self, places: Places, *, url: str, image: str, runtime: str = "") -> None:
        self.places = places
        self.image = image
        self._runtime = runtime
        self._client = Client(url)
        self.trial = Trial(self._look)
        self._gaps: tuple[str, ...] = ()
        self._info: dict[str, Any] = {}
        self._podman = False
        self._images: dict[str, tuple[Image, float]] = {}

    @property
    def client(self) -> Client:
        return self._client

    def problem(self) -> str:
        """See `Adapter.problem`."""
        return self.trial.problem()

    def gaps(self) -> tuple[str, ...]:
        """See `Adapter.gaps`."""
        return () if self.problem() else self._gaps

    def tidy(self) -> None:
        """See `Adapter.tidy`. A worker that does not see what the engine sees would take the
        others for dead; it has started nothing either."""
        if self.problem():
            return
        try:
            removed = leftovers.remove_leftovers(self._client)
        except EngineError as error:
            logger.warning("sandboxes of dead workers could not be looked for: %s", error)
            return
        if removed:
            logger.info("removed %d sandboxes of dead workers", removed)

    async def start(
        self, argv: Sequence[str], spec: SandboxSpec, *, limit: int = LINE_LIMIT
    ) -> SandboxProcess:
        """See `jobs.sandbox.base.start`."""
        if not self.trial.went_well:
            # Not in the pool, which the sandbox on trial needs.
            problem = await asyncio.to_thread(self.problem)
            if problem:
                raise SandboxUnavailable(problem)
        if spec.root and (why := self.root_problem()):
            raise SandboxUnavailable(why)
        return await self._start(argv, spec, limit)

    async def _start(self, argv: Sequence[str], spec: SandboxSpec, limit: int) -> SandboxProcess:
        check(argv, spec)
        made = await finished(partial(self._make, argv, spec), Made.discard)
        try:
            return await self._run(made, spec, limit)
        except EngineError as error:
            await in_pool(made.discard, ENDS)
            raise SandboxError(f"The sandbox could not be started: {error}.") from error
        except SandboxError:
            await in_pool(made.discard, ENDS)
            raise
        except BaseException:
            ENDS.submit(made.discard)
            raise

    def _make(self, argv: Sequence[str], spec: SandboxSpec) -> Made:
        """A container that is not started yet, with a connection to its streams. Blocks."""
        with contextlib.ExitStack() as undo:
            host = self._host()
            user = host.user_inside(spec)
            report = Report.make(user)
            undo.callback(report.close)
            lifeline = Pipe.make(user)
            undo.callback(lifeline.close)
            handing = None
            if spec.egress is not None:
                handing = listening(user)
                undo.callback(close_listening, handing)
            try:
                image = self._known_image(spec.base or self.image)
                body = container(
                    argv,
                    spec,
                    self.places,
                    image,
                    host,
                    report=report.path,
                    lifeline=lifeline.path,
                    listener=Path(handing.getsockname()) if handing is not None else None,
                    owner=str(runtime_dir()),
                )
                name = leftovers.new_name()
                undo.callback(leftovers.give_up, name)
                self._client.call(lambda api: api.create_container_from_config(body, name))
                variables = handed_over(spec, self.places, image)
                made = Made(self._client, name, variables, report, lifeline, handing)
                undo.pop_all()
                undo.callback(made.discard)
                made.connect()
            except EngineError as error:
                raise SandboxError(f"The sandbox could not be made: {error}.") from error
            undo.pop_all()
        return made

    async def _run(self, made: Made, spec: SandboxSpec, limit: int) -> SandboxProcess:
        streams = await connect(made.take_socket(), limit)
        proxy = Proxy(spec.egress) if spec.egress is not None else None
        control = Control(made, streams, spec, proxy)
        try:
            await in_pool(made.start)
            streams.stdin.write(made.variables)
            if proxy is not None:
                proxy.serve(await self._listener(made, streams))
        except BaseException:
            control.abandon()
            raise
        control.watch()
        facts = Facts(
            self.name,
            self._runtime or str(self._info.get("DefaultRuntime") or ""),
            spec.base or self.image,
            tuple(self._unenforced()),
        )
        return SandboxProcess(streams.stdin, streams.stdout, streams.stderr, control, facts)

    async def _listener(self, made: Made, streams: Streams) -> socket.socket:
        """What a guarded sandbox listens on, or a sentence why there is nothing."""
        handed = asyncio.create_task(made.take_listener())
        try:
            await asyncio.wait(
                {handed, streams.ended},
                timeout=LISTENER_TIMEOUT,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if handed.done():
                return handed.result()
        finally:
            handed.cancel()
        if NO_PYTHON in made.report.read():
            raise SandboxUnavailable(NO_PYTHON_WORDS)
        said = " ".join((await streams.stderr.read()).decode(errors="replace").split())[-300:]
        words = f": {said}" if said else ""
        raise SandboxError(f"The sandbox did not hand over the listener of its network{words}.")

    def _known_image(self, name: str) -> Image:
        """Raises `EngineError`, and `SandboxUnavailable` where there is no such image."""
        known, looked_at = self._images.get(name, (None, 0.0))
        if known is None or time.monotonic() - looked_at > IMAGES_KEPT:
            try:
                found = self._client.call(lambda api: api.inspect_image(name))
            except EngineError as error:
                if error.status == 404:
                    raise SandboxUnavailable(_no_image(name)) from None
                raise
            known = Image.from_inspection(name, found)
            self._images[name] = known, time.monotonic()
        return known

    def _host(self) -> Host:
        remaps = self._has("name=userns")
        return Host(
            os.geteuid(),
            self._runtime,
            self._podman,
            own_user=self._is_rootless(),
            remaps=remaps,
        )

    def _is_rootless(self) -> bool:
        """Docker says it as an option, Podman in a field of its own."""
        return bool(self._info.get("Rootless")) or self._has("name=rootless")

    def _has(self, security_option: str) -> bool:
        return security_option in (self._info.get("SecurityOptions") or ())

    def root_problem(self) -> str:
        """See `Adapter.root_problem`: root of a container is root of the machine, unless the engine
        sees to it (P26)."""
        return "" if self._is_rootless() else ROOT_IS_ROOT

    def _look(self) -> str:
        try:
            self._info = self._client.call(lambda api: api.info())
            self._podman = self._is_podman()
            if self._is_rootless() and not self._podman:
                return ROOTLESS_DOCKER
            if self._runtime and self._podman:
                return OTHER_RUNTIME
            self._known_image(self.image)
            # The caller's thread may have an event loop already.
            with ThreadPoolExecutor(1) as apart:
                said = apart.submit(asyncio.run, self._probe()).result()
        except EngineError as error:
            return f"Sandboxes cannot start: {error}. {CHECK}"
        except SandboxUnavailable as error:
            return str(error)
        except SandboxError as error:
            return self._explain(str(error))
        if "blind" in said:
            return BLIND
        self._gaps = tuple(self._find_gaps(said))
        return ""

    def _explain(self, words: str) -> str:
        """A sentence for the operator from what the engine said of a sandbox on trial."""
        if "/bin/sh" in words:
            return f"The image {self.image} has no /bin/sh, which a sandbox starts with."
        # A path that it does not find is one of ours: nothing else is bound.
        if any(sign in words.lower() for sign in ("no such file", "does not exist")):
            return BLIND
        return f"{words} {CHECK}"

    def _is_podman(self) -> bool:
        version = self._client.call(lambda api: api.version())
        return any("podman" in part["Name"].lower() for part in version.get("Components") or ())

    async def _probe(self) -> str:
        token = secrets.token_hex(8)
        seen = small_file(f"engine-{token}", lambda: token)
        spec = SandboxSpec("agent", network=False, binds=(Bind(seen, _SEEN),), cwd="/")
        try:
            process = await self._start(["/bin/sh", "-c", _PROBE, "sh", token], spec, 4096)
            try:
                process.stdin.close()
                said = (await process.stdout.read(4096)).decode(errors="replace")
                error = (await process.stderr.read(4096)).decode(errors="replace")
                code = await process.wait()
            finally:
                await process.kill()
        finally:
            seen.unlink()
        if code != 0:
            words = " ".join(error.split())[-300:] or f"exit code {code}"
            raise SandboxError(f"A sandbox on trial did not start: {words}.")
        return said

    def _find_gaps(self, said: str) -> list[str]:
        found = []
        if "snakeless" in said:
            found.append(f"{NO_PYTHON_WORDS} This is so for the image {self.image}.")
        if "unfiltered" in said and not any(name in self._runtime for name in OWN_KERNEL):
            found.append(UNFILTERED)
        found += self._unenforced()
        if why := self.root_problem():
            found.append(why)
        return found

    def _unenforced(self) -> list[str]:
        """A sentence for each limit that the engine does not carry out."""
        # Podman names what the machine could do, of which a plain user has nothing in v1.
        none = self._is_rootless() and str(self._info.get("CgroupVersion")) == "1"
        missing = (words for key, words in _LIMITS.items() if none or self._info.get(key) is False)
        return [f"{words} {CGROUPS}" for words in missing]


def _no_image(name: str) -> str:
    return (
        f"The engine has no image {name}. Fetch it (docker pull, podman pull), build one "
        "(docs/sandboxes.md says how), or name another in sandbox.engine.image."
    )
