"""The simulated cluster against computations by hand."""

from __future__ import annotations

import heapq
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.commands import SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, Event
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.model.job import Trace
from gavelpy.simulator.settings import Costs, SimulationSettings, preset
from tests.simulator.builders import (
    NO_COSTS,
    GpuAudit,
    make_job,
    make_settings,
    make_simulation,
    make_trace,
    random_trace,
    run,
)


def test_lone_job_takes_its_steps_over_its_rate() -> None:
    trace = make_trace(make_job("a", steps=3600.0, rates={"v100": 2.0}))

    result = run(trace)

    assert result.jobs.loc["a", "finish_s"] == pytest.approx(1800.0)
    assert result.metrics.preemptions == 0


def test_first_start_costs_a_restart() -> None:
    trace = make_trace(make_job("a", steps=1000.0))

    result = run(trace, settings=make_settings(Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=7.0)))

    assert result.jobs.loc["a", "finish_s"] == pytest.approx(1015.0)


def test_taking_turns_costs_a_checkpoint_and_a_restart_each_round() -> None:
    """Two jobs of 600 s on one GPU: 360 - 15 steps each, then the rest, with 5 s to save and 15 s to load."""
    trace = make_trace(make_job("a", steps=600.0), make_job("b", steps=600.0))

    result = run(trace, settings=make_settings(Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=100.0)))

    # a: 0-360 does 345; b: 365-720 does 340 and saves to 725; a: 725+15+255 = 995; b then 995+15+260 = 1270
    assert result.jobs.loc["a", "finish_s"] == pytest.approx(995.0)
    assert result.jobs.loc["b", "finish_s"] == pytest.approx(1270.0)
    assert result.metrics.preemptions == 2
    assert result.metrics.migrations == 0


CLASSES = (PriorityClass("high", 1, preempts=("normal",)),)


def test_a_job_of_a_higher_class_takes_the_gpu_when_it_arrives() -> None:
    """low does 100 s and saves to 120; high loads to 135 and runs to 335; low loads to 350 and does the other 900 s."""
    low, high = make_job("low", steps=1000.0), replace(make_job("high", steps=200.0), priority="high")
    costs = Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=100.0)

    result = run(make_trace(low, high, arrival_s=[0.0, 115.0]), settings=make_settings(costs, priorities=CLASSES))

    assert result.jobs.loc["high", "finish_s"] == pytest.approx(115.0 + 5.0 + 15.0 + 200.0)
    assert result.jobs.loc["low", "finish_s"] == pytest.approx(335.0 + 15.0 + 900.0)
    assert result.metrics.preemptions == 1


def test_classes_without_jobs_change_nothing() -> None:
    trace, options = random_trace(3), {"lease_min_s": 180.0, "keep_unsaved": True}

    plain, classed = (
        run(trace, settings=make_settings(**options)),
        run(trace, settings=make_settings(priorities=CLASSES, **options)),
    )

    assert plain.jobs.equals(classed.jobs)
    assert plain.leases.equals(classed.leases)


def test_a_job_of_a_class_that_is_not_configured_is_refused() -> None:
    with pytest.raises(InvalidInput, match="priority must be one of normal, got 'high'"):
        run(make_trace(replace(make_job("a"), priority="high")))


def test_migration_costs_besides_when_a_job_comes_back_on_other_gpus() -> None:
    """a leaves its K80 when b ends and the V100 becomes free: 10 s to save nothing, 15 + 5 s to start there."""
    a = make_job("a", steps=1000.0, rates={"v100": 2.0, "k80": 1.0})
    b = make_job("b", steps=360.0, rates={"v100": 1.0})

    result = run(
        make_trace(b, a),
        "v100:1,k80:1",
        "fifo",
        settings=make_settings(Costs(checkpoint_s=0.0, restart_s=0.0, migration_s=5.0)),
    )

    # a does 360 steps on the K80 in the first round, then 640 at 2 steps/s after 5 s of migration
    assert result.jobs.loc["a", "finish_s"] == pytest.approx(360.0 + 5.0 + 320.0)
    assert result.metrics.migrations == 1


def test_job_that_arrives_starts_on_an_idle_gpu_at_once() -> None:
    trace = make_trace(make_job("a"), make_job("b"), arrival_s=[0.0, 100.0])

    result = run(trace, "v100:2")

    assert result.jobs.loc["b", "first_start_s"] == 100.0


def test_gpu_freed_inside_a_round_goes_to_a_waiting_job_at_once() -> None:
    trace = make_trace(make_job("a", steps=100.0), make_job("b"))

    result = run(trace)

    assert result.jobs.loc["b", "first_start_s"] == 100.0


