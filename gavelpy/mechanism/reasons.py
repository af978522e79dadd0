"""Why a job is not running. Every waiting job has exactly one reason; nothing is ever just 'pending'."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.lifecycle import JobState


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
    active = core.jobs.active
    waiting = active[core.jobs.state[active] != JobState.RUNNING]
    return {row: _reason(core, row) for row in waiting.tolist()}


def _reason(core: SchedulerCore, row: int) -> Reason:
    jobs, pool = core.jobs, core.pool
    if jobs.state[row] == JobState.GRANTED:
        return Reason(ReasonKind.STARTING, "has a lease and is about to start")
    rate, gpus = jobs.rate[row], int(jobs.gpus[row])
    if not jobs.rates_known(np.array([row]))[0]:
        job_type = jobs.specs[row].job_type
        return Reason(ReasonKind.UNKNOWN_THROUGHPUT, f"nobody knows the throughput of {job_type!r} on {gpus} GPU(s)")
    usable = np.flatnonzero(rate > 0)
    if not len(usable):
        here = ", ".join(pool.gpu_types) or "none"
        return Reason(ReasonKind.RUNS_ON_NO_TYPE, f"its throughput is zero on every GPU type there is ({here})")
    counts = pool.counts[usable]
    if gpus > counts.max():
        largest = pool.gpu_types[int(usable[np.argmax(counts)])]
        return Reason(
            ReasonKind.GANG_TOO_LARGE,
            f"asks for {gpus} GPUs of one type; the most there are is {counts.max()} {largest}",
        )
    if jobs.solved[row] < 0:
        return Reason(ReasonKind.AWAITS_ALLOCATION, "arrived after the allocation in force was computed")
    if not (jobs.target[row] > 0).any():
        return Reason(ReasonKind.NO_SHARE, "the policy gives it no share of time now; others come first")
    wanted = np.flatnonzero(jobs.target[row] > 0)
    ahead = int(np.isin(jobs.lease_type[jobs.leased], wanted).sum())
    who = "1 job has" if ahead == 1 else f"{ahead} jobs have"
    types = " or ".join(pool.gpu_types[t] for t in wanted)
    until = f"until the round ends at {core.round_end_s:g} s" if core.is_in_round else "now"
    return Reason(ReasonKind.BEHIND_OTHERS, f"waits for its turn on {types}: {who} it {until}")
