"""What single recorded leases cost, and which steps they reported when: a replay repeats them one after the other."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from gavelpy.mechanism.events import NO_FLOATS, Outcome
from gavelpy.model.arrays import Floats
from gavelpy.simulator.past.ledger import ObservedLease
from gavelpy.simulator.past.timers import SAME_S

REPORTED_MAX = 0.9  # of the time before its first step, in which a start is reported
LEAST_S = 1e-3


def worked_by(lease: ObservedLease, start_s: float, lag_s: float) -> tuple[float, float] | None:
    """Steps of a lease and the seconds that they took; None if it does not show them."""
    if lease.outcome is Outcome.FINISHED:
        until_s = lease.last_step_s if not math.isnan(lease.last_step_s) else lease.ended_s
    elif lease.outcome is Outcome.STOPPED and not math.isnan(lease.revoked_s):
        until_s = min(lease.revoked_s + lag_s, lease.ended_s)
    elif lease.readings and lease.outcome is not Outcome.STOPPED:
        until_s = lease.readings[-1][0]
    else:
        return None
    ended = lease.outcome in (Outcome.FINISHED, Outcome.STOPPED)
    steps = (lease.steps_end if ended else lease.readings[-1][1]) - lease.steps_before
    seconds = until_s - lease.ready_s - start_s
    return (steps, seconds) if steps > 0 and seconds > LEAST_S else None


class LeaseTurn(NamedTuple):
    """Seconds of one lease; NaN where it does not show them."""

    start_s: float  # before its first step
    factor: float  # of the rate, if it made its steps in less time
    report_s: float  # before its start was reported; from its grant to its end, if it never started
    revoked_s: float  # from its begin
    stop_s: float  # from the revocation to its end
    last_step_s: float  # from the revocation, if the program made its last step after it
    exit_s: float
    gpu_type: str
    gpus: int
    track: Floats  # (K, 2) seconds since its begin, and steps that were reported by then
    heard_s: float = math.nan  # from its begin to the first report of steps, which may have been none
    saved_s: float = math.nan  # from the revocation to the report of the last checkpoint
    missed_s: Floats = NO_FLOATS  # from its begin to the times when others reported, and it did not
    loses: bool = False  # its steps, as it was stopped without a checkpoint
    made: float = math.nan  # steps, if it was stopped with a checkpoint


def turn_of(lease: ObservedLease, rate: float, lag_s: float) -> LeaseTurn:
    """What a lease cost, if its job made all of its steps at this rate.

    The start is what is left of its time, and not before its report: a replay then has as many steps as the journal
    when the lease ends.
    """
    worked, factor = worked_by(lease, 0.0, lag_s), 1.0
    has_started = not math.isnan(lease.started_s)
    report_s = lease.started_s - lease.ready_s if has_started else lease.ended_s - lease.granted_s
    if worked is not None and rate > 0:
        steps, seconds = worked
        start_s = max(seconds - steps / rate, min(report_s / REPORTED_MAX, (report_s + seconds) / 2))
        factor = steps / (seconds - start_s) / rate if seconds - start_s > LEAST_S else 1.0
    elif has_started and lease.outcome is Outcome.STOPPED and _is_unmade(lease):
        start_s = lease.ended_s - lease.ready_s
    else:
        start_s = start_of(lease, rate if rate > 0 else math.nan)
    stopped, finished = lease.outcome is Outcome.STOPPED, lease.outcome is Outcome.FINISHED
    return LeaseTurn(
        start_s,
        factor,
        report_s,
        lease.revoked_s - lease.ready_s,
        lease.ended_s - lease.revoked_s if (stopped or finished) and lease.revoked_s <= lease.ended_s else math.nan,
        lease.last_step_s - lease.revoked_s if finished and lease.revoked_s <= lease.last_step_s else math.nan,
        lease.ended_s - lease.last_step_s if finished and lease.last_step_s <= lease.ended_s else math.nan,
        lease.gpu_type,
        lease.gpus,
        _track(lease, start_s, lag_s),
        heard_s=lease.heard_s - lease.ready_s,
        saved_s=lease.saved_s - lease.revoked_s if stopped else math.nan,
        missed_s=_missed_s(lease) - lease.ready_s,
        loses=stopped and bool(lease.readings) and lease.steps_end <= lease.steps_before,
        made=lease.steps_end - lease.steps_before if stopped and lease.steps_end > lease.steps_before else math.nan,
    )


def _is_unmade(lease: ObservedLease) -> bool:
    """Whether it was stopped before its first step."""
    return lease.steps_end == lease.steps_before and not lease.readings


def _missed_s(lease: ObservedLease) -> Floats:
    """When others reported, and the lease not at about that time: a failed job is reported apart from the others."""
    missed_s = np.array(lease.missed_s)
    reported_s = np.sort(np.array([-math.inf, math.inf, *(at_s for at_s, _ in (*lease.readings, *lease.pauses))]))
    following = reported_s.searchsorted(missed_s)
    is_missed = np.minimum(reported_s[following] - missed_s, missed_s - reported_s[following - 1]) > SAME_S
    return np.asarray(missed_s[is_missed])


def _track(lease: ObservedLease, start_s: float, lag_s: float) -> Floats:
    if math.isnan(start_s):
        return np.zeros((0, 2))
    worked = worked_by(lease, 0.0, lag_s)
    until_s = math.inf if worked is None else worked[1]
    reports = sorted([*lease.readings, *lease.pauses])
    points = [(at_s - lease.ready_s, steps - lease.steps_before) for at_s, steps in reports]
    ends = [] if worked is None else [(until_s, worked[0])]
    return np.array([(start_s, 0.0), *(point for point in points if start_s < point[0] < until_s), *ends])


def start_of(lease: ObservedLease, rate: float) -> float:
    """Seconds of a lease before its first step; NaN if it does not show them."""
    if math.isnan(rate) or not lease.readings:
        return math.nan
    first_s = min(at_s - (steps - lease.steps_before) / rate for at_s, steps in lease.readings)
    return max(first_s - lease.ready_s, 0.0)