def test_idle_time_between_jobs_is_not_counted_as_work() -> None:
    """The original counts a round from the end of the previous one, however long ago: it reports a utilisation of 1."""
    trace = make_trace(make_job("a", steps=720.0), make_job("b", steps=720.0), arrival_s=[0.0, 100_000.0])

    result = run(trace, settings=preset("gavel-osdi20"))

    assert result.metrics.utilization == pytest.approx(1440.0 / 100_720.0, rel=1e-3)


def test_oversized_gang_waits_with_a_reason_and_the_simulation_ends() -> None:
    trace = make_trace(make_job("big", gpus=3), make_job("a", steps=100.0))

    result = run(trace, "v100:2")

    assert result.jobs.loc["a", "finish_s"] == pytest.approx(100.0)
    assert "needs 3 GPUs" in result.jobs.loc["big", "reason"]
    assert result.metrics.jobs_unfinished == 1
    assert result.metrics.makespan_s < 1000.0


def test_gang_with_fewer_steps_than_gpus_is_not_dropped() -> None:
    """The original gives a worker of such a gang 0 steps, marks it failed, and excludes the job from all averages."""
    trace = make_trace(make_job("g", gpus=4, steps=3.0), make_job("a", steps=1000.0))

    result = run(trace, "v100:4", settings=preset("gavel-osdi20"))

    assert result.metrics.jobs_measured == 2
    assert result.metrics.jobs_unfinished == 0


def test_gpu_types_of_any_name_are_scheduled() -> None:
    """The original computes shares for an unknown GPU type, and never uses it."""
    trace = make_trace(make_job("a", rates={"gb300-nvl": 4.0}))

    result = run(trace, "gb300-nvl:1", settings=preset("gavel-osdi20"))

    assert result.jobs.loc["a", "finish_s"] == pytest.approx(900.0, rel=1e-2)


def test_no_gpu_is_over_allocated_by_fifo() -> None:
    """The original's FIFO assigns all jobs the alphabetically last type: six jobs on two V100s."""
    trace = make_trace(*(make_job(f"j{i}", rates={"v100": 2.0, "p100": 1.5, "k80": 1.0}) for i in range(6)))

    result = run(trace, "v100:2,p100:2,k80:2", "fifo")

    first = result.leases.drop_duplicates("job")
    assert first["gpu_type"].value_counts().to_dict() == {"v100": 2, "p100": 2, "k80": 2}


def test_without_a_seed_runs_are_the_same() -> None:
    """The original crashes without --seed, although it has a default."""
    trace = random_trace(7)

    first, second = (run(trace, "v100:4,p100:4,k80:4", "isolated", settings=preset("gavel-osdi20")) for _ in range(2))

    assert first.jobs["finish_s"].equals(second.jobs["finish_s"])


def test_window_measures_its_jobs_and_stops_when_they_are_done() -> None:
    trace = make_trace(*(make_job(f"j{i}", steps=100.0) for i in range(10)), arrival_s=np.arange(10) * 1000.0)

    result = run(trace, window=(2, 4))

    assert result.jobs["measured"].sum() == 2
    assert result.metrics.jobs_measured == 2
    assert result.metrics.makespan_s == pytest.approx(3100.0)


def test_jobs_of_equal_share_receive_what_they_are_owed() -> None:
    """Three jobs on two GPUs for 20 hours: no share is off by more than a round."""
    trace = make_trace(*(make_job(f"j{i}", steps=48_000.0) for i in range(3)))

    result = run(trace, "v100:2")

    shares = result.shares
    assert (shares["owed_s"] - shares["received_s"]).abs().max() <= 360.0


