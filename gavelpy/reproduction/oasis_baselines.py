"""The baselines of OASiS that choose workers for slots: FIFO, DRF that grows jobs, and a risk-reward heuristic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gavelpy.model.arrays import Ints
from gavelpy.reproduction.oasis_slots import SlotState

_ROUNDING = 1e-9


class _Room:
    """What is free as jobs take their workers."""

    def __init__(self, state: SlotState) -> None:
        self._state = state
        self.free = state.capacity.copy()
        self.workers = np.zeros(len(state.left), dtype=np.int64)

    def give(self, job: int, workers: int) -> bool:
        """Changes a job to so many workers; whether they fit."""
        jobs = self._state.jobs
        more = jobs.demand(job, workers) - jobs.demand(job, int(self.workers[job]))
        fits = bool((more <= self.free * (1 + _ROUNDING) + _ROUNDING).all())
        if fits:
            self.free = self.free - more
            self.workers[job] = workers
        return fits


@dataclass(frozen=True)
class FifoWorkers:
    """Jobs in order of arrival with the workers that they request; the first that does not fit blocks the others."""

    def choose(self, state: SlotState) -> Ints:
        """Workers of each job, (J,)."""
        room = _Room(state)
        for job in state.present.tolist():
            if not room.give(job, int(state.jobs.asked[job])):
                break
        return room.workers


@dataclass(frozen=True)
class GrowingDrf:
    """One worker more, with its parameter servers, to the job of the lowest dominant share, until none fits.

    A job is a user. DRF (Ghodsi et al., NSDI '11), algorithm 1.
    """

    def choose(self, state: SlotState) -> Ints:
        """Workers of each job, (J,)."""
        room, jobs = _Room(state), state.jobs
        share = np.full(len(state.left), np.inf)
        share[state.present] = 0.0
        while np.isfinite(share).any():
            job = int(np.argmin(share))
            more = int(room.workers[job]) + 1
            if more <= jobs.most[job] and room.give(job, more):
                share[job] = float((jobs.demand(job, more) / state.capacity).max())
            else:
                share[job] = np.inf
        return room.workers


@dataclass(eq=False)
class RiskReward:
    """Admit a job if  PV_i > cost_i;  among the admitted, start the one with the highest reward_i that fits.

    reward_i  (α PV_i - (1 - α) cost_i) / RPT_i
    PV_i      its value if it runs without a break from its start, which at admission is after the jobs admitted before
    cost_i    Σ_j d_j s_i RPT_i,  what the other admitted jobs lose while they wait for job i
    d_j       the loss of value of job j for an hour more;  s_i the dominant share of job i;  RPT_i its time left

    FirstReward and its admission by slack (Irwin, Grit and Chase, HPDC '04), as recalled from the paper, without a rate
    of discount; there one processor serves all jobs, so s_i is 1. Jobs have the workers that they request, and keep
    them.
    """

    alpha: float = 0.5
    admitted: set[int] = field(default_factory=set)

    def choose(self, state: SlotState) -> Ints:
        """Workers of each job, (J,)."""
        for job in state.present.tolist():
            if job not in self.admitted:
                others = [j for j in state.present.tolist() if j in self.admitted]
                start = self._start(state, job, others)
                if self._present_value(state, job, start) > self._cost(state, job, others):
                    self.admitted.add(job)
                else:
                    state.refused[job] = True
        room, rows = _Room(state), state.present.tolist()
        for job in sorted(rows, key=lambda j: (state.workers[j] == 0, -self._reward(state, j, rows))):
            room.give(job, int(state.jobs.asked[job]))
        return room.workers

    def _time_left(self, state: SlotState, job: int) -> float:
        jobs = state.jobs
        return float(np.ceil(state.left[job] * jobs.chunk_time[job] / jobs.asked[job] - _ROUNDING))

    def _share(self, state: SlotState, job: int) -> float:
        return float((state.jobs.demand(job, int(state.jobs.asked[job])) / state.capacity).max())

    def _start(self, state: SlotState, job: int, others: Iterable[int]) -> float:
        """Slots until the cluster has worked off what was admitted before, if the job does not fit at once."""
        use = [(self._share(state, j), self._time_left(state, j)) for j in others]
        if sum(share for share, _ in use) + self._share(state, job) <= 1.0:
            return float(state.now)
        return state.now + sum(share * left for share, left in use)

    def _present_value(self, state: SlotState, job: int, start: float) -> float:
        return state.jobs.value_at(job, start + self._time_left(state, job))

    def _cost(self, state: SlotState, job: int, others: Iterable[int]) -> float:
        loss = [self._loss_per_hour(state, j) for j in others if j != job]
        return sum(loss) * self._share(state, job) * self._time_left(state, job)

    def _loss_per_hour(self, state: SlotState, job: int) -> float:
        end = state.now + self._time_left(state, job)
        return state.jobs.value_at(job, end) - state.jobs.value_at(job, end + 1.0)

    def _reward(self, state: SlotState, job: int, rows: Iterable[int]) -> float:
        present = self._present_value(state, job, float(state.now))
        cost = self._cost(state, job, rows)
        return (self.alpha * present - (1 - self.alpha) * cost) / max(self._time_left(state, job), 1.0)
