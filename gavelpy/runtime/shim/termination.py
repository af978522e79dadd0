"""When to pause, warn, terminate and kill a job, and how its lease ended: pure functions.

`next_termination` depends on the clock, the lease and what was sent before. A job that reports uses LeaseIterator,
which reads the lease and stops before its end; it gets SIGTERM only if it has not stopped by then. Any other job gets
SIGTERM at the end of the lease, or at once on a stop. A job that has reported its last step has `finish_grace_s` to
exit before a stop takes effect; the end of its lease, which the scheduler extends meanwhile, still applies. SIGKILL
follows after the grace. An extension after SIGTERM changes nothing: the processes may have exited already. The result
is correct after a pause of the shim of any length.

`lease_end` gives outcome and steps from the exit codes and reports of the ranks.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from gavelpy.runtime.lease_files import RESUME_DIRECTORY_VARIABLE, End, Launch, LeaseOutcome, LeaseTerms, Progress

LIMIT_SLACK_S = 0.1  # of clocks
THROTTLE_PERIOD_S: Final = 0.08


def may_run(clock_s: float, factor: float) -> bool:
    """Whether a job with this speed factor may run now. Periods are aligned to the clock, so ranks pause together."""
    return factor >= 1.0 or clock_s % THROTTLE_PERIOD_S < factor * THROTTLE_PERIOD_S


def until_change_s(clock_s: float, factor: float) -> float:
    """Seconds until `may_run` changes; infinite if it never does."""
    if factor >= 1.0:
        return float("inf")
    within_s = clock_s % THROTTLE_PERIOD_S
    running_s = factor * THROTTLE_PERIOD_S
    return running_s - within_s if within_s < running_s else THROTTLE_PERIOD_S - within_s


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


@dataclass(frozen=True)
class RankExits:
    """Exit codes of a job."""

    codes: Mapping[int, int]  # by local rank, of those that ended on their own; -n = by signal n
    first_failure: int  # the local rank that failed first; -1 = none
    ran_s: float
    stop_requested: bool  # when the last rank ended


def limited(end: End, lease: LeaseTerms, stalled: str) -> End:
    """The end of a lease as a failure of its own class if a limit of the job ended it.

    `stalled`: that the job made no progress, for people; empty = it did.
    """
    if stalled and end.outcome in (LeaseOutcome.STOPPED, LeaseOutcome.FAILED):
        return replace(end, outcome=LeaseOutcome.FAILED, detail=stalled, failure="stalled")
    is_capped = 0 < lease.limit_clock_s <= lease.until_clock_s + LIMIT_SLACK_S
    if is_capped and end.outcome is LeaseOutcome.STOPPED and not (lease.stop or lease.kill):
        detail = f"the time limit of the job is reached ({end.detail})"
        return replace(end, outcome=LeaseOutcome.FAILED, detail=detail, failure="time-limit")
    return end


def is_failure(code: int, launch: Launch, termination: Termination, *, expired: bool) -> bool:
    """Whether an exit code means that a rank failed, as opposed to finishing or exiting on the shim's signal.

    `expired`: the rank has reported that it gave up because the lease was over. After SIGKILL nothing is a failure.
    """
    if termination.stage is Stage.KILLED or expired:
        return False
    expected = {0}
    if termination.stage is Stage.TERMINATED:
        expected |= {-signal.SIGTERM, 128 + signal.SIGTERM}
    if termination.warned_until_s > 0 and launch.warning_signal:
        expected |= {-launch.warning_signal, 128 + launch.warning_signal}
    return code not in expected


def lease_end(launch: Launch, exits: RankExits, reports: Sequence[Progress], reason: str, at_clock_s: float) -> End:
    """How the lease ended. `reports`: of the ranks that have reported; `reason`: why the shim ended them, if it did."""
    outcome = _outcome(launch, exits, reports)
    done, saved = _steps(launch, exits, reports, outcome)
    if exits.first_failure >= 0:
        code = exits.codes[exits.first_failure]
        return End(
            outcome, code, done, saved, _describe_failure(launch.first_rank + exits.first_failure, code), at_clock_s
        )
    code = next((code for code in exits.codes.values() if code), 0)
    if outcome is LeaseOutcome.FINISHED and code:
        reason = f"all steps were done; the ranks did not exit in time and were ended by signal ({reason})"
    return End(outcome, code, done, saved, reason or _describe(outcome), at_clock_s)


def session_end(launch: Launch, code: int, lease: LeaseTerms, at_clock_s: float, *, is_abandoned: bool) -> End:
    """How the lease of an interactive job ended: it is finished whatever its exit code, unless it was stopped."""
    is_stopped = lease.stop or lease.kill or at_clock_s >= lease.until_clock_s
    if is_stopped and not is_abandoned:
        return End(
            LeaseOutcome.STOPPED, code, launch.steps_done, launch.steps_done, "the session was stopped", at_clock_s
        )
    if is_abandoned:
        detail = f"the session was ended, because no client was attached for {launch.terminal_away_s:g} s"
    else:
        detail = f"the session {_ended_with(code)}"
    return End(LeaseOutcome.FINISHED, code, launch.steps_total, launch.steps_done, detail, at_clock_s)


def has_done_all(launch: Launch, reports: Sequence[Progress]) -> bool:
    """Whether every local rank has reported its last step, by its own count or as finished, and none gave up.

    A process that starts several ranks, such as torchrun, has more reports than processes.
    """
    totals = [each.steps_total or launch.steps_total for each in reports]
    done = (
        each.finished or (not each.stopped and 0 < total <= each.steps_done)
        for each, total in zip(reports, totals, strict=True)
    )
    return len(reports) >= launch.local_ranks and all(done)


def estimated_steps(launch: Launch, ran_s: float) -> float:
    """Steps of a job that does not report, estimated from time; one step per second if no rate is known.

    Adds none for the first `silent_start_s`, and none if the job resumes from a checkpoint of LeaseIterator: it will
    probably report.
    """
    if ran_s < launch.silent_start_s or RESUME_DIRECTORY_VARIABLE in launch.environment:
        return launch.steps_done
    steps = launch.steps_done + (launch.rate_steps_per_s or 1.0) * ran_s
    return min(steps, launch.steps_total) if launch.steps_total > 0 else steps


def _outcome(launch: Launch, exits: RankExits, reports: Sequence[Progress]) -> LeaseOutcome:
    """Codes other than 0 that are no failure come from the shim's signals, which do not matter after the last step."""
    if exits.first_failure >= 0:
        return LeaseOutcome.FAILED
    if has_done_all(launch, reports):
        return LeaseOutcome.FINISHED
    if any(report.finished for report in reports) and not any(exits.codes.values()):
        return LeaseOutcome.FINISHED
    if exits.stop_requested or any(report.stopped for report in reports) or any(exits.codes.values()):
        return LeaseOutcome.STOPPED
    return LeaseOutcome.FINISHED


def _steps(launch: Launch, exits: RankExits, reports: Sequence[Progress], outcome: LeaseOutcome) -> tuple[float, float]:
    """Steps done and saved: the steps of the slowest rank, the newest checkpoint of any rank.

    For ranks that do not report, no checkpoint is known.
    """
    if reports:
        done = min(report.steps_done for report in reports)
        saved = max(launch.steps_done, *(report.steps_saved for report in reports))
        return (saved if any(exits.codes.values()) and outcome is LeaseOutcome.STOPPED else max(done, saved)), saved
    if outcome is LeaseOutcome.FINISHED:
        return launch.steps_total or estimated_steps(
            replace(launch, silent_start_s=0.0), exits.ran_s
        ), launch.steps_done
    return estimated_steps(launch, exits.ran_s), launch.steps_done


def _describe_failure(rank: int, code: int) -> str:
    meaning = {126: ": a command cannot be executed", 127: ": a command was not found"}.get(code, "")
    return f"rank {rank} {_ended_with(code)}{meaning}"


def _ended_with(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _describe(outcome: LeaseOutcome) -> str:
    return "all ranks exited with code 0" if outcome is LeaseOutcome.FINISHED else "all ranks stopped"
