"""Jobs with unknown rates finish about as soon as jobs with known rates."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from gavelpy.runtime.local_cluster import LocalCluster, LocalNode, wait_until
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.live.cluster import all_over, jobs_of, submit
from tests.runtime.live.stage import Settings

WITNESS = Path(__file__).with_name("witness.py")
RATES: Final[Mapping[str, Mapping[str, float]]] = {
    "ResNet-50 (batch size 32)": {"v100": 40.0, "p100": 22.0, "k80": 8.0},
    "LM (batch size 20)": {"v100": 60.0, "p100": 25.0, "k80": 14.0},
}
JOBS_A_TYPE: Final = 4
STEPS_S: Final = 30.0  # on a V100
SETTINGS: Settings = {"mechanism": {"round_s": 6.0}, "throughputs": {"warm_up_s": 1.0, "profile_gpu_s": 12.0}}


def descriptions(directory: Path, *, is_told: bool) -> list[pb.JobDescription]:
    """The same jobs, with or without declared rates."""
    return [
        pb.JobDescription(
            name=f"job-{number}-{kind}",
            job_type=job_type,
            gpus=1,
            steps_total=round(STEPS_S * rates["v100"]),
            rates_steps_per_s=rates if is_told else {},
            command=f"{sys.executable} {WITNESS} {directory} " + ",".join(f"{k}={v:g}" for k, v in rates.items()),
            working_directory=str(directory),
        )
        for number in range(JOBS_A_TYPE)
        for kind, (job_type, rates) in enumerate(RATES.items())
    ]


def completion_s(directory: Path, *, is_told: bool) -> float:
    """Average time from submission to finish."""
    nodes = tuple(LocalNode(name, f"{name}:1") for name in ("v100", "p100", "k80"))
    directory.mkdir()
    with LocalCluster(directory / "cluster", nodes, SETTINGS) as cluster:
        cluster.start()
        submit(cluster, descriptions(directory, is_told=is_told), "all")
        wait_until(lambda: all_over(cluster), "every job is over", 600.0)
        jobs = jobs_of(cluster).values()
    assert {job.state for job in jobs} == {pb.JOB_STATE_FINISHED}
    return float(np.mean([job.ended_at_s - job.submitted_at_s for job in jobs]))


@pytest.mark.slow
def test_jobs_of_unknown_rates_end_as_soon_as_jobs_of_known_rates(tmp_path: Path) -> None:
    known_s = completion_s(tmp_path / "known", is_told=True)
    unknown_s = completion_s(tmp_path / "unknown", is_told=False)

    assert unknown_s / known_s <= 1.10, f"known {known_s:.0f} s, unknown {unknown_s:.0f} s"
