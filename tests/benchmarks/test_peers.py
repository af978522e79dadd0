"""Peers find the same optimum as our policies, and the comparison detects differences."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.engines import Cvxpy, Engine, Highs, PeerFailed, Rows
from benchmarks.peers import disagreement, formulation_of
from benchmarks.problems import PAIRS, Case, Mix
from benchmarks.warm import WarmHighs
from gavelpy.policies.base import policy_from, registered
from gavelpy.policies.max_min_fairness import MaxMinFairness

WITHOUT_PEER = {
    "allox", "elasticflow", "fifo", "gandiva", "gandiva_fair", "isolated", "least_attained_service",
    "shortest_job_first", "sia", "srsf", "srtf", "themis", "tiresias", "easy_backfilling", "conservative_backfilling",
    "drf", "mesos", "tetris", "dorm",
    "gandiva_introspective", "hadar", "lucid", "pop",
    "capacity", "oasis", "pollux", "shockwave",
    "slaq", "optimus",
    "bounded_lag",  # tests/policies/test_bounded_lag.py compares it with another program
}  # fmt: skip
MEASURED = sorted(set(registered()) - WITHOUT_PEER)
SETTINGS = ["max_sum_throughput:normalised=1"]
LINEAR = [name for name in (*MEASURED, *SETTINGS) if (found := formulation_of(policy_from(name))) and found.is_linear]


def case_of(policy: str, jobs: int = 24) -> Case:
    return Case(policy, Mix.DISTINCT, 3, jobs, 0.1, 1)


def engines() -> dict[str, Engine]:
    return {"ecos": Cvxpy("ECOS", 60.0), "clarabel": Cvxpy("CLARABEL", 60.0), "highs": Highs(60.0)}


@pytest.mark.parametrize("policy", MEASURED)
def test_every_policy_that_optimises_has_a_peer(policy: str) -> None:
    assert formulation_of(policy_from(policy)) is not None


BY_CVXPY = [*MEASURED, *SETTINGS, f"max_min_fairness{PAIRS}", f"min_cost{PAIRS}"]
TOO_MUCH_FOR_CLARABEL = {"hierarchical", "strategy_proof"}  # levels and rates that shrink: it fails


@pytest.mark.parametrize(
    ("policy", "peer"),
    [(policy, "ecos") for policy in BY_CVXPY]
    + [(policy, "clarabel") for policy in BY_CVXPY if policy not in TOO_MUCH_FOR_CLARABEL],
)
def test_a_peer_in_cvxpy_agrees_with_us(policy: str, peer: str) -> None:
    case = case_of(policy)
    problem, chosen = case.problem(), policy_from(case.policy_text)
    formulation = formulation_of(chosen)

    share = formulation.solve(problem, engines()[peer])

    assert disagreement(formulation, chosen.allocate(problem), share) <= formulation.tolerance


@pytest.mark.parametrize("policy", [*LINEAR, f"max_min_fairness{PAIRS}"])
def test_highs_on_arrays_agrees_with_us(policy: str) -> None:
    case = case_of(policy)
    problem, chosen = case.problem(), policy_from(case.policy_text)
    formulation = formulation_of(chosen)

    share = formulation.solve(problem, engines()["highs"])

    assert disagreement(formulation, chosen.allocate(problem), share) <= formulation.tolerance


def test_a_difference_between_answers_is_seen() -> None:
    problem = case_of("max_min_fairness").problem()
    ours = MaxMinFairness().allocate(problem)

    assert disagreement(formulation_of(MaxMinFairness()), ours, ours.share * 0.999) == pytest.approx(1e-3)


@pytest.mark.parametrize("policy", ["max_min_fairness", "min_makespan", "max_sum_throughput", "min_cost"])
def test_a_warm_basis_agrees_with_us_after_every_change(policy: str) -> None:
    drawn = case_of(policy).drawn(spare=6)
    changes = drawn.changes(24, 6)
    chosen = policy_from(policy)

    warm = WarmHighs(drawn.problem(), formulation_of(chosen).warm, changes[0], 60.0)

    ours = [chosen.allocate(drawn.problem(rows)).certificate.objective for rows in changes]
    assert [warm.best(rows) for rows in changes] == pytest.approx(ours, rel=1e-6)


def test_a_peer_that_cannot_says_so() -> None:
    problem = case_of("max_min_fairness").problem()
    rows, engine = Rows.of(problem), Highs(60.0)
    too_much = 10 * problem.rate_alone_steps_per_s.max(axis=1)

    with pytest.raises(PeerFailed, match="Infeasible"):
        engine.total(rows, np.ones(len(rows.entry_type)), too_much)


def test_a_solvers_own_time_is_part_of_the_whole() -> None:
    engine = Cvxpy("ECOS", 60.0)

    formulation_of(MaxMinFairness()).solve(case_of("max_min_fairness").problem(), engine)

    assert 0 < engine.solver_s < 10


def test_rows_of_a_pair_hold_both_members() -> None:
    problem = case_of(f"max_min_fairness{PAIRS}").problem()
    rows = Rows.of(problem)

    last = rows.time[:, [len(rows.entry_type) - 1]].toarray().ravel()

    assert np.flatnonzero(last).tolist() == list(problem.configuration_members()[-1])
    assert rows.shares(np.ones(len(rows.entry_type))).sum() == len(rows.entry_type)
