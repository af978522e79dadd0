"""Turns: starting jobs keep their GPUs in named rounds, by hand and in simulations where a start outlasts a round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import PolicyRun
from gavelpy.policies.bounded_lag import BoundedLag
from gavelpy.policies.contract import (
    Check,
    check_deterministic,
    check_feasible,
    check_memory,
    check_order_of_rows,
    check_time,
    problems,
)
from gavelpy.policies.turns import KEPT_MAX_S, StartTurns
from gavelpy.simulator.compare import compare
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import Costs, SimulationSettings
from tests.simulator.builders import make_job, make_trace

ROUND_S, START_S = 60.0, 250.0


def holding(steps: float = 400.0, age_s: float = 0.0, memory: bytes = b"") -> AllocationProblem:
    """Job a holds the one GPU, at 4 steps/s; job b waits."""
    return AllocationProblem.of(
        "ab",
        ["v100"],
        [1],
        [[4.0], [4.0]],
        gpu_type_held=[0, -1],
        steps_remaining=[steps, 400.0],
        age_s=age_s,
        memory=memory,
    )


def after(steps: float, age_s: float) -> list[bool]:
    """The jobs within their turn, which a began with 400 steps left; a start takes 30 s."""
    start_s = np.full(2, 30.0)
    memory = StartTurns(holding(), start_s).memory()
    return StartTurns(holding(steps, age_s, memory), start_s).kept.tolist()


def test_a_job_is_kept_until_it_has_trained_as_long_as_its_start() -> None:
    assert after(steps=400.0, age_s=60.0) == [True, False]  # starts
    assert after(steps=284.0, age_s=90.0) == [True, False]  # has trained for 29 s
    assert after(steps=280.0, age_s=91.0) == [False, False]  # for 30 s


def test_a_job_that_never_trains_is_not_kept_forever() -> None:
    assert after(steps=400.0, age_s=KEPT_MAX_S - 1.0) == [True, False]
    assert after(steps=400.0, age_s=KEPT_MAX_S) == [False, False]


def test_lost_steps_begin_a_turn_again() -> None:
    assert after(steps=440.0, age_s=600.0) == [True, False]


def test_jobs_in_their_turn_come_first_then_urgent_ones_then_shares() -> None:
    """a holds, b has most of the share, c is urgent, d has neither; memory is of a only."""
    problem = AllocationProblem.of("abcd", ["v100"], [2], [[1.0], [2.0], [1.0], [4.0]], gpu_type_held=[0, -1, -1, -1])
    turns = StartTurns(problem, np.full(4, 30.0))

    order = turns.next_round(np.array([[0.0], [1.5], [0.5], [0.0]]), np.array([0.0, 0.0, 1.0, 0.0]), np.ones(4))

    assert problem.member_job[np.searchsorted(problem.member_configuration, order[:, 0])].tolist() == [0, 2, 1, 3]


def test_rounds_are_named_only_where_a_start_may_outlast_half_a_slice() -> None:
    assert BoundedLag().over_rounds(ROUND_S, START_S, 0.0).names_rounds
    assert not BoundedLag().over_rounds(ROUND_S, 0.0, 0.0).names_rounds  # starts are free
    assert not BoundedLag().over_rounds(360.0, 25.0, 1800.0).names_rounds  # the defaults
    assert not BoundedLag(slice_s=1e6).over_rounds(ROUND_S, START_S, 0.0).names_rounds


def simulated(policy: str) -> SimulationResult:
    """Two equal jobs of an hour on one GPU: rounds of 60 s, starts of 250 s, and nothing that protects a lease."""
    base = SimulationSettings(costs=Costs(0.0, START_S, 0.0))
    mechanism = replace(base.mechanism, round_s=ROUND_S, solve_interval_s=ROUND_S, lease_min_s=0.0, move_lag_s=0.0)
    trace = make_trace(make_job("a"), make_job("b"))
    settings = replace(base, mechanism=mechanism)
    return compare(trace, Cluster.parse("v100:1"), [PolicyRun(policy)], settings=settings)[policy]


def test_shares_in_slices_shorter_than_a_start_starve_jobs_and_turns_do_not() -> None:
    """Equal parts of one GPU by shares (`slice_s` states long slices): each job starts again in each round.

    In turns at least half of the time is training, so two hours of work end within four, and a round of each turn.
    """
    by_shares, by_turns = simulated("bounded_lag:lag=0:slice_s=100000"), simulated("bounded_lag:lag=0")

    assert by_shares.metrics.jobs_unfinished == 2
    assert by_turns.metrics.jobs_unfinished == 0
    turns = 2 * 3600.0 / START_S
    assert by_turns.history.finish_s[:2].max() <= turns * (2 * START_S + ROUND_S)


@pytest.mark.parametrize("check", [check_feasible, check_deterministic, check_memory, check_order_of_rows, check_time])
@pytest.mark.parametrize("problem", problems(0).values(), ids=list(problems(0)))
def test_named_rounds_keep_the_contract(check: Check, problem: AllocationProblem) -> None:
    check(BoundedLag(start_s=30.0, slice_s=60.0), problem)
