"""What follows from what the nodes have said of a lease: how far it is, how it ended, and the events that tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gavelpy.mechanism.events import LeaseStarted, Outcome
from gavelpy.model.arrays import Floats, Ints
from gavelpy.runtime.daemon.lease_values import Lease, Part, Phase

NOTE_CHARACTERS_MAX = 500


def columns_of(leases: Sequence[Lease], steps: Iterable[float]) -> tuple[Ints, Ints, Floats]:
    """Jobs, leases and steps as events have them."""
    return (
        np.array([lease.job for lease in leases], dtype=np.int64),
        np.array([lease.lease for lease in leases], dtype=np.int64),
        np.array(list(steps), dtype=np.float64),
    )


def is_adopted(lease: Lease, part: Part) -> bool:
    """Whether the core shall go on believing in a lease when its node is heard again."""
    if lease.is_held or lease.is_end_told or not part.is_sent:
        return False
    return lease.is_started or (len(lease.parts) == 1 and part.phase >= Phase.STARTING)


def has_run(lease: Lease) -> bool:
    """Whether it ever ran anywhere; one that was called off before it began did not."""
    ends = [part.end for part in lease.parts.values()]
    return any(end is None or end.outcome in (Outcome.FINISHED, Outcome.FAILED) for end in ends)


def is_by_time(lease: Lease) -> bool:
    """Whether its steps were counted by time on all nodes: then it has written no checkpoint that we could name."""
    heard = [part.heard for part in lease.parts.values() if part.heard]
    return bool(heard) and all(report.is_by_time for report in heard)


def saved_of(lease: Lease) -> float:
    """Steps in the newest checkpoint that any of its nodes has seen whole; by time only where no node has reported."""
    heard = [part.heard for part in lease.parts.values() if part.heard]
    reported = [report for report in heard if not report.is_by_time]
    return max((report.steps_saved for report in reported or heard), default=0.0)


def outcome_of(lease: Lease) -> Outcome:
    """Of the whole: the worst of its parts, and finished only where all have."""
    outcomes = {part.end.outcome for part in lease.parts.values() if part.end is not None} or {Outcome.LOST}
    return next(o for o in (Outcome.FAILED, Outcome.LOST, Outcome.STOPPED, Outcome.FINISHED) if o in outcomes)


def note_of(lease: Lease) -> str:
    """What people should hear of how it ended."""
    for part in lease.parts.values():
        end = part.end
        if end is not None and end.outcome is outcome_of(lease) and (end.detail or end.exit_code):
            code = f" (exit code {end.exit_code})" if end.exit_code else ""
            return f"{end.detail or 'ended'}{code}"[:NOTE_CHARACTERS_MAX]
    return ""


def lease_started(leases: Sequence[Lease]) -> LeaseStarted:
    """That these have begun, on the GPUs they were granted."""
    jobs, numbers, _ = columns_of(leases, [0.0] * len(leases))
    offsets = np.concatenate([[0], np.cumsum([len(lease.gpus) for lease in leases])])
    return LeaseStarted(jobs, numbers, offsets, np.concatenate([lease.gpus for lease in leases]))
