"""Declared guarantees of policies hold on random problems; undeclared ones fail on a small counterexample."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count, islice
from typing import ClassVar

import numpy as np
import pytest

from gavelpy.model.allocation import Allocation
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.policies.base import Guarantee, goal_of, guarantees_of, registered
from gavelpy.policies.guarantee_checks import CHECKS, peers
from gavelpy.policies.isolated import Isolated
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.policies.nash_welfare import NashWelfare
from gavelpy.policies.strategy_proof import StrategyProof
from gavelpy.solve.solver import Solver
from tests.conftest import PROJECT
from tests.solve.oracle import best_sum

ENVY, PARETO = Guarantee.ENVY_FREE, Guarantee.PARETO_EFFICIENT
SHARING, TRUTH = Guarantee.SHARING_INCENTIVE, Guarantee.STRATEGY_PROOF
IN_TABLE = (SHARING, PARETO, ENVY, TRUTH)
DECLARED = [
    (name, each) for name, policy in registered().items() for each in Guarantee if each in guarantees_of(policy)
]
SEEDS = range(40)
FEW = range(10)  # in every run; all in the slow tests
COSTLY = {Guarantee.STRATEGY_PROOF: {"strategy_proof": (5,)}}  # nash_welfare, which withholds nothing, fails on it
SMALL_PROBLEMS, BLOCK, SMALL_JOBS = 1_000, 100, 4  # a second for each; problems of up to 7 jobs take four
PROMISES = [
    pytest.param(
        name,
        each,
        seed,
        id=f"{seed}-{name}-{each}",
        marks=[pytest.mark.slow] * (seed not in COSTLY.get(each, {}).get(name, FEW)),
    )
    for name, each in DECLARED
    for seed in SEEDS
]

ONE_GPU = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [5.0]], steps_remaining=[300.0, 100.0])
GANGS = AllocationProblem.of("ab", ["v100"], [3], [[4.0], [5.0]], gpus=2)  # one gang leaves a GPU that both could use
ALIKE = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [4.0, 1.0]])
VALUED = AllocationProblem.of(
    "a", ["v100"], [1], [[1.0]], steps_remaining=8000.0, completion_value=["step:worth=1:time_s=7300"]
)
OPPOSITES = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [1.0, 4.0]])
THREE_JOBS = AllocationProblem.of("abc", ["v100", "k80"], [1, 1], [[1.0, 1.0], [1.0, 2.0], [4.0, 1.0]])
ONE_PAIR = ONE_GPU.with_pairs([(0, 1)], [[[3.9], [0.6]]])  # a is nearly as fast as alone, at the cost of b
THREE_GPUS = AllocationProblem.of("abc", ["v100", "k80"], [1, 2], [[2.0, 4.0], [1.0, 8.0], [2.0, 8.0]])
TWO_OF_ONE_TEAM = AllocationProblem.of(
    "abc", ["v100"], [1], np.full((3, 1), 4.0), entity=[0, 0, 1], entities=[Entity("team"), Entity("single")]
)
SEVEN_JOBS = AllocationProblem.of("abcdefg", ["v100", "k80"], [1, 1], [[2.0, 1.9], [2.0, 1.0], *[[1.0, 1.0]] * 5])
# 33 equal jobs in parts of 17 and 16, and jobs of one type each, with more of them in one part than in the other
UNEVEN = AllocationProblem.of([f"j{k}" for k in range(33)], ["v100"], [4], np.ones((33, 1)))
ONE_TYPE_EACH = AllocationProblem.of(
    [f"j{k}" for k in range(32)], ["v100", "k80"], [8, 8],
    np.random.default_rng(4).uniform(1.0, 2.0, (32, 1)) * np.where(np.arange(32)[:, None] < 8, [[0, 1]], [[1, 0]]),
)  # fmt: skip
PRICED = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[4.0, 2.0]], price_usd_per_gpu_h=[2.48, 0.45])

REPORTING = AllocationProblem.of(
    "ab", ["v100"], [1], [[4.0], [3.0]], steps_remaining=1e5, steps_total=1e5 + 4.0,
    losses=[[(k, 1.0 / (1.0 + k)) for k in range(5)]] * 2,
)  # fmt: skip

DISPROVED = {
    ("allox", SHARING): ONE_GPU,  # the long job waits
    ("allox", ENVY): ONE_GPU,
    ("allox", PARETO): GANGS,
    ("allox", TRUTH): ONE_GPU,  # a job that reports a higher rate appears shorter
    ("dorm", SHARING): ONE_GPU,  # the second waits
    ("dorm", ENVY): ONE_GPU,
    ("dorm", PARETO): GANGS,
    ("dorm", TRUTH): ALIKE,  # the job on the K80 denies that it can run there
    ("fifo", SHARING): ONE_GPU,  # the second waits
    ("fifo", ENVY): ONE_GPU,
    ("fifo", PARETO): GANGS,  # the second could have half of its time on the remaining GPU
    ("finish_time_fairness", ENVY): THREE_JOBS,
    ("finish_time_fairness", TRUTH): THREE_JOBS,
    ("gandiva", SHARING): ONE_PAIR,  # co-located they do more steps, and b fewer than by turns
    ("gandiva", ENVY): ONE_PAIR,
    ("gandiva", PARETO): OPPOSITES,
    ("gandiva", TRUTH): ONE_PAIR,  # b reports a larger slowdown than it has, and the pair is given up
    ("hierarchical", ENVY): THREE_JOBS,
    ("hierarchical", TRUTH): THREE_JOBS,
    ("hierarchical", SHARING): TWO_OF_ONE_TEAM,  # a team of two shares what a job alone has for itself
    ("isolated", PARETO): OPPOSITES,  # both would gain by exchanging halves
    ("max_min_fairness", ENVY): THREE_JOBS,  # c has less of the V100 than it could use: its normalised rate is high
    ("max_min_fairness", TRUTH): THREE_JOBS,  # c reports a lower rate on it than it has
    ("max_sum_throughput", SHARING): ONE_GPU,  # the slow job waits
    ("max_sum_throughput", ENVY): ONE_GPU,
    ("max_sum_throughput", TRUTH): ONE_GPU,
    ("max_min_fairness_water_filling", ENVY): THREE_JOBS,
    ("max_min_fairness_water_filling", TRUTH): THREE_JOBS,
    ("min_cost", SHARING): ONE_GPU,
    ("min_cost", ENVY): ONE_GPU,
    ("min_cost", PARETO): PRICED,  # it runs on the K80, because the V100 gives fewer steps per dollar
    ("min_cost", TRUTH): ONE_GPU,
    ("min_makespan", SHARING): ONE_GPU,  # the short job has a quarter
    ("min_makespan", ENVY): ONE_GPU,
    ("min_makespan", TRUTH): ONE_GPU,  # a job that reports a lower rate gets more time
    ("nash_welfare", SHARING): THREE_GPUS,  # a loses: it is limited by its time, not by GPUs
    ("nash_welfare", ENVY): THREE_GPUS,
    ("nash_welfare", TRUTH): peers(7),
    ("shortest_job_first", SHARING): ONE_GPU,
    ("shortest_job_first", ENVY): ONE_GPU,
    ("shortest_job_first", PARETO): GANGS,
    ("shortest_job_first", TRUTH): ONE_GPU,  # a job that reports a higher rate appears shorter
    ("oasis", SHARING): ONE_GPU,  # the second waits
    ("oasis", ENVY): ONE_GPU,
    ("oasis", PARETO): GANGS,
    ("oasis", TRUTH): VALUED,  # a job that reports a higher rate appears to end in time, and is admitted
    ("pollux", SHARING): ONE_GPU,  # one waits
    ("pollux", ENVY): ONE_GPU,
    ("pollux", PARETO): GANGS,
    ("pollux", TRUTH): THREE_JOBS,  # c denies that it can run on the V100, and gets the K80
    ("shockwave", SHARING): ONE_GPU,  # one waits
    ("shockwave", ENVY): ONE_GPU,
    ("shockwave", PARETO): GANGS,
    ("shockwave", TRUTH): THREE_JOBS,  # c denies that it can run on the V100, and gets the K80
    ("bounded_lag", SHARING): ONE_GPU,  # the longer job waits, until it lags
    ("bounded_lag", ENVY): ONE_GPU,
    ("bounded_lag", TRUTH): ONE_GPU,  # a job that reports a higher rate appears shorter
    ("sia", SHARING): ONE_GPU,  # one waits
    ("sia", ENVY): ONE_GPU,
    ("sia", PARETO): GANGS,
    ("sia", TRUTH): THREE_JOBS,  # a reports that the K80 is much faster for it
    ("strategy_proof", SHARING): ONE_GPU,  # half of all shares is withheld, so that lying does not pay
    ("strategy_proof", PARETO): ONE_GPU,
    ("strategy_proof", ENVY): peers(1),
    ("elasticflow", SHARING): ONE_GPU,  # one waits
    ("elasticflow", ENVY): ONE_GPU,
    ("elasticflow", PARETO): GANGS,
    ("gandiva_fair", SHARING): ONE_GPU,  # one waits for the next round
    ("gandiva_fair", ENVY): ONE_GPU,
    ("gandiva_fair", PARETO): GANGS,
    ("gandiva_fair", TRUTH): THREE_JOBS,
    ("gandiva_introspective", SHARING): ALIKE,  # one has the slower GPU all the time
    ("gandiva_introspective", ENVY): ALIKE,
    ("gandiva_introspective", PARETO): THREE_JOBS,  # equal parts of each type, whatever the rates
    ("gandiva_introspective", TRUTH): ONE_PAIR,  # b reports a larger slowdown than it has, and the pair is not tried
    ("hadar", SHARING): ONE_GPU,  # one waits
    ("hadar", ENVY): ONE_GPU,
    ("hadar", PARETO): GANGS,
    ("hadar", TRUTH): SEVEN_JOBS,
    ("optimus", SHARING): ONE_GPU,  # one waits
    ("optimus", ENVY): ONE_GPU,
    ("optimus", PARETO): GANGS,
    ("optimus", TRUTH): ONE_GPU,  # a job that reports a higher rate appears shorter
    ("slaq", SHARING): ONE_GPU,  # one waits
    ("slaq", ENVY): ONE_GPU,
    ("slaq", PARETO): GANGS,
    ("slaq", TRUTH): REPORTING,  # a job that reports a higher rate appears to gain more
    ("lucid", SHARING): ONE_GPU,  # one waits
    ("lucid", ENVY): ONE_GPU,
    ("lucid", PARETO): GANGS,
    ("lucid", TRUTH): ONE_GPU,  # a job that reports a higher rate appears shorter
    ("pop", SHARING): UNEVEN,  # a job in the larger part has less
    ("pop", ENVY): UNEVEN,
    ("pop", PARETO): ONE_TYPE_EACH,  # GPUs are idle in one part that jobs of another could use
    ("pop", TRUTH): THREE_JOBS,  # as max_min_fairness, for so few jobs
    ("themis", SHARING): ONE_GPU,  # one waits
    ("themis", ENVY): ONE_GPU,
    ("themis", PARETO): GANGS,
    ("themis", TRUTH): SEVEN_JOBS,  # a gets the faster GPU in this round, for so short a lease that it loses
}
QUEUES = (
    "drf",
    "mesos",
    "tetris",
    "capacity",
    "srtf",
    "srsf",
    "least_attained_service",
    "tiresias",
    "easy_backfilling",
    "conservative_backfilling",
)  # some jobs wait, whatever their rates; gangs leave a GPU idle
DISPROVED |= {(name, each): ONE_GPU for name in QUEUES for each in (SHARING, ENVY)}
DISPROVED |= {(name, PARETO): GANGS for name in QUEUES}
DISPROVED |= {
    (name, TRUTH): ONE_GPU for name in ("srtf", "srsf", "tetris")
}  # a job that reports a higher rate appears shorter
BROKEN_ON = {(name, guarantee): DISPROVED[name, guarantee] for name, guarantee in DISPROVED if name in registered()}


@dataclass(frozen=True)
class Undeclared:
    """A third-party policy from before guarantees existed."""

    name: ClassVar[str] = "undeclared"
    summary: ClassVar[str] = "Do what isolated does."
    fills_leftover: ClassVar[bool] = True

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        return Isolated().allocate(problem, solver)


@pytest.mark.parametrize(("policy_name", "guarantee", "seed"), PROMISES)
def test_policy_keeps_what_it_declares(policy_name: str, guarantee: Guarantee, seed: int) -> None:
    policy = registered()[policy_name]()

    CHECKS[guarantee](policy, peers(seed))  # raises AssertionError with the violated guarantee


@pytest.mark.parametrize(
    ("policy_name", "guarantee"), BROKEN_ON, ids=[f"{name}-{guarantee}" for name, guarantee in BROKEN_ON]
)
def test_policy_does_not_declare_what_a_small_problem_disproves(policy_name: str, guarantee: Guarantee) -> None:
    policy = registered()[policy_name]()

    assert guarantee not in guarantees_of(policy)
    with pytest.raises(AssertionError):
        CHECKS[guarantee](policy, BROKEN_ON[policy_name, guarantee])


def test_every_guarantee_of_every_policy_is_declared_or_disproved() -> None:
    every = {(name, guarantee) for name in registered() for guarantee in Guarantee}

    assert {*DECLARED, *BROKEN_ON} == every


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SMALL_PROBLEMS, BLOCK))
def test_no_false_declaration_gains_on_a_thousand_small_problems(first: int) -> None:
    small = (problem for problem in map(peers, count()) if problem.job_count <= SMALL_JOBS)

    for problem in islice(small, first, first + BLOCK):
        CHECKS[TRUTH](StrategyProof(), problem)


@pytest.mark.parametrize("seed", COSTLY[TRUTH]["strategy_proof"])
def test_the_few_problems_of_a_costly_policy_disprove_what_it_is_made_from(seed: int) -> None:
    with pytest.raises(AssertionError):
        CHECKS[TRUTH](NashWelfare(), peers(seed))


def test_every_guarantee_has_a_check_that_some_policy_fails() -> None:
    assert CHECKS.keys() == set(Guarantee) == {guarantee for _, guarantee in BROKEN_ON}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy_name", [name for name, guarantee in DECLARED if guarantee is PARETO])
def test_another_solver_finds_no_improvement_either(policy_name: str, seed: int) -> None:
    problem = peers(seed)
    best = np.where(problem.gpu_counts > 0, problem.rate_alone_steps_per_s, 0.0).max(axis=1)
    gain = 1 / np.where(best > 0, best, 1.0)

    rates = registered()[policy_name]().allocate(problem).rate_steps_per_s

    assert best_sum(problem, gain, rates * (1 - 1e-8)) == pytest.approx(gain @ rates, rel=1e-6, abs=1e-9)


def test_a_large_gang_may_lose_by_sharing_under_max_min_fairness() -> None:
    """Why guarantees need gangs of one size: a gang's level counts its GPUs, so it may be slow at an equal level."""
    problem = AllocationProblem.of("ab", ["v100", "k80"], [1, 9], [[10.0, 1.0], [10.0, 1.0]], gpus=[1, 4])

    rates, alone = (policy.allocate(problem).rate_steps_per_s for policy in (MaxMinFairness(), Isolated()))

    assert alone == pytest.approx([1.9, 1.9])
    assert rates == pytest.approx([7.0, 1.75])  # 7 / 1.9 = 4 x 1.75 / 1.9


