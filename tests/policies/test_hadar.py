"""Hadar's round against plain loops, its prices, and what they change."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import PolicyRun, planned_over_rounds
from gavelpy.policies.hadar import Hadar, JobPlaces
from gavelpy.simulator.compare import compare
from gavelpy.traces.generator import GeneratorOptions, generate
from gavelpy.traces.workloads import published_throughputs

FEW = 12
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]


def random_problem(seed: int) -> AllocationProblem:
    """Some jobs run, some have two sizes."""
    rng = np.random.default_rng(seed)
    J, T = int(rng.integers(1, 9)), int(rng.integers(1, 4))
    problem = AllocationProblem.of(
        [f"j{row}" for row in range(J)], [f"t{t}" for t in range(T)], rng.integers(0, 5, T),
        rng.uniform(0.2, 8.0, (J, T)) * (rng.random((J, T)) < 0.9), gpus=rng.choice([1, 1, 2], J),
        weight=rng.choice([1.0, 2.0], J), steps_remaining=rng.uniform(10.0, 1e4, J), steps_total=2e4,
        age_s=rng.uniform(0.0, 1e4, J), gpu_type_held=rng.integers(-1, T, J), restart_s=rng.uniform(0.0, 500.0, J),
    )  # fmt: skip
    return problem.with_sizes({f"j{row}": [Size(4, efficiency=0.8)] for row in range(J) if rng.random() < 0.3})


def by_loops(p: AllocationProblem, round_s: float) -> dict[int, tuple[int, int]]:
    """Configuration and type of each job that runs: all payoffs are computed again for each choice."""
    bids = []
    for member, row in enumerate(p.member_configuration.tolist()):
        job = int(p.member_job[member])
        for t, rate in enumerate(p.member_rate_steps_per_s[member].tolist()):
            if rate > 0 and p.demand[row, 0] <= p.capacity[t, 0] and p.capacity[t, 0] > 0:
                all_rates = [
                    r
                    for m in np.flatnonzero(p.member_job == job)
                    for k, r in enumerate(p.member_rate_steps_per_s[m].tolist())
                    if p.demand[p.member_configuration[m], 0] <= p.capacity[k, 0]
                ]
                moves = p.gpu_type_held[job] not in (-1, t)
                left = p.steps_remaining[job] / rate + (p.restart_s[job] if moves else 0.0)
                utility = p.weight[job] * (p.steps_total[job] / max(all_rates)) / (p.age_s[job] + left)
                bids.append((job, row, t, utility, p.demand[row, 0] / 1000 * max(left / round_s, 1.0)))
    values = [utility / rounds for *_, utility, rounds in bids]
    if not bids:
        return {}
    high, low = max(values), min(values) / 4
    used, chosen = np.zeros(len(p.gpu_types)), dict[int, tuple[int, int]]()

    def payoff(bid: tuple[int, int, int, float, float]) -> float:
        price = low * (high / low) ** (used[bid[2]] / p.capacity[bid[2], 0])
        return bid[3] - price * bid[4]

    def fits(bid: tuple[int, int, int, float, float]) -> bool:
        return bid[0] not in chosen and used[bid[2]] + p.demand[bid[1], 0] <= p.capacity[bid[2], 0]

    for score in (payoff, lambda bid: bid[3] / bid[4]):
        while open_bids := [bid for bid in bids if fits(bid)]:
            best = max(open_bids, key=score)
            if score(best) <= 0:
                break
            chosen[best[0]] = best[1:3]
            used[best[2]] += p.demand[best[1], 0]
    return chosen


@pytest.mark.parametrize("seed", SEEDS)
def test_round_is_that_of_plain_loops(seed: int) -> None:
    p = random_problem(seed)

    rows, types = np.nonzero(Hadar(quantum_s=300.0).allocate(p).share)

    jobs = p.member_job[np.searchsorted(p.member_configuration, rows)].tolist()
    assert dict(zip(jobs, zip(rows.tolist(), types.tolist(), strict=True), strict=True)) == by_loops(p, 300.0)


@pytest.mark.parametrize("seed", range(10))
def test_prices_rise_with_use_from_below_all_values_to_the_highest(seed: int) -> None:
    p = random_problem(seed)
    bids = JobPlaces.of(p, 300.0)
    none, half, full = (bids.price(p.capacity[:, 0] * k // 2) for k in range(3))
    has = p.gpu_counts > 0

    assert (none[has] <= half[has]).all()
    assert (half[has] <= full[has]).all()
    if len(bids.job):
        assert (bids.payoff(np.arange(len(bids.job)), 0 * p.capacity[:, 0]) > 0).all(), (
            "an empty cluster serves any job"
        )
        assert (bids.payoff(np.arange(len(bids.job)), p.capacity[:, 0]) <= 1e-9 * bids.utility).all(), (
            "a full one, none"
        )


def test_no_gpu_is_idle_that_a_waiting_job_could_use() -> None:
    for seed in range(40):
        p = random_problem(seed)
        share = Hadar().allocate(p).share
        free = p.capacity[:, 0] - share.T.astype(np.int64) @ p.demand[:, 0]
        runs = set(p.member_job[np.searchsorted(p.member_configuration, np.nonzero(share)[0])].tolist())
        bids = JobPlaces.of(p, 360.0)
        waiting = ~np.isin(bids.job, list(runs))
        assert (p.demand[bids.row, 0] > free[bids.gpu_type])[waiting].all(), seed


def test_a_job_leaves_a_busy_fast_type_to_one_that_gains_more() -> None:
    """Both are fastest on the V100; the job with the smaller speedup pays less for the K80."""
    p = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[2.0, 1.0], [6.0, 1.0]], steps_remaining=7200.0)

    assert Hadar().allocate(p).share.tolist() == [[0, 1], [1, 0]]


def test_a_costly_start_keeps_a_job_where_it_is() -> None:
    p = AllocationProblem.of("a", ["v100", "k80"], [1, 1], [[1.2, 1.0]], steps_remaining=600.0, gpu_type_held=1)

    assert Hadar().allocate(p).share.tolist() == [[1, 0]]
    assert Hadar().allocate(replace(p, restart_s=np.array([300.0]))).share.tolist() == [[0, 1]]


def test_a_scheduler_sets_the_quantum() -> None:
    assert planned_over_rounds(Hadar(), 120.0, 0.0, 0.0) == Hadar(quantum_s=120.0)
    with pytest.raises(InvalidInput, match="quantum_s must be finite"):
        Hadar(quantum_s=-1.0)


def test_simulates_a_trace() -> None:
    table = published_throughputs()
    trace = generate(GeneratorOptions(6, rate_jobs_per_h=6.0), table, np.random.default_rng(0))
    found = compare(trace, Cluster.parse("v100:4,k80:4"), [PolicyRun("hadar")], throughputs=table)["hadar"]

    assert found.metrics.jobs_unfinished == 0
