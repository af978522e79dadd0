"""Effective throughput of packed max-min fairness with estimated rates, relative to true rates.

Some job types are new: only their rates alone on one GPU type and a fifth of their pairs are measured. The policy gets
estimates of the rest; its shares are evaluated with the true rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gavelpy.engine import PAIR_QUANTILE
from gavelpy.estimator.completion import Completion, EstimatorModel
from gavelpy.estimator.evaluate import one_gpu
from gavelpy.estimator.pairs import slowdown_quantile
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import equal_share_rate
from gavelpy.policies.max_min_fairness import MaxMinFairness

JOBS, GPUS_OF_A_TYPE, NEW_TYPES = 36, 6, 8
PAIRS_KNOWN = 0.2


@dataclass(frozen=True)
class Kept:
    """Results with estimated rates, divided by those with true ones."""

    mean: float  # mean of the jobs' rates, each over its rate with an equal share
    worst: float  # ratio of the smallest of them, which is the policy's objective
    alone: float  # mean without packing, with true rates


def packing_kept(table: ThroughputTable, seed: int, model: EstimatorModel | None = None) -> Kept:
    """One draw of jobs and of new job types."""
    table, rng = one_gpu(table), np.random.default_rng(seed)
    N = len(table.keys)
    types = rng.integers(N, size=JOBS)
    truth = _true_pairs(table)
    believed_alone, believed_pairs = _believed(table, rng.choice(N, NEW_TYPES, replace=False), rng, model)
    true_problem = _problem(types, table.rate_steps_per_s, table.gpu_types)
    believed = _problem(types, believed_alone, table.gpu_types)
    rows = [(a, b) for a in range(JOBS) for b in range(a + 1, JOBS)]
    with_true = true_problem.with_pairs(rows, _pair_rates(truth, table.rate_steps_per_s, types, rows))
    with_believed = believed.with_pairs(rows, _pair_rates(believed_pairs, believed_alone, types, rows))
    policy, scale = MaxMinFairness(), equal_share_rate(true_problem)
    oracle = _rates(with_true, policy.allocate(with_true).share) / scale
    estimated = _rates(with_true, policy.allocate(with_believed).share) / scale
    lone = _rates(true_problem, policy.allocate(true_problem).share) / scale
    return Kept(
        float(estimated.mean() / oracle.mean()),
        float(estimated.min() / oracle.min()),
        float(lone.mean() / oracle.mean()),
    )


def _believed(
    table: ThroughputTable, new: Ints, rng: np.random.Generator, model: EstimatorModel | None
) -> tuple[Floats, Floats]:
    """Rates alone (N, T), and slowdowns (N, N, T) with 0 for pairs that are expected not to fit."""
    rates, pairs = table.rate_steps_per_s.copy(), table.pair_rate_steps_per_s.copy()
    measured = rng.integers(len(table.gpu_types), size=len(new))
    rates[new] = np.nan
    rates[new, measured] = table.rate_steps_per_s[new, measured]
    is_new = np.asarray(np.isin(table.pair_rows, new).any(axis=1))
    hidden = is_new[:, None] & (rng.random((len(pairs), len(table.gpu_types))) >= PAIRS_KNOWN)
    pairs = np.where(hidden[:, None, :], np.nan, pairs)
    # A measured pair yields a slowdown only with a rate alone, which new types have on one GPU type.
    left = replace(table, rate_steps_per_s=rates, pair_rate_steps_per_s=pairs)
    completion = Completion(left, model)
    alone = np.where(np.isnan(rates), completion.estimates(table.keys, table.gpu_types).rates(), rates)
    slowdowns, fits = completion.pairs(table.keys, table.gpu_types)
    share = slowdown_quantile(slowdowns, fits, PAIR_QUANTILE)
    known = _true_pairs(left)
    return alone, np.where(np.isnan(known), share, known)


def _true_pairs(table: ThroughputTable) -> Floats:
    """Slowdowns, (N, N, T): 0 if a pair does not run, NaN = unknown."""
    N = len(table.keys)
    found = np.full((N, N, len(table.gpu_types)), np.nan)
    alone = table.rate_steps_per_s[table.pair_rows]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(alone > 0, table.pair_rate_steps_per_s / alone, np.where(alone == 0, 0.0, np.nan))
    first, second = table.pair_rows.T
    found[first, second], found[second, first] = share[:, 0], share[:, 1]
    return found


def _problem(types: Ints, rates: Floats, gpu_types: tuple[str, ...]) -> AllocationProblem:
    names = [f"job {n}" for n in range(len(types))]
    return AllocationProblem.of(names, gpu_types, [GPUS_OF_A_TYPE] * len(gpu_types), rates[types])


def _pair_rates(share: Floats, alone: Floats, types: Ints, rows: list[tuple[int, int]]) -> Floats:
    first, second = types[np.array(rows).T]
    rates = np.stack([share[first, second] * alone[first], share[second, first] * alone[second]], axis=1)
    both = (rates > 0).all(axis=1, keepdims=True)
    return np.where(both, rates, 0.0)


def _rates(problem: AllocationProblem, share: Floats) -> Floats:
    gains = (problem.member_rate_steps_per_s * share[problem.member_configuration]).sum(axis=1)
    return np.bincount(problem.member_job, weights=gains, minlength=problem.job_count).astype(np.float64)
