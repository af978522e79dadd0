"""Books owed time (by shares) and received time (under leases); `rules` computes priorities from both."""

from __future__ import annotations

from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Ints


def settle(jobs: JobTable, settings: MechanismSettings, elapsed_s: float, now_s: float) -> None:
    """Books owed and received time of all active jobs up to now."""
    active, pairs = jobs.active, jobs.pairs
    if elapsed_s > 0:
        fade = settings.rules.fade(settings, elapsed_s)
        if pairs.count:
            pairs.settle(elapsed_s, fade)
        jobs.owed_s[active] = jobs.owed_s[active] * fade + jobs.target[active] * elapsed_s
        jobs.received_s[active] *= fade
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
