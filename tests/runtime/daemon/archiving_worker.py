"""A scheduler that submits, cancels and archives jobs until it is killed. Writes each acknowledged number to a file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from tests.runtime.daemon.harness import make_config, make_spec, running

JOBS_AT_ONCE = 5
LIVING = 20  # jobs that are not cancelled yet


async def work(directory: Path) -> None:
    """Runs until the process is killed."""
    config = make_config(directory)
    with (directory / "acknowledged").open("a") as written:
        async with running(config) as cluster:
            archivist: Any = cluster.scheduler.driver.archivist
            archivist._retention_s = 0.001
            while True:
                for job in await cluster.submit(*(make_spec("-") for _ in range(JOBS_AT_ONCE))):
                    written.write(f"{job}\n")
                written.flush()
                os.fsync(written.fileno())
                active = cluster.core.jobs.by_serial.active
                await cluster.scheduler.cancel(active[:-LIVING].tolist())
                archivist._allowed_s = 0.0


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1])))
