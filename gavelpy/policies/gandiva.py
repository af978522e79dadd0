"""Gandiva as in the original Gavel: equal time slices, and random pairs if jobs need more GPUs than there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.isolated import equal_parts, lone_configurations
from gavelpy.policies.pseudo_random import luck, mixed, whole_seed
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Gandiva:
    """x_ct = (W_t / n) / g_c  for n groups c, each a job alone or a pair;  a row divided by its sum where above 1.

    W_t    GPUs of type t
    g_c    GPUs that the group occupies at once

    If there are enough GPUs for all jobs, each job is a group, as in `isolated`. Otherwise jobs of equal gang size are
    paired at random. A pair is dropped if its members gain less than by taking turns,  Σ_j r_j(pair) / r_j(alone) < 1,
    both on an equal part of each GPU type, or if one of them makes no progress. Jobs without a partner run alone.

    Source: Gandiva (OSDI '18), section 3.3, as in the original Gavel's simulator. Differences: the original draws
    again for each job that is alone, remembers pairs between calls, and drops a pair one call later; here all trials
    are evaluated in one call with the rates of the problem. The random order of pairs depends on `seed` and on the
    properties of the jobs, so a pair stays together while other jobs come and go. The original sums the rates of all
    types, so that it drops almost no pair, and it pairs jobs without measured rates, which then make no progress.

    The certificate's objective is the GPUs in use. Groups of three are not tried. `gandiva_introspective` is closer to
    the system of the paper: pairs by measured trials, migration, growing and shrinking.

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [4.0]])
    >>> Gandiva().allocate(p.with_pairs([(0, 1)], [[[3.0], [3.0]]])).share.tolist()
    [[0.0], [0.0], [1.0]]
    >>> Gandiva().allocate(p.with_pairs([(0, 1)], [[[1.0], [1.0]]])).share.tolist()
    [[0.5], [0.5], [0.0]]
    """

    seed: int = 0

    name: ClassVar[str] = "gandiva"
    summary: ClassVar[str] = (
        "Give jobs equal parts; when GPUs are short, pair jobs at random and keep the pairs that gain."
    )
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.PAIRS})

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole_seed(self.seed))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Equal parts of the cluster for all groups."""
        refuse_unused(self, problem)
        groups = lone_configurations(problem)
        if problem.gpus_occupied[groups].sum() > problem.gpu_counts.sum():
            groups = paired(problem, groups, _drawn(problem, pair_gains(problem)[0], self.seed))
        share = equal_parts(problem, groups)
        return ruled(problem, share, objective=float((problem.gpus_occupied @ share).sum()))


def pair_gains(problem: AllocationProblem) -> tuple[Ints, Floats]:
    """Rows of the configurations of two jobs that gain by co-location, (P,), and Σ_j r_j(pair) / r_j(alone), (P,)."""
    configuration, job = problem.member_configuration, problem.member_job
    part = problem.gpu_counts / max(1.0, problem.gpu_counts.sum())
    together = problem.member_rate_steps_per_s @ part
    alone = (problem.rate_alone_steps_per_s @ part)[job]
    relative = np.divide(together, alone, out=np.zeros_like(together), where=alone > 0)
    gained = np.bincount(configuration, weights=relative, minlength=problem.configuration_count)
    moving: Bools = np.ones(problem.configuration_count, dtype=np.bool_)
    np.logical_and.at(moving, configuration, (together > 0) & problem.can_run[job])
    rows: Ints = np.flatnonzero((problem.member_count == 2) & moving & (gained >= 1))
    return rows, np.asarray(gained[rows], dtype=np.float64)


def _drawn(problem: AllocationProblem, pairs: Ints, seed: int) -> Ints:
    """The pairs in the pseudo-random order of their trials; ties in row order."""
    constant = (*problem.rate_alone_steps_per_s.T, problem.steps_total, problem.gpus_asked, problem.weight)
    drawn = luck(seed, problem.job_count, *constant)
    first = np.searchsorted(problem.member_configuration, pairs)
    job = problem.member_job
    return pairs[np.argsort(mixed(drawn[job[first]] + drawn[job[first + 1]]), kind="stable")]


def paired(problem: AllocationProblem, alone: Ints, pairs: Ints, gpus: float = 0.0) -> Ints:
    """Rows of the groups if pairs form in this order, each of two jobs that are still alone.

    Until the groups need at most `gpus`; 0 = all pairs form.
    """
    needed = problem.gpus_occupied[alone].sum()
    first = np.searchsorted(problem.member_configuration, pairs)
    is_paired = [False] * problem.job_count
    formed = []
    members = zip(problem.member_job[first].tolist(), problem.member_job[first + 1].tolist(), strict=True)
    for pair, (one, other) in zip(pairs.tolist(), members, strict=True):
        if not (is_paired[one] or is_paired[other]) and needed > gpus:
            needed -= problem.gpus_occupied[pair]
            is_paired[one] = is_paired[other] = True
            formed.append(pair)
    job_of = problem.member_job[np.searchsorted(problem.member_configuration, alone)]
    left = alone[~np.array(is_paired, dtype=np.bool_)[job_of]]
    return np.concatenate([left, np.array(formed, dtype=np.int64)])
