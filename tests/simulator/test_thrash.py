"""Thrashing: jobs that take turns must make more progress than they lose by starting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gavelpy.mechanism.events import Event, LeaseEnded, LeaseStarted, Outcome
from gavelpy.model.cluster import Cluster
from gavelpy.simulator.compare import PolicyRun, compare
from gavelpy.simulator.settings import Costs, SimulationSettings
from gavelpy.simulator.stall import OF_JOB
from tests.conftest import first_fast
from tests.simulator.builders import make_job, make_settings, make_simulation, make_trace, random_trace, run, timeless

SLOW_START = Costs(checkpoint_s=0.0, restart_s=45.0, migration_s=0.0)
TWO = make_trace(make_job("a", steps=600.0), make_job("b", steps=600.0))
ARRIVAL_S = [*(30.0 * k for k in range(7)), 200.0, *(30.0 * k for k in range(7, 60))]  # the gang arrives at 200
LONG_S = 20_000.0  # for 1,200 s of work on one GPU


class Endless(Exception):
    """A run that does not end."""


def patience(event: Event, now_s: float) -> None:
    if now_s > LONG_S:
        raise Endless


def test_without_a_guard_rounds_shorter_than_a_start_get_nowhere() -> None:
    simulation = make_simulation(TWO, settings=make_settings(SLOW_START, round_s=30.0), observers=[patience])

    result = simulation.run()

    assert simulation.core.view().steps_done.tolist() == [0.0, 0.0]
    assert result.metrics.jobs_unfinished == 2
    assert (
        "no job has gained a step since 0 s, in 100 leases of a (0 of 600 steps), b (0 of 600 steps)" in result.stalled
    )
    assert result.jobs["reason"].tolist() == [OF_JOB, OF_JOB]


def test_the_settings_of_real_jobs_get_starts_longer_than_a_round_to_their_end_by_default() -> None:
    base = SimulationSettings()
    settings = replace(base, mechanism=base.mechanism.with_round(5.0))

    result = run(make_trace(*(make_job(name, steps=100.0) for name in "abc")), "v100:2", settings=settings)

    assert result.stalled == ""
    assert result.metrics.jobs_unfinished == 0
    assert settings.little_work.startswith("less than half of a round is work: a round takes 5 s, ")


def test_a_run_that_stalls_after_some_steps_says_since_when() -> None:
    trace = make_trace(make_job("a", steps=600.0), make_job("b", steps=600.0), arrival_s=[0.0, 100.0])

    result = run(trace, settings=make_settings(SLOW_START, round_s=30.0), observers=[patience])

    assert "no job has gained a step since 120 s, in 100 leases of a (75 of 600 steps)" in result.stalled


def test_many_jobs_must_each_lose_ten_turns_before_a_run_has_stalled() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=600.0) for k in range(30)))

    result = run(trace, settings=make_settings(SLOW_START, round_s=30.0), observers=[patience])

    assert (
        "in 300 leases of j0 (0 of 600 steps), j1 (0 of 600 steps), j2 (0 of 600 steps) and 27 more" in result.stalled
    )


def test_fairness_against_a_baseline_that_stalls_is_said_to_be_unknown() -> None:
    settings = make_settings(SLOW_START, round_s=30.0)

    result = compare(TWO, Cluster.parse("v100:1"), [PolicyRun("fifo")], settings=settings, fairness=True)["fifo"]

    assert result.stalled == ""
    assert result.isolated_stalled.startswith("ended at ")


@pytest.mark.parametrize(("round_s", "lease_min_s", "warns"), [(50, 0, False), (49, 0, True), (5, 50, False)])
def test_a_warning_says_where_less_than_half_of_a_round_is_work(
    round_s: float, lease_min_s: float, warns: bool
) -> None:
    settings = make_settings(Costs(5.0, 15.0, 5.0), round_s=round_s, lease_min_s=lease_min_s)

    assert bool(settings.little_work) == warns


def test_a_lease_that_is_kept_for_a_while_gets_both_jobs_to_their_end() -> None:
    settings = make_settings(SLOW_START, round_s=30.0, lease_min_s=120.0)

    result = run(TWO, settings=settings, observers=[patience])

    assert result.metrics.makespan_s <= 1_200.0 + 45.0 * (1_200.0 / (120.0 - 45.0) + 2)


def test_a_start_longer_than_a_round_gets_both_jobs_to_their_end() -> None:
    costs = Costs(checkpoint_s=0.0, restart_s=15.0, migration_s=0.0)
    thrashing = make_simulation(TWO, settings=make_settings(costs, round_s=12.0, lease_min_s=6.0), observers=[patience])
    assert thrashing.run().stalled

    result = run(TWO, settings=make_settings(costs, round_s=12.0, lease_min_s=6.0, start_max_s=300.0))

    assert thrashing.core.view().steps_done.tolist() == [0.0, 0.0]
    assert result.metrics.makespan_s <= 1_200.0 * (15.0 + 6.0) / 6.0
    assert result.jobs["finish_s"].min() >= result.jobs["finish_s"].max() - 2 * 36.0


def test_a_start_that_takes_for_ever_leaves_the_gpu_to_others() -> None:
    endless = Costs(checkpoint_s=0.0, restart_s=2 * LONG_S, migration_s=0.0)
    settings = make_settings(endless, round_s=12.0, lease_min_s=6.0, start_max_s=60.0)
    turns = Turns()
    simulation = make_simulation(TWO, settings=settings, observers=[patience, turns])

    assert simulation.run().stalled

    assert 60.0 <= min(turns.stopped_s) <= max(turns.stopped_s) <= 60.0 + 2 * 12.0
    assert simulation.core.view().received_s.min() > 0.0


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_where_starts_are_quicker_the_limit_changes_nothing(seed: int) -> None:
    costs = Costs(checkpoint_s=5.0, restart_s=15.0, migration_s=5.0)
    trace, settings = random_trace(seed), {"round_s": 60.0, "lease_min_s": 30.0}

    without = run(trace, "v100:4,p100:2", settings=make_settings(costs, **settings))
    result = run(trace, "v100:4,p100:2", settings=make_settings(costs, **settings, start_max_s=300.0))

    assert timeless(result) == timeless(without)


def test_a_gang_does_not_wait_for_ever_behind_leases_that_are_kept() -> None:
    small = [make_job(f"s{k}", steps=115.0 + (7 * k) % 40) for k in range(60)]
    trace = make_trace(*small[:7], make_job("gang", steps=600.0, gpus=4), *small[7:], arrival_s=ARRIVAL_S)
    without = run(trace, "v100:4", settings=make_settings(round_s=30.0))

    result = run(trace, "v100:4", settings=make_settings(round_s=30.0, lease_min_s=120.0), observers=[patience])

    turn_s = without.jobs.loc["gang", "first_start_s"]
    assert result.jobs.loc["gang", "first_start_s"] <= turn_s + 120.0 + 2 * 30.0


@pytest.mark.slow
def test_in_the_long_run_everybody_gets_its_share_all_the_same() -> None:
    trace = make_trace(*(make_job(f"j{k}", steps=20_000.0) for k in range(5)))

    result = run(trace, "v100:3", settings=make_settings(SLOW_START, round_s=30.0, lease_min_s=120.0))

    received_s = result.shares.groupby("job")["received_s"].sum()
    assert received_s.max() <= 1.05 * received_s.min()
    assert result.jobs["finish_s"].max() <= 1.05 * result.jobs["finish_s"].min()


@pytest.mark.parametrize("seed", first_fast(range(3), 1))
def test_no_lease_is_stopped_before_it_has_run_for_so_long(seed: int) -> None:
    turns = Turns()

    run(
        random_trace(seed),
        "v100:4,p100:2",
        settings=make_settings(round_s=60.0, lease_min_s=200.0),
        observers=[turns],
    )

    assert len(turns.stopped_s) > 20
    assert min(turns.stopped_s) >= 200.0


class Turns:
    """Records how long leases ran before they were preempted."""

    def __init__(self) -> None:
        self.began_s: dict[int, float] = {}
        self.stopped_s: list[float] = []

    def __call__(self, event: Event, now_s: float) -> None:
        match event:
            case LeaseStarted():
                self.began_s |= dict.fromkeys(event.leases.tolist(), now_s)
            case LeaseEnded(outcome=Outcome.STOPPED):
                self.stopped_s += [now_s - self.began_s[lease] for lease in event.leases.tolist()]
            case _:
                pass
