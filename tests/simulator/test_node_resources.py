"""Simulated nodes with CPU cores and memory: a shortage delays jobs exactly as computed by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.traces.csv_format import parse_csv_trace, read_csv_trace, write_csv_trace
from tests.simulator.builders import make_settings, make_simulation


def trace_of(*needs: tuple[float, float], gpus: int = 1, steps: float = 1000.0) -> Trace:
    """Jobs of 100 s that arrive together, with CPU cores and GiB per GPU."""
    jobs = [
        JobSpec(
            JobId(f"j{i}"), steps, gpus, rates_steps_per_s={"v100": 10.0}, cpus_per_gpu=cpus, memory_gib_per_gpu=gib
        )
        for i, (cpus, gib) in enumerate(needs)
    ]
    return Trace(tuple(jobs), np.zeros(len(jobs)))


def run(trace: Trace, cluster: Cluster, policy: str = "fifo") -> SimulationResult:
    return make_simulation(trace, cluster, policy, make_settings(round_s=100.0)).run()


def ends_s(trace: Trace, cluster: Cluster, policy: str = "fifo") -> list[float]:
    """When each job finishes."""
    found: list[float] = run(trace, cluster, policy).history.finish_s[: len(trace)].tolist()
    return found


def nodes(count: int, *, cpus: float, gib: float = 0.0) -> Cluster:
    """Nodes with four V100s each."""
    return Cluster.of({"v100": 4 * count}).with_amounts({"v100": cpus}, {"v100": gib})


def test_jobs_wait_for_the_cores_of_others() -> None:
    needy = trace_of(*[(4.0, 0.0)] * 5)

    assert ends_s(needy, nodes(1, cpus=8.0)) == [100.0, 100.0, 200.0, 200.0, 300.0], "two at a time"
    assert ends_s(needy, nodes(2, cpus=0.0)) == [100.0] * 5, "nodes that state nothing limit no job"


def test_cores_of_different_nodes_do_not_add_up_for_one_gpu() -> None:
    """Of 8 cores a job leaves 2 that no other one can use: one job a node, although 16 cores are 2.7 times 6."""
    assert ends_s(trace_of(*[(6.0, 0.0)] * 4), nodes(2, cpus=8.0)) == [100.0, 100.0, 200.0, 200.0]


def test_memory_limits_jobs_as_cores_do() -> None:
    assert ends_s(trace_of((1, 30), (1, 30), (1, 30)), nodes(1, cpus=8.0, gib=64.0)) == [100.0, 100.0, 200.0]


def test_a_gang_starts_when_each_of_its_gpus_has_its_cores() -> None:
    """Per node, 8 cores are enough for two GPUs of the gang."""
    assert ends_s(trace_of((4, 0), (4, 0), gpus=4), nodes(2, cpus=8.0)) == [100.0, 200.0]


def test_max_min_fairness_alternates_jobs_that_share_cores() -> None:
    """Two jobs of 1,000 steps on the cores of one: each runs in every other round of 100 s."""
    found = ends_s(trace_of((8, 0), (8, 0), steps=2000.0), nodes(1, cpus=8.0), "max_min_fairness")

    assert sorted(found) == [300.0, 400.0]


def test_a_policy_that_does_not_count_cores_refuses_the_trace() -> None:
    with pytest.raises(InvalidInput, match="cpus_per_gpu must be 0 with the policy gandiva"):
        ends_s(trace_of((1, 0)), nodes(1, cpus=8.0), "gandiva")


def test_a_job_that_fits_on_no_node_never_runs_and_has_a_reason() -> None:
    found = run(trace_of((1, 0), (16, 0)), nodes(1, cpus=8.0))

    assert found.reasons == {1: "needs 16 CPU cores per GPU; no v100 node has more than 8 CPU cores for jobs"}


def test_needs_are_columns_of_a_trace(tmp_path: Path) -> None:
    given = trace_of((4.5, 0.0), (0.0, 16.0))

    write_csv_trace(given, tmp_path / "trace.csv")

    assert read_csv_trace(tmp_path / "trace.csv").jobs == given.jobs
    with pytest.raises(InvalidInput, match="cpus_per_gpu"):
        parse_csv_trace("id,arrival_s,steps_total,cpus_per_gpu,rate_v100\na,0,1,-1,1\n")


def test_amounts_of_types_that_the_cluster_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cpus must be of types of the cluster \(v100\), got 'k80'"):
        Cluster.of({"v100": 4}).with_amounts({"k80": 8}, {})
