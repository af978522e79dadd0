"""The true state of the cluster, and the invariants that the scheduler's beliefs must satisfy."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import FailureClass, LeaseEnded, Outcome
from gavelpy.mechanism.failures import TIME_LEFT_S_MIN
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.mechanism.reports import OPEN_MAX
from gavelpy.model.job import JobId

FINISH_GRACE_S = 60.0
SHARED = ""  # location of checkpoints in the shared directory


@dataclass(frozen=True)
class Checkpoint:
    """One complete checkpoint on a disk."""

    steps: float
    where: str  # SHARED, or the only machine that has it


class Truth:
    """The checkpoints on disks, and the last known beliefs of the scheduler."""

    def __init__(self, *, is_fencing: bool) -> None:
        self.is_fencing = is_fencing  # two copies of a job may run, but only one may count
        self.checkpoints: defaultdict[tuple[int, int], list[Checkpoint]] = defaultdict(list)  # by job and lease
        self.choices: dict[int, float] = {}  # checkpoint that a gang's lease resumes from, chosen once
        self.done: set[tuple[int, int]] = set()  # (job, lease) under which the last step was done
        self.totals: dict[JobId, float] = {}  # steps of jobs in all, if the scheduler does not know them
        self.plain: set[int] = set()  # jobs that use no checkpoint directory
        self.acknowledged: set[int] = set()
        self.cancelled: set[int] = set()
        self.finished: set[int] = set()
        self.leases: set[int] = set()  # serials seen
        self.lost: defaultdict[int, set[int]] = defaultdict(set)  # leases by job
        self.last_steps: dict[int, float] = {}  # when the last step under a lease was reported to the scheduler
        self.steps_saved: defaultdict[int, float] = defaultdict(float)  # according to the scheduler, when last checked
        self.saved_lease: defaultdict[int, int] = defaultdict(lambda: -1)

    def resume(self, job: int, named_lease: int, steps_min: float, machine: str, *, sees: bool) -> float:
        """The steps a lease resumes from: the newest checkpoint of the named lease that the machine can read."""
        # A finish that is reported late counts, and the order to end the newer lease may arrive after its start (0019).
        if not self.is_fencing and job not in self.finished:
            assert steps_min >= self.steps_saved[job], f"job {job} starts at {steps_min}, behind its checkpoint"
        if named_lease < 0:
            assert steps_min == 0.0, f"job {job} starts at step {steps_min} from nowhere"
            return 0.0
        readable = [c.steps for c in self.checkpoints[job, named_lease] if c.where == (SHARED if sees else machine)]
        newest = max(readable, default=-1.0)
        assert newest >= steps_min, f"job {job} goes to {machine}, which cannot read its checkpoint of {named_lease}"
        return newest

    def believed(self, core: SchedulerCore) -> None:
        """Checks that the scheduler's beliefs about jobs are true and that progress never decreases."""
        jobs, n = core.jobs, core.jobs.count
        known = np.array([self.steps_saved[job] for job in range(n)])
        for job in np.flatnonzero(jobs.steps_saved[:n] != known).tolist():
            self._saved(job, float(jobs.steps_saved[job]), int(jobs.saved_lease[job]), float(jobs.steps_total[job]))
        for job in np.flatnonzero(jobs.state[:n] == JobState.FINISHED).tolist():
            if job not in self.finished:
                assert any(done == job for done, _ in self.done), f"job {job} is called finished, and is not"
                self.finished.add(job)
        for job in self.finished:
            assert jobs.state[job] == JobState.FINISHED, f"job {job} had finished and is {jobs.state[job]}"

    def _saved(self, job: int, steps: float, lease: int, steps_total: float) -> None:
        assert steps > self.steps_saved[job], f"job {job} forgets its checkpoint of {self.steps_saved[job]} steps"
        known = {checkpoint.steps for checkpoint in self.checkpoints[job, lease]}
        is_done = steps == steps_total and lease < 0 and any(done == job for done, _ in self.done)
        is_newer = lease >= self.saved_lease[job]
        assert is_newer or is_done, f"lease {lease} of job {job} counts after a newer one did"
        assert steps in known or is_done, f"job {job} has no checkpoint of {steps} steps by lease {lease}: {known}"
        self.steps_saved[job], self.saved_lease[job] = steps, lease

    def last_step(self, leases: list[int], now_s: float) -> None:
        """Records that these leases' last steps were reported to the scheduler."""
        for lease in leases:
            self.last_steps.setdefault(lease, now_s)

    def revoked(self, leases: list[int], now_s: float) -> None:
        """Checks that no plan ends a lease whose job only has to exit."""
        for lease in leases:
            told_s = self.last_steps.get(lease, -math.inf)
            assert now_s >= told_s + FINISH_GRACE_S, f"lease {lease} is revoked {now_s - told_s} s after its last step"

    def reported_finish(self, core: SchedulerCore, job: int, lease: int) -> None:
        """Checks that a finish reported under a lease on a single node counts, if the lease can still be open."""
        if (job, lease) in self.done and sum(newer > lease for newer in self.lost[job]) < OPEN_MAX:
            state = JobState(int(core.jobs.state[job]))
            assert state > ALIVE[-1], f"job {job} finished under lease {lease}, and is {state.name}"

    def ended(self, event: LeaseEnded) -> None:
        """Records leases that were declared lost: of each job only the newest OPEN_MAX stay open for late reports."""
        if event.outcome is Outcome.LOST:
            for job, lease in zip(event.jobs.tolist(), event.leases.tolist(), strict=True):
                self.lost[job].add(lease)

    def granted(self, leases: list[int]) -> None:
        """Checks that serials of new leases grow and are never reused, also across restarts."""
        newest = max(self.leases, default=-1)
        assert leases == sorted(leases), f"leases {leases} are not in order"
        assert not leases or leases[0] > newest, f"lease {leases[0]} is not newer than {newest}"
        self.leases.update(leases)

    def recovered(self, core: SchedulerCore) -> None:
        """Checks that a restarted scheduler has all that its predecessor acknowledged."""
        for job in self.acknowledged:
            assert job < core.jobs.count, f"job {job} was acknowledged and is forgotten"
        self.believed(core)

    def is_over(self, core: SchedulerCore) -> bool:
        """Whether every acknowledged job is over."""
        return all(core.jobs.state[job] > ALIVE[-1] for job in self.acknowledged)

    @staticmethod
    def _is_out_of_time(core: SchedulerCore, job: int) -> bool:
        jobs, limit_s = core.jobs, core.jobs.specs[job].time_s
        ran_s = float(jobs.attained_gpu_s[job] / jobs.gpus[job])
        is_ended = jobs.failure[job] == FailureClass.TIME_LIMIT and jobs.state[job] == JobState.FAILED
        return bool(is_ended and limit_s and ran_s > limit_s - TIME_LEFT_S_MIN)

    def check_end(self, core: SchedulerCore) -> None:
        """Checks that every acknowledged job has finished, unless it was cancelled or has reached its time limit."""
        unfinished = self.acknowledged - self.cancelled - self.finished
        unfinished -= {job for job in unfinished if self._is_out_of_time(core, job)}
        states = {job: JobState(int(core.jobs.state[job])).name for job in sorted(unfinished)}
        assert not unfinished, f"jobs that never finished: {states}"
