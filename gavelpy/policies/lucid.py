"""Lucid: jobs in order of their estimated service start once, co-located where sharing scores permit."""

from __future__ import annotations

import json
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
from gavelpy.policies.memory import as_memory
from gavelpy.policies.queue import jobs_running
from gavelpy.policies.refusals import refuse_unused
from gavelpy.policies.room import FreeResources
from gavelpy.solve.solver import Solver

TINY, MEDIUM = 0.95, 0.85  # average relative rates above which a job has these sharing scores: 0, 1; below: 2
LONGER_MAX = 2.0  # of a job that joins, times the service of its partner


@dataclass(frozen=True)
class Lucid:
    """Waiting jobs in ascending order of  p_j = g_j × estimated duration;  each starts co-located if it can, or alone.

    g_j     GPUs requested
    s_j     sharing score by the job's average rate in its pairs over that alone: 0 from 0.95, 1 from 0.85, else 2

    A job joins the first running job that is alone on as many GPUs if  s_i + s_j <= sharing_capacity  and  p_i <= 2 p_j
    for the job i that joins, so that no short job is slowed by a long one for long. Jobs are never preempted.

    Lucid (ASPLOS '23), section 3, and the simulator that its authors published for the thresholds, the limits and the
    order. Its models (a decision tree of GPU utilisation for scores, an additive model for durations) are not here: the
    score is the label that the tree is trained on, from the pair rates of the problem, and the duration is the total
    of steps over the rate on the fastest type. Ours: where all waiting jobs fit alone, none shares; the paper stops
    sharing when a forecast of the load is low. Not here: profiling on separate nodes, limits of GPU memory (the
    scheduler proposes no pair that exceeds it), groups of three.

    The memory has the pairs that share, which continue while both run.

    >>> p = AllocationProblem.of("ab", ["v100"], [1], [[4.0], [4.0]], steps_total=[100.0, 80.0])
    >>> Lucid().allocate(p.with_pairs([(0, 1)], [[[3.6], [3.5]]])).share[:, 0].tolist()
    [0.0, 0.0, 1.0]
    >>> Lucid().allocate(p.with_pairs([(0, 1)], [[[3.6], [3.0]]])).share[:, 0].tolist()
    [0.0, 1.0, 0.0]
    """

    sharing_capacity: float = 2

    name: ClassVar[str] = "lucid"
    summary: ClassVar[str] = (
        "Start short jobs first, never preempt, and co-locate jobs that slow each other little (Lucid)."
    )
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset(
        {ProblemInput.PAIRS, ProblemInput.RESOURCES, ProblemInput.STEPS_TOTAL, ProblemInput.GPU_TYPE_HELD}
    )

    def __post_init__(self) -> None:
        if self.sharing_capacity not in range(5):
            raise InvalidInput(f"sharing_capacity must be a whole number in [0, 4], got {self.sharing_capacity!r}")

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """The running jobs, those that start, and then all others in order, alone, for GPUs that become free."""
        refuse_unused(self, problem)
        cluster = _Cluster(problem, self.sharing_capacity)
        cluster.keep_running()
        rank = service_gpu_s(problem)
        waiting = sorted(cluster.waiting, key=lambda job: (rank[job], job))
        may_share = not cluster.fit_alone(waiting)
        for job in waiting:
            if not (may_share and cluster.joins(job, rank)):
                cluster.start_alone(job)
        return cluster.answer(waiting)


def service_gpu_s(problem: AllocationProblem) -> Floats:
    """Estimated GPU-seconds of each whole job on its fastest type, (J,); infinite if it cannot run."""
    rate = np.where(problem.gpu_counts > 0, problem.rate_as_requested_steps_per_s, 0.0).max(axis=1, initial=0.0)
    return np.where(rate > 0, problem.gpus_asked * problem.steps_total / np.where(rate > 0, rate, 1.0), math.inf)


def sharing_scores(problem: AllocationProblem) -> Ints:
    """The sharing score of each job, (J,): 0 tiny, 1 medium, 2 jumbo; without pairs it is 2."""
    several = problem.member_count[problem.member_configuration] > 1
    job, rates = problem.member_job[several], problem.member_rate_steps_per_s[several]
    alone = problem.rate_alone_steps_per_s[job]
    runs = (alone > 0) & (problem.gpu_counts > 0)
    relative = np.divide(rates, alone, out=np.zeros(rates.shape), where=runs)
    total = np.bincount(job, weights=relative.sum(axis=1), minlength=problem.job_count)
    count = np.bincount(job, weights=runs.sum(axis=1), minlength=problem.job_count)
    mean = np.divide(total, count, out=np.zeros(problem.job_count), where=count > 0).round(9)
    return np.asarray(np.where(mean >= TINY, 0, np.where(mean >= MEDIUM, 1, 2)))


