"""The core's table of jobs, with owed and received time: one row per job, in order of serials (see `identities`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.mechanism import sizes
from gavelpy.mechanism.app_table import AppTable
from gavelpy.mechanism.claims import ClaimTable
from gavelpy.mechanism.identities import Identities, by_serial
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobFact, JobState, Resumes, states_after
from gavelpy.mechanism.node_resources import needs_of
from gavelpy.mechanism.row_lists import RowLists
from gavelpy.mechanism.sizes import JobSizes
from gavelpy.mechanism.waiting import Apart, Move
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.completion_value import CompletionValue
from gavelpy.model.job import JobId, JobSpec, lost_spec

if TYPE_CHECKING:
    from gavelpy.mechanism.selection import WakeupSteps

FIRST_ROWS = 64
OPEN = -2  # in total_by
INT_COLUMNS = (
    "state", "gpus", "failures", "lease", "lease_type", "stopping", "gpu_first", "stopping_first", "saved_lease",
    "saved_in", "lease_in", "stopping_in", "solved", "entity", "partner", "misses", "losses", "avoid", "held_type",
    "slow_lease", "done_lease", "resumes", "hold", "taken_by",
    "unmet", "array", "array_limit", "failure", "system_failures", "memory_failures", "total_by", "part",
)  # fmt: skip
FLOAT_COLUMNS = (
    "weight", "steps_total", "steps_done", "steps_saved", "submitted_s", "deadline_at_s", "since_s",
    "attained_gpu_s", "isolated_s", "isolated_rate", "isolated_steps", "until_s", "stopping_until_s",
    "began_s", "worked_s", "retry_at_s", "done_at_s", "begin_at_s", "failed_at", "sized_s", "restart_s", "save_s",
)  # fmt: skip
# Integers, from settings and specs: 0 at first, in no snapshot.
DERIVED_COLUMNS = ("rank", "owner", "job_type", "smallest")
JOB_COLUMNS = ("partner", "taken_by")  # rows of other jobs
DIRECTORY_COLUMNS = ("saved_in", "lease_in", "stopping_in")
WIDE_COLUMNS = ("rate", "target", "owed_s", "received_s")


class JobTable:
    """All jobs but those that have left; N rows allocated, `count` used. Integer columns use -1 for none."""

    state: Ints  # (N,) JobState
    gpus: Ints  # (N,) all of one type: of its lease, else those that it needs at least; see sizes
    smallest: Ints  # (N,) the least of several sizes, 0 = it has one
    failures: Ints  # (N,) that count towards failures_max; see `failures` for this and the next three
    system_failures: Ints  # (N,)
    memory_failures: Ints  # (N,)
    failure: Ints  # (N,) FailureClass of the last failure
    lease: Ints  # (N,) serial of the lease granted or running
    lease_type: Ints  # (N,) its GPU type
    stopping: Ints  # (N,) serial of the lease that is being stopped
    gpu_first: Ints  # (N,) first GPU of the lease; gang_gpus has all GPUs of gangs
    stopping_first: Ints  # (N,) first GPU of the lease that is being stopped; stopping_gangs has all GPUs of gangs
    saved_lease: Ints  # (N,) lease that wrote the checkpoint of steps_saved; -1 = none, or not by a LeaseIterator
    saved_in: Ints  # (N,) row of the directory that holds that checkpoint
    lease_in: Ints  # (N,) row of the directory that the lease writes to
    stopping_in: Ints  # (N,) the same of the lease that is being stopped
    solved: Ints  # (N,) epoch of the first allocation that counted the job
    entity: Ints  # (N,) row in entities, -1 = none
    partner: Ints  # (N,) serial of the job whose lease is on the same GPUs
    misses: Ints  # (N,) consecutive leases without progress; see eligibility
    losses: Ints  # (N,) consecutive starts that were lost with their nodes
    avoid: Ints  # (N,) row of the node that lost the last of them
    slow_lease: Ints  # (N,) the last lease that was protected as the job had reported no progress; see planning
    resumes: Ints  # (N,) Resumes: whether the job is known to resume after a stop
    unmet: Ints  # (N,) jobs that it comes after and that are not over
    part: Ints  # (N,) part of the cluster that the job may use, -1 = none now; see windows
    array: Ints  # (N,) serial of the first job of its array
    array_limit: Ints  # (N,) how many jobs of the array compete for GPUs at once, 0 = all
    taken_by: Ints  # (N,) the job of a higher priority class that got its last GPUs; until its next lease
    rank: Ints  # (N,) position of its priority class, 0 = highest; see priority_classes
    owner: Ints  # (N,) place of its owner in owners
    job_type: Ints  # (N,) place of its job type in job_types, -1 = none
    hold: Ints  # (N,) who holds the job back; see eligibility
    done_lease: Ints  # (N,) serial of the lease under which the last step was reported; see finishing
    total_by: Ints  # (N,) lease under which steps_total was announced; -1 = as submitted, OPEN = not yet, it is assumed
    held_type: Ints  # (N,) GPU type of which free GPUs are reserved for the job in this round; see reservations

    weight: Floats  # (N,)
    steps_total: Floats
    steps_done: Floats
    steps_saved: Floats  # at the last checkpoint
    submitted_s: Floats
    deadline_at_s: Floats  # absolute
    since_s: Floats  # end of the lease's time that is booked in received_s
    attained_gpu_s: Floats
    sized_s: Floats  # running time of jobs with several sizes; of others, attained_gpu_s has it
    isolated_s: Floats  # time the steps up to isolated_steps would have taken on an isolated share
    isolated_rate: Floats
    isolated_steps: Floats
    until_s: Floats  # (N,) the latest end of the lease in any plan
    stopping_until_s: Floats  # (N,) the same of the lease that is being stopped
    began_s: Floats  # (N,) start of the last lease, or its grant if it has not started
    worked_s: Floats  # (N,) first report of progress under the last lease; negative = none yet
    restart_s: Floats  # (N,) measured from a start to the first step, 0 = not measured; see turn_costs
    save_s: Floats  # (N,) measured from an order to stop to the end of the lease, likewise
    done_at_s: Floats  # (N,) when the last step was reported
    failed_at: Floats  # (N,) the furthest step at which it failed
    retry_at_s: Floats  # (N,) the job gets no lease before this time
    begin_at_s: Floats  # (N,) nor before this time, which its owner chose

    rate: Floats  # (N, T) estimated steps/s, on the best of several sizes; NaN = unknown
    target: Floats  # (N, T) share of the allocation in force, alone; see `claims` for other time
    owed_s: Floats  # (N, T) target integrated over time
    received_s: Floats  # (N, T) time under lease, alone

    def __init__(self, type_count: int) -> None:
        self.count = 0
        self.ids = Identities()
        self.specs: list[JobSpec] = []
        self.serial_of: dict[JobId, int] = {}  # row of the last job with this id; ids of jobs that are over are free
        self.gang_gpus: dict[int, Ints] = {}
        self.stopping_gangs: dict[int, Ints] = {}
        self.lost_leases: dict[int, dict[int, Ints]] = {}  # GPUs by job and lease; see reports
        self.loss_nodes: dict[int, list[int]] = {}  # rows of the nodes of consecutive losses, by job; see eligibility
        self.dependents: dict[int, list[int]] = {}  # jobs that come after a job that is not over; see eligibility
        self.apart: dict[int, Apart] = {}  # of jobs that waited for GPUs in one place; see consolidation
        self.moved: dict[int, Move] = {}  # of jobs that made a place for a gang, the last move; see defragmentation
        self.relax_s = math.inf  # when the next of them may be further apart
        self.sizes: dict[int, JobSizes] = {}  # of jobs with several, active or over
        self.measured_gib: dict[int, float] = {}  # most GPU memory that jobs, active or over, used; see gpu_memory
        self.limited: dict[int, None] = {}  # unfinished jobs with a choice of nodes, in order; see node_sets
        self.featured: dict[int, tuple[str, ...]] = {}  # what unfinished jobs need of agents, if anything; in order
        self.needs: dict[int, tuple[int, int]] = {}  # of unfinished jobs that declare any; see node_resources
        self.valued: dict[int, tuple[float, ...]] = {}  # what the end of unfinished jobs is worth, if it is stated
        self.booked: dict[int, str] = {}  # reservations of unfinished jobs that run within one only; see windows
        self.ended_blockers: list[int] = []  # of those with dependents, that are over since they were looked at
        self.entities: list[str] = []
        self.job_types: dict[str, int] = {}  # number of each job type, in the same order
        self.owners: dict[str, int] = {}  # number of each owner of a job, in order of their first jobs
        self.any_refused = False  # whether the owner of any job, active or over, refused preemption
        self.any_failed = False  # whether a lease of any job, active or over, failed or was lost: see failures
        self.any_turn_measured = False  # whether restart_s or save_s of any job, active or over, is known
        self.any_timed = False  # whether the owner of any job, active or over, limited its running time
        self.any_held = False  # whether GPUs may be reserved for any job: see reservations
        self.any_gated = False  # whether any job was ever held, delayed, limited, paused or done before its lease ended
        self.rule_columns: dict[str, Floats] = {}  # (N, T) each, of rules that store more about jobs; 0 at first
        self.claims, self.apps = ClaimTable(), AppTable()
        self.kernels: WakeupSteps | None = None  # in place of numpy, if a shell has set them
        for name in INT_COLUMNS:
            setattr(self, name, np.full(FIRST_ROWS, -1, dtype=np.int64))
        for name in DERIVED_COLUMNS:
            setattr(self, name, np.zeros(FIRST_ROWS, dtype=np.int64))
        for name in FLOAT_COLUMNS:
            setattr(self, name, np.zeros(FIRST_ROWS))
        for name in WIDE_COLUMNS:
            setattr(self, name, np.zeros((FIRST_ROWS, type_count)))
        self.lists = RowLists(self)

    def add(self, spec: JobSpec, gpu_types: tuple[str, ...], now_s: float) -> int:
        """Adds a job; returns its row."""
        row, serial = self.count, self.ids.add()
        self.reserve(row + 1)
        self.count += 1
        self.specs.append(spec)
        self.serial_of[spec.id] = row
        self.state[row] = JobState.WAITING
        self.gpus[row] = spec.gpus
        self.failures[row] = self.system_failures[row] = self.memory_failures[row] = 0
        self.misses[row] = self.losses[row] = self.unmet[row] = 0
        self.resumes[row] = Resumes.BY_OWNER if spec.preemptible else Resumes.UNKNOWN
        if spec.no_preempt:
            self.resumes[row], self.any_refused = Resumes.REFUSED, True
        self.array[row] = serial - spec.array_position if spec.array_size else -1
        self.array_limit[row] = spec.array_limit
        self.any_timed = self.any_timed or spec.time_s > 0
        if spec.is_limited:
            self.limited[row] = None
        if features := spec.features:
            self.featured[row] = features
        if needs := needs_of(spec):
            self.needs[row] = needs
        if spec.app:
            self.apps.joined(row, serial, spec.app)
        if spec.completion_value:
            self.valued[row] = CompletionValue.parse(spec.completion_value).row
        self.part[row] = -1 if spec.reservation else 0
        if spec.reservation:
            self.booked[row] = spec.reservation
        self.hold[row] = 0 if spec.hold else -1
        is_ordered = spec.hold or spec.begin_s or spec.after_ok or spec.after_any or spec.array_limit
        self.any_gated = self.any_gated or bool(is_ordered or spec.reservation)
        self.begin_at_s[row] = now_s + spec.begin_s
        if spec.entity and spec.entity not in self.entities:
            self.entities.append(spec.entity)
        self.entity[row] = self.entities.index(spec.entity) if spec.entity else -1
        self.number(row, spec)
        self.weight[row] = spec.weight
        self.steps_total[row] = spec.steps_total
        self.total_by[row] = OPEN if spec.open_ended else -1
        self.submitted_s[row] = now_s
        self.deadline_at_s[row] = now_s + spec.deadline_s if math.isfinite(spec.deadline_s) else math.inf
        unknown = 0.0 if spec.rates_steps_per_s else math.nan
        self.rate[row] = [spec.rates_steps_per_s.get(t, unknown) if spec.may_run_on(t) else 0.0 for t in gpu_types]
        if spec.sizes:
            sizes.add(self, row, gpu_types)
        return row

    def number(self, row: int, spec: JobSpec) -> None:
        """Sets the columns that have names as numbers."""
        self.owner[row] = self.owners.setdefault(spec.owner, len(self.owners))
        self.job_type[row] = self.job_types.setdefault(spec.job_type, len(self.job_types)) if spec.job_type else -1
        self.smallest[row] = spec.sizes[0] if spec.sizes else 0

    def number_again(self) -> None:
        """Sets these columns of all jobs, with the numbers of names that are left."""
        self.owners, self.job_types = {}, {}
        owners, types = self.owners, self.job_types
        self.owner[: self.count] = [owners.setdefault(spec.owner, len(owners)) for spec in self.specs]
        named = (spec.job_type for spec in self.specs)
        self.job_type[: self.count] = [types.setdefault(name, len(types)) if name else -1 for name in named]
        self.smallest[: self.count] = [spec.sizes[0] if spec.sizes else 0 for spec in self.specs]

    def skip(self, count: int, gpu_types: tuple[str, ...], now_s: float) -> None:
        """Adds jobs up to `count`, with lost records; they count as failed."""
        for serial in range(self.ids.next_serial, count):
            row = self.add(lost_spec(serial), gpu_types, now_s)
            self.state[row] = JobState.FAILED

    def add_type(self, gpu_type: str) -> None:
        """Adds a column for a new GPU type."""
        for name in WIDE_COLUMNS:
            column = getattr(self, name)
            setattr(self, name, np.column_stack([column, np.zeros(len(column))]))
        for name, column in self.rule_columns.items():
            self.rule_columns[name] = np.column_stack([column, np.zeros(len(column))])
        for row, spec in enumerate(self.specs):
            unknown = 0.0 if spec.rates_steps_per_s else math.nan
            self.rate[row, -1] = spec.rates_steps_per_s.get(gpu_type, unknown) if spec.may_run_on(gpu_type) else 0.0
        sizes.add_type(self, gpu_type)

    def change(self, rows: Ints, fact: JobFact) -> None:
        """Moves jobs along the lifecycle table."""
        if not len(rows):
            return
        self.state[rows] = states_after(self.state[rows], fact)
        if fact in (JobFact.FINISHED, JobFact.CANCELLED, JobFact.GIVEN_UP):
            self.lists.ended(rows)
            for row in rows.tolist() if self.apps.members else ():
                self.apps.leave(row)
            if self.dependents:
                self.ended_blockers += [row for row in rows.tolist() if row in self.dependents]
            for kept in (
                self.limited,
                self.featured,
                self.needs,
                self.booked,
                self.valued,
                self.lost_leases,
                self.loss_nodes,
            ):
                for row in rows.tolist() if kept else ():
                    kept.pop(row, None)

    def set_leases(self, rows: Ints | int, leases: Ints | int) -> None:
        """Sets the serials of leases that these jobs have, granted or running; -1 = none."""
        self.lease[rows] = leases
        self.lists.leases_changed(rows)

    @property
    def active(self) -> Ints:
        """Serials of jobs that are not over, ascending."""
        return self.lists.active

    def are_over(self, serials: Ints) -> Bools:
        """Whether these jobs are over, also those that have left, (K,)."""
        rows = self.ids.rows(serials)
        return np.where(rows < 0, (serials >= 0) & (serials < self.ids.next_serial), self.state[rows] > LAST_ALIVE)

    def living_jobs(self, owner: str) -> int:
        """How many of an owner's jobs are not over."""
        return int(np.count_nonzero(self.owner[self.active] == self.owners.get(owner, -1)))

    @property
    def any_limited(self) -> bool:
        """Whether any unfinished job may not use all nodes: see `node_sets`."""
        return bool(self.limited or self.booked)

    @property
    def unmeasured(self) -> Ints:
        """Serials of active jobs with an unknown rate on some type, ascending."""
        active = self.active
        is_unknown: Bools = np.asarray(np.isnan(self.rate[active]).any(axis=1))
        for k in sizes.several(self, active).tolist():
            is_unknown[k] = sizes.any_unknown(self, int(active[k]))
        return active[is_unknown]

    @property
    def by_serial(self) -> JobTable:
        """This table for shells: to be read by serial, not by row."""
        return by_serial(self)

    @property
    def with_stopping(self) -> Ints:
        """Jobs, active or over, with a stopping lease, ascending."""
        return np.flatnonzero(self.stopping[: self.count] >= 0)

    @property
    def leased(self) -> Ints:
        """Serials of jobs with a lease granted or running, ascending."""
        return self.lists.leased

    @property
    def share(self) -> Floats:
        """Share of each job on each type in the allocation in force, alone and co-located, (N, T)."""
        return self.total("target")

    def total(self, name: str) -> Floats:
        """`target`, `owed_s` or `received_s` of each job, with its claims, (N, T); do not write to it."""
        own: Floats = getattr(self, name)
        return own + self.claims.by_job(name, *own.shape) if self.claims.count else own

    def hold_claims(self, rows: Ints) -> Bools:
        """Whether the leases of these jobs count in claims, not in the dense columns, (K,)."""
        return np.asarray((self.partner[rows] >= 0) | (self.smallest[rows] > 0))

    def ran_s(self, rows: Ints, now_s: float) -> Floats:
        """Running time of these jobs under all their leases so far, (K,)."""
        since_s = self.since_s[rows]
        booked_s: Floats = self.attained_gpu_s[rows] / self.gpus[rows]
        booked_s = np.where(self.smallest[rows] > 0, self.sized_s[rows], booked_s) if self.sizes else booked_s
        return booked_s + np.where((self.lease[rows] >= 0) & (since_s >= 0), now_s - since_s, 0.0)

    def with_partners(self, rows: Ints) -> Ints:
        """These jobs and their co-located partners."""
        partners = self.partner[rows]
        return np.union1d(rows, partners[partners >= 0])

    def marks(self, rows: Ints) -> Bools:
        """Whether each job is among `rows`, (count,): for set differences without sorting."""
        marked = np.zeros(self.count, dtype=np.bool_)
        marked[rows] = True
        return marked

    def gpus_held(self, row: int) -> Ints:
        """GPUs of a job's lease."""
        gang = self.gang_gpus.get(row)
        return gang if gang is not None else self.gpu_first[row : row + 1]

    def gpus_stopping(self, row: int) -> Ints:
        """GPUs of a job's stopping lease that may still be in use; empty without such a lease."""
        gang = self.stopping_gangs.get(row)
        first = self.stopping_first[row : row + 1]
        return gang if gang is not None else first[first >= 0]

    def stop(self, rows: Ints) -> None:
        """Makes the leases of these jobs their stopping leases; they must not have any yet."""
        self.stopping[rows] = self.lease[rows]
        self.stopping_first[rows], self.stopping_in[rows] = self.gpu_first[rows], self.lease_in[rows]
        self.stopping_until_s[rows] = self.until_s[rows]
        for row in rows[self.gpus[rows] > 1].tolist():
            self.stopping_gangs[row] = self.gang_gpus[row]

    def stopped(self, rows: Ints) -> None:
        """Removes the stopping leases of these jobs, which have ended."""
        self.stopping[rows] = self.stopping_first[rows] = self.stopping_in[rows] = -1
        self.stopping_until_s[rows] = 0.0
        for row in rows[(self.gpus[rows] > 1) | (self.smallest[rows] > 0)].tolist():
            self.stopping_gangs.pop(row, None)

    def stopping_on(self, gpus: Bools) -> Ints:
        """Jobs, active or over, with a stopping lease that may still use any of these GPUs (G,); serials, ascending."""
        first = self.stopping_first[: self.count]
        rows = np.flatnonzero(first >= 0)
        hit = gpus[first[rows]]
        gangs = [row for row, held in self.stopping_gangs.items() if gpus[held].any()]
        return np.union1d(rows[hit], np.array(gangs, dtype=np.int64))

    def listed_again(self) -> None:
        """The rows have changed: lists all jobs again when they are needed."""
        self.lists.reset()

    def reserve(self, count: int) -> None:
        """Allocates at least this many rows; capacity doubles, so the amortized cost of a new job is constant."""
        while len(self.state) < count:
            for name in (*INT_COLUMNS, *DERIVED_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS):
                column = getattr(self, name)
                extra = np.full(column.shape, -1 if name in INT_COLUMNS else 0, dtype=column.dtype)
                setattr(self, name, np.concatenate([column, extra]))
            for name, column in self.rule_columns.items():
                self.rule_columns[name] = np.concatenate([column, np.zeros_like(column)])

    def rule_column(self, name: str) -> Floats:
        """A column of the rules in force, (N, T); added if missing."""
        if name not in self.rule_columns:
            self.rule_columns[name] = np.zeros_like(self.owed_s)
        return self.rule_columns[name]
