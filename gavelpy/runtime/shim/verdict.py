"""How a lease ended on this node, from the exit codes of its ranks and what they said: a pure function."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gavelpy.runtime.lease_files import RESUME_DIRECTORY_VARIABLE, End, Launch, Outcome, Progress
from gavelpy.runtime.shim.orders import Stage, Standing


@dataclass(frozen=True)
class Exits:
    """What was seen of a job's end."""

    codes: Mapping[int, int]  # by local rank, of those that ended on their own; -n = by signal n
    first_fault: int  # the local rank that failed first; -1 = none
    ran_s: float
    stop_asked: bool  # when the last rank ended


def is_fault(code: int, launch: Launch, standing: Standing, *, expired: bool) -> bool:
    """Whether an exit code says that a rank failed, rather than finished or obeyed a signal of ours.

    `expired`: the lease was over and the rank has said that it gave up because of it. After SIGKILL nothing is a fault.
    """
    if standing.stage is Stage.KILLED or expired:
        return False
    obeyed = {0}
    if standing.stage is Stage.TERMINATED:
        obeyed |= {-signal.SIGTERM, 128 + signal.SIGTERM}
    if standing.warned_until_s > 0 and launch.warning_signal:
        obeyed |= {-launch.warning_signal, 128 + launch.warning_signal}
    return code not in obeyed


def verdict(launch: Launch, exits: Exits, reports: Sequence[Progress], reason: str, at_clock_s: float) -> End:
    """The last word on a lease; `reports` are of the ranks that reported, `reason` says why they were ended."""
    outcome = _outcome(launch, exits, reports)
    done, saved = _steps(launch, exits, reports, outcome)
    if exits.first_fault >= 0:
        code = exits.codes[exits.first_fault]
        return End(outcome, code, done, saved, _fault(launch.first_rank + exits.first_fault, code), at_clock_s)
    code = next((code for code in exits.codes.values() if code), 0)
    if outcome is Outcome.FINISHED and code:
        reason = f"all steps were done; the exit took too long and was ended by signal ({reason})"
    return End(outcome, code, done, saved, reason or _told(outcome), at_clock_s)


def has_done_all(launch: Launch, reports: Sequence[Progress]) -> bool:
    """Whether every local rank has reported its last step, by its own count or as finished, and none gave up."""
    total = launch.steps_total
    done = (each.finished or (not each.stopped and 0 < total <= each.steps_done) for each in reports)
    return len(reports) == launch.local_ranks and all(done)


def estimated_steps(launch: Launch, ran_s: float) -> float:
    """An estimate of the steps of a job that does not report, by time; a second is a step where no rate is known.

    It adds none at first, and none where the job resumes from a checkpoint of LeaseIterator: it may be a job that
    reports and has not come so far.
    """
    if ran_s < launch.silent_start_s or RESUME_DIRECTORY_VARIABLE in launch.environment:
        return launch.steps_done
    steps = launch.steps_done + (launch.rate_steps_per_s or 1.0) * ran_s
    return min(steps, launch.steps_total) if launch.steps_total > 0 else steps


def _outcome(launch: Launch, exits: Exits, reports: Sequence[Progress]) -> Outcome:
    """Codes other than 0 that are no fault come from signals of ours: after the last step they change nothing."""
    if exits.first_fault >= 0:
        return Outcome.FAILED
    if has_done_all(launch, reports):
        return Outcome.FINISHED
    if any(report.finished for report in reports) and not any(exits.codes.values()):
        return Outcome.FINISHED
    if exits.stop_asked or any(report.stopped for report in reports) or any(exits.codes.values()):
        return Outcome.STOPPED
    return Outcome.FINISHED


def _steps(launch: Launch, exits: Exits, reports: Sequence[Progress], outcome: Outcome) -> tuple[float, float]:
    """Steps done and saved. Ranks that report do as many as the slowest; a checkpoint of any of them is one.

    Of ranks that do not report no checkpoint is known, whatever time has passed.
    """
    if reports:
        done = min(report.steps_done for report in reports)
        saved = max(launch.steps_done, *(report.steps_saved for report in reports))
        return (saved if any(exits.codes.values()) and outcome is Outcome.STOPPED else max(done, saved)), saved
    done = estimated_steps(launch, exits.ran_s)
    if outcome is Outcome.FINISHED:
        done = launch.steps_total or done
    return done, launch.steps_done


def _fault(rank: int, code: int) -> str:
    if code >= 0:
        meaning = {126: ": a command cannot be executed", 127: ": a command was not found"}.get(code, "")
        return f"rank {rank} exited with code {code}{meaning}"
    try:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"rank {rank} was killed by signal {-code}"


def _told(outcome: Outcome) -> str:
    return "all ranks exited with code 0" if outcome is Outcome.FINISHED else "all ranks stopped in good order"
