"""Why a job is not running. Every waiting job has exactly one reason; nothing is ever just 'pending'."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.model.arrays import Ints


class ReasonKind(StrEnum):
    """For programs; the text is for people."""

    UNKNOWN_THROUGHPUT = "unknown-throughput"
    RUNS_ON_NO_TYPE = "runs-on-no-type"
    GANG_TOO_LARGE = "gang-too-large"
    AWAITS_ALLOCATION = "awaits-allocation"
    STARTING = "starting"
    NO_SHARE = "no-share"
    BEHIND_OTHERS = "behind-others"


@dataclass(frozen=True)
class Reason:
    """Why, as a kind and as a sentence."""

    kind: ReasonKind
    text: str


def reasons(core: SchedulerCore) -> dict[int, Reason]:
    """The reason of every living job that does not run, by serial."""
    jobs, pool = core.jobs, core.pool
    active = jobs.active
    waiting = active[jobs.state[active] != JobState.RUNNING]
    leases = np.bincount(jobs.lease_type[jobs.leased], minlength=len(pool.gpu_types))
    counts = pool.counts
    return {row: _unable(jobs, pool, row, counts) or _in_turn(core, row, leases) for row in waiting.tolist()}


def _unable(jobs: JobTable, pool: GpuPool, row: int, counts: Ints) -> Reason | None:
    """Why a job cannot run on the GPUs there are, if it cannot; `counts` (T,) are those."""
    if jobs.state[row] == JobState.GRANTED:
        return None
    rate, gpus = jobs.rate[row], int(jobs.gpus[row])
    wants = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    usable = np.flatnonzero(rate > 0)
    if not len(usable) and np.isnan(rate).any():
        job_type = jobs.specs[row].job_type
        return Reason(ReasonKind.UNKNOWN_THROUGHPUT, f"nobody knows the throughput of {job_type!r} on {wants}")
    if not len(usable):
        here = ", ".join(pool.gpu_types) or "none"
        return Reason(ReasonKind.RUNS_ON_NO_TYPE, f"its throughput is zero on every GPU type there is ({here})")
    best = int(usable[np.argmax(counts[usable])])
    if gpus > counts[best]:
        most = f"{counts[best]} {pool.gpu_types[best]}"
        return Reason(ReasonKind.GANG_TOO_LARGE, f"asks for {wants} of one type; the most there are is {most}")
    return None


def _in_turn(core: SchedulerCore, row: int, leases: Ints) -> Reason:
    """Why a job that could run does not; `leases` (T,) is how many there are on each type."""
    jobs, types = core.jobs, core.pool.gpu_types
    if jobs.state[row] == JobState.GRANTED:
        return Reason(ReasonKind.STARTING, "has a lease and is about to start")
    if jobs.solved[row] < 0:
        return Reason(ReasonKind.AWAITS_ALLOCATION, "no allocation has counted it yet")
    wanted = np.flatnonzero(jobs.target[row] > 0)
    if not len(wanted):
        return Reason(ReasonKind.NO_SHARE, "the policy gives it no share of time now; others come first")
    ahead = int(leases[wanted].sum())
    who = "1 job has" if ahead == 1 else f"{ahead} jobs have"
    where = " or ".join(types[t] for t in wanted)
    until = f"until the round ends at {core.round_end_s:g} s" if core.is_in_round else "now"
    return Reason(ReasonKind.BEHIND_OTHERS, f"waits for its turn on {where}: {who} it {until}")
