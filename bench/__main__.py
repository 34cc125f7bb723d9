"""`python -m bench`: measures a whole site of its own and writes `bench/results.md`.

Nothing here is asserted anywhere: a figure says what it is on this machine, beside its aim.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import engine, memory, sandboxes, servers, speed
from bench.report import Row, write
from bench.site import redis, site

RESULTS = Path(__file__).with_name("results.md")
PARTS: dict[str, Callable[[int], list[Row]]] = {}


def part(name: str) -> Callable[[Callable[[int], list[Row]]], Callable[[int], list[Row]]]:
    def register(measure: Callable[[int], list[Row]]) -> Callable[[int], list[Row]]:
        PARTS[name] = measure
        return measure

    return register


@part("a")
def eight_servers(rounds: int) -> list[Row]:
    with servers.http() as addresses, site() as here:
        rows = speed.against_the_sdk(here, "stdio", servers.stdio(), rounds)
        return rows + speed.against_the_sdk(here, "http", addresses, 2 * rounds)


@part("b")
def first_result(rounds: int) -> list[Row]:
    rows = []
    with site() as here:
        rows += speed.first_result(here, "embedded broker", 2 * rounds)
    with redis() as address, site(redis_url=address) as here:
        rows += speed.first_result(here, "Redis", 2 * rounds)
    return rows


@part("c")
def throughput(rounds: int) -> list[Row]:
    with site() as here:
        return speed.throughput(here, min(rounds, 3))


@part("e")
def single_calls(rounds: int) -> list[Row]:
    with site() as here:
        return engine.calls(here, rounds)


@part("f")
def connect_and_list(rounds: int) -> list[Row]:
    return engine.connect_and_list(rounds)


@part("g")
def one_hangs(rounds: int) -> list[Row]:
    with site() as here:
        return engine.one_hangs(here, rounds)


@part("h")
def many_tools(rounds: int) -> list[Row]:
    with site() as here:
        return engine.many_tools(here, rounds)


@part("i")
def a_sandbox(rounds: int) -> list[Row]:
    return sandboxes.measure(rounds)


@part("d")
def idle_memory(rounds: int) -> list[Row]:
    del rounds  # a level, not a time
    with site() as here:
        return memory.idle(here)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help="for example a,c")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (5)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="bench/results.md")
    options = parser.parse_args(arguments)
    wanted = [name.strip() for name in options.only.split(",")]
    if unknown := [name for name in wanted if name not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    load, started = os.getloadavg()[0], time.monotonic()
    for name in wanted:
        print(f"Measuring part {name} …", file=sys.stderr, flush=True)
        rows += PARTS[name](max(1, options.rounds))
        # After each part: one that fails must not cost what the others have found.
        text = write(options.out, rows, load=load, seconds=time.monotonic() - started)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
