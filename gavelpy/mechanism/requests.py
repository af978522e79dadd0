"""The core's requests to slow services: allocations from the policy, and rates of jobs submitted without any.

At most one request of each kind is open. An answer applies to the jobs that are still active. If jobs or GPUs changed
in the meantime, the request is sent again, and so is an open request after a restart.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gavelpy.mechanism import app_table, node_resources, priority_classes, sizes, team_plan
from gavelpy.mechanism import problem_columns as numpy_steps
from gavelpy.mechanism.claims import ALONE, ClaimKeys
from gavelpy.mechanism.commands import ClusterPart, EstimateThroughput, RequestedSize, SizesOfJobs, SolveAllocation
from gavelpy.mechanism.domains import can_run, max_gang
from gavelpy.mechanism.events import NO_INTS, AllocationSolved, ThroughputEstimated
from gavelpy.mechanism.gpu_memory import memory_of
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import LAST_ALIVE
from gavelpy.mechanism.named_round import is_named, pairs_of, renamed
from gavelpy.mechanism.non_preemptible import ALL_PREEMPTIBLE, NonPreemptible
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.teams import Team, entities_of
from gavelpy.mechanism.windows import OUTSIDE
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.completion_value import COLUMNS
from gavelpy.model.job import JobId
from gavelpy.model.problem import GPUS, THOUSANDTHS, AllocationProblem, Entity

NONE_OPEN = -1
FAILURES_MAX = 16  # consecutive failures until there is no retry without a change; the last pause is 2 ** 15 rounds


class AllocationRequest:
    """Whether the allocation in force is out of date, and the open request for a new one."""

    def __init__(self) -> None:
        self.stale = False
        self.has_stopped = False  # whether the last request, unless it is out of date, ends where the queue stops
        self.epoch = 0  # of the last request
        self.open_epoch = NONE_OPEN
        self.asked_s = -math.inf
        self.asked_jobs: Ints = NO_INTS
        self.failures = 0  # consecutive
        self.retry_s = -math.inf  # earliest retry after a failure
        self.again_at_s = math.inf  # when the policy must be called again
        self.memory = b""  # of the policy
        self.refused: dict[int, str] = {}  # jobs that the policy refuses, and why
        self.next_round: Ints = NO_INTS  # as the policy names it
        self._names = JobNames()

    @property
    def is_answered(self) -> bool:
        """Whether the allocation in force answers for the jobs and GPUs that there are."""
        return not self.stale and self.open_epoch == NONE_OPEN

    def may_ask(self, now_s: float, interval_s: float) -> bool:
        """Whether a new request is due and allowed."""
        return self.open_epoch == NONE_OPEN and now_s >= self.due_s(interval_s)

    def due_s(self, interval_s: float) -> float:
        """When a new request is due, if none is open; infinite = never."""
        return max(self.allowed_s(interval_s), -math.inf if self.stale else self.again_at_s)

    def allowed_s(self, interval_s: float) -> float:
        """Earliest time of the next request. A request at time 0 does not delay it, as in the original Gavel."""
        return max(self.retry_s, self.asked_s + interval_s if self.asked_s > 0 else 0.0)

    def renew(self) -> None:
        """Marks the allocation as out of date because jobs or GPUs changed; failures no longer delay a request."""
        self.stale, self.has_stopped = True, False
        self.retry_s = -math.inf

    def expire(self, now_s: float, every_s: float) -> None:
        """At the end of a round: marks an allocation that named the round as out of date.

        Any other `every_s` after its request, as answers depend on time; 0 = never.
        """
        is_old = now_s > self.asked_s if is_named(self.next_round) else every_s and now_s >= self.asked_s + every_s
        if is_old and self.open_epoch == NONE_OPEN:
            self.stale = True

    def put_off(self, now_s: float, round_s: float) -> None:
        """The policy failed: the same request is sent again after one round, then two, then four."""
        self.failures += 1
        if not self.stale:
            pause_s = round_s * 2.0 ** (self.failures - 1) if self.failures <= FAILURES_MAX else math.inf
            self.retry_s = now_s + pause_s
        self.stale = True

    def ask(
        self,
        jobs: JobTable,
        pool: GpuPool,
        rows: Ints,
        now_s: float,
        settings: MechanismSettings,
        exempt: NonPreemptible = ALL_PREEMPTIBLE,
    ) -> list[SolveAllocation]:
        """Opens a request for these jobs, if there are any. `exempt` jobs and their GPUs are excluded."""
        self.stale, self.again_at_s = False, math.inf
        if not len(rows):
            return []
        self.epoch += 1
        self.open_epoch, self.asked_s, self.asked_jobs = self.epoch, now_s, rows
        names = self._names.of(jobs, rows)
        problem = problem_of(jobs, pool, rows, now_s, exempt, settings.teams, self.memory, names)
        parts = _parts(jobs, pool, settings, rows, exempt.open_gpus)
        tiers = () if parts else priority_classes.tiers(jobs, pool, settings, rows, exempt.open_gpus)
        specs = [jobs.specs[row] for row in rows.tolist()] if settings.packing else []
        job_types = tuple(spec.job_type for spec in specs)
        memory = memory_of(jobs, rows, pool.gpu_types, settings)
        problem, limits = team_plan.limits_of_problem(jobs, pool, settings, rows, exempt.jobs, problem)
        settled = (settings.packing, job_types, memory, tiers, settings.fill_leftover, parts)
        several = team_plan.within_quotas(_sizes_of_problem(jobs, pool, rows, exempt), limits)
        return [SolveAllocation(self.epoch, problem, rows, *settled, several, limits)]

    def renumber(self, new: Ints) -> None:
        """Replaces the row of each job by its new one; -1 = the job has left."""
        self.asked_jobs, self._names = renumbered(self.asked_jobs, new), JobNames()
        self.refused = {int(new[row]): why for row, why in self.refused.items() if new[row] >= 0}
        if is_named(self.next_round):
            self.next_round = renamed(self.next_round, new)

    def forget(self) -> bool:
        """Drops the open request; returns whether there was one. It may be sent again at once."""
        was_open = self.open_epoch != NONE_OPEN
        if was_open:
            self.open_epoch, self.asked_s, self.has_stopped = NONE_OPEN, -math.inf, False
        return was_open

    def close(self, epoch: int) -> bool:
        """Closes the open request if the answer belongs to it; returns whether it does."""
        if epoch != self.open_epoch:
            return False
        self.open_epoch = NONE_OPEN
        return True

    def apply(self, answer: AllocationSolved, jobs: JobTable, forgotten_s: float = 0.0) -> None:
        """Puts the shares in force; those of jobs that are over have no effect.

        A claim without a share is deleted if both its owed and its received time are below `forgotten_s`.
        """
        self.failures, self.retry_s = 0, -math.inf
        self.again_at_s, self.memory = self.asked_s + answer.again_s, answer.memory
        self.refused = dict(zip(answer.refused_jobs.tolist(), answer.refused_why, strict=True))
        self.next_round = answer.next_round
        jobs.target[jobs.lists.timed] = 0.0
        is_sized = jobs.smallest[answer.jobs] > 0
        plain = ~is_sized
        jobs.target[answer.jobs[plain], answer.gpu_type[plain]] = answer.share[plain]
        jobs.lists.time_passes(answer.jobs)
        if len(answer.pair_share) or jobs.claims.count or is_sized.any() or is_named(answer.next_round):
            _put_claims(answer, jobs, forgotten_s)
        asked = self.asked_jobs
        jobs.solved[asked] = np.where(jobs.solved[asked] < 0, answer.epoch, jobs.solved[asked])


def _parts(
    jobs: JobTable, pool: GpuPool, settings: MechanismSettings, rows: Ints, open_gpus: Bools | None
) -> tuple[ClusterPart, ...]:
    """The parts of the cluster with some of these jobs, in order of their numbers; empty if it is not divided."""
    if not pool.is_divided:
        return ()
    found, part_of = [], pool.part_of
    for part in np.unique(jobs.part[rows]).tolist():
        here = np.flatnonzero(jobs.part[rows] == part)
        gpus = (pool.usable if open_gpus is None else open_gpus) & (part_of == part)
        tiers = priority_classes.tiers(jobs, pool, settings, rows[here], gpus)
        found.append(ClusterPart(here, _capacity(jobs, pool, rows, gpus), tiers, is_reserved=part != OUTSIDE))
    return tuple(found)


def _capacity(jobs: JobTable, pool: GpuPool, rows: Ints, gpus: Bools) -> Ints:
    """What the problem of these jobs has of each resource on these GPUs (G,), (T, R)."""
    others, counts = node_resources.rows_of(jobs, pool, rows, gpus), pool.type_counts(gpus)[:, None] * THOUSANDTHS
    return counts if others is None else np.column_stack([counts, others.capacity])


def _put_claims(answer: AllocationSolved, jobs: JobTable, forgotten_s: float) -> None:
    claims, is_alive = jobs.claims, jobs.state[: jobs.count] <= LAST_ALIVE
    in_use = (jobs.lease[claims.first] >= 0) & (jobs.partner[claims.first] == claims.second)
    in_use &= (claims.second >= 0) | (jobs.gpus[claims.first] == claims.gpus)
    is_worth_it = np.maximum(claims.owed_s, claims.received_s) >= forgotten_s
    lives = is_alive[claims.first] & (is_alive[claims.second] | (claims.second < 0))
    members, pair_share = answer.pair_jobs, answer.pair_share
    both = np.flatnonzero(is_alive[members].all(axis=1) & (pair_share > 0))
    one = np.flatnonzero((jobs.smallest[answer.jobs] > 0) & is_alive[answer.jobs] & (answer.share > 0))
    own = answer.jobs[one]
    named = pairs_of(answer.next_round, is_alive)
    fresh = ClaimKeys(
        np.concatenate([named.first, own, members[both, 0]]),
        np.concatenate([named.second, np.full(len(own), ALONE), members[both, 1]]),
        np.concatenate([named.gpus, answer.sizes[one] if len(own) else own, jobs.gpus[members[both, 0]]]),
        np.concatenate([named.gpu_type, answer.gpu_type[one], answer.pair_gpu_type[both]]),
    )
    shares = np.concatenate([np.zeros(len(named.first)), answer.share[one], pair_share[both]])
    claims.put(fresh, shares, lives & (in_use | is_worth_it))


class ThroughputRequest:
    """Jobs with unknown rates, and the open request for some of them."""

    def __init__(self) -> None:
        self.wanted: list[int] = []  # jobs of the next request
        self.asked: Ints = NO_INTS  # jobs of the open request that have no answer yet, ascending

    @property
    def may_ask(self) -> bool:
        """Whether a request is due and none is open."""
        return bool(self.wanted) and not len(self.asked)

    def want(self, rows: list[int]) -> None:
        """Adds these jobs to the next request."""
        self.wanted += rows

    def renumber(self, new: Ints) -> None:
        """Replaces the row of each job by its new one; -1 = the job has left."""
        self.wanted = [int(new[row]) for row in self.wanted if new[row] >= 0]
        self.asked = renumbered(self.asked, new)

    def ask(self, jobs: JobTable, pool: GpuPool) -> EstimateThroughput:
        """Opens a request for all jobs that wait for one. `apply` ignores answers for jobs that are over by then."""
        rows = np.unique(np.array(self.wanted, dtype=np.int64))
        self.wanted = []
        wanted = [(row, size) for row in rows.tolist() for size in sizes.unknown(jobs, row)]
        question = estimate_of(jobs, np.array(wanted, dtype=np.int64).reshape(-1, 2), pool)
        self.asked = np.unique(question.jobs)
        return question

    def apply(self, answer: ThroughputEstimated, jobs: JobTable) -> bool:
        """Stores the estimated rates; returns whether any active job got one."""
        self.asked = np.setdiff1d(self.asked, answer.jobs)
        rates: Floats = answer.rates_steps_per_s
        known = ~np.isnan(rates).all(axis=1) & (jobs.state[answer.jobs] <= LAST_ALIVE)
        rows, rates, types = answer.jobs[known], rates[known], rates.shape[1]  # types that joined since stay unknown
        is_any = bool(len(rows))
        if len(several := sizes.several(jobs, rows)):
            gpus = answer.sizes[known] if len(answer.sizes) else sizes.requested(jobs, rows)[0]
            for k in several.tolist():
                sizes.learn(jobs, int(rows[k]), int(gpus[k]), rates[k])
            is_plain = jobs.smallest[rows] == 0
            rows, rates = rows[is_plain], rates[is_plain]
        is_new = ~np.isnan(rates)
        for k in [k for k, row in enumerate(rows.tolist()) if jobs.specs[row].gpu_types]:
            is_new[k, jobs.rate[rows[k], :types] == 0.0] = False  # types that its owner does not allow
        jobs.rate[rows, :types] = np.where(is_new, rates, jobs.rate[rows, :types])
        return is_any


def estimate_of(jobs: JobTable, wanted: Ints, pool: GpuPool) -> EstimateThroughput:
    """The request for these rows of jobs and numbers of GPUs, (K, 2)."""
    rows, gpus = wanted.T
    specs = [jobs.specs[row] for row in rows.tolist()]
    several = tuple(RequestedSize(spec.gpus, spec.rates_steps_per_s) if spec.sizes else None for spec in specs)
    is_any = any(each is not None for each in several)
    types = tuple(spec.job_type for spec in specs)
    return EstimateThroughput(rows, types, gpus, pool.gpu_types, several if is_any else ())


class JobNames:
    """The ids of all jobs as an array, from which those of a problem are taken at once."""

    def __init__(self) -> None:
        self._ids: npt.NDArray[np.object_] = np.empty(0, dtype=np.object_)  # by row; with spare room
        self._known = 0

    def of(self, jobs: JobTable, rows: Ints) -> tuple[JobId, ...]:
        """The ids of the jobs in these rows."""
        if len(self._ids) < jobs.count:
            self._ids = np.concatenate([self._ids, np.empty(jobs.count, dtype=np.object_)])
        new = jobs.specs[self._known : jobs.count]
        self._ids[self._known : jobs.count] = [spec.id for spec in new]
        self._known = jobs.count
        return tuple(self._ids[rows].tolist())


def renumbered(rows: Ints, new: Ints) -> Ints:
    """The new rows of the jobs in these rows, without those that have left."""
    found = new[rows]
    return np.asarray(found[found >= 0])


def problem_of(
    jobs: JobTable,
    pool: GpuPool,
    rows: Ints,
    now_s: float,
    exempt: NonPreemptible = ALL_PREEMPTIBLE,
    teams: tuple[Team, ...] = (),
    memory: bytes = b"",
    names: tuple[JobId, ...] | None = None,
) -> AllocationProblem:
    """The allocation problem of these jobs now; also books the isolated time of the steps since the last problem.

    The capacity excludes GPUs that `exempt` jobs hold. Isolated shares divide the whole cluster among all jobs.
    """
    counts = pool.counts if exempt.open_gpus is None else pool.type_counts(exempt.open_gpus)
    usable = can_run(jobs, pool, rows, exempt.open_gpus)  # false: the rate is unknown, or the gang too large
    if len(several := sizes.several(jobs, rows)):
        gpus, rate = sizes.requested(jobs, rows[several])
        usable[several] = (rate > 0) & (gpus[:, None] <= max_gang(jobs, pool, rows[several], exempt.open_gpus))
    steps = numpy_steps if jobs.kernels is None else jobs.kernels
    steps.book_isolated(jobs, np.union1d(rows, exempt.jobs) if len(exempt.jobs) else rows, pool.counts)
    found, order = steps.columns_of(jobs, rows, usable, now_s), np.arange(len(rows))
    entity, entities = found.entity, tuple[Entity, ...]()
    if teams or jobs.entities:
        entities, row_of = entities_of(tuple(jobs.entities), teams)
        entity = row_of[entity]
    others = node_resources.rows_of(jobs, pool, rows, exempt.open_gpus)
    capacity, demand = counts[:, None] * THOUSANDTHS, found.gpus[:, None] * THOUSANDTHS
    app, apps = app_table.apps_of(jobs, rows)
    return AllocationProblem.of_known(
        job_ids=JobNames().of(jobs, rows) if names is None else names,
        gpu_types=pool.gpu_types,
        capacity=capacity if others is None else np.column_stack([capacity, others.capacity]),
        demand=demand if others is None else np.column_stack([demand, others.demand]),
        resources=(GPUS,) if others is None else (GPUS, *others.names),
        member_configuration=order,
        member_job=order,
        member_rate_steps_per_s=found.rate_steps_per_s,
        gpus_asked=found.gpus_asked,
        weight=found.weight,
        steps_remaining=found.steps_remaining,
        steps_total=found.steps_total,
        age_s=found.age_s,
        isolated_s=found.isolated_s,
        deadline_s=found.deadline_s,
        attained_gpu_s=found.attained_gpu_s,
        price_usd_per_gpu_h=pool.prices,
        entity=entity,
        gpu_type_held=found.gpu_type_held,
        gpus_held=np.where(found.gpu_type_held >= 0, jobs.gpus[rows], 0).astype(np.float64),
        job_type=found.job_type,
        owner=found.owner,
        restart_s=found.restart_s,
        completion_value=_values_of(jobs, rows),
        losses=app_table.losses(jobs, rows),
        app=app,
        apps=apps,
        job_types=tuple(jobs.job_types),
        owners=tuple(jobs.owners),
        entities=entities,
        memory=memory,
    )


def _values_of(jobs: JobTable, rows: Ints) -> Floats:
    """What the ends of these jobs are worth, (K, 4)."""
    found = np.zeros((len(rows), COLUMNS))
    for k in np.flatnonzero(np.isin(rows, list(jobs.valued))).tolist() if jobs.valued else ():
        found[k] = jobs.valued[int(rows[k])]
    return found


def _sizes_of_problem(jobs: JobTable, pool: GpuPool, rows: Ints, exempt: NonPreemptible) -> SizesOfJobs | None:
    """The sizes of the problem's jobs other than those that they requested; None without any."""
    several = sizes.several(jobs, rows)
    if not len(several):
        return None
    most = max_gang(jobs, pool, rows[several], exempt.open_gpus)
    own = [jobs.sizes[row] for row in rows[several].tolist()]
    position = np.repeat(np.arange(len(own)), [len(one.gpus) for one in own])
    gpus, rate = np.concatenate([one.gpus for one in own]), np.concatenate([one.rate for one in own])
    asked = np.array([jobs.specs[row].gpus for row in rows[several].tolist()])
    runs = (rate > 0) & (gpus[:, None] <= most[position])
    is_other = gpus != asked[position]
    found = np.where(runs, rate, 0.0)[is_other]
    return SizesOfJobs(several[position][is_other], gpus[is_other], found)
