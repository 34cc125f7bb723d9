"""Starts sandboxes as the tests ask, in a process of its own, as whatever user runs it.

Standard library and `jobs.sandbox` only, so that a plain user can run it from a copy.

    sandbox_trial.py run DATA_DIR   a JSON request on each line of standard input, and the results
                                    on standard output
    sandbox_trial.py storm MARKER [guarded]   start sandboxes without end until killed
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from jobs.sandbox import bubblewrap, cgroups, disk
from jobs.sandbox.base import Adapter, Bind, Limits, SandboxProcess, SandboxSpec
from jobs.sandbox.bubblewrap import Bubblewrap
from jobs.sandbox.egress.base import Egress, EgressEvent, Refused
from jobs.sandbox.places import Places, find_uv, visible_certificates


class Known:
    """A gate for some names; the real one needs more than the standard library."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self._names = names

    async def __call__(self, host: str, port: int) -> tuple[str, ...]:
        if host not in self._names:
            raise Refused(f"{host} is not among the known ones.")
        if found := self._names[host]:
            return tuple(found)
        loop = asyncio.get_running_loop()
        return tuple({str(item[4][0]) for item in await loop.getaddrinfo(host, port)})


EVENTS: list[EgressEvent] = []


def make_spec(request: dict[str, Any]) -> SandboxSpec:
    names = request.get("egress")
    return SandboxSpec(
        party=request.get("party", "agent"),
        network=request.get("network", False),
        egress=None if names is None else Egress(Known(names), EVENTS.append),
        env=request.get("env", {}),
        root=request.get("root", False),
        limits=Limits(**request.get("limits", {})),
        workspace=Path(request["workspace"]) if "workspace" in request else None,
        home=Path(request["home"]) if "home" in request else None,
        binds=tuple(Bind(Path(host), *others) for host, *others in request.get("binds", [])),
    )


async def run(data_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    EVENTS.clear()
    adapter = adapter_of(str(data_dir), tuple(request.get("readonly", ())), request.get("engine"))
    if request.get("unfiltered"):
        assert isinstance(adapter, Bubblewrap)
        leave_out_the_filter(adapter)
    elif problem := adapter.problem():
        return {"problem": problem}
    disk.FLOOR = request.get("floor", disk.FLOOR)
    others = [
        await adapter.start(other["argv"], make_spec(other)) for other in request.get("others", [])
    ]
    try:
        for other in others:
            await other.stdout.readline()  # it is up
        process = await adapter.start(request["argv"], make_spec(request))
        result = await finish(process, request)
        if request.get("others_end"):
            result["others"] = [await let_end(other) for other in others]
        if "limits" in request:
            result |= {"ended": vars(process.ended), "gaps": adapter.gaps(), "groups": groups()}
        if request.get("egress") is not None:
            result["events"] = [[event.kind, event.host, event.reason] for event in EVENTS]
        return result
    finally:
        for other in others:
            await other.kill()


ADAPTERS: dict[str, Adapter] = {}


def adapter_of(data_dir: str, readonly: tuple[str, ...], engine: dict[str, str] | None) -> Adapter:
    """The same for the same words, as a worker has it: each tries itself out first."""
    key = repr((data_dir, readonly, engine))
    if key not in ADAPTERS:
        places = Places(
            Path(data_dir),
            readonly=tuple(map(Path, readonly)),
            hidden=(Path(data_dir),),
            uv=find_uv(),
            certificates=visible_certificates(os.environ),
        )
        ADAPTERS[key] = make_adapter(places, engine)
    return ADAPTERS[key]


def make_adapter(places: Places, engine: dict[str, str] | None) -> Adapter:
    if engine is None:
        return Bubblewrap(places)
    from jobs.sandbox.engine.adapter import Engine

    return Engine(places, **engine)


async def let_end(other: SandboxProcess) -> int:
    """Answer what it reads; its exit code tells whether it lived until then."""
    other.stdin.write(b"\n")
    return await other.wait()


def groups() -> list[dict[str, Any]]:
    """Our directory in each hierarchy of control groups, and which sandboxes have one in it."""
    return [
        {
            "path": str(place.path),
            "sandboxes": [child.name for child in place.path.iterdir() if child.is_dir()],
        }
        for place in cgroups.shared()._places or []
    ]


def leave_out_the_filter(adapter: Bubblewrap) -> None:
    """What the product never does: to see what its filter is there for."""
    told = bubblewrap.command_line

    def unfiltered(*arguments: Any, **options: Any) -> list[str]:
        line = told(*arguments, **options)
        at = line.index("--seccomp")
        return line[:at] + line[at + 2 :]

    bubblewrap.command_line = unfiltered
    assert "does not filter" in adapter.problem()
    adapter.trial._problem = adapter.root_trial._problem = ""


async def finish(process: SandboxProcess, request: dict[str, Any]) -> dict[str, Any]:
    try:
        process.stdin.write(request.get("stdin", "").encode())
        process.stdin.close()
        if request.get("kill_after_line"):
            first = (await process.stdout.readline()).decode()
            await process.kill()
            return {"code": await process.wait(), "out": first, "err": ""}
        out, err, code = await asyncio.gather(
            process.stdout.read(), process.stderr.read(), process.wait()
        )
        return {
            "code": code,
            "out": out.decode(errors="replace"),
            "err": err.decode(errors="replace"),
        }
    finally:
        await process.kill()


async def storm(marker: str, *, guarded: bool) -> None:
    """Commands that leave their session and ignore signals, three at a time."""
    adapter = Bubblewrap(Places(Path("/nonexistent")))
    script = "trap '' TERM HUP INT; setsid sleep $0 & sleep $0 & echo up; wait"
    egress = Egress(Known({}), EVENTS.append) if guarded else None
    spec = SandboxSpec(party="agent", network=False, egress=egress)
    print("ready", flush=True)

    async def one() -> None:
        while True:
            process = await adapter.start(["bash", "-c", script, marker], spec)
            await process.stdout.readline()
            await process.kill()

    await asyncio.gather(one(), one(), one())


def main() -> None:
    if sys.argv[1] == "storm":
        asyncio.run(storm(sys.argv[2], guarded="guarded" in sys.argv[3:]))
    else:
        for line in sys.stdin:
            print(json.dumps(asyncio.run(run(Path(sys.argv[2]), json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