class _Cluster:
    """What runs where: each job alone, or in a pair that counts for both."""

    def __init__(self, problem: AllocationProblem, sharing_capacity: float) -> None:
        self._problem, self._capacity = problem, sharing_capacity
        self._room = FreeResources(problem)
        self._score = sharing_scores(problem)
        self._type: dict[int, int] = {}  # of each running job, in order of start
        self._partner: dict[int, int] = {}
        rows = np.flatnonzero(problem.member_count == 2)
        first = np.searchsorted(problem.member_configuration, rows)
        one, other = problem.member_job[first].tolist(), problem.member_job[first + 1].tolist()
        self._pair = {frozenset(pair): row for *pair, row in zip(one, other, rows.tolist(), strict=True)}
        self._rates = problem.member_rate_steps_per_s

    def keep_running(self) -> None:
        """Jobs that hold a type stay there, and pairs of the memory stay pairs."""
        p = self._problem
        job = {name: row for row, name in enumerate(p.job_ids)}
        before = {job[a]: job.get(b, -1) for a, b in json.loads(p.memory or b"{}").items() if a in job}
        for row in self._room.runnable:
            gpu_type, partner = int(p.gpu_type_held[row]), before.get(row, -1)
            if gpu_type < 0:
                continue
            together = self._type.get(partner) == gpu_type and partner not in self._partner
            if together and self._can_share(row, partner):
                self._join(row, partner)
            elif self._room.fits(row)[gpu_type]:
                self._start(row, gpu_type)

    @property
    def waiting(self) -> list[int]:
        """The jobs that could run and do not."""
        return [job for job in self._room.runnable if job not in self._type]

    def fit_alone(self, jobs: list[int]) -> bool:
        """Whether all of these jobs have room, each alone."""
        room = self._room.copied()
        for job in jobs:
            gpu_type = room.fastest(job)
            if gpu_type < 0:
                return False
            room.start(job, gpu_type)
        return True

    def joins(self, job: int, service: Floats) -> bool:
        """Starts the job next to the first running job that may share; returns whether there is one."""
        for partner in self._type:
            if (
                partner not in self._partner
                and self._score[job] + self._score[partner] <= self._capacity
                and service[job] <= LONGER_MAX * service[partner]
                and self._can_share(job, partner)
            ):
                self._join(job, partner)
                return True
        return False

    def start_alone(self, job: int) -> None:
        """Starts the job on the fastest type that has room, if any has."""
        gpu_type = self._room.fastest(job)
        if gpu_type >= 0:
            self._start(job, gpu_type)

    def answer(self, waiting: list[int]) -> Allocation:
        """Shares of 0 and 1, and the round: running groups in order of start, then waiting jobs."""
        p, groups = self._problem, list[tuple[int, int]]()
        for job, gpu_type in self._type.items():
            partner = self._partner.get(job)
            if partner is None:
                groups.append((self._room.row(job), gpu_type))
            elif job < partner:
                groups.append((self._pair[frozenset((job, partner))], gpu_type))
        share = np.zeros(p.fits.shape)
        for row, gpu_type in groups:
            share[row, gpu_type] = 1.0
        rest = np.array([job for job in waiting if job not in self._type], dtype=np.int64)
        named = np.concatenate([np.array(groups, dtype=np.int64).reshape(-1, 2), places(p, rest, share)])
        pairs = {p.job_ids[a]: p.job_ids[b] for a, b in self._partner.items()}
        answer = ruled(p, share, objective=jobs_running(p, share))
        return replace(answer, next_round=named.astype(np.int64), memory=as_memory(pairs, pairs) if pairs else b"")

    def _can_share(self, job: int, partner: int) -> bool:
        """Whether a pair of them makes progress and has room where the partner runs."""
        p, row = self._problem, self._pair.get(frozenset((job, partner)))
        if row is None:
            return False
        gpu_type, first = self._type[partner], int(np.searchsorted(p.member_configuration, row))
        more = p.demand[row] - self._room.demand[partner]
        return bool((self._rates[first : first + 2, gpu_type] > 0).all() and (more <= self._room.free[gpu_type]).all())

    def _join(self, job: int, partner: int) -> None:
        gpu_type, row = self._type[partner], self._pair[frozenset((job, partner))]
        self._room.free[gpu_type] -= self._problem.demand[row] - self._room.demand[partner]
        self._type[job] = gpu_type
        self._partner |= {job: partner, partner: job}

    def _start(self, job: int, gpu_type: int) -> None:
        self._room.start(job, gpu_type)
        self._type[job] = gpu_type
