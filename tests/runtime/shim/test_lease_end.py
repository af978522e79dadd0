"""Outcome and steps of a lease, derived from exit codes and reports."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from gavelpy.runtime.lease_files import End, Launch, LeaseOutcome, LeaseTerms, Progress
from gavelpy.runtime.shim.termination import (
    RankExits,
    Stage,
    Termination,
    estimated_steps,
    is_failure,
    lease_end,
    limited,
)

LAUNCH = Launch(
    1,
    1,
    ("x",),
    "/",
    {},
    ({}, {}),
    first_rank=4,
    steps_done=100.0,
    steps_total=1000.0,
    rate_steps_per_s=2.0,
    silent_start_s=0.0,
)
WELL = RankExits(codes={0: 0, 1: 0}, first_failure=-1, ran_s=30.0, stop_requested=False)


def ended(exits: RankExits, *reports: Progress, launch: Launch = LAUNCH) -> End:
    return lease_end(launch, exits, reports, "", 5.0)


def test_script_that_exits_by_itself_has_finished() -> None:
    end = ended(WELL)

    assert (end.outcome, end.steps_done, end.steps_saved) == (LeaseOutcome.FINISHED, 1000.0, 100.0)


def test_steps_of_a_script_that_stops_are_an_estimate_and_none_of_them_saved() -> None:
    end = ended(replace(WELL, stop_requested=True))

    assert (end.outcome, end.steps_done, end.steps_saved) == (LeaseOutcome.STOPPED, 160.0, 100.0)


def test_without_a_rate_there_is_one_step_per_second() -> None:
    end = ended(replace(WELL, stop_requested=True), launch=replace(LAUNCH, rate_steps_per_s=0.0))

    assert end.steps_done == 130.0


def test_steps_by_time_end_at_the_total() -> None:
    assert ended(replace(WELL, stop_requested=True, ran_s=1e6)).steps_done == 1000.0


def test_failure_of_a_script_saves_nothing_new_and_names_the_rank() -> None:
    end = ended(replace(WELL, codes={0: -9, 1: 3}, first_failure=1))

    assert (end.outcome, end.exit_code, end.steps_saved) == (LeaseOutcome.FAILED, 3, 100.0)
    assert end.detail == "rank 5 exited with code 3"


def test_failure_by_signal_names_the_signal() -> None:
    end = ended(replace(WELL, codes={0: -11, 1: -9}, first_failure=0))

    assert end.detail == "rank 4 was killed by SIGSEGV"


def test_report_of_finished_wins_over_a_stop() -> None:
    report = Progress(steps_done=1000.0, steps_saved=1000.0, finished=True)

    assert ended(replace(WELL, stop_requested=True), report).outcome is LeaseOutcome.FINISHED


def test_iterator_that_stopped_before_the_last_step_has_stopped() -> None:
    first = Progress(steps_done=400.0, steps_saved=400.0, stopped=True)
    second = Progress(steps_done=400.0, steps_saved=100.0, stopped=True)

    end = ended(WELL, first, second)

    assert (end.outcome, end.steps_done, end.steps_saved) == (LeaseOutcome.STOPPED, 400.0, 400.0)


def test_killed_iterator_has_done_what_it_has_saved() -> None:
    report = Progress(steps_done=400.0, steps_saved=350.0)

    end = ended(replace(WELL, codes={0: -9, 1: -9}, stop_requested=True), report)

    assert (end.outcome, end.steps_done, end.steps_saved) == (LeaseOutcome.STOPPED, 350.0, 350.0)


def test_steps_of_a_killed_script_do_not_count() -> None:
    end = ended(replace(WELL, codes={0: -9, 1: -9}, stop_requested=True))

    assert end.steps_saved == 100.0


@pytest.mark.parametrize(
    ("code", "stage", "failure"),
    [
        (0, Stage.RUNNING, False),
        (1, Stage.RUNNING, True),
        (-signal.SIGTERM, Stage.RUNNING, True),
        (-signal.SIGTERM, Stage.TERMINATED, False),
        (143, Stage.TERMINATED, False),
        (1, Stage.TERMINATED, True),
        (-signal.SIGKILL, Stage.TERMINATED, True),
        (-signal.SIGKILL, Stage.KILLED, False),
        (1, Stage.KILLED, False),
    ],
)
def test_exit_code_is_a_failure_unless_it_follows_a_signal_of_the_shim(code: int, stage: Stage, failure: bool) -> None:
    assert is_failure(code, LAUNCH, Termination(stage=stage), expired=False) is failure


def test_death_by_the_warning_signal_is_no_failure_once_it_was_sent() -> None:
    launch = replace(LAUNCH, warning_s=5.0, warning_signal=int(signal.SIGUSR1))

    assert is_failure(-signal.SIGUSR1, launch, Termination(), expired=False)
    assert not is_failure(-signal.SIGUSR1, launch, Termination(warned_until_s=100.0), expired=False)


def test_rank_that_gave_up_because_its_lease_was_over_is_no_failure() -> None:
    assert not is_failure(1, LAUNCH, Termination(stage=Stage.TERMINATED), expired=True)


def test_silent_job_counts_no_steps_before_it_had_time_to_report() -> None:
    starting = replace(LAUNCH, silent_start_s=60.0, steps_done=5.0, rate_steps_per_s=10.0)

    assert estimated_steps(starting, 59.0) == 5.0
    assert estimated_steps(starting, 61.0) == 615.0


def test_silent_job_that_resumes_from_a_checkpoint_of_the_iterator_counts_no_steps() -> None:
    resumed = replace(LAUNCH, environment={"GAVEL_RESUME_DIR": "/c"}, steps_done=5.0)

    assert estimated_steps(resumed, 1000.0) == 5.0


BY_SIGNAL = replace(WELL, codes={0: -signal.SIGTERM, 1: -signal.SIGKILL}, stop_requested=True)


@pytest.mark.parametrize("report", [Progress(1000.0, 1000.0, finished=True), Progress(1000.0, 800.0)])
def test_an_exit_by_a_signal_of_the_shim_after_the_last_step_is_a_finish(report: Progress) -> None:
    end = ended(BY_SIGNAL, report, report)

    assert (end.outcome, end.steps_done) == (LeaseOutcome.FINISHED, 1000.0)
    assert end.detail.startswith("all steps were done")


@pytest.mark.parametrize(
    "reports",
    [
        (Progress(1000.0, 1000.0, finished=True), Progress(999.0, 900.0)),
        (Progress(1000.0, 800.0), Progress(1000.0, 800.0, stopped=True)),
        (Progress(1000.0, 1000.0, finished=True),),
        (),
    ],
    ids=["a rank has a step to do", "a rank gave up", "a rank did not report", "by time"],
)
def test_an_exit_by_a_signal_of_the_shim_before_the_last_step_of_all_is_none(reports: tuple[Progress, ...]) -> None:
    assert ended(BY_SIGNAL, *reports).outcome is LeaseOutcome.STOPPED


def test_a_rank_that_breaks_after_its_last_step_has_failed() -> None:
    report = Progress(1000.0, 1000.0, finished=True)

    end = ended(replace(WELL, codes={0: 139, 1: 0}, first_failure=0), report, report)

    assert end.outcome is LeaseOutcome.FAILED


STOPPED = End(LeaseOutcome.STOPPED, 0, 60.0, 50.0, "all ranks stopped", 100.0)


def test_end_at_the_time_limit_is_a_failure_with_the_steps_that_were_saved() -> None:
    end = limited(STOPPED, LeaseTerms(1, 100.0, limit_clock_s=100.0), "")

    assert (end.outcome, end.failure, end.steps_saved) == (LeaseOutcome.FAILED, "time-limit", 50.0)
    assert end.detail == "the time limit of the job is reached (all ranks stopped)"


@pytest.mark.parametrize(
    "terms",
    [
        LeaseTerms(1, 100.0),
        LeaseTerms(1, 100.0, limit_clock_s=150.0),
        LeaseTerms(1, 100.0, stop=True, limit_clock_s=100.0),
        LeaseTerms(1, 100.0, kill=True, limit_clock_s=100.0),
    ],
    ids=["no-limit", "ended-before-it", "stopped-by-order", "killed-by-order"],
)
def test_other_ends_do_not_reach_the_time_limit(terms: LeaseTerms) -> None:
    assert limited(STOPPED, terms, "") is STOPPED


@pytest.mark.parametrize("outcome", [LeaseOutcome.FINISHED, LeaseOutcome.FAILED])
def test_job_that_finishes_or_fails_at_its_time_limit_has_done_so(outcome: LeaseOutcome) -> None:
    end = replace(STOPPED, outcome=outcome)

    assert limited(end, LeaseTerms(1, 100.0, limit_clock_s=100.0), "") is end


def test_job_without_progress_has_stalled_unless_it_finished() -> None:
    ends = [limited(replace(STOPPED, outcome=outcome), LeaseTerms(1, 100.0), "no progress") for outcome in LeaseOutcome]

    assert [end.failure for end in ends] == ["", "stalled", "stalled", ""]
    assert ends[1].detail == "no progress"
