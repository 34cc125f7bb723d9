"""Starts one sandbox with an engine, says so, and waits to be killed.

engine_trial.py DATA_DIR URL IMAGE
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from jobs.sandbox.base import SandboxSpec
from jobs.sandbox.engine.adapter import Engine
from jobs.sandbox.places import Places


async def main(data_dir: str, url: str, image: str) -> None:
    engine = Engine(Places(Path(data_dir)), url=url, image=image)
    spec = SandboxSpec("agent", network=False)
    process = await engine.start(["sh", "-c", "echo up; exec sleep 999"], spec)
    await process.stdout.readline()
    print("up", flush=True)
    await process.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
