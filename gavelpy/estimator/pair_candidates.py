"""Which pairs of jobs a plan may measure: one for every two kinds and type, and what measuring them is worth.

A policy's prices say what a GPU costs, in units of its objective, and its shares what it buys for that: a step of a job
is worth what the GPUs cost that make it. Where two jobs share GPUs, the cost is shared out as their steps are worth,
which is solved for by turns (the updates of Richardson and Lucy: a fit of  worths x rates  to costs).
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
    """Of what each job does alone on each type, over what its GPUs there cost, (J, T); at most 1 on any type.

    `problem` and `share` (C, T) are of jobs alone and of pairs, as the policy was asked and has answered.
    """
    cost_of = relative_prices(prices)
    J, rates = problem.job_count, problem.rate_alone_steps_per_s
    alone = np.divide(rates, problem.gpus_asked[:, None] * cost_of, out=np.zeros_like(rates), where=rates > 0)
    best = alone.max(axis=1, initial=0.0)  # steps a price
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
    slowdowns: Slowdowns,  # of the keys as they first occur, and so are the next two
    fits: Floats,  # (K, K, T)
    told: Floats,  # (K, K, T) part that each keeps beside each, as the policy is told
    worth: Floats,  # (J, T) of each job alone
    gpu_s_left: Floats,  # (J,)
    running: Ints,  # (P, 3) rows of two jobs and a type that the policy gives time together
) -> PairCandidates:
    """The two jobs with most left to do of every two kinds, on every type; without kinds that will be seen anyway."""
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
        (value * np.stack([told[a, b, t], told[b, a, t]], axis=1)).sum(axis=1),
        np.where(a == b, 0.5, 1.0) * np.minimum(of_kind[a], of_kind[b]),
    )
