"""Themis: leases of GPUs by auctions among the jobs with the worst finish-time ratios.

The state between calls is in the allocation's memory: the place of each lease and the age of its job at its end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import AGAIN_MIN_S, Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, ruled
from gavelpy.policies.finish_time_fairness import isolated_s
from gavelpy.policies.in_order import places
from gavelpy.policies.memory import as_memory
from gavelpy.policies.partial_allocation import Bids, partial_allocation
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver

BIDDERS_MAX = 64  # of one auction; its time grows with their square


@dataclass(frozen=True)
class Themis:
    """Whose lease ended: the 1 - f of them with the highest ρ_j bid; bundles maximise  Π_j V_j(G_j),  V_j = 1 / ρ_j(G).

    ρ_j(G)     (a_j + n_j / r_j(G)) / T_j,  the finish-time ratio of job j if it keeps the bundle G (GPUs of one type)
    r_j(G)     its rate there, steps/s;  a_j, n_j: its age in s, its steps remaining
    T_j        time from submission to finish alone on 1 / n of the cluster (as in `finish_time_fairness`)
    f          `filtered`: the fraction of jobs that do not bid. They are sorted by ρ_j with r_j of 1 / n of the cluster
    c_i        what the winner i keeps (`partial_allocation`): its lease is  c_i `lease_s`

    Themis (NSDI '20), sections 3 to 5; f = 0.8 and leases of 20 minutes as in its evaluation. An app is one job: bids
    of several jobs of a team, and what they do with their GPUs, are not here. Places are numbers of GPUs of a type,
    with sizes where jobs have several; not nodes. A gang cannot give up a part of its GPUs, so the hidden payment is a
    part of the time, which is worth as much to the bidder. GPUs that are left go to the other jobs one by one, the
    highest ρ_j first (in the paper: at random), for `lease_s`. If too few GPUs are free for all that may bid, those
    with the highest ρ_j bid for which there is room together, at most 64. Leases end at the end of a round.

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["v100"], [2], [[1.0], [1.0]], steps_remaining=600.0)
    >>> p = p.with_sizes({"a": [Size(2, efficiency=0.75)], "b": [Size(2, efficiency=1.0)]})
    >>> answer = Themis(filtered=0.0).allocate(p)
    >>> answer.share[:, 0].tolist(), answer.again_s  # each keeps one GPU; a for 1/2 of the lease, b for 2/3
    ([1.0, 1.0, 0.0, 0.0], 600.0)
    """

    filtered: float = 0.8
    lease_s: float = 1200.0

    name: ClassVar[str] = "themis"
    summary: ClassVar[str] = "Auction GPUs at the ends of leases among the jobs with the worst finish-time ratios."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.STEPS_REMAINING, ProblemInput.AGE, ProblemInput.ISOLATED, ProblemInput.SIZES}
    )

    def __post_init__(self) -> None:
        if not 0 <= self.filtered < 1:
            raise InvalidInput(f"filtered must be in [0, 1), got {self.filtered!r}")
        if not AGAIN_MIN_S <= self.lease_s < math.inf:
            raise InvalidInput(f"lease_s must be finite and at least {AGAIN_MIN_S:g}, got {self.lease_s!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and when the next lease ends."""
        refuse_unused(self, problem)
        market = _Market(problem)
        waiting = [job for job in market.keep_leases() if len(market.of_job(job))]
        on_part_s = isolated_s(problem)
        ratio = (problem.age_s + on_part_s - problem.isolated_s) / on_part_s
        waiting.sort(key=lambda job: (-ratio[job], job))
        visible = waiting[: math.ceil((1 - self.filtered) * len(waiting) - 1e-9)]
        market.auction(market.that_fit_together(visible[:BIDDERS_MAX]), on_part_s, self.lease_s)
        for job in waiting:
            market.give_leftover(job, self.lease_s)
        return market.answer(waiting)


