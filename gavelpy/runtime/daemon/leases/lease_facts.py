"""Functions of a lease and the reports of its nodes: progress, outcome, and the values of orders and events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import LeaseStarted, Outcome
from gavelpy.model.arrays import Floats, Ints
from gavelpy.runtime.daemon.leases.lease import Lease, Part, PartReport, Phase, Start

NOTE_CHARACTERS_MAX = 500
UNRUNNABLE_CODES = (126, 127)  # of a shell and of the shim: the command is not executable, or not found
_WORST_FIRST = (Outcome.UNRUNNABLE, Outcome.FAILED, Outcome.LOST, Outcome.STOPPED, Outcome.FINISHED)


def lease_of(core: SchedulerCore, number: int, job: int, gpus: Ints, until_s: float, round: int) -> Lease:
    """A lease of a job on these GPUs, with an unreported part on each of their nodes."""
    pool, spec = core.pool, core.jobs.specs[job]
    parts: list[Part] = []
    nodes = pool.node_of[gpus]
    for row in dict.fromkeys(nodes.tolist()):
        local = tuple(pool.number[gpus[nodes == row]].tolist())
        first_rank = len(parts) if spec.one_process_a_node else sum(len(part.gpus) for part in parts)
        parts.append(Part(pool.node_ids[row], len(parts), first_rank, local))
    lease = Lease(number, job, gpus.copy(), parts, until_s, round)
    lease.world_size = len(parts) if spec.one_process_a_node else len(gpus)
    lease.steps_total = spec.steps_total
    lease.steps_saved = lease.steps_done = float(core.jobs.steps_saved[job])
    if len(gpus):
        gpu_type = int(pool.type_of[gpus[0]])
        rate = float(core.jobs.rate[job, gpu_type])
        lease.gpu_type, lease.rate_steps_per_s = pool.gpu_types[gpu_type], 0.0 if math.isnan(rate) else rate
    return lease


def start_of(core: SchedulerCore, lease: Lease, part: Part) -> Start:
    """How a node starts its part of a lease."""
    first = next(iter(lease.parts.values()))
    return Start(
        gpus=part.gpus,
        gpu_type=lease.gpu_type,
        node_rank=part.rank,
        node_count=len(lease.parts),
        first_rank=part.first_rank,
        world_size=lease.world_size,
        rendezvous_node=first.node,
        rendezvous_port=first.heard.rendezvous_port if first.heard else 0,
        round=lease.round,
        restart_count=lease.restart_count,
        resume_lease=lease.resume_lease,
        resume_steps=lease.resume_steps,
        rate_steps_per_s=lease.rate_steps_per_s,
        directory=directory_of(core, lease),
    )


def columns_of(leases: Sequence[Lease], steps: Iterable[float]) -> tuple[Ints, Ints, Floats]:
    """Columns of an event: jobs, leases, steps."""
    return (
        np.array([lease.job for lease in leases], dtype=np.int64),
        np.array([lease.lease for lease in leases], dtype=np.int64),
        np.array(list(steps), dtype=np.float64),
    )


def is_adopted(lease: Lease, part: Part) -> bool:
    """Whether the core keeps a lease when its node reconnects."""
    if lease.is_held or lease.is_end_told or not part.is_sent:
        return False
    return lease.is_started or (len(lease.parts) == 1 and part.phase >= Phase.STARTING)


def has_run(lease: Lease) -> bool:
    """Whether it ran on any node; a lease that was cancelled before its start did not."""
    ends = [part.end for part in lease.parts.values()]
    return any(end is None or end.outcome in (Outcome.FINISHED, Outcome.FAILED) for end in ends)


def is_by_time(lease: Lease) -> bool:
    """Whether all nodes estimate its steps from time: then it has no known checkpoint."""
    heard = [part.heard for part in lease.parts.values() if part.heard]
    return bool(heard) and all(report.is_by_time for report in heard)


def is_done(lease: Lease) -> bool:
    """Whether its job has completed the last step, by the report of every node, or has finished there."""
    heard = [part.end or part.heard for part in lease.parts.values()]
    return all(
        r is not None and (r.is_done or (r.phase is Phase.ENDED and r.outcome is Outcome.FINISHED)) for r in heard
    )


def saved_of(lease: Lease) -> float:
    """Steps in the newest checkpoint that a node reports; 0 for a job that does not report its steps."""
    heard = [part.heard for part in lease.parts.values() if part.heard]
    return max((report.steps_saved for report in heard if not report.is_by_time), default=0.0)


def outcome_of(lease: Lease) -> Outcome:
    """Outcome of the lease: the worst of its parts."""
    outcomes = {_outcome_of(part.end) for part in lease.parts.values() if part.end is not None} or {Outcome.LOST}
    return next(outcome for outcome in _WORST_FIRST if outcome in outcomes)


def _outcome_of(end: PartReport) -> Outcome:
    is_unrunnable = end.outcome is Outcome.FAILED and end.exit_code in UNRUNNABLE_CODES
    return Outcome.UNRUNNABLE if is_unrunnable else end.outcome


def note_of(lease: Lease) -> str:
    """A note on how it ended, for users; empty = none."""
    for part in lease.parts.values():
        end = part.end
        if end is not None and _outcome_of(end) is outcome_of(lease) and (end.detail or end.exit_code):
            code = f" (exit code {end.exit_code})" if end.exit_code else ""
            return f"{end.detail or 'ended'}{code}"[:NOTE_CHARACTERS_MAX]
    return ""


def directory_of(core: SchedulerCore, lease: Lease) -> str:
    """Id of the checkpoint directory that a lease writes to; empty if its nodes have not reported it."""
    directory = int(core.jobs.lease_in[lease.job]) if core.jobs.lease[lease.job] == lease.lease else -1
    return "" if directory < 0 or core.pool.is_own(directory) else core.pool.directories[directory]


def lease_started(leases: Sequence[Lease]) -> LeaseStarted:
    """The event that these leases have started on their granted GPUs."""
    jobs, numbers, _ = columns_of(leases, [0.0] * len(leases))
    offsets = np.concatenate([[0], np.cumsum([len(lease.gpus) for lease in leases])])
    return LeaseStarted(jobs, numbers, offsets, np.concatenate([lease.gpus for lease in leases]))
