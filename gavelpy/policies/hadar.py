"""Hadar: a round by prices of GPU types that rise with their use; each job takes the place of its highest payoff."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.queue import jobs_running
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

QUANTUM_S = 360.0  # without a scheduler
LEAST_PART = 4.0  # the lowest price is this part of the lowest value of a GPU for a round


@dataclass(frozen=True)
class Hadar:
    """Take the place of the highest payoff  μ = U_j(c) - p_t g n  while one is positive; then raise the price p_t.

    U_j(c)   w_j d_j / c: the job's weight, its shortest duration from submission to end, and c, the same if it runs on
             g GPUs of type t from now on: its age, and its remaining time there, with its last start if it moves
    n        rounds of its remaining time there, at least 1;  v = U_j(c) / (g n) is the value of a GPU for a round
    p_t      L (H / L)^(used_t / W_t), with H the highest v of any place, and L a quarter of the lowest

    Hadar (Sultana et al., IPDPS '24; arXiv 2503.10918): a primal-dual framework with effective throughput as utility,
    and a dual subroutine that finds the place of a job with the best payoff at prices of GPU types that grow
    exponentially with use. Its equations could not be read for this version, so these are ours: the normalised utility,
    H and L (as in OASiS, from the jobs that are present), the greedy choice of jobs (theirs is a dynamic program over
    the queue), and that jobs without a positive payoff use what is left, in order of v. We claim no competitive ratio.

    Restriction: a job runs on GPUs of one type at a time. The tasks of one job cannot be on several types, as Hadar's
    may, because a configuration has one rate on one type; "task-level" is not here. Jobs with several sizes choose one.

    >>> p = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[6.0, 1.0], [2.0, 1.0]], steps_remaining=7200.0)
    >>> Hadar().allocate(p).share.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    quantum_s: float = 0.0

    name: ClassVar[str] = "hadar"
    summary: ClassVar[str] = (
        "Choose GPU types by payoff: the value of completion less prices that rise with use (Hadar)."
    )
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.WEIGHT, ProblemInput.SIZES, ProblemInput.RESOURCES, ProblemInput.STEPS_REMAINING,
            ProblemInput.STEPS_TOTAL, ProblemInput.AGE, ProblemInput.GPU_TYPE_HELD, ProblemInput.RESTART,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 <= self.quantum_s < math.inf:
            raise InvalidInput(f"quantum_s must be finite and >= 0, got {self.quantum_s!r}")

    def over_rounds(self, round_s: float, turn_s: float, move_lag_s: float) -> Hadar:  # noqa: ARG002 the protocol's
        """This policy with the round as its quantum, unless set."""
        return self if self.quantum_s else replace(self, quantum_s=round_s)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the round by payoff, then by value."""
        refuse_unused(self, problem)
        bids = JobPlaces.of(problem, self.quantum_s or QUANTUM_S)
        taken = bids.taken()
        share = np.zeros(problem.fits.shape)
        share[bids.row[taken], bids.gpu_type[taken]] = 1.0
        best = np.full(problem.job_count, -math.inf)
        np.maximum.at(best, bids.job, bids.value)
        won = set(bids.job[taken].tolist())
        rest = [job for job in np.lexsort((np.arange(len(best)), -best)).tolist() if job not in won and best[job] > 0]
        named = np.column_stack([bids.row[taken], bids.gpu_type[taken]])
        others = places(problem, np.array(rest, dtype=np.int64), share)
        return replace(
            ruled(problem, share, objective=jobs_running(problem, share)),
            next_round=np.concatenate([named, others]).astype(np.int64),
        )


@dataclass(frozen=True, eq=False)
class JobPlaces:
    """The places of jobs: a configuration alone and a type with enough for it, with their utilities. B bids."""

    problem: AllocationProblem
    job: Ints  # (B,)
    row: Ints  # (B,) configuration
    gpu_type: Ints  # (B,)
    utility: Floats  # (B,)
    gpu_rounds: Floats  # (B,) g n

    @classmethod
    def of(cls, p: AllocationProblem, quantum_s: float) -> JobPlaces:
        """All places where a job can run whole."""
        lone = np.flatnonzero(p.member_count[p.member_configuration] == 1)
        configuration, rates = p.member_configuration[lone], p.member_rate_steps_per_s[lone]
        k, gpu_type = np.nonzero((rates > 0) & p.is_whole[configuration] & (p.gpu_counts > 0))
        job, row, rate = p.member_job[lone[k]], configuration[k], rates[k, gpu_type]
        fastest = np.zeros(p.job_count)
        np.maximum.at(fastest, job, rate)
        shortest_s = p.steps_total / np.where(fastest > 0, fastest, 1.0)
        moves = (p.gpu_type_held[job] >= 0) & (p.gpu_type_held[job] != gpu_type)
        left_s = p.steps_remaining[job] / rate + np.where(moves, p.restart_s[job], 0.0)
        utility = p.weight[job] * shortest_s[job] / (p.age_s[job] + left_s)
        return cls(p, job, row, gpu_type, utility, p.gpus_occupied[row] * np.maximum(left_s / quantum_s, 1.0))

    @property
    def value(self) -> Floats:
        """The value of a GPU for a round, (B,)."""
        return self.utility / self.gpu_rounds

    def price(self, used: Ints) -> Floats:
        """The price of a GPU of each type for a round, (T,), where `used` (T,) thousandths of GPUs have been taken."""
        high, low = (float(self.value.max()), float(self.value.min()) / LEAST_PART) if len(self.job) else (1.0, 1.0)
        whole = self.problem.capacity[:, 0]
        part = np.divide(used, whole, out=np.ones(len(whole)), where=whole > 0)
        return np.asarray(low * (high / low) ** part)

    def payoff(self, bids: Ints, used: Ints) -> Floats:
        """μ of these bids."""
        return np.asarray(self.utility[bids] - self.price(used)[self.gpu_type[bids]] * self.gpu_rounds[bids])

    def taken(self) -> list[int]:
        """The bids that are served: the highest positive payoff first, then the highest value; ties: the first bid.

        Prices only rise, so payoffs only fall, and the highest of a heap is right if its payoff is up to date.
        """
        demand, kind, job = self.problem.demand[self.row], self.gpu_type.tolist(), self.job.tolist()
        free, found, served = self.problem.capacity.copy(), list[int](), set[int]()

        def takes(b: int) -> bool:
            if job[b] in served or (demand[b] > free[kind[b]]).any():
                return False
            found.append(b)
            served.add(job[b])
            free[kind[b]] -= demand[b]
            return True

        used = np.zeros(len(free), dtype=np.int64)
        heap = [(-payoff, b) for b, payoff in enumerate(self.payoff(np.arange(len(job)), used).tolist())]
        heapq.heapify(heap)
        while heap and heap[0][0] < 0:
            before, b = heapq.heappop(heap)
            now = -float(self.payoff(np.array([b]), used)[0])
            if now > before:
                heapq.heappush(heap, (now, b))
            elif takes(b):
                used[kind[b]] += demand[b, 0]
        for b in np.argsort(-self.value, kind="stable").tolist():
            takes(b)
        return found
