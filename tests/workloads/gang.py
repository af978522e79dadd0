"""One rank of a job that runs three times: without a stop, up to a stop, and from there to the end.

python -m tests.workloads.gang JOB FOLDER ARGUMENT...      with RANK, WORLD_SIZE and MASTER_ADDR set
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from tests.workloads.leases import JOBS, PlayedLease


def leases(folder: Path) -> list[PlayedLease]:
    """Leases in the order of the runs: the first job has the first lease, the second job the others."""
    return [PlayedLease(folder / name, number, folder / name / f"lease-{number}") for name, number in RUNS]


RUNS = (("whole", 1), ("stopped", 1), ("stopped", 2))


def main(job: str, folder: str, ports: str, arguments: list[str]) -> None:
    """Runs the job under each lease; the first rank prints the last line of each run on stdout."""
    sys.path.insert(0, str(JOBS))
    training = importlib.import_module("training")
    trained = next(one for one in vars(importlib.import_module(job)).values() if _is_job(one, training.Training))
    for lease, port in zip(leases(Path(folder)), ports.split(","), strict=True):
        os.environ.update(lease.environment(MASTER_PORT=port))
        training.main(trained, ["--device=cpu", *arguments])


def _is_job(one: object, kind: type) -> bool:
    return isinstance(one, type) and issubclass(one, kind) and one is not kind


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
