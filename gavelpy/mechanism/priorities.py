"""Accounts of owed time (by shares) and received time (under leases), and the priority computed from both.

`LAG` counts all owed and received time since a job arrived, with a half-life, so that a new allocation does not erase
owed time. `OSDI20` is the original Gavel's rule: counters restart with each allocation, at half a round, and the
deficit up to then breaks ties.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import MechanismSettings, PriorityRule
from gavelpy.model.arrays import Floats, Ints


def settle(jobs: JobTable, settings: MechanismSettings, elapsed_s: float, now_s: float) -> None:
    """Books owed and received time of all active jobs up to now."""
    active, pairs = jobs.active, jobs.pairs
    if elapsed_s > 0 and pairs.count:
        is_fading = settings.priority is PriorityRule.LAG
        pairs.settle(elapsed_s, 0.5 ** (elapsed_s / settings.lag_half_life_s) if is_fading else 1.0)
    if elapsed_s > 0 and len(active):
        if settings.priority is PriorityRule.LAG:
            fade = 0.5 ** (elapsed_s / settings.lag_half_life_s)
            jobs.owed_s[active] = jobs.owed_s[active] * fade + jobs.target[active] * elapsed_s
            jobs.received_s[active] *= fade
        else:
            jobs.owed_s[active] += jobs.target[active] * elapsed_s
    credit(jobs, jobs.leased, now_s)


def credit(jobs: JobTable, rows: Ints, now_s: float) -> None:
    """Books the time that these leased jobs and their co-located partners have run since it was last booked."""
    rows = jobs.with_partners(rows) if jobs.pairs.count else rows
    running = rows[jobs.since_s[rows] >= 0]
    time_s, gpu_type = now_s - jobs.since_s[running], jobs.lease_type[running]
    shared = jobs.partner[running] >= 0
    if shared.any():
        jobs.pairs.credit(running[shared], jobs.partner[running[shared]], gpu_type[shared], time_s[shared])
    jobs.received_s[running[~shared], gpu_type[~shared]] += time_s[~shared]
    jobs.attained_gpu_s[running] += time_s * jobs.gpus[running]
    jobs.since_s[running] = now_s


def start_over(jobs: JobTable, settings: MechanismSettings) -> None:
    """OSDI20: restarts the counters for a new allocation, with half a round received on each type."""
    active, prior_s = jobs.active, settings.round_s / 2
    jobs.deficit_s[active] += jobs.owed_s[active] - (jobs.received_s[active] - prior_s)
    jobs.owed_s[active] = 0.0
    jobs.received_s[active] = prior_s
    jobs.pairs.owed_s[:] = 0.0
    jobs.pairs.received_s[:] = prior_s


def newcomer_received_s(settings: MechanismSettings) -> float:
    """Received time of a new job on each type."""
    return settings.round_s / 2 if settings.priority is PriorityRule.OSDI20 else 0.0


def forgotten_s(settings: MechanismSettings) -> float:
    """A pair without a share is deleted at an allocation if its owed and received time are below this."""
    return settings.round_s / 32 if settings.priority is PriorityRule.LAG else math.inf


def priority(share: Floats, owed_s: Floats, received_s: Floats, settings: MechanismSettings) -> Floats:
    """Urgency of (job, type) pairs: target share over received share, (K,). Gavel (OSDI '20), section 5.

    Zero where the share is zero. Under LAG half a round is added to both sides (to what is owed, at the target share),
    so that a newcomer stands at its share and a job that gets what it is owed comes to stand at 1. Under OSDI20
    infinite where nothing was received.
    """
    if settings.priority is PriorityRule.LAG:
        prior_s = settings.round_s / 2
        urgency = (owed_s + share * prior_s) / (received_s + prior_s)
    else:
        urgency = np.divide(share, received_s, out=np.full_like(share, np.inf), where=received_s > 0)
    return np.where(share > 0, urgency, 0.0)