@pytest.mark.parametrize("policy", ["fifo", "isolated", "max_min_fairness", "min_makespan", "shortest_job_first"])
@pytest.mark.parametrize("name", ["default", "gavel-osdi20"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_every_promise_holds_after_every_event(policy: str, name: str, seed: int) -> None:
    trace = random_trace(seed)
    simulation = make_simulation(trace, "v100:4,p100:4,k80:8", policy, preset(name))
    handle = simulation.core.handle

    def checked(event: Any, now_s: float) -> Any:
        commands = handle(event, now_s)
        check(simulation.core)
        return commands

    simulation.core.handle = checked  # type: ignore[method-assign]  # the test looks over the core's shoulder
    simulation.observers.append(GpuAudit())
    result = simulation.run()

    assert result.metrics.jobs_unfinished == 0, f"seed {seed}"
    assert result.metrics.utilization <= 1.0


@pytest.mark.parametrize("policy", ["fifo", "isolated", "max_min_fairness", "min_makespan", "shortest_job_first"])
@pytest.mark.parametrize("seed", range(3))
def test_rounds_that_change_nothing_may_be_passed_over(policy: str, seed: int) -> None:
    """Oracle: the same run, with every round planned."""
    trace = random_trace(seed, jobs=12)
    costs = Costs()

    every, few = (
        run(trace, "v100:4,p100:4,k80:8", policy, settings=make_settings(costs, settled_rounds_max=rounds))
        for rounds in (1, 1_000_000)
    )

    assert few.jobs["finish_s"].to_numpy() == pytest.approx(every.jobs["finish_s"].to_numpy(), rel=1e-9), f"seed {seed}"
    assert few.metrics.rounds <= every.metrics.rounds


def test_job_of_thirty_years_takes_no_time_to_simulate() -> None:
    found = run(make_trace(make_job("a", steps=1e9)), settings=SimulationSettings(costs=NO_COSTS))

    assert found.jobs.loc["a", "finish_s"] == pytest.approx(1e9)
    assert found.metrics.rounds < 100


def test_job_that_never_ends_is_left_running_at_the_horizon() -> None:
    trace = make_trace(make_job("a", steps=1e15, rates={"v100": 1e-6}), make_job("b", steps=100.0))

    found = run(trace, "v100:2", settings=SimulationSettings(costs=NO_COSTS))

    assert "100 years" in found.jobs.loc["a", "reason"]
    assert found.jobs.loc["b", "finish_s"] == pytest.approx(100.0)


@given(seed=st.integers(0, 10**6), servers=st.integers(1, 4))
def test_fifo_on_one_type_is_the_textbook_queue(seed: int, servers: int) -> None:
    """Oracle: an M/G/c queue in order of arrival, by a heap of the times at which GPUs become free."""
    rng = np.random.default_rng(seed)
    arrival_s = np.round(np.cumsum(rng.exponential(100.0, 15)), 3)
    work_s = np.round(rng.uniform(1, 1500, 15), 3)
    jobs = tuple(make_job(f"j{i}", steps=float(w)) for i, w in enumerate(work_s))

    result = run(Trace(jobs, arrival_s), f"v100:{servers}", "fifo")

    assert result.jobs["finish_s"].to_numpy() == pytest.approx(_queue(arrival_s, work_s, servers), rel=1e-9)


def _queue(arrival_s: Any, work_s: Any, servers: int) -> list[float]:
    free_s = [0.0] * servers
    finish_s = []
    for arrival, work in zip(arrival_s, work_s, strict=True):
        finish_s.append(max(heapq.heappop(free_s), arrival) + work)
        heapq.heappush(free_s, finish_s[-1])
    return finish_s


@pytest.mark.parametrize(("policy", "solves"), [("finish_time_fairness", 1 + 3), ("max_min_fairness", 1)])
def test_quiet_hours_solve_again_where_answers_vary_with_time(policy: str, solves: int) -> None:
    trace = make_trace(make_job("a", steps=7000.0), make_job("b", steps=7000.0))

    result = run(trace, "v100:2", policy, settings=SimulationSettings())

    assert result.metrics.makespan_s < 4 * 5 * 360.0
    assert result.metrics.solves == solves
    assert result.metrics.preemptions == 0


@pytest.mark.parametrize("seed", range(3))
def test_problems_that_the_core_builds_without_checks_pass_all_checks(seed: int) -> None:
    simulation = make_simulation(
        random_trace(seed), "v100:4,p100:4,k80:8", settings=make_settings(Costs(5.0, 15.0, 5.0))
    )
    solve, asked = simulation.solve, []

    def checked(question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        again = replace(question.problem)  # checks every field
        for one in fields(again):
            built, wanted = getattr(question.problem, one.name), getattr(again, one.name)
            np.testing.assert_array_equal(built, wanted)
            assert np.asarray(built).dtype == np.asarray(wanted).dtype, one.name
            assert not isinstance(built, np.ndarray) or not built.flags.writeable, one.name
        asked.append(question.epoch)
        return solve(question)

    simulation.solve = checked  # type: ignore[method-assign]  # the test looks at what passes
    simulation.run()

    assert len(asked) > 40


def test_number_of_measured_jobs_that_are_over_follows_the_core() -> None:
    simulation = make_simulation(random_trace(5), "v100:4,p100:4,k80:8", window=(10, 30))
    counts: list[tuple[int, int]] = []

    def compare(event: Event, now_s: float) -> None:
        is_over = simulation.core.view().is_over
        counts.append((simulation._done(), int(np.count_nonzero(is_over & simulation.measured[: len(is_over)]))))

    simulation.observers.append(compare)
    simulation.run()

    assert {found - wanted for found, wanted in counts} == {0}
    assert counts[-1][0] >= 19
