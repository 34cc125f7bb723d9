"""(d): what an idle site holds in memory, and which packages its processes load.

The proportional set size (PSS) counts a page that n processes share as 1/n for each.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter

import psutil

from bench.report import Row
from bench.site import Site, end, free_port
from bench.speed import prepare
from umpteenth.supervisor import umpteenth_command

STARTED = 10.0  # seconds until a site has settled
IDLE = 20.0  # seconds that it is then watched
USED = 5.0  # seconds after it was used
LOADING = 8.0  # seconds that a process has to import what it wants
SHOWN = 9  # packages of each process
_IMPORT = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")


def idle(here: Site) -> list[Row]:
    time.sleep(STARTED)
    before = processor_times(here.process.pid)
    time.sleep(IDLE)
    spent = processor_times(here.process.pid) - before
    fresh = shares(here.process.pid)
    use(here)
    here.stop_driver()
    time.sleep(USED)
    used = shares(here.process.pid)
    busy = f"{100 * spent / IDLE:.1f} % of one core meanwhile"
    rows = [
        _row(f"d. Memory of `umpteenth up` after {STARTED + IDLE:.0f} s idle", fresh, busy),
        _row("d. The same after a run and a look at every kind of page", used, ""),
    ]
    for name in ("web", "worker", "beat"):
        rows.append(Row(f"d. What {name} imports at its start", "", "", packages(here, name)))
    return rows


def use(here: Site) -> None:
    """One run, and one page of each kind."""
    prepare(here, "noop", [], overlap="parallel")
    here.ask("run", name="noop")
    cookie = "; ".join(f"{name}={value}" for name, value in here.ask("sign_in").items())
    for page in here.ask("pages"):
        request = urllib.request.Request(here.address + page, headers={"Cookie": cookie})
        try:
            urllib.request.urlopen(request, timeout=30).read()
        except urllib.error.URLError as error:  # a broken page is the tests' business
            print(f"{page}: {error}", file=sys.stderr)


def _row(what: str, found: dict[str, float], remark: str) -> Row:
    each = ", ".join(f"{name} {size:.0f}" for name, size in found.items())
    detail = f"PSS in MB: {each}" + (f"; {remark}" if remark else "")
    return Row(what, f"{sum(found.values()):.0f} MB", "≤ 300 MB", detail)


def tree(root: int) -> list[psutil.Process]:
    parent = psutil.Process(root)
    return [parent, *parent.children(recursive=True)]


def processor_times(root: int) -> float:
    """Seconds of processor time that a process and all below it have used."""
    times = [process.cpu_times() for process in tree(root)]
    return float(sum(time.user + time.system for time in times))


def shares(root: int) -> dict[str, float]:
    """PSS in MB (10^6 bytes) of a process and all below it, by name."""
    found: Counter[str] = Counter()
    for process in tree(root):
        found[_name(process)] += process.memory_full_info().pss
    return {name: size / 1e6 for name, size in found.items()}


def _name(process: psutil.Process) -> str:
    words: list[str] = process.cmdline()
    if "umpteenth.supervisor" in words:
        return "supervisor"
    if any(word.endswith("launcher.py") for word in words):
        return "launcher"
    if "umpteenth" in words:
        return words[words.index("umpteenth") + 1]
    return str(process.name())


def packages(here: Site, name: str) -> str:
    """The packages with most modules that a process loads before it has anything to do."""
    variables = {"PYTHONPROFILEIMPORTTIME": "1"}
    if name == "web":  # the site's own has the port already
        variables["UMPTEENTH_APP__BIND"] = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            umpteenth_command(name, f"--parent={os.getpid()}"),
            env={**here.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            time.sleep(LOADING)
        finally:
            end(process)
        log.seek(0)
        found = [match for line in log if (match := _IMPORT.match(line))]
    modules = Counter(match[2].partition(".")[0] for match in found)
    listed = ", ".join(f"{package} {count}" for package, count in modules.most_common(SHOWN))
    seconds = sum(int(match[1]) for match in found) / 1e6
    return f"{len(found):,} modules in {seconds:.1f} s; {listed}"
