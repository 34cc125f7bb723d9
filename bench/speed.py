"""How fast a run is: beside the bare SDK, to its first result, and when there is nothing to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from bench import bare, servers
from bench.report import Row, ms, spread
from bench.servers import ARGUMENTS, TOOL, Target
from bench.site import Site

NOOP_RUNS = 60


def against_the_sdk(here: Site, kind: str, targets: Sequence[Target], rounds: int) -> list[Row]:
    """(a): the same servers by turns through a run and through the SDK; medians."""
    prepare(here, kind, targets, overlap="skip")
    here.ask("run", name=kind)  # once unmeasured on both sides: caches of files, first imports
    bare.connect_list_call(targets)
    claimed, queued, bared = [], [], []
    for _ in range(rounds):
        times = _run(here, kind)
        claimed.append(times["results"][-1] - times["claimed"])
        queued.append(times["results"][-1] - times["queued"])
        bared.append(bare.connect_list_call(targets))
    what = f"{len(targets)} {kind} servers, connect + list + one call"
    yardstick = f"bare SDK {ms(median(bared))} ({spread(bared)})"
    return [
        Row(
            f"a. {what}: run ÷ bare SDK, from the claim",
            f"{median(claimed) / median(bared):.2f}",
            "≤ 1.25",
            f"run {ms(median(claimed))} ({spread(claimed)}), {yardstick}, {rounds} rounds",
        ),
        Row(
            f"a. {what}: from queued",
            f"{median(queued) / median(bared):.2f}",
            "",
            f"run {ms(median(queued))} ({spread(queued)})",
        ),
    ]


def first_result(here: Site, broker: str, rounds: int) -> list[Row]:
    """(b): what Run now adds to a server's own start, connect and call."""
    targets = servers.stdio(1)
    prepare(here, "first", targets, overlap="skip")
    first = _run(here, "first")
    bare.connect_call(targets[0])
    whole, until_claim, bared = [], [], []
    for _ in range(rounds):
        times = _run(here, "first")
        whole.append(times["results"][0] - times["asked"])
        until_claim.append(times["claimed"] - times["asked"])
        bared.append(bare.connect_call(targets[0]))
    detail = (
        f"Run now to result {ms(median(whole))} ({spread(whole)}), of it to the claim "
        f"{ms(median(until_claim))}; bare SDK {ms(median(bared))} ({spread(bared)}); "
        f"the site's very first run {ms(first['results'][0] - first['asked'])}; {rounds} rounds"
    )
    beyond = median(whole) - median(bared)
    return [Row(f"b. Run now → first tool result, {broker}", f"+{ms(beyond)}", "≤ 250 ms", detail)]


def throughput(here: Site, rounds: int) -> list[Row]:
    """(c): runs whose script does nothing, all queued at once."""
    prepare(here, "noop", [], overlap="parallel")
    here.ask("run", name="noop")
    rates, alone = [], []
    for _ in range(rounds):
        alone.append(_run(here, "noop"))
        runs = here.ask("run", name="noop", count=NOOP_RUNS)
        took = max(run["finished"] for run in runs) - min(run["queued"] for run in runs)
        rates.append(NOOP_RUNS / took)
    single = median(run["finished"] - run["queued"] for run in alone)
    detail = (
        f"{NOOP_RUNS} runs queued at once, {min(rates):.1f} to {max(rates):.1f}/s in {rounds} "
        f"rounds; one alone takes {ms(single)} from queued to finished"
    )
    return [Row("c. No-op runs", f"{median(rates):.1f}/s", "≥ 20/s on 2 cores", detail)]


def prepare(here: Site, job: str, targets: Sequence[Target], *, overlap: str) -> None:
    here.ask("wait_for_worker")
    for target in targets:
        here.ask("add_server", **asdict(target))
    script = _script(targets)
    names = [target.name for target in targets]
    here.ask("add_job", name=job, script=script, servers=names, overlap=overlap)


def _script(targets: Sequence[Target]) -> str:
    arguments = json.dumps(ARGUMENTS)
    calls = [f"ump mcp call {target.name} {TOOL} '{arguments}' &" for target in targets]
    return "\n".join(["#!/bin/bash", *(calls or ["true"]), *(["wait"] if calls else []), ""])


def _run(here: Site, job: str) -> dict[str, Any]:
    run: dict[str, Any] = here.ask("run", name=job)[0]
    return run
