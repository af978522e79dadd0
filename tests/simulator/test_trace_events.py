"""Nodes that join and are lost, and cancellations, as a trace carries them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster, ClusterNode
from gavelpy.model.cluster_changes import ChangeKind, ClusterChange
from gavelpy.model.job import JobId, JobSpec, NodeId, Trace
from gavelpy.simulator.compare import simulate
from gavelpy.simulator.settings import Costs, SimulationSettings

FREE = SimulationSettings(costs=Costs(0.0, 0.0, 0.0))
NODE = ClusterNode(NodeId("spot"), "t4", 1, zone="a")
JOINED, LOST = ChangeKind.JOINED, ChangeKind.LOST


def make_trace(*jobs: JobSpec, **parts: object) -> Trace:
    return replace(Trace(jobs, np.zeros(len(jobs))), **parts)


def make_job(name: str = "a", steps: float = 1000.0) -> JobSpec:
    return JobSpec(JobId(name), steps, rates_steps_per_s={"t4": 1.0, "v100": 1.0})


def changes(*times: tuple[float, ChangeKind]) -> tuple[ClusterChange, ...]:
    return tuple(ClusterChange(at_s, kind, NODE) for at_s, kind in times)


def test_job_waits_for_a_node_of_a_new_type() -> None:
    trace = make_trace(make_job(), node_changes=changes((500.0, JOINED)))

    result = simulate(trace, Cluster((), ()), "fifo", settings=FREE)

    assert result.history.finish_s[0] == pytest.approx(1_500.0)


def test_job_on_a_lost_node_begins_again_when_the_node_is_back() -> None:
    """No round ends before the loss at 100 s, so that there is no checkpoint."""
    trace = make_trace(make_job(), node_changes=changes((0.0, JOINED), (100.0, LOST), (400.0, JOINED)))

    result = simulate(trace, Cluster((), ()), "fifo", settings=FREE)

    assert result.history.finish_s[0] == pytest.approx(1_400.0)


def test_nodes_that_change_are_added_to_those_of_the_cluster() -> None:
    trace = make_trace(make_job("a"), make_job("b"), node_changes=changes((0.0, JOINED)))

    result = simulate(trace, Cluster.of({"v100": 1}), "fifo", settings=FREE)

    assert result.history.finish_s[:2].tolist() == pytest.approx([1_000.0, 1_000.0])


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (((5.0, JOINED), (4.0, LOST)), "at_s of node change 1 must be >= 5"),
        (((5.0, LOST),), "must fit node 'spot', which is not there, got 'lost'"),
        (((5.0, JOINED), (6.0, JOINED)), "must fit node 'spot', which is there already, got 'joined'"),
    ],
)
def test_changes_that_cannot_be_are_refused(times: tuple[tuple[float, ChangeKind], ...], expected: str) -> None:
    trace = make_trace(make_job(), node_changes=changes(*times))

    with pytest.raises(InvalidInput, match=expected):
        simulate(trace, Cluster.of({"v100": 1}), "fifo")


def test_users_cancel_jobs_that_wait_that_run_and_that_are_over() -> None:
    jobs = tuple(make_job(name) for name in "abcd")
    cancelled_s = np.array([400.0, 700.0, math.inf, 1_000_000.0])

    result = simulate(make_trace(*jobs, cancelled_s=cancelled_s), Cluster.of({"v100": 1}), "fifo", settings=FREE)

    history = result.history
    assert history.cancelled_s[:2].tolist() == [400.0, 700.0]  # a while it runs, b too: it starts when a is gone
    assert np.isnan(history.finish_s[:2]).all()
    assert history.finish_s[2:4].tolist() == pytest.approx([1_700.0, 2_700.0])


def test_job_that_is_cancelled_as_it_arrives_never_runs() -> None:
    trace = make_trace(make_job("a"), make_job("b"), cancelled_s=np.array([0.0, math.inf]))

    result = simulate(trace, Cluster.of({"v100": 1}), "fifo", settings=FREE)

    assert result.history.gpu_s[0] < 1e-9
    assert result.history.finish_s[1] == pytest.approx(1_000.0)
