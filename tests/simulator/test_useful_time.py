"""Efficiency: useful GPU time over leased GPU time, against a recomputation from the events of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, NodeJoined, NodeLost
from gavelpy.model.job import NodeId, Trace
from gavelpy.simulator.settings import Costs, preset
from tests.simulator.builders import make_job, make_settings, make_simulation, make_trace, random_trace, run
from tests.simulator.test_packing import GOOD, make_packed, make_table
from tests.simulator.test_packing import job as packed_job

COSTS = Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=5.0)
CLUSTER = "v100:4,p100:4,k80:4"


@dataclass
class Ledger:
    """Recomputes the useful GPU time of each job from events alone, one lease at a time."""

    trace: Trace
    useful_gpu_s: dict[int, float] = field(default_factory=dict)
    leased_gpu_s: float = 0.0
    steps: dict[int, float] = field(default_factory=dict)  # kept, of each job
    nodes: dict[str, tuple[str, range]] = field(default_factory=dict)
    leases: dict[int, tuple[list[int], str, float]] = field(default_factory=dict)  # GPUs, type and start, by job

    def __call__(self, event: Event, now_s: float) -> None:
        match event:
            case NodeJoined():
                first = sum(len(gpus) for _, gpus in self.nodes.values())
                self.nodes[event.node_id] = event.gpu_type, range(first, first + event.gpu_count)
            case LeaseStarted():
                for k, job in enumerate(event.jobs.tolist()):
                    gpus = event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]].tolist()
                    (gpu_type,) = {kind for kind, here in self.nodes.values() if set(gpus) & set(here)}
                    self.leases[job] = gpus, gpu_type, now_s
            case LeaseEnded():
                for job, steps in zip(event.jobs.tolist(), event.steps_done.tolist(), strict=True):
                    if job in self.leases:
                        self.end(job, steps, now_s)
            case NodeLost():
                lost = set(self.nodes[event.node_id][1])
                for job in [job for job, (gpus, _, _) in self.leases.items() if lost & set(gpus)]:
                    self.end(job, self.steps.get(job, 0.0), now_s)
            case _:
                pass

    def end(self, job: int, steps: float, now_s: float) -> None:
        gpus, gpu_type, since_s = self.leases.pop(job)
        kept = steps - self.steps.get(job, 0.0)
        time_s = kept / self.trace.jobs[job].rates_steps_per_s[gpu_type]
        self.useful_gpu_s[job] = self.useful_gpu_s.get(job, 0.0) + time_s * len(gpus)
        self.leased_gpu_s += (now_s - since_s) * len(gpus)
        self.steps[job] = steps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["max_min_fairness", "fifo"])
def test_efficiency_is_that_of_a_recomputation_from_the_events(seed: int, policy: str) -> None:
    trace = random_trace(seed)
    ledger = Ledger(trace)

    result = run(trace, CLUSTER, policy, settings=make_settings(COSTS, round_s=120.0), observers=[ledger])

    assert result.jobs["useful_gpu_s"].tolist() == pytest.approx([ledger.useful_gpu_s[k] for k in range(len(trace))])
    assert result.metrics.efficiency == pytest.approx(sum(ledger.useful_gpu_s.values()) / ledger.leased_gpu_s)
    assert 0.5 < result.metrics.efficiency < 1.0


def test_work_that_a_lost_node_destroys_is_not_useful() -> None:
    trace = random_trace(0)
    nodes = make_simulation(trace, CLUSTER).cluster.nodes
    again = [(3000.0, NodeJoined(NodeId("spare"), nodes[0].gpu_type, 4))]
    events = [(1000.0, NodeLost(nodes[0].node_id)), *again, (5000.0, NodeLost(NodeId("spare")))]
    ledger = Ledger(trace)

    result = run(trace, CLUSTER, settings=make_settings(COSTS), observers=[ledger], node_events=events)

    assert result.metrics.efficiency < run(trace, CLUSTER, settings=make_settings(COSTS)).metrics.efficiency
    started = result.jobs[result.jobs["finish_s"].notna()]
    rows = [result.jobs.index.get_loc(name) for name in started.index]
    assert started["useful_gpu_s"].tolist() == pytest.approx([ledger.useful_gpu_s[row] for row in rows])


def test_without_costs_all_leased_time_is_useful() -> None:
    result = run(random_trace(1), CLUSTER)

    assert result.metrics.efficiency == pytest.approx(1.0)


def test_steps_that_the_original_cuts_off_are_not_useful() -> None:
    rates = (0.01, 0.0073, 0.0061)
    trace = make_trace(*(make_job(f"j{k}", steps=40.0, rates={"v100": rate}) for k, rate in enumerate(rates)))

    result = run(trace, "v100:2", settings=preset("gavel-osdi20"))

    assert result.jobs["useful_gpu_s"].tolist() == pytest.approx([40.0 / rate for rate in rates])
    assert 0.5 < result.metrics.efficiency < 0.99


def test_each_of_two_jobs_on_a_gpu_has_half_of_its_time() -> None:
    """b joins a at 360 and has loaded at 375; both run until 1175, then b alone for 520 s."""
    trace = make_trace(packed_job("a", "ant", 1000.0), packed_job("b", "bee", 1000.0), arrival_s=[0.0, 100.0])

    result = make_packed(trace, make_table(GOOD), costs=Costs(0.0, 15.0, 0.0)).run()

    assert result.jobs["useful_gpu_s"].tolist() == pytest.approx([360.0 + 400.0, 400.0 + 520.0])
    assert result.metrics.efficiency == pytest.approx(1680.0 / 1695.0)


def test_a_run_that_ends_early_counts_the_steps_of_running_jobs() -> None:
    trace = make_trace(make_job("short", steps=100.0), make_job("long", steps=1000.0))

    result = run(trace, "v100:2", settings=make_settings(Costs(0.0, 20.0, 0.0)), window=(0, 1))

    assert result.jobs["useful_gpu_s"].tolist() == pytest.approx([100.0, 100.0])
    assert result.metrics.efficiency == pytest.approx(200.0 / 240.0)


def test_a_run_without_leases_has_no_efficiency() -> None:
    found = run(make_trace(make_job("never", rates={"v100": 0.0})))

    assert found.metrics.to_json()["efficiency"] is None
