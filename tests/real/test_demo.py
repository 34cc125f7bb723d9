"""`umpteenth demo --once`: the README's first command, from nothing to a finished run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import psutil

from umpteenth.supervisor import umpteenth_command


def demo(data_dir: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        umpteenth_command("demo", "--once"),
        capture_output=True,
        text=True,
        timeout=100,
        env={**environ, "UMPTEENTH_DATA_DIR": str(data_dir)},
    )


def test_it_ends_with_a_succeeded_run_and_shows_its_timeline(tmp_path: Path) -> None:
    for number in (1, 2):  # the second time on what the first has left
        done = demo(tmp_path / "data")
        assert done.returncode == 0, done.stdout + done.stderr
        for expected in (
            "server.connected    notes: 2 tools",
            "server.connected    weather: 2 tools",
            "weather forecast {",
            "notes add_note {",
            "Asking with the token [secret DEMO_WEATHER_TOKEN]",
            "artifact            notes.json",
            f"Run {number} of this job.",
        ):
            assert expected in done.stdout
    demo_dir = tmp_path / "demo-data"
    assert not (tmp_path / "data").exists()
    assert [p for p in psutil.process_iter(["cmdline"]) if _names(p, demo_dir)] == []


def _names(process: psutil.Process, path: Path) -> bool:
    return any(str(path) in word for word in process.info["cmdline"] or ())


def test_a_directory_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo-data").mkdir()
    (tmp_path / "demo-data" / "mine.txt").write_text("mine")
    done = demo(tmp_path / "data")
    assert done.returncode == 1
    assert done.stderr.endswith("was not made by `umpteenth demo`; move it out of the way.\n")
    assert [entry.name for entry in (tmp_path / "demo-data").iterdir()] == ["mine.txt"]
