"""Gandiva: equal time slices, and co-location by trial if the jobs need more GPUs than there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Bools, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.isolated import equal_parts, lone_configurations
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

SEED_MAX = 2**53  # largest whole number that a float from the command line holds exactly
_GOLDEN = 0x9E3779B97F4A7C15  # odd; the golden ratio in 64 bits


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

    The certificate's objective is the GPUs in use. Groups of three are not tried.

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
        if not (0 <= self.seed <= SEED_MAX and self.seed == int(self.seed)):
            raise InvalidInput(f"seed must be a whole number in [0, 2^53], got {self.seed!r}")
        object.__setattr__(self, "seed", int(self.seed))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Equal parts of the cluster for all groups."""
        refuse_unused(self, problem)
        groups = lone_configurations(problem)
        if problem.gpus_occupied[groups].sum() > problem.gpu_counts.sum():
            groups = _paired(problem, groups, _drawn(problem, _gaining_pairs(problem), self.seed))
        share = equal_parts(problem, groups)
        return ruled(problem, share, objective=float((problem.gpus_occupied @ share).sum()))


def _gaining_pairs(problem: AllocationProblem) -> Ints:
    """Rows of the configurations of two jobs that gain by co-location."""
    configuration, job = problem.member_configuration, problem.member_job
    part = problem.gpu_counts / max(1.0, problem.gpu_counts.sum())
    together = problem.member_rate_steps_per_s @ part
    alone = (problem.rate_alone_steps_per_s @ part)[job]
    relative = np.divide(together, alone, out=np.zeros_like(together), where=alone > 0)
    gained = np.bincount(configuration, weights=relative, minlength=problem.configuration_count)
    moving: Bools = np.ones(problem.configuration_count, dtype=np.bool_)
    np.logical_and.at(moving, configuration, (together > 0) & problem.can_run[job])
    return np.flatnonzero((problem.member_count == 2) & moving & (gained >= 1))


def _drawn(problem: AllocationProblem, pairs: Ints, seed: int) -> Ints:
    """The pairs in the pseudo-random order of their trials; ties in row order."""
    constant = np.column_stack(
        (problem.rate_alone_steps_per_s, problem.steps_total, problem.gpus_asked, problem.weight)
    )
    luck = _mixed(np.full(problem.job_count, seed, dtype=np.uint64))
    for column in np.ascontiguousarray(constant.T):
        luck = _mixed(luck ^ column.view(np.uint64))
    first = np.searchsorted(problem.member_configuration, pairs)
    job = problem.member_job
    return pairs[np.argsort(_mixed(luck[job[first]] + luck[job[first + 1]]), kind="stable")]


def _mixed(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Deterministic pseudo-random bits: the finalizer of SplitMix64 (Steele et al., 2014)."""
    bits = bits + np.uint64(_GOLDEN)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _paired(problem: AllocationProblem, alone: Ints, pairs: Ints) -> Ints:
    """Rows of the groups if pairs form in this order, each of two jobs that are still alone."""
    first = np.searchsorted(problem.member_configuration, pairs)
    is_paired = [False] * problem.job_count
    formed = []
    members = zip(problem.member_job[first].tolist(), problem.member_job[first + 1].tolist(), strict=True)
    for pair, (one, other) in zip(pairs.tolist(), members, strict=True):
        if not (is_paired[one] or is_paired[other]):
            is_paired[one] = is_paired[other] = True
            formed.append(pair)
    job_of = problem.member_job[np.searchsorted(problem.member_configuration, alone)]
    left = alone[~np.array(is_paired, dtype=np.bool_)[job_of]]
    return np.concatenate([left, np.array(formed, dtype=np.int64)])
