"""Selects pairs of jobs that a plan may measure, one per two kinds and GPU type, with the value of measuring them.

A policy's shadow prices are the cost of a GPU in units of its objective. The value of a job's step is the cost of the
GPUs that make it. Co-located jobs divide that cost in proportion to the values of their steps, which are solved for
iteratively (Richardson-Lucy updates: a fit of  values x rates  to costs).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gavelpy.estimator.kinds import Key
from gavelpy.estimator.pairs import Slowdowns
from gavelpy.estimator.plan import PairCandidates, relative_prices
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem

_TURNS = 40


def worth_alone(problem: AllocationProblem, share: Floats, prices: Floats) -> Floats:
    """Value of each job's steps alone over the cost of its GPUs, (J, T); at most 1.

    `problem` and `share` (C, T), the policy's input and output, include jobs alone and pairs.
    """
    cost_of = relative_prices(prices)
    J, rates = problem.job_count, problem.rate_alone_steps_per_s
    alone = np.divide(rates, problem.gpus_asked[:, None] * cost_of, out=np.zeros_like(rates), where=rates > 0)
    best = alone.max(axis=1, initial=0.0)  # steps per unit of cost
    member, column = np.nonzero(share[problem.member_configuration] > 0)
    configuration, job = problem.member_configuration[member], problem.member_job[member]
    time = share[configuration, column]
    steps = time * problem.member_rate_steps_per_s[member, column]
    spent = time * problem.gpus_asked[job] * cost_of[column]
    _, group = np.unique(configuration * len(cost_of) + column, return_inverse=True)
    made = np.bincount(job, steps, minlength=J)
    worth = np.divide(1.0, best, out=np.zeros(J), where=best > 0)  # of a step
    most = worth
    for _ in range(_TURNS):
        value = worth[job] * steps
        both = np.bincount(group, value)[group]
        paid = np.bincount(job, np.divide(spent * value, both, out=np.zeros_like(both), where=both > 0), minlength=J)
        worth = np.minimum(np.divide(paid, made, out=most.copy(), where=made > 0), most)
    return np.asarray(worth[:, None] * alone)


def pair_candidates(
    keys: Sequence[Key],  # J
    slowdowns: Slowdowns,  # of the K distinct keys in order of first occurrence, as the next two
    fits: Floats,  # (K, K, T)
    planned: Floats,  # (K, K, T) slowdowns that the policy uses
    worth: Floats,  # (J, T) of each job alone
    gpu_s_left: Floats,  # (J,)
    running: Ints,  # (P, 3) rows of two jobs and a type on which the policy co-locates them
) -> PairCandidates:
    """For every two kinds and type the jobs with the most work left; skips kinds that the policy co-locates anyway."""
    row = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    kind = np.array([row[key] for key in keys], dtype=np.int64)
    gpus = np.array([count for _, count in row])
    order = np.lexsort((np.arange(len(kind)), -gpu_s_left, kind))
    starts, count = np.searchsorted(kind[order], np.arange(len(row))), np.bincount(kind, minlength=len(row))
    wanted = np.repeat((np.triu(gpus[:, None] == gpus[None, :]) & ~np.diag(count < 2))[:, :, None], worth.shape[1], 2)
    one, other, gpu_type = kind[running[:, 0]], kind[running[:, 1]], running[:, 2]
    wanted[np.minimum(one, other), np.maximum(one, other), gpu_type] = False
    a, b, t = np.nonzero(wanted)
    first, second = order[starts[a]], order[starts[b] + (a == b)]
    value = np.stack([worth[first, t], worth[second, t]], axis=1)
    of_kind = np.bincount(kind, gpu_s_left, minlength=len(row))
    return PairCandidates(
        np.column_stack([first, second]),
        t,
        np.stack([slowdowns.mean[a, b, t], slowdowns.mean[b, a, t]], axis=1),
        np.stack([slowdowns.sd[a, b, t], slowdowns.sd[b, a, t]], axis=1),
        fits[a, b, t],
        value,
        (value * np.stack([planned[a, b, t], planned[b, a, t]], axis=1)).sum(axis=1),
        np.where(a == b, 0.5, 1.0) * np.minimum(of_kind[a], of_kind[b]),
    )