def test_a_heavy_job_takes_more_than_its_part_under_max_min_fairness() -> None:
    problem = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], weight=[1.0, 3.0])

    with pytest.raises(AssertionError, match="job 'a' is slower than isolated: 1 steps/s, not 2"):
        CHECKS[SHARING](MaxMinFairness(), problem)


def test_a_policy_that_declares_nothing_guarantees_nothing_and_optimises_the_objective() -> None:
    assert guarantees_of(Undeclared()) == frozenset()
    assert goal_of(Undeclared()) == Goal("the objective")


def test_peers_are_scarce_and_plentiful_and_some_can_run_nowhere() -> None:
    problems = [peers(seed) for seed in SEEDS]

    wanted = [problem.gpus_asked.sum() / max(1, problem.gpu_counts.sum()) for problem in problems]
    assert min(wanted) < 0.5
    assert max(wanted) > 2
    assert {len(problem.gpu_types) for problem in problems} == {1, 2, 3, 4}
    assert any(not problem.can_run.all() for problem in problems)
    assert all(np.ptp(problem.gpus_asked) == 0 for problem in problems)


@pytest.mark.parametrize("policy_name", registered())
def test_documented_table_matches_the_declarations(policy_name: str) -> None:
    text = (PROJECT / "docs" / "policies.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if re.fullmatch(rf"\| `{policy_name}`( \|( yes)?){{4}} \|", line))

    kept = {guarantee for guarantee, cell in zip(IN_TABLE, row.split("|")[2:6], strict=True) if cell.strip()}

    assert kept == guarantees_of(registered()[policy_name])


@pytest.mark.parametrize("guarantee", Guarantee)
def test_guarantee_has_words(guarantee: Guarantee) -> None:
    assert guarantee.in_words.lower().replace("-", "_").replace(" ", "_") == guarantee.value
