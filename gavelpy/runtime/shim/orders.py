"""What the shim does to its job at a moment: a pure function of the clock, the lease and what was done before.

A job that reports (it uses the iterator, which reads the lease itself) stops on its own before the end of its lease;
SIGTERM comes only where it has not by then. Any other job gets SIGTERM at the end of the lease, or at once when it is
to stop. A job that reports and has done its last step is given `finish_grace_s` to exit before a stop is carried out;
the end of its lease, which the scheduler extends meanwhile, holds for it as well. SIGKILL follows when the grace is
over. A lease that is extended after SIGTERM was sent changes nothing: the processes may have gone by then. All of it
holds whenever the shim looks, however long it has slept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from gavelpy.runtime.lease_files import Launch, Lease


class Stage(IntEnum):
    """How far the ending of the job has come."""

    RUNNING = 0
    TERMINATED = 1  # SIGTERM was sent
    KILLED = 2  # SIGKILL was sent


@dataclass(frozen=True)
class Standing:
    """What the shim has done so far, and since when."""

    stage: Stage = Stage.RUNNING
    stop_seen_s: float = float("inf")  # when a stop was first asked for
    done_seen_s: float = float("inf")  # when the last step of all ranks was first seen
    terminated_s: float = float("inf")
    warned_until_s: float = float("-inf")  # the end of lease for which the warning signal was sent
    reason: str = ""  # why the job is being ended


def next_standing(
    now_s: float, launch: Launch, lease: Lease, standing: Standing, *, reports: bool, is_done: bool = False
) -> Standing:
    """Where the shim should stand now; the difference to where it stands is what it must send.

    `is_done`: all ranks have reported their last step, so a stop waits until they exit or `finish_grace_s` is over.
    """
    standing = _stop_seen(now_s, lease, standing)
    if is_done:
        standing = replace(standing, done_seen_s=min(standing.done_seen_s, now_s))
    if standing.stage is Stage.KILLED:
        return standing
    if lease.kill:
        return replace(standing, stage=Stage.KILLED, reason="killed by order")
    if now_s >= _kill_at_s(launch, lease, standing):
        reason = standing.reason or "the lease is over"
        return replace(standing, stage=Stage.KILLED, reason=f"{reason}, and the grace of {launch.grace_s:g} s, too")
    if standing.stage is Stage.TERMINATED:
        return standing
    if now_s >= _terminate_at_s(launch, lease, standing, reports=reports):
        reason = "the lease is over" if now_s >= lease.until_clock_s else "a stop was asked for"
        return replace(standing, stage=Stage.TERMINATED, terminated_s=now_s, reason=reason)
    if _is_warned(now_s, launch, lease) and standing.warned_until_s != lease.until_clock_s:
        return replace(standing, warned_until_s=lease.until_clock_s)
    return standing


def is_stop_asked(now_s: float, launch: Launch, lease: Lease, standing: Standing) -> bool:
    """Whether a job that exits now without a fault has been asked to, by order, warning or the end of its lease."""
    over = now_s >= lease.until_clock_s or standing.stage > Stage.RUNNING or standing.stop_seen_s <= now_s
    return over or _is_warned(now_s, launch, lease)


def seconds_left(now_s: float, launch: Launch, lease: Lease, standing: Standing, *, reports: bool) -> float:
    """Until `next_standing` may say something new without a new order; not below zero."""
    moments = [_terminate_at_s(launch, lease, standing, reports=reports), _kill_at_s(launch, lease, standing)]
    if launch.warning_s and launch.warning_signal:
        moments.append(lease.until_clock_s - launch.warning_s)
    return min((moment - now_s for moment in moments if moment > now_s), default=float("inf"))


def _stop_seen(now_s: float, lease: Lease, standing: Standing) -> Standing:
    return replace(standing, stop_seen_s=min(standing.stop_seen_s, now_s)) if lease.stop else standing


def _is_warned(now_s: float, launch: Launch, lease: Lease) -> bool:
    return launch.warning_s > 0 and launch.warning_signal > 0 and now_s >= lease.until_clock_s - launch.warning_s


def _terminate_at_s(launch: Launch, lease: Lease, standing: Standing, *, reports: bool) -> float:
    stop_s = standing.stop_seen_s + (launch.grace_s if reports else 0.0)
    if standing.done_seen_s < float("inf"):
        stop_s = max(stop_s, standing.done_seen_s + launch.finish_grace_s)
    return min(lease.until_clock_s, stop_s)


def _kill_at_s(launch: Launch, lease: Lease, standing: Standing) -> float:
    return min(lease.until_clock_s, standing.terminated_s) + launch.grace_s
