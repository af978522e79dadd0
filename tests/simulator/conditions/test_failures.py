"""Jobs that fail, are cancelled, run slowly or wait for answers; nodes that fail, are taken away or maintained."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.mechanism.events import (
    AllocationSolved,
    Event,
    LeaseEnded,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    Outcome,
    PriceChanged,
    ProgressReported,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.simulator.conditions.causes import (
    Cancellations,
    Checkpoints,
    Interference,
    JobFailures,
    Latency,
    Locality,
    Maintenance,
    NodeFailures,
    PriceChanges,
    RateVariation,
    SpotNodes,
    Stragglers,
)
from gavelpy.simulator.conditions.job_costs import JobCosts
from gavelpy.simulator.conditions.spec import Conditions
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation
from tests.simulator.builders import make_job, make_simulation, make_trace, random_trace
from tests.simulator.conditions.builders import EVERYTHING

FREE = JobCosts(0.0, 0.0, 0.0, 0.0)
HOUR = make_trace(make_job("a", steps=3600.0))


class Recorder:
    """All events of a run with their times."""

    def __init__(self) -> None:
        self.events: list[tuple[float, Event]] = []

    def __call__(self, event: Event, now_s: float) -> None:
        self.events.append((now_s, event))

    def of(self, kind: type[Event]) -> list[tuple[float, Event]]:
        """The events of one kind."""
        return [(now_s, event) for now_s, event in self.events if isinstance(event, kind)]


def ran(
    conditions: Conditions, trace=HOUR, cluster: str = "v100:1", policy: str = "fifo", seed: int = 0
) -> tuple[Simulation, Recorder]:  # fmt: skip
    recorder = Recorder()
    settings = SimulationSettings(conditions=replace(conditions, costs=FREE))
    simulation = make_simulation(trace, cluster, policy, settings, observers=[recorder], seed=seed)
    simulation.run()
    return simulation, recorder


def test_an_early_user_error_ends_a_job_that_never_saved() -> None:
    simulation, recorder = ran(Conditions(job_failures=JobFailures(early_share=1.0, early=100.0)))

    ((failed_s, event),) = recorder.of(LeaseEnded)
    assert (failed_s, event.outcome) == (pytest.approx(100.0), Outcome.FAILED)
    assert simulation.core.jobs.state[0] == JobState.FAILED


def test_a_late_failure_that_always_repeats_is_retried_until_the_job_is_given_up() -> None:
    simulation, recorder = ran(Conditions(job_failures=JobFailures(late_share=1.0, late_repeats=1.0)))

    ends = recorder.of(LeaseEnded)
    assert len(ends) == 1 + simulation.core.settings.failures_max
    assert simulation.core.jobs.state[0] == JobState.FAILED


def test_a_late_failure_that_never_repeats_costs_the_work_before_it() -> None:
    simulation, recorder = ran(Conditions(job_failures=JobFailures(late_share=1.0, late_repeats=0.0)))

    (failed_s, _), (finished_s, finish) = recorder.of(LeaseEnded)
    pause_s = simulation.core.settings.retry_s
    assert finish.outcome is Outcome.FINISHED
    assert finished_s == pytest.approx(failed_s + pause_s + 3600.0)


def test_failures_of_the_system_come_as_often_as_stated() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=36_000.0, gpus=2) for k in range(20)))
    simulation, recorder = ran(Conditions(job_failures=JobFailures(system_mtbf_gpu_h=10.0)), trace, "v100:40")

    failures = [event for _, event in recorder.of(LeaseEnded) if event.outcome is Outcome.FAILED]
    work_gpu_h = simulation.agents.used_gpu_s(simulation.now_s).sum() / 3600.0
    assert len(failures) == pytest.approx(work_gpu_h / 10.0, rel=0.35)


def test_users_cancel_jobs() -> None:
    trace = make_trace(*(make_job(f"j{k}") for k in range(200)))
    simulation, _ = ran(Conditions(cancellations=Cancellations(share=0.3, after=1000.0)), trace, "v100:200")

    cancelled = np.flatnonzero(simulation.core.jobs.state[:200] == JobState.CANCELLED)
    assert len(cancelled) == pytest.approx(60, abs=25)
    assert simulation.history.cancelled_s[cancelled] == pytest.approx(1000.0)


def test_a_node_fails_and_returns_after_its_repair() -> None:
    nodes = NodeFailures(mtbf_h=0.5, repair=300.0)
    conditions = Conditions(nodes=nodes, checkpoints=Checkpoints(every_s=300.0))
    _, recorder = ran(conditions, make_trace(make_job("a", steps=20_000.0)))

    lost, joined = recorder.of(NodeLost), recorder.of(NodeJoined)[1:]
    assert len(lost) > 3
    assert [back_s - lost_s for (lost_s, _), (back_s, _) in zip(lost, joined, strict=False)] == pytest.approx(
        [300.0] * len(joined)
    )


def test_a_rack_fails_with_all_its_nodes() -> None:
    nodes = NodeFailures(rack_mtbf_h=2.0, rack_repair=300.0, nodes_per_rack=2)
    trace = make_trace(*(make_job(f"j{k}", gpus=4, steps=20_000.0) for k in range(4)))
    _, recorder = ran(Conditions(nodes=nodes), trace, "v100:16")

    times: dict[float, set[str]] = {}
    for lost_s, event in recorder.of(NodeLost):
        times.setdefault(lost_s, set()).add(str(event.node_id))
    assert set(map(frozenset, times.values())) == {frozenset({"v100-0", "v100-1"}), frozenset({"v100-2", "v100-3"})}


def test_a_failed_gpu_fails_its_job_only_and_closes_its_node() -> None:
    nodes = NodeFailures(gpu_mtbf_h=8.0, gpu_repair=600.0)
    trace = make_trace(*(make_job(f"j{k}", steps=30_000.0) for k in range(4)))
    _, recorder = ran(Conditions(nodes=nodes), trace, "v100:4")

    failed = [(now_s, event) for now_s, event in recorder.of(LeaseEnded) if event.outcome is Outcome.FAILED]
    closed = [now_s for now_s, event in recorder.of(NodeUnhealthy) if event.why]
    assert {len(event.jobs) for _, event in failed} == {1}
    assert failed[0][0] == closed[0]
    assert not recorder.of(NodeLost)


def test_spot_nodes_give_notice_so_that_jobs_save() -> None:
    trace = make_trace(make_job("a", steps=30_000.0))
    spot = SpotNodes(share=1.0, every_h=1.0, away=600.0, notice_s=120.0)
    simulation, recorder = ran(Conditions(spot=spot), trace)

    assert len(recorder.of(NodeLost)) > 3
    assert simulation.agents.used_gpu_s(simulation.now_s)[5].sum() == 0.0  # no work is lost
    assert simulation.core.jobs.state[0] == JobState.FINISHED


def test_maintenance_stops_jobs_in_order_and_repeats() -> None:
    window = Maintenance(begin_s=1000.0, length_s=500.0, every_s=2000.0)
    _, recorder = ran(Conditions(maintenance=(window,)))

    ends = [now_s for now_s, event in recorder.of(LeaseEnded)]
    assert ends == pytest.approx([1000.0, 3000.0, 1000.0 + 500.0 + 1500.0 + 500.0 + 1100.0])


def test_prices_vary_around_the_list_price() -> None:
    trace = make_trace(make_job("a", steps=1e6))
    _, recorder = ran(Conditions(prices=PriceChanges(every_s=1000.0, sigma=0.1, reversion_share=0.5)), trace)

    times = [now_s for now_s, _ in recorder.of(PriceChanged)[1:]]
    assert np.diff(times) == pytest.approx(1000.0)


def test_a_gang_on_two_nodes_runs_slower_than_on_one() -> None:
    trace = make_trace(make_job("wide", gpus=8, steps=3600.0))
    _, recorder = ran(Conditions(locality=Locality(nodes_factor=0.5)), trace, "v100:8")

    ((finished_s, _),) = recorder.of(LeaseEnded)
    assert finished_s == pytest.approx(7200.0)


def test_neighbors_slow_each_other_down_while_both_run() -> None:
    trace = make_trace(make_job("short", steps=900.0), make_job("long", steps=3600.0))
    _, recorder = ran(Conditions(interference=Interference(node_factor=0.5)), trace, "v100:2")

    assert [now_s for now_s, _ in recorder.of(LeaseEnded)] == pytest.approx([1800.0, 1800.0 + 2700.0])


def test_a_slow_node_slows_its_jobs() -> None:
    _, recorder = ran(Conditions(stragglers=Stragglers(nodes_share=1.0, nodes_factor=0.8)))

    ((finished_s, _),) = recorder.of(LeaseEnded)
    assert finished_s == pytest.approx(3600.0 / 0.8)


def test_noise_leaves_the_mean_rate() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=100_000.0) for k in range(400)))
    simulation, _ = ran(Conditions(rates=RateVariation(noise_sigma=0.3)), trace, "v100:400")

    rates = 100_000.0 / simulation.history.finish_s[:400]
    assert rates.mean() == pytest.approx(1.0, rel=0.05)
    assert np.log(rates).std() == pytest.approx(0.3, rel=0.15)


def test_allocations_arrive_later() -> None:
    _, recorder = ran(Conditions(latency=Latency(solve=2.0, solve_per_job_s=1.0)))

    assert recorder.of(AllocationSolved)[0][0] == pytest.approx(3.0)


def test_progress_is_that_of_the_last_heartbeat() -> None:
    trace = make_trace(
        *(make_job(f"j{k}", steps=10_000.0) for k in range(50)), make_job("new"), arrival_s=[0.0] * 50 + [500.0]
    )
    _, recorder = ran(Conditions(latency=Latency(heartbeat_s=100.0)), trace, "v100:60")

    (now_s, event), *_ = recorder.of(ProgressReported)
    age_s = now_s - event.steps_done
    assert (age_s.min(), age_s.max()) == (pytest.approx(0.0, abs=10.0), pytest.approx(100.0, abs=10.0))


@pytest.mark.parametrize("cause", EVERYTHING.without("nodes").without("spot").without("maintenance").causes)
def test_without_another_cause_nodes_fail_as_before(cause: str) -> None:
    losses = []
    for conditions in (EVERYTHING, EVERYTHING.without(cause)):
        settings, recorder = SimulationSettings(conditions=conditions), Recorder()
        make_simulation(random_trace(1, 12), "v100:6,p100:8,k80:4", "fifo", settings, observers=[recorder]).run()
        losses.append([(now_s, event.node_id) for now_s, event in recorder.of(NodeLost)])

    both = min(map(len, losses))
    assert both
    assert losses[0][:both] == losses[1][:both]
