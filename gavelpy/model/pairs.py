"""Adds pairs of co-located jobs to a problem: only pairs that gain, and only as many as an optimum needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints, floats, ints, require
from gavelpy.model.problem import AllocationProblem

PAIRS_MAX = 40_000  # per problem


def with_pairs_of_kinds(
    problem: AllocationProblem,
    kind: npt.ArrayLike,  # (J,) any whole numbers
    pairs: Sequence[tuple[int, int]],  # (P, 2) kinds; a kind may be paired with itself
    rates_steps_per_s: npt.ArrayLike,  # (P, 2, T) rates of a job of the first and of the second kind, co-located
) -> AllocationProblem:
    """The problem plus enough pairs of jobs for these kinds: n + m of the n m pairs of two kinds, n/2 or n of one.

    The jobs of each of the two kinds divide a line into equal segments; jobs whose segments overlap are paired. Within
    one kind, each job is paired with the one half the line away. With these pairs any total co-located time of two
    kinds can be divided evenly among their jobs, so no optimum is lost if the objective treats jobs of a kind alike.
    Jobs that it treats differently (other weights, other steps for a makespan) must be of different kinds.
    """
    kinds = ints("kind", kind, (problem.job_count,))
    rates = floats("rates_steps_per_s of pairs", rates_steps_per_s, (len(pairs), 2, len(problem.gpu_types)))
    require("rates_steps_per_s of pairs", rates, np.isfinite(rates) & (rates >= 0), "finite and >= 0")
    jobs_of: dict[int, Ints] = {k: np.flatnonzero(kinds == k) for k in np.unique(kinds).tolist()}
    rows: list[Ints] = []
    seen: set[frozenset[int]] = set()
    for first, second in pairs:
        if first not in jobs_of or second not in jobs_of:
            raise InvalidInput(f"pairs must name kinds of some job, got {(first, second)}")
        if frozenset((first, second)) in seen:
            raise InvalidInput(f"pairs must name two kinds once, got {(first, second)} twice")
        seen.add(frozenset((first, second)))
        asked = np.unique(problem.gpus_asked[np.concatenate([jobs_of[first], jobs_of[second]])])
        if len(asked) > 1:
            raise InvalidInput(
                "pairs must be of kinds with the same number of GPUs, got "
                f"{(first, second)} with {asked[0]:g} and {asked[-1]:g}"
            )
        rows.append(_within(jobs_of[first]) if first == second else _between(jobs_of[first], jobs_of[second]))
    count = [len(of_kinds) for of_kinds in rows]
    members = np.concatenate([*rows, np.zeros((0, 2), dtype=np.int64)])
    return _joined(problem, members, np.repeat(rates, count, axis=0))


def with_gaining_pairs(
    problem: AllocationProblem,
    key: npt.ArrayLike,  # (J,) row of each job in slowdowns
    slowdowns: npt.ArrayLike,  # (K, K, T) rate of the first co-located with the second / alone; 0 = they do not fit
    *,
    pairs_max: int = PAIRS_MAX,
) -> AllocationProblem:
    """The problem plus the pairs that gain by co-location: on some type their relative rates sum to more than 1.

    On other types such a pair has rate 0, since its jobs do as much there by taking turns. Jobs with the same key,
    GPUs, weight and entity that can use the same types are of one kind. If there are more than `pairs_max`, the best
    partners of each kind come first.
    """
    T = len(problem.gpu_types)
    keys = ints("key", key, (problem.job_count,))
    kept = floats("slowdowns", slowdowns, (np.shape(slowdowns)[0], np.shape(slowdowns)[0], T))
    alone = problem.rate_alone_steps_per_s
    alike = (keys, problem.gpus_asked, problem.weight, problem.entity, problem.demand[:, 1:], alone > 0)
    _, first_of, kind = np.unique(
        np.column_stack(alike),
        axis=0,
        return_index=True,
        return_inverse=True,
    )
    jobs_of = [np.flatnonzero(kind == number) for number in range(len(first_of))]
    usable = (alone[first_of] > 0) & (problem.gpu_counts > 0)
    of_kinds = _gaining(keys[first_of], problem.gpus_asked[first_of], usable, kept)
    members: list[Ints] = []
    left = pairs_max
    for one, other in of_kinds.tolist():
        rows = _within(jobs_of[one]) if one == other else _between(jobs_of[one], jobs_of[other])
        if len(rows) > left:
            break
        members.append(rows)
        left -= len(rows)
    chosen = np.concatenate([*members, np.zeros((0, 2), dtype=np.int64)])
    both = kept[keys[chosen[:, 0]], keys[chosen[:, 1]]], kept[keys[chosen[:, 1]], keys[chosen[:, 0]]]
    gains = (both[0] + both[1] > 1.0) & (both[0] > 0) & (both[1] > 0)
    gains &= (alone[chosen[:, 0]] > 0) & (alone[chosen[:, 1]] > 0)
    rates = np.stack([np.where(gains, alone[chosen[:, side]] * both[side], 0.0) for side in (0, 1)], axis=1)
    useful = gains.any(axis=1)
    return _joined(problem, chosen[useful], rates[useful]) if useful.any() else problem


def _gaining(keys: Ints, gpus: Floats, usable: Bools, kept: Floats) -> Ints:
    """Pairs of kinds (P, 2) that gain on some type: first the best partner of each kind, then the second best.

    `usable` (K, T): types with GPUs that each kind can use.
    """
    sums = kept[np.ix_(keys, keys)] + kept[np.ix_(keys, keys)].transpose(1, 0, 2)
    fits = (kept > 0) & (kept.transpose(1, 0, 2) > 0)
    there = fits[np.ix_(keys, keys)] & usable[:, None] & usable[None, :]
    gain = np.where(there, sums, 0.0).max(axis=2, initial=0.0)
    gain[gpus[:, None] != gpus[None, :]] = 0.0
    rank = np.empty_like(gain)
    np.put_along_axis(rank, np.argsort(-gain, axis=1, kind="stable"), np.arange(float(len(keys)))[None, :], axis=1)
    one, other = np.nonzero(np.triu(gain > 1.0))
    order = np.lexsort((other, one, -gain[one, other], np.minimum(rank, rank.T)[one, other]))
    return np.column_stack([one, other])[order]


def _between(one: Ints, other: Ints) -> Ints:
    """Pairs (P, 2) of jobs whose segments overlap on a line that each kind divides equally."""
    n, m = len(one), len(other)
    starts = np.unique(np.concatenate([np.arange(n) * m, np.arange(m) * n]))  # the line is n x m long
    return np.column_stack([one[starts // m], other[starts // n]])


def _within(jobs: Ints) -> Ints:
    """Pairs (P, 2) with each job in the same number of pairs: one if the number of jobs is even, else two."""
    n = len(jobs)
    half = n // 2
    first = np.arange(half if n % 2 == 0 else n if n > 1 else 0)
    return np.column_stack([jobs[first], jobs[(first + half) % max(n, 1)]])


def _joined(problem: AllocationProblem, members: Ints, rates: Floats) -> AllocationProblem:
    C, P = problem.configuration_count, len(members)
    both = problem.demand[members]  # (P, 2, R); the problem has single jobs only
    return replace(
        problem,
        demand=np.concatenate([problem.demand, np.column_stack([both[:, 0, :1], both[:, :, 1:].sum(axis=1)])]),
        member_configuration=np.concatenate([problem.member_configuration, np.repeat(np.arange(C, C + P), 2)]),
        member_job=np.concatenate([problem.member_job, members.ravel()]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, rates.reshape(-1, rates.shape[2])]),
    )
