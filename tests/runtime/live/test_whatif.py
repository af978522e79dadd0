"""The journal of a live run, replayed: unchanged it repeats the run, and a change has an interval."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.whatif import what_if
from tests.runtime.live.test_fidelity import SPEEDS, finish_times

ROUND_S = 4.0
ARRIVE_S = 30.0
SEED = 1
KINDS = ((20.0, 0.6), (40.0, 1.0), (80.0, 1.4))  # steps/s on a V100, and how much slower GPUs slow the job


def drawn_trace(
    seed: int, jobs: int = 12, least_s: float = 5.0, most_s: float = 15.0, arrive_s: float = ARRIVE_S
) -> Trace:
    """Jobs of three types that take such times on a V100; every fourth is a gang of two."""
    rng = np.random.default_rng(seed)
    specs = []
    for index in range(jobs):
        rate, slowness = KINDS[int(rng.integers(len(KINDS)))]
        rates = {name: rate * speed**slowness for name, speed in SPEEDS.items()}
        spec = JobSpec(
            JobId(f"job-{index}"), float(round(rate * rng.uniform(least_s, most_s))), rates_steps_per_s=rates
        )
        specs.append(replace(spec, gpus=2 if index % 4 == 3 else 1))
    return Trace(tuple(specs), np.sort(rng.uniform(0.0, arrive_s, jobs)), "drawn")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo", "finish_time_fairness"])
def test_a_live_run_is_repeated_from_its_journal(policy: str, tmp_path: Path) -> None:
    """While the scheduler still runs."""
    nodes = tuple(LocalNode(name, f"{name}:2") for name in SPEEDS)
    settings = {"mechanism": {"round_s": ROUND_S}, "policy": {"name": policy}}
    with LocalCluster(tmp_path / "cluster", nodes, settings) as cluster:
        cluster.start()
        finish_times(cluster, drawn_trace(SEED), tmp_path)
        journal = next((tmp_path / "cluster").rglob("journal.sqlite"))

        unchanged = what_if(journal)
        more = what_if(journal, Change(gpus={"v100": 2}))

    off = (unchanged.jobs["baseline_jct_s"] / unchanged.jobs["recorded_jct_s"] - 1.0).abs()
    complaint = f"{policy}\n{unchanged.deviations}\n{unchanged.jobs.to_string()}"
    assert unchanged.recorded.jobs == 12, complaint
    assert abs(unchanged.deviations["avg_jct_s"]) <= 0.05, complaint
    assert abs(unchanged.deviations["makespan_s"]) <= 0.05, complaint
    assert off.quantile(0.9) <= 0.20, complaint
    interval = more.differences["avg_jct_s"]
    assert interval.low < interval.mean < interval.high, more.sentence
    assert interval.mean < 0, more.sentence