class _Market:
    """The places of all jobs alone (K of them), the GPUs that are free, and the leases, with their ends as ages."""

    def __init__(self, problem: AllocationProblem) -> None:
        alone = problem.member_count[problem.member_configuration] == 1
        runs = (problem.fits & problem.is_whole)[problem.member_configuration] & alone[:, None]
        member, self.gpu_type = np.nonzero(runs & (problem.member_rate_steps_per_s > 0))
        self.row: Ints = problem.member_configuration[member]
        self.job: Ints = problem.member_job[member]
        self.rate: Floats = problem.member_rate_steps_per_s[member, self.gpu_type]
        self.units: Ints = np.maximum(problem.demand[self.row, 0], 1)  # thousandths of GPUs
        self.free: Ints = problem.capacity[:, 0].copy()
        self.leases: dict[int, tuple[int, float]] = {}  # job -> place, age at its end; in the order of the round
        self._problem = problem
        by_job = np.argsort(self.job, kind="stable")
        ends = np.searchsorted(self.job[by_job], np.arange(problem.job_count + 1))
        self._of_job = [by_job[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]

    def of_job(self, job: int) -> Ints:
        """The places of one job."""
        return self._of_job[job]

    def keep_leases(self) -> list[int]:
        """Continues the leases that have not ended; returns the other jobs."""
        known: dict[str, list[float]] = json.loads(self._problem.memory or b"{}")  # id -> type, thousandths, end
        for job, name in enumerate(self._problem.job_ids):
            if name in known:
                gpu_type, units, end = known[name]
                own = self.of_job(job)
                same = own[(self.gpu_type[own] == gpu_type) & (self.units[own] == units)]
                if end > self._problem.age_s[job] + 1e-6 and len(same) and units <= self.free[int(gpu_type)]:
                    self._take(job, int(same[0]), end)
        return [job for job in range(self._problem.job_count) if job not in self.leases]

    def that_fit_together(self, jobs: Iterable[int]) -> list[int]:
        """The jobs for which there is room, in order, if each takes its fewest GPUs of the type with the most left."""
        left, found = self.free.copy(), []
        for job in jobs:
            own = self.of_job(job)
            own = own[self.units[own] <= left[self.gpu_type[own]]]
            if len(own):
                best = own[np.lexsort((-left[self.gpu_type[own]], self.units[own]))[0]]
                left[self.gpu_type[best]] -= self.units[best]
                found.append(job)
        return found

    def auction(self, bidders: list[int], on_part_s: Floats, lease_s: float) -> None:
        """Gives leases to the bidders, reduced by their hidden payments."""
        if not bidders:
            return
        place = np.concatenate([self.of_job(job) for job in bidders])
        bidder = np.repeat(np.arange(len(bidders)), [len(self.of_job(job)) for job in bidders])
        job, unit = self.job[place], int(np.gcd.reduce(self.units[place]))
        p = self._problem
        value = on_part_s[job] / (p.age_s[job] + p.steps_remaining[job] / self.rate[place])
        sale = partial_allocation(
            Bids(bidder, self.gpu_type[place], self.units[place] // unit, value, self.free // unit)
        )
        for who, bid, kept in zip(bidders, sale.bid.tolist(), sale.kept.tolist(), strict=True):
            if bid >= 0:
                self._take(who, int(place[bid]), float(p.age_s[who] + max(kept * lease_s, AGAIN_MIN_S)))

    def give_leftover(self, job: int, lease_s: float) -> None:
        """A lease on the fastest place that is free, if the job has none."""
        own = self.of_job(job)
        own = own[self.units[own] <= self.free[self.gpu_type[own]]]
        if job not in self.leases and len(own):
            best = int(own[np.argmax(self.rate[own])])
            self._take(job, best, float(self._problem.age_s[job] + lease_s))

    def answer(self, waiting: list[int]) -> Allocation:
        """The allocation: the leases in order, then the places of jobs without one, for GPUs that become free."""
        p = self._problem
        share = np.zeros(p.fits.shape)
        taken = np.array([place for place, _ in self.leases.values()], dtype=np.int64)
        share[self.row[taken], self.gpu_type[taken]] = 1.0
        named = np.column_stack([self.row[taken], self.gpu_type[taken]])
        rest = np.array([job for job in waiting if job not in self.leases], dtype=np.int64)
        kept = {
            p.job_ids[job]: [int(self.gpu_type[place]), int(self.units[place]), end]
            for job, (place, end) in self.leases.items()
        }
        ends = [end - float(p.age_s[job]) for job, (_, end) in self.leases.items()]
        answer = ruled(p, share, objective=float(len(self.leases)))
        return replace(
            answer,
            next_round=np.concatenate([named, places(p, rest, share)]).astype(np.int64),
            again_s=max(min(ends, default=math.inf), AGAIN_MIN_S),
            memory=as_memory(kept, kept) if kept else b"",
        )

    def _take(self, job: int, place: int, end: float) -> None:
        self.free[self.gpu_type[place]] -= self.units[place]
        self.leases[job] = (place, end)
