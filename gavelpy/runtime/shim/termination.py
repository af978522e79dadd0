"""When to warn, terminate and kill a job: a pure function of the clock, the lease and what was sent before.

A job that reports uses LeaseIterator, which reads the lease and stops before its end; it gets SIGTERM only if it has
not stopped by then. Any other job gets SIGTERM at the end of the lease, or at once on a stop. A job that has reported
its last step has `finish_grace_s` to exit before a stop takes effect; the end of its lease, which the scheduler extends
meanwhile, still applies. SIGKILL follows after the grace. An extension after SIGTERM changes nothing: the processes may
have exited already. The result is correct after a pause of the shim of any length.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from gavelpy.runtime.lease_files import Launch, LeaseTerms


class Stage(IntEnum):
    """What has been sent to the job."""

    RUNNING = 0
    TERMINATED = 1  # SIGTERM
    KILLED = 2  # SIGKILL


@dataclass(frozen=True)
class Termination:
    """What the shim has sent, and when."""

    stage: Stage = Stage.RUNNING
    stop_seen_s: float = float("inf")  # when a stop was first requested
    done_seen_s: float = float("inf")  # when the last step of all ranks was first seen
    terminated_s: float = float("inf")
    warned_until_s: float = float("-inf")  # the end of lease for which the warning signal was sent
    reason: str = ""  # why the job is being ended


def next_termination(
    now_s: float, launch: Launch, lease: LeaseTerms, state: Termination, *, reports: bool, is_done: bool = False
) -> Termination:
    """The state in which the shim should be now: it must send the difference.

    `is_done`: all ranks have reported their last step, so a stop waits for their exit, for at most `finish_grace_s`.
    """
    state = _stop_seen(now_s, lease, state)
    if is_done:
        state = replace(state, done_seen_s=min(state.done_seen_s, now_s))
    if state.stage is Stage.KILLED:
        return state
    if lease.kill:
        return replace(state, stage=Stage.KILLED, reason="killed by order")
    if now_s >= _kill_at_s(launch, lease, state):
        reason = state.reason or "the lease is over"
        return replace(state, stage=Stage.KILLED, reason=f"{reason}, and the grace of {launch.grace_s:g} s, too")
    if state.stage is Stage.TERMINATED:
        return state
    if now_s >= _terminate_at_s(launch, lease, state, reports=reports):
        reason = "the lease is over" if now_s >= lease.until_clock_s else "a stop was requested"
        return replace(state, stage=Stage.TERMINATED, terminated_s=now_s, reason=reason)
    if _is_warned(now_s, launch, lease) and state.warned_until_s != lease.until_clock_s:
        return replace(state, warned_until_s=lease.until_clock_s)
    return state


def is_stop_requested(now_s: float, launch: Launch, lease: LeaseTerms, state: Termination) -> bool:
    """Whether a job that exits now without an error does so by order, warning or the end of its lease."""
    over = now_s >= lease.until_clock_s or state.stage > Stage.RUNNING or state.stop_seen_s <= now_s
    return over or _is_warned(now_s, launch, lease)


def seconds_left(now_s: float, launch: Launch, lease: LeaseTerms, state: Termination, *, reports: bool) -> float:
    """Seconds until the result of `next_termination` can change without a new order; not negative."""
    moments = [_terminate_at_s(launch, lease, state, reports=reports), _kill_at_s(launch, lease, state)]
    if launch.warning_s and launch.warning_signal:
        moments.append(lease.until_clock_s - launch.warning_s)
    return min((moment - now_s for moment in moments if moment > now_s), default=float("inf"))


def _stop_seen(now_s: float, lease: LeaseTerms, state: Termination) -> Termination:
    return replace(state, stop_seen_s=min(state.stop_seen_s, now_s)) if lease.stop else state


def _is_warned(now_s: float, launch: Launch, lease: LeaseTerms) -> bool:
    return launch.warning_s > 0 and launch.warning_signal > 0 and now_s >= lease.until_clock_s - launch.warning_s


def _terminate_at_s(launch: Launch, lease: LeaseTerms, state: Termination, *, reports: bool) -> float:
    stop_s = state.stop_seen_s + (launch.grace_s if reports else 0.0)
    if state.done_seen_s < float("inf"):
        stop_s = max(stop_s, state.done_seen_s + launch.finish_grace_s)
    return min(lease.until_clock_s, stop_s)


def _kill_at_s(launch: Launch, lease: LeaseTerms, state: Termination) -> float:
    return min(lease.until_clock_s, state.terminated_s) + launch.grace_s
