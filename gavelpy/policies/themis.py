"""Themis: leases of GPUs by auctions among the apps (jobs, or searches of many) with the worst finish-time ratios.

The state between calls is in the allocation's memory: the place of each lease and the age of its job at its end, and
under the empty name what jobs of apps have done.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import AGAIN_MIN_S, Allocation
from gavelpy.model.arrays import Ints
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ProblemInput, flag, ruled
from gavelpy.policies.in_order import places
from gavelpy.policies.memory import as_memory
from gavelpy.policies.partial_allocation import Bids, partial_allocation
from gavelpy.policies.places import PlacesAlone
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.themis_apps import ThemisApps
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

    Themis (NSDI '20), sections 3 to 5; f = 0.8 and leases of 20 minutes as in its evaluation. The jobs of an app bid as
    one, for the GPUs of one or more of those that wait; ρ is then that of `themis_apps`, and n counts apps. The jobs
    with the most steps left get what the app wins, so that all reach the next comparison. Places are numbers of GPUs of
    a type, with sizes where jobs have several; not nodes. A gang cannot give up a part of its GPUs, so the hidden
    payment is a part of the time, which is worth as much to the bidder. GPUs that are left go to the other jobs one by
    one, the highest ρ_j first (in the paper: at random), for `lease_s`. If too few GPUs are free for all that may bid,
    those with the highest ρ_j bid for which there is room together, at most 64. Leases end at the end of a round.

    Leases end one by one, so a large gang may wait long until enough GPUs are free at once. With `reserve` (not in the
    paper, where an app can start on fewer GPUs), new leases last at most until enough leases have ended for the first
    app that may bid and has no room, if it is served first then. It is the same length for all bidders of an auction,
    and depends on no bid.

    >>> from gavelpy.model.problem import Size
    >>> p = AllocationProblem.of("ab", ["v100"], [2], [[1.0], [1.0]], steps_remaining=600.0)
    >>> p = p.with_sizes({"a": [Size(2, efficiency=0.75)], "b": [Size(2, efficiency=1.0)]})
    >>> answer = Themis(filtered=0.0).allocate(p)
    >>> answer.share[:, 0].tolist(), answer.again_s  # each keeps one GPU; a for 1/2 of the lease, b for 2/3
    ([1.0, 1.0, 0.0, 0.0], 600.0)
    """

    filtered: float = 0.8
    lease_s: float = 1200.0
    reserve: bool = False

    name: ClassVar[str] = "themis"
    summary: ClassVar[str] = "Auction GPUs at the ends of leases among the jobs with the worst finish-time ratios."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {
            ProblemInput.STEPS_REMAINING, ProblemInput.AGE, ProblemInput.ISOLATED, ProblemInput.SIZES, ProblemInput.APP,
        }
    )  # fmt: skip

    def __post_init__(self) -> None:
        if not 0 <= self.filtered < 1:
            raise InvalidInput(f"filtered must be in [0, 1), got {self.filtered!r}")
        if not AGAIN_MIN_S <= self.lease_s < math.inf:
            raise InvalidInput(f"lease_s must be finite and at least {AGAIN_MIN_S:g}, got {self.lease_s!r}")
        object.__setattr__(self, "reserve", flag("reserve", self.reserve))

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, the next round, and when the next lease ends."""
        refuse_unused(self, problem)
        market = _Market(problem)
        waits = {job for job in market.keep_leases() if len(market.of_job(job))}
        bidders = [app for app, jobs in enumerate(market.apps.members) if not waits.isdisjoint(jobs)]
        bidders.sort(key=lambda app: (-market.apps.ratio[app], market.apps.members[app][0]))
        waiting = {app: market.in_turn([job for job in market.apps.members[app] if job in waits]) for app in bidders}
        visible = bidders[: math.ceil((1 - self.filtered) * len(bidders) - 1e-9)][:BIDDERS_MAX]
        fitting = market.that_fit_together(visible, waiting)
        blocked = next((app for app in visible if app not in fitting), None) if self.reserve else None
        lease_s = self.lease_s if blocked is None else min(self.lease_s, market.room_in_s(waiting[blocked]))
        market.auction(fitting, waiting, lease_s)
        in_order = [job for app in bidders for job in waiting[app]]
        for job in in_order:
            market.give_leftover(job, lease_s)
        return market.answer(in_order)


class _Market:
    """The places of all jobs alone (K of them), the GPUs that are free, and the leases, with their ends as ages."""

    def __init__(self, problem: AllocationProblem) -> None:
        self.row, self.job, self.gpu_type, self.rate = PlacesAlone.of(problem)
        self.units: Ints = np.maximum(problem.demand[self.row, 0], 1)  # thousandths of GPUs
        self.free: Ints = problem.capacity[:, 0].copy()
        self.leases: dict[int, tuple[int, float]] = {}  # job -> place, age at its end; in the order of the round
        self._problem = problem
        known = json.loads(problem.memory or b"{}")
        self.apps = ThemisApps(problem, known.pop("", {}))
        self._known: dict[str, list[float]] = known  # id -> type, thousandths, end
        by_job = np.argsort(self.job, kind="stable")
        ends = np.searchsorted(self.job[by_job], np.arange(problem.job_count + 1))
        self._of_job = [by_job[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]

    def of_job(self, job: int) -> Ints:
        """The places of one job."""
        return self._of_job[job]

    def keep_leases(self) -> list[int]:
        """Continues the leases that have not ended; returns the other jobs."""
        for job, name in enumerate(self._problem.job_ids):
            if name in self._known:
                gpu_type, units, end = self._known[name]
                own = self.of_job(job)
                same = own[(self.gpu_type[own] == gpu_type) & (self.units[own] == units)]
                if end > self._problem.age_s[job] + 1e-6 and len(same) and units <= self.free[int(gpu_type)]:
                    self._take(job, int(same[0]), end)
        return [job for job in range(self._problem.job_count) if job not in self.leases]

    def in_turn(self, jobs: list[int]) -> list[int]:
        """The jobs of one app in the order in which they get GPUs: the most steps left first."""
        left = self._problem.steps_remaining
        return sorted(jobs, key=lambda job: (-left[job], job)) if len(jobs) > 1 else jobs

    def that_fit_together(self, bidders: Iterable[int], waiting: Mapping[int, list[int]]) -> list[int]:
        """The apps for which there is room, in order, if each takes its fewest GPUs of the type with the most left."""
        left, found = self.free.copy(), []
        for app in bidders:
            own = np.concatenate([self.of_job(job) for job in waiting[app]])
            own = own[self.units[own] <= left[self.gpu_type[own]]]
            if len(own):
                best = own[np.lexsort((-left[self.gpu_type[own]], self.units[own]))[0]]
                left[self.gpu_type[best]] -= self.units[best]
                found.append(app)
        return found

    def room_in_s(self, waiting: list[int]) -> float:
        """Seconds until so many leases have ended that one of these jobs has room on a type; infinite if never."""
        own = np.concatenate([self.of_job(job) for job in waiting])
        found = math.inf
        for kind in np.unique(self.gpu_type[own]).tolist():
            needed, room = int(self.units[own[self.gpu_type[own] == kind]].min()), int(self.free[kind])
            held = [(job, place, end) for job, (place, end) in self.leases.items() if self.gpu_type[place] == kind]
            left = sorted((end - float(self._problem.age_s[job]), int(self.units[place])) for job, place, end in held)
            for left_s, units in [(0.0, 0), *left]:
                room += units
                if room >= needed:
                    found = min(found, left_s)
                    break
        return max(found, AGAIN_MIN_S)

    def auction(self, bidders: list[int], waiting: Mapping[int, list[int]], lease_s: float) -> None:
        """Gives leases to the bidders, reduced by their hidden payments."""
        bundles = [(who, *bundle) for who, app in enumerate(bidders) for bundle in self._bundles(app, waiting[app])]
        if not bundles:
            return
        bidder, places, values = zip(*bundles, strict=True)
        units = np.array([int(self.units[place].sum()) for place in places])
        gpu_type = np.array([int(self.gpu_type[place[0]]) for place in places])
        unit = int(np.gcd.reduce(units))
        sale = partial_allocation(Bids(np.array(bidder), gpu_type, units // unit, np.array(values), self.free // unit))
        for bid, kept in zip(sale.bid.tolist(), sale.kept.tolist(), strict=True):
            for place in places[bid].tolist() if bid >= 0 else ():
                job = int(self.job[place])
                self._take(job, place, float(self._problem.age_s[job] + max(kept * lease_s, AGAIN_MIN_S)))

    def _bundles(self, app: int, waiting: list[int]) -> list[tuple[Ints, float]]:
        """What an app bids for: places of its jobs on one type, each with the value V = 1 / ρ of all of them."""
        p, apps = self._problem, self.apps
        age_s, alone_s = float(apps.age_s[app]), float(apps.alone_s[app])
        if len(apps.members[app]) == 1:
            own = self.of_job(waiting[0])
            values = alone_s / (age_s + p.steps_remaining[waiting[0]] / self.rate[own])
            return [(own[k : k + 1], float(value)) for k, value in enumerate(values.tolist())]
        found = []
        for kind in np.flatnonzero(self.free > 0).tolist():
            at = {job: self._fewest(job, kind) for job in apps.members[app] if len(self.of_job(job))}
            solo_s = {job: p.steps_remaining[job] / self.rate[place] for job, place in at.items()}
            gpu_s = sum(solo_s[job] * self.units[place] for job, place in at.items())
            held = sum(int(self.units[place]) for job, place in at.items() if job in self.leases)
            here = [at[job] for job in waiting if self.gpu_type[at[job]] == kind]
            for count, units in enumerate(np.cumsum(self.units[here]).tolist(), 1):
                if units <= self.free[kind]:
                    left_s = max(max(solo_s.values()), gpu_s / (held + units))
                    found.append((np.array(here[:count]), alone_s / (age_s + left_s)))
        return found

    def _fewest(self, job: int, gpu_type: int) -> int:
        """The place of a job's lease; else its fewest GPUs on this type; else the fewest on its fastest."""
        if job in self.leases:
            return self.leases[job][0]
        own = self.of_job(job)
        return int(own[np.lexsort((-self.rate[own], self.units[own], self.gpu_type[own] != gpu_type))[0]])

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
        kept: dict[str, Any] = {
            p.job_ids[job]: [int(self.gpu_type[place]), int(self.units[place]), end]
            for job, (place, end) in self.leases.items()
        }
        if apps := self.apps.kept():
            kept[""] = apps
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
