"""SLAQ's round against plain loops and brute force, and losses over time in simulations."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import planned_over_rounds
from gavelpy.policies.loss_curves import fit
from gavelpy.policies.marginal_gains import LonePlaces
from gavelpy.policies.slaq import Slaq

FEW = 12
SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= FEW)) for seed in range(200)]
QUANTUM_S = 50.0


def random_problem(seed: int) -> AllocationProblem:
    """Jobs of one to three sizes that have reported nothing, a little or much; some run."""
    rng = np.random.default_rng(seed)
    J, T = int(rng.integers(1, 8)), int(rng.integers(1, 4))
    total, done = rng.uniform(500.0, 5e3, J), rng.uniform(0.0, 400.0, J) * (rng.random(J) < 0.8)
    counts = rng.integers(0, 9, J) * (done > 0)
    losses = [
        [(float(k), 1.0 / (1.0 + speed * k)) for k in np.linspace(1.0, max(end, 2.0), n)]
        for n, end, speed in zip(counts.tolist(), done, 10.0 ** rng.uniform(-3, 0, J), strict=True)
    ]
    problem = AllocationProblem.of(
        [f"j{row}" for row in range(J)], [f"t{t}" for t in range(T)], rng.integers(0, 6, T),
        rng.uniform(0.2, 4.0, (J, T)) * (rng.random((J, T)) < 0.9), steps_remaining=total - done, steps_total=total,
        gpu_type_held=rng.integers(-1, T, J), gpus_held=rng.choice([1, 2], J), restart_s=rng.uniform(0.0, 60.0, J),
        losses=losses,
    )  # fmt: skip
    sizes = [Size(2, efficiency=0.9), Size(4, efficiency=0.7)]
    return problem.with_sizes({f"j{row}": sizes[: int(rng.integers(0, 3))] for row in range(J)})


def values_by_loops(p: AllocationProblem, quantum_s: float) -> dict[tuple[int, int, int], float]:
    """What each place (job, configuration, type) is worth, one by one."""
    curves, values = fit(p.losses, 0.95), {}
    for member, row in enumerate(p.member_configuration.tolist()):
        job, gpus = int(p.member_job[member]), p.demand[row, 0] / 1000
        every = [
            rate
            for m in np.flatnonzero(p.member_job == job)
            for t, rate in enumerate(p.member_rate_steps_per_s[m].tolist())
            if p.demand[p.member_configuration[m], 0] <= p.capacity[t, 0] and p.capacity[t, 0]
        ]
        for t, rate in enumerate(p.member_rate_steps_per_s[member].tolist()):
            if rate <= 0 or p.demand[row, 0] > p.capacity[t, 0] or not p.capacity[t, 0]:
                continue
            is_held = p.gpu_type_held[job] == t and (p.gpus_held[job] or p.gpus_asked[job]) == gpus
            useful_s = quantum_s - (0.0 if is_held else min(p.restart_s[job], quantum_s / 2))
            done, n = p.steps_total[job] - p.steps_remaining[job], int(curves.reports[job])
            speed = rate / max(every) * useful_s / quantum_s
            steps = min(rate * useful_s, p.steps_remaining[job])
            fall = float(curves.fall(np.array([job]), np.array([done]), np.array([done + steps]))[0])
            is_tried = n == 1 or (n == 0 and done <= 0.05 * p.steps_total[job])
            values[job, row, t] = (speed if is_tried else fall) + 1e-9 * speed
    return values


def by_loops(p: AllocationProblem, quantum_s: float) -> dict[int, tuple[int, int]]:
    """Configuration and type of each job that runs: everything is computed again for each choice."""
    values, whole = values_by_loops(p, quantum_s), p.capacity[:, 0].sum()
    curves, chosen = fit(p.losses, 0.95), dict[int, tuple[int, int]]()

    def gpus(row: int) -> int:
        return int(p.demand[row, 0])

    def free(t: int, without: int = -1) -> int:
        used = sum(gpus(row) for job, (row, on) in chosen.items() if on == t and job != without)
        return int(p.capacity[t, 0]) - used

    def urgency(job: int) -> tuple[float, int]:
        row, t = min(((r, t) for j, r, t in values if j == job), key=lambda x: (gpus(x[0]), -rate_of(p, *x)))
        n, done = int(curves.reports[job]), p.steps_total[job] - p.steps_remaining[job]
        is_tried = n == 1 or (n == 0 and done <= 0.05 * p.steps_total[job])
        return (-np.inf if is_tried else -values[job, row, t] / (gpus(row) / whole)), job

    for job in sorted({j for j, _, _ in values}, key=urgency):
        own = [(gpus(r), -v, r, t) for (j, r, t), v in values.items() if j == job and gpus(r) <= free(t)]
        if own:
            chosen[job] = min(own)[2:]
    while True:
        moves = []
        for (job, row, t), value in values.items():
            if job in chosen and gpus(row) <= free(t, without=job):
                now = chosen[job]
                gain, added = value - values[job, *now], (gpus(row) - gpus(now[0])) / whole
                if gain > 0:
                    moves.append((gain / added if added > 0 else np.inf, job, row, t))
        if not moves:
            return chosen
        best = max(moves, key=lambda move: move[0])
        chosen[best[1]] = best[2:]


def rate_of(p: AllocationProblem, row: int, t: int) -> float:
    return float(p.member_rate_steps_per_s[np.searchsorted(p.member_configuration, row), t])


@pytest.mark.parametrize("seed", SEEDS)
def test_round_is_that_of_plain_loops(seed: int) -> None:
    p = random_problem(seed)

    rows, types = np.nonzero(Slaq(quantum_s=QUANTUM_S).allocate(p).share)

    jobs = p.member_job[np.searchsorted(p.member_configuration, rows)].tolist()
    found = dict(zip(jobs, zip(rows.tolist(), types.tolist(), strict=True), strict=True))
    values, expected = values_by_loops(p, QUANTUM_S), by_loops(p, QUANTUM_S)
    assert found.keys() == expected.keys()
    worth = [{job: values[job, *place] for job, place in of.items()} for of in (found, expected)]
    assert worth[0] == pytest.approx(worth[1], rel=1e-9)


def elastic(seed: int) -> tuple[AllocationProblem, int]:
    """Jobs with all sizes from 1 to the number of GPUs, of one type, at a linear speed-up."""
    rng = np.random.default_rng(seed)
    J, gpus = int(rng.integers(1, 5)), int(rng.integers(4, 8))
    done = rng.uniform(20.0, 400.0, J)
    losses = [
        [(float(k), 1.0 / (1.0 + speed * k)) for k in np.linspace(1.0, end, 6)]
        for end, speed in zip(done, 10.0 ** rng.uniform(-3, 0, J), strict=True)
    ]
    p = AllocationProblem.of(
        [f"j{row}" for row in range(J)], ["v100"], [gpus], rng.uniform(0.2, 4.0, (J, 1)),
        steps_remaining=1e5, steps_total=1e5 + done, losses=losses,
    )  # fmt: skip
    return p.with_sizes({job: [Size(n, efficiency=1.0) for n in range(2, gpus + 1)] for job in p.job_ids}), gpus


@pytest.mark.parametrize("seed", range(25))
def test_greedy_is_optimal_where_gains_fall_with_each_gpu(seed: int) -> None:
    p, gpus = elastic(seed)
    policy = Slaq(quantum_s=QUANTUM_S)
    at = LonePlaces(p)
    falls = policy.falls(at, fit(p.losses, policy.decay))

    def fall(job: int, count: int) -> float:
        return float(falls[(at.job == job) & (at.gpus == count)][0])

    splits = (split for split in itertools.product(range(1, gpus + 1), repeat=p.job_count) if sum(split) <= gpus)
    best = max(sum(fall(job, count) for job, count in enumerate(split)) for split in splits)

    assert policy.allocate(p).certificate.objective == pytest.approx(best, rel=1e-9)


def with_losses(*jobs: Floats, gpus: int = 1, **columns: object) -> AllocationProblem:
    """Jobs that have reported these losses at steps 1, 2, 3 and so on."""
    losses = [[(k + 1.0, float(value)) for k, value in enumerate(values)] for values in jobs]
    done = np.array([float(len(values)) for values in jobs])
    return AllocationProblem.of(
        "abcd"[: len(jobs)], ["v100"], [gpus], np.ones((len(jobs), 1)), steps_remaining=1e4, steps_total=1e4 + done,
        losses=losses, **columns,  # type: ignore[arg-type]
    )  # fmt: skip


STEEP, FLAT, NONE = 1.0 / np.arange(1.0, 9.0), 1.0 + 0.5 ** np.arange(8.0), np.zeros(0)


def test_a_job_whose_loss_still_falls_is_served_before_one_that_has_converged() -> None:
    assert Slaq().allocate(with_losses(FLAT, STEEP)).share[:, 0].tolist() == [0, 1]


def test_losses_of_other_units_change_nothing() -> None:
    assert Slaq().allocate(with_losses(1e6 * FLAT, STEEP - 50.0)).share[:, 0].tolist() == [0, 1]


def test_a_job_that_was_never_tried_comes_first_and_one_that_reports_nothing_last() -> None:
    p = with_losses(STEEP, NONE)
    silent = replace(p, steps_remaining=np.array([1e4, 5e3]))

    assert Slaq().allocate(p).share[:, 0].tolist() == [0, 1]
    assert Slaq().allocate(silent).share[:, 0].tolist() == [1, 0]


def test_a_start_that_costs_more_than_it_gains_is_not_made() -> None:
    sizes = {"a": [Size(2, efficiency=0.6)]}  # 1.2 times the rate
    p = with_losses(STEEP, gpus=2, gpu_type_held=0, gpus_held=1).with_sizes(sizes)

    assert Slaq().allocate(p).share[:, 0].tolist() == [0, 1]
    assert Slaq().allocate(replace(p, restart_s=np.array([90.0]))).share[:, 0].tolist() == [1, 0]


def test_no_gpu_is_idle_that_a_waiting_job_could_use() -> None:
    for seed in range(20):
        p = random_problem(seed)
        share = Slaq(quantum_s=QUANTUM_S).allocate(p).share
        free = p.capacity[:, 0] - share.T.astype(np.int64) @ p.demand[:, 0]
        runs = set(p.member_job[np.searchsorted(p.member_configuration, np.nonzero(share)[0])].tolist())
        at = LonePlaces(p)
        waiting = ~np.isin(at.job, list(runs))
        assert (at.demand[:, 0] > free[at.gpu_type])[waiting].all(), seed


def test_a_scheduler_sets_the_quantum_and_bad_values_are_named() -> None:
    assert planned_over_rounds(Slaq(), 120.0, 5.0, 0.0) == Slaq(quantum_s=120.0)
    with pytest.raises(InvalidInput, match="quantum_s must be finite"):
        Slaq(quantum_s=-1.0)
    with pytest.raises(InvalidInput, match=r"decay must be in \(0, 1\]"):
        Slaq(decay=0.0)
