"""The account of one job at a moment: owed and received time, lease and GPUs. Reading it does not change the core."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.lifecycle import ALIVE, JobState
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import NodeId


@dataclass(frozen=True, eq=False)
class JobAccount:
    """One job at one moment. Columns follow gpu_types."""

    state: JobState
    gpu_types: tuple[str, ...]
    rate_steps_per_s: Floats  # (T,) estimated; NaN = unknown
    share: Floats  # (T,) of the allocation in force, alone and co-located
    owed_s: Floats  # (T,) as the priority rule counts it
    received_s: Floats  # (T,)
    lease: int  # granted or running, -1 = none
    until_s: float  # its latest end in any plan
    gpus: Ints  # of the lease, as the core numbers them
    node_ids: tuple[NodeId, ...]  # of these GPUs, each once
    partner: int  # the co-located job, -1 = none
    stopping_lease: int  # -1 = none
    saved_lease: int  # that wrote the last checkpoint, -1 = none
    steps_saved: float
    steps_done: float


def account(core: SchedulerCore, job: int, now_s: float) -> JobAccount:
    """The account of a job as if the core booked time at `now_s`, which must not be before the last event."""
    jobs, pool = core.jobs, core.pool
    owed_s, received_s, share = (jobs.total(name)[job].copy() for name in ("owed_s", "received_s", "target"))
    elapsed_s, is_alive = now_s - core.settled_s, jobs.state[job] <= ALIVE[-1]
    if is_alive:
        fade = core.settings.rules.fade(core.settings, elapsed_s)
        owed_s, received_s = owed_s * fade + share * elapsed_s, received_s * fade
    lease, since_s = int(jobs.lease[job]), float(jobs.since_s[job])
    if lease >= 0 and since_s >= 0:
        received_s[jobs.lease_type[job]] += now_s - since_s
    gpus = jobs.gpus_held(job).copy() if lease >= 0 else np.zeros(0, dtype=np.int64)
    return JobAccount(
        state=JobState(int(jobs.state[job])),
        gpu_types=pool.gpu_types,
        rate_steps_per_s=jobs.rate[job].copy(),
        share=share if is_alive else np.zeros_like(share),
        owed_s=owed_s,
        received_s=received_s,
        lease=lease,
        until_s=float(jobs.until_s[job]),
        gpus=gpus,
        node_ids=tuple(pool.node_ids[row] for row in dict.fromkeys(pool.node_of[gpus].tolist())),
        partner=int(jobs.partner[job]),
        stopping_lease=int(jobs.stopping[job]),
        saved_lease=int(jobs.saved_lease[job]),
        steps_saved=float(jobs.steps_saved[job]),
        steps_done=float(jobs.steps_done[job]),
    )
