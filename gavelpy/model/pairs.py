"""Pairs stated by kind of job: of all pairs of two kinds only so many as an optimum needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints, floats, ints, require
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem


def with_pairs_of_kinds(
    problem: AllocationProblem,
    kind: npt.ArrayLike,  # (J,) any whole numbers
    pairs: Sequence[tuple[int, int]],  # (P, 2) kinds; a kind with itself, too
    rates_steps_per_s: npt.ArrayLike,  # (P, 2, T) of a job of the first and of the second while they share
) -> AllocationProblem:
    """The problem plus pairs of jobs of `pairs` of kinds: n + m of the n m pairs of two kinds, n/2 or n within one.

    Jobs of a kind stand side by side, as wide as each other, and are paired where they overlap; within a kind, with
    those half across. So any total of two kinds' time together can be shared out evenly, and nothing is lost by leaving
    out the other pairs as long as the objective treats the jobs of a kind alike. Jobs that it does not (other weights,
    or other steps for a makespan) are of other kinds.
    """
    kinds = ints("kind", kind, (problem.job_count,))
    rates = floats("rates_steps_per_s of pairs", rates_steps_per_s, (len(pairs), 2, len(problem.gpu_types)))
    require("rates_steps_per_s of pairs", rates, np.isfinite(rates) & (rates >= 0), "finite and >= 0")
    jobs_of: dict[int, Ints] = {k: np.flatnonzero(kinds == k) for k in np.unique(kinds).tolist()}
    rows: list[Ints] = []
    seen: set[frozenset[int]] = set()
    for first, second in pairs:
        if first not in jobs_of or second not in jobs_of:
            raise InvalidInput(f"pairs must name kinds that some job is of, got {(first, second)}")
        if frozenset((first, second)) in seen:
            raise InvalidInput(f"pairs must name two kinds once, got {(first, second)} twice")
        seen.add(frozenset((first, second)))
        asked = np.unique(problem.gpus_asked[np.concatenate([jobs_of[first], jobs_of[second]])])
        if len(asked) > 1:
            raise InvalidInput(
                "pairs must be of kinds whose jobs ask for equally many GPUs, got "
                f"{(first, second)} with {asked[0]:g} and {asked[-1]:g}"
            )
        rows.append(_within(jobs_of[first]) if first == second else _between(jobs_of[first], jobs_of[second]))
    count = [len(of_kinds) for of_kinds in rows]
    members = np.concatenate([*rows, np.zeros((0, 2), dtype=np.int64)])
    return _joined(problem, members, np.repeat(rates, count, axis=0))


def _between(one: Ints, other: Ints) -> Ints:
    """Pairs (P, 2) of jobs that overlap on a line that both fill."""
    n, m = len(one), len(other)
    starts = np.unique(np.concatenate([np.arange(n) * m, np.arange(m) * n]))  # the line is n x m long
    return np.column_stack([one[starts // m], other[starts // n]])


def _within(jobs: Ints) -> Ints:
    """Pairs (P, 2) such that each job is in as many: one if their number is even, else two."""
    n = len(jobs)
    half = n // 2
    first = np.arange(half if n % 2 == 0 else n if n > 1 else 0)
    return np.column_stack([jobs[first], jobs[(first + half) % max(n, 1)]])


def _joined(problem: AllocationProblem, members: Ints, rates: Floats) -> AllocationProblem:
    C, P = problem.configuration_count, len(members)
    gpus = np.rint(problem.gpus_asked[members[:, :1]] * THOUSANDTHS)
    return replace(
        problem,
        demand=np.concatenate([problem.demand, np.repeat(gpus, problem.demand.shape[1], axis=1)]),
        member_configuration=np.concatenate([problem.member_configuration, np.repeat(np.arange(C, C + P), 2)]),
        member_job=np.concatenate([problem.member_job, members.ravel()]),
        member_rate_steps_per_s=np.concatenate([problem.member_rate_steps_per_s, rates.reshape(-1, rates.shape[2])]),
    )
