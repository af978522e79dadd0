"""Makes events for the core from reports of nodes: starts, progress, checkpoints and ends of leases.

`LateEnds` covers leases that were declared lost. Which of them are open is the core's state
(`gavelpy.mechanism.reports`), so a restart keeps them. A node keeps its record of an ended lease until the scheduler
orders it to forget the lease, which happens after the lease is closed. So the records stay on the nodes, and a
restarted scheduler receives them again. The end of a lease with parts on several nodes is known when every node has
reported what it recorded. A part that was only inferred to be lost is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gavelpy.mechanism import reports
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    CheckpointSaved,
    Event,
    FailureClass,
    GpuMemoryMeasured,
    JobAnnotated,
    LastStepReported,
    LeaseEnded,
    Outcome,
    ProgressReported,
    SavingDeclared,
    TotalAnnounced,
)
from gavelpy.mechanism.jobs import OPEN, JobTable
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.lease import (
    Lease,
    PartReport,
    Phase,
    announced_by,
    columns_of,
    counted_of,
    failure_of,
    gpu_memory_of,
    is_by_time,
    lease_of,
    lease_started,
    note_of,
    outcome_of,
    saved_of,
)
from gavelpy.runtime.daemon.leases.metrics import decides, is_news, metrics_reported
from gavelpy.runtime.daemon.leases.turns import turns_measured

_FAILURES = (Outcome.FAILED, Outcome.UNRUNNABLE)
_NOTABLE = 1.05  # GPU memory in use over what was reported last


class LeaseEvents:
    """Numbers of the leases that have changed since the last events. `leases`: the table of all leases."""

    def __init__(self, leases: Mapping[int, Lease]) -> None:
        self._leases = leases
        self.started: list[int] = []
        self.saved: set[int] = set()
        self.announced: set[int] = set()  # their programs counted their steps in all; new to this table
        self.measured: set[int] = set()  # they use notably more GPU memory than was known
        self.timed: set[int] = set()  # their starts or stops were measured
        self.declared: set[int] = set()  # their programs save when they end; new to the core
        self.moved: set[int] = set()  # with progress that is new to the core
        self.troubled: set[int] = set()  # their nodes report trouble for the first time
        self.metered: set[int] = set()  # with metrics that are new to the core
        self.compared: set[int] = set()  # of these, with a value at which jobs of an app are compared
        self.done: list[int] = []  # their jobs have completed the last step
        self.ended: list[int] = []

    @property
    def has_events(self) -> bool:
        """Whether `drain` would return events."""
        noted = self.saved or self.announced or self.measured or self.timed or self.troubled
        return bool(self.started or self.declared or noted or self.done or self.ended or self.compared)

    def drain(self, late: Sequence[Lease], jobs: JobTable) -> list[Event]:
        """Events since the last call. `late`: lost leases with ends that were reported later."""
        events: list[Event] = []
        if started := [self._leases[number] for number in self.started]:
            events.append(lease_started(started))
        ended = [*(self._leases[number] for number in self.ended), *late]
        if declared := [self._leases[number] for number in sorted(self.declared)]:
            events.append(SavingDeclared(*columns_of(declared, [0.0] * len(declared))[:2]))
        if totals := [self._leases[number] for number in sorted(self.announced)]:
            events.append(TotalAnnounced(*columns_of(totals, [lease.announced_steps for lease in totals])))
        if measured := [self._leases[number] for number in sorted(self.measured)]:
            events.append(GpuMemoryMeasured(*columns_of(measured, [lease.gpu_memory_gib for lease in measured])))
        events.extend(metrics_reported(self._of(self.metered & {*self.compared, *self.ended})))
        self.metered -= {*self.compared, *self.ended}
        events.extend(turns_measured([self._leases[number] for number in sorted(self.timed)], jobs))
        if saved := [self._leases[number] for number in sorted(self.saved)]:
            events.append(CheckpointSaved(*columns_of(saved, [lease.steps_saved for lease in saved])))
        if done := [lease for number in self.done if not (lease := self._leases[number]).is_end_reported]:
            events.append(LastStepReported(*columns_of(done, [0.0] * len(done))[:2]))
        events.extend(JobAnnotated(lease.job, lease.lease, lease.trouble) for lease in self._of(self.troubled))
        events.extend(JobAnnotated(lease.job, lease.lease, note) for lease in ended if (note := note_of(lease)))
        groups: defaultdict[tuple[Outcome, bool, FailureClass], list[Lease]] = defaultdict(list)
        for lease in ended:
            groups[outcome_of(lease), is_by_time(lease), failure_of(lease)].append(lease)
        failed = [lease for lease in ended if lease.lease in self.moved and outcome_of(lease) in _FAILURES]
        if failed:  # the step at which they failed
            events.append(ProgressReported(*columns_of(failed, [lease.steps_done for lease in failed])))
        for (outcome, by_time, failure), group in sorted(groups.items()):
            is_all = outcome is Outcome.FINISHED
            counted = [counted_of(lease) if is_all else lease.steps_saved for lease in group]
            events.append(LeaseEnded(*columns_of(group, counted), outcome, by_time, failure))
        self.started, self.ended, self.done = [], [], []
        self.saved, self.declared, self.announced, self.measured = set(), set(), set(), set()
        self.timed, self.compared, self.troubled = set(), set(), set()
        return events

    def advance(self, lease: Lease, jobs: JobTable, now_s: float) -> None:
        """Takes over what the nodes of a lease reported last, and notes what is new."""
        saved, done = saved_of(lease), min(p.report.steps_done if p.report else 0.0 for p in lease.parts.values())
        if saved > lease.steps_saved:
            lease.steps_saved = saved
            self.saved.add(lease.lease)
        by_time = is_by_time(lease)
        if done > lease.steps_done or (lease.was_by_time and not by_time):  # a report corrects an estimate
            lease.steps_done = max(done, lease.steps_saved)
            self.moved.add(lease.lease)
            if not by_time and done > lease.resume_steps:
                lease.turn.stepped(now_s)
                self._time(lease)
        lease.was_by_time = by_time
        if not lease.trouble and (trouble := _trouble_of(lease)):
            lease.trouble = trouble
            self.troubled.add(lease.lease)
        known_gib = max(lease.gpu_memory_gib, jobs.measured_gib.get(lease.job, 0.0))
        if (peak_gib := gpu_memory_of(lease)) > _NOTABLE * known_gib:
            lease.gpu_memory_gib = peak_gib
            self.measured.add(lease.lease)
        if is_news(lease):
            self.metered.add(lease.lease)
            if decides(lease, jobs):
                self.compared.add(lease.lease)
        total, job = announced_by(lease), lease.job
        if total in (0.0, lease.announced_steps):
            return
        lease.announced_steps = total
        if jobs.total_by[job] == OPEN or jobs.steps_total[job] != total:
            lease.steps_total = 0.0
            self.announced.add(lease.lease)

    def stopped(self, lease: Lease, now_s: float) -> None:
        """A part of a lease has stopped as it was ordered."""
        lease.turn.stopped(now_s)
        self._time(lease)

    def _time(self, lease: Lease) -> None:
        if lease.turn.restart_s or lease.turn.save_s:
            self.timed.add(lease.lease)

    def progress(self) -> list[Event]:
        """Progress and metrics of running leases since the last call."""
        moved = [lease for lease in self._of(self.moved) if not lease.is_end_reported]
        found = metrics_reported([lease for lease in self._of(self.metered) if not lease.is_end_reported])
        self.moved.clear()
        self.metered.clear()
        if moved:
            found.append(ProgressReported(*columns_of(moved, [lease.steps_done for lease in moved])))
        return found

    def _of(self, numbers: Collection[int]) -> list[Lease]:
        return [lease for number in sorted(numbers) if (lease := self._leases.get(number))]


def _trouble_of(lease: Lease) -> str:
    """What a node reports of a lease that runs there, for users; empty = nothing."""
    reports = (part.report for part in lease.parts.values() if part.end is None)
    return next((r.detail for r in reports if r is not None and r.phase is not Phase.ENDED and r.detail), "")


class LateEnds:
    """The open leases of the core with what their nodes have recorded of them."""

    def __init__(self, core: SchedulerCore) -> None:
        self._core = core  # read only
        self._open: dict[int, Lease] = {}
        self._known: list[Lease] = []  # their end is known and not in the journal yet

    @property
    def has_events(self) -> bool:
        """Whether `drain` would return any lease."""
        return bool(self._known)

    @property
    def jobs(self) -> list[int]:
        """Jobs with leases that may still end."""
        return [lease.job for lease in (*self._open.values(), *self._known)]

    def rebuild(self) -> None:
        """Adds the open leases of a restarted core."""
        for job, lost in self._core.jobs.by_serial.lost_leases.items():
            for number, gpus in lost.items():
                self._open[number] = lease_of(self._core, number, job, gpus, 0.0, 0)

    def ended(self, lease: Lease) -> None:
        """The end of a lease is in the journal; keeps the lease for later reports if the core has it open."""
        if self._is_open(lease):
            self._open[lease.lease] = lease
            self._look(lease)

    def reported(self, node: NodeId, report: PartReport) -> bool:
        """Processes a node's report of an ended lease; returns whether the node must keep its record."""
        lease = self._open.get(report.lease)
        if lease is None or not self._is_open(lease):
            self._open.pop(report.lease, None)
            return False
        part = lease.parts.get(node)
        if part is None or lease.job != report.job or report.phase is not Phase.ENDED:
            return False
        if part.end is None or part.is_inferred:
            part.report = part.end = report
            part.is_inferred = False
            self._look(lease)
        return report.lease in self._open

    def drain(self) -> list[Lease]:
        """Leases with an end that has become known since the last call."""
        known, self._known = self._known, []
        return known

    def sweep(self) -> None:
        """Removes leases that the core has closed."""
        self._open = {number: lease for number, lease in self._open.items() if self._is_open(lease)}

    def _look(self, lease: Lease) -> None:
        if any(part.end is None or part.is_inferred for part in lease.parts.values()):
            return
        del self._open[lease.lease]
        if outcome_of(lease) is not Outcome.LOST:
            lease.steps_saved = max(lease.steps_saved, saved_of(lease))
            self._known.append(lease)

    def _is_open(self, lease: Lease) -> bool:
        return reports.is_lost_open(self._core.jobs.by_serial, lease.job, lease.lease)
