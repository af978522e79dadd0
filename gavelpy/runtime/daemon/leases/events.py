"""Collects starts, progress, checkpoints and ends of leases, and makes events for the core."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from gavelpy.mechanism.events import (
    CheckpointSaved,
    Event,
    JobAnnotated,
    LastStepReported,
    LeaseEnded,
    Outcome,
    ProgressReported,
    SavingDeclared,
)
from gavelpy.runtime.daemon.leases.lease import Lease
from gavelpy.runtime.daemon.leases.lease_facts import columns_of, is_by_time, lease_started, note_of, outcome_of


class LeaseEvents:
    """Numbers of the leases that have changed since the last events. `leases`: the table of all leases."""

    def __init__(self, leases: Mapping[int, Lease]) -> None:
        self._leases = leases
        self.started: list[int] = []
        self.saved: set[int] = set()
        self.declared: set[int] = set()  # their programs save when they end; new to the core
        self.moved: set[int] = set()  # with progress that is new to the core
        self.done: list[int] = []  # their jobs have completed the last step
        self.ended: list[int] = []

    @property
    def has_facts(self) -> bool:
        """Whether `drain` would return events."""
        return bool(self.started or self.declared or self.saved or self.done or self.ended)

    def drain(self, late: Sequence[Lease]) -> list[Event]:
        """Events since the last call. `late`: lost leases with ends that were reported later."""
        events: list[Event] = []
        if started := [self._leases[number] for number in self.started]:
            events.append(lease_started(started))
        ended = [*(self._leases[number] for number in self.ended), *late]
        if declared := [self._leases[number] for number in sorted(self.declared)]:
            events.append(SavingDeclared(*columns_of(declared, [0.0] * len(declared))[:2]))
        if saved := [self._leases[number] for number in sorted(self.saved)]:
            jobs, leases, steps = columns_of(saved, [lease.steps_saved for lease in saved])
            events.append(CheckpointSaved(jobs, leases, steps))
        if done := [lease for number in self.done if not (lease := self._leases[number]).is_end_told]:
            events.append(LastStepReported(*columns_of(done, [0.0] * len(done))[:2]))
        events.extend(JobAnnotated(lease.job, lease.lease, note) for lease in ended if (note := note_of(lease)))
        groups: defaultdict[tuple[Outcome, bool], list[Lease]] = defaultdict(list)
        for lease in ended:
            groups[outcome_of(lease), is_by_time(lease)].append(lease)
        for (outcome, by_time), group in sorted(groups.items()):
            is_all = outcome is Outcome.FINISHED
            counted = [lease.steps_total if is_all else lease.steps_saved for lease in group]
            events.append(LeaseEnded(*columns_of(group, counted), outcome, by_time))
        self.started, self.ended, self.done, self.saved, self.declared = [], [], [], set(), set()
        return events

    def progress(self) -> ProgressReported | None:
        """Progress of running leases since the last call."""
        moved = [
            lease for number in sorted(self.moved) if (lease := self._leases.get(number)) and not lease.is_end_told
        ]
        self.moved.clear()
        return ProgressReported(*columns_of(moved, [lease.steps_done for lease in moved])) if moved else None
