"""When the shim warns, terminates and kills a job."""

from __future__ import annotations

import signal
from dataclasses import replace

from gavelpy.runtime.lease_files import Launch, LeaseTerms
from gavelpy.runtime.shim.termination import Stage, Termination, is_stop_requested, next_termination, seconds_left

LAUNCH = Launch(1, 1, ("x",), "/", {}, ({},), grace_s=10.0, warning_s=30.0, warning_signal=int(signal.SIGUSR1))
LEASE = LeaseTerms(1, until_clock_s=100.0)


def termination_at(
    now_s: float, lease: LeaseTerms = LEASE, before: Termination | None = None, *, reports: bool = False
) -> Termination:
    return next_termination(now_s, LAUNCH, lease, before or Termination(), reports=reports)


def test_nothing_happens_before_the_warning() -> None:
    assert termination_at(69.9) == Termination()


def test_warning_is_sent_once_for_each_end_of_lease() -> None:
    warned = termination_at(70.0)
    extended = replace(LEASE, until_clock_s=200.0)

    assert warned.warned_until_s == 100.0
    assert termination_at(80.0, before=warned) == warned
    assert termination_at(169.0, extended, warned) == warned
    assert termination_at(170.0, extended, warned).warned_until_s == 200.0


def test_job_is_terminated_at_the_end_of_its_lease() -> None:
    terminated = termination_at(100.0)

    assert terminated.stage is Stage.TERMINATED
    assert terminated.reason == "the lease is over"


def test_job_is_killed_when_the_grace_is_over() -> None:
    terminated = termination_at(100.0)

    assert termination_at(109.9, before=terminated).stage is Stage.TERMINATED
    assert termination_at(110.0, before=terminated).stage is Stage.KILLED


def test_shim_that_was_paused_past_the_grace_kills_at_once() -> None:
    assert termination_at(111.0).stage is Stage.KILLED


def test_stop_terminates_a_job_that_does_not_report_at_once() -> None:
    stopped = termination_at(50.0, replace(LEASE, stop=True))

    assert stopped.stage is Stage.TERMINATED
    assert termination_at(60.0, replace(LEASE, stop=True), stopped).stage is Stage.KILLED


def test_job_that_reports_has_the_grace_to_stop_by_itself() -> None:
    order = replace(LEASE, stop=True)
    seen = termination_at(50.0, order, reports=True)

    assert seen.stage is Stage.RUNNING
    assert termination_at(59.9, order, seen, reports=True).stage is Stage.RUNNING
    assert termination_at(60.0, order, seen, reports=True).stage is Stage.TERMINATED


def test_stop_never_extends_a_lease() -> None:
    order = replace(LEASE, stop=True)
    seen = termination_at(95.0, order, reports=True)

    terminated = termination_at(100.0, order, seen, reports=True)

    assert terminated.stage is Stage.TERMINATED
    assert termination_at(110.0, order, terminated, reports=True).stage is Stage.KILLED


def test_kill_kills_at_once() -> None:
    assert termination_at(1.0, replace(LEASE, kill=True)).stage is Stage.KILLED


def test_extension_after_the_end_does_not_revive_a_job() -> None:
    terminated = termination_at(100.0)

    assert termination_at(105.0, replace(LEASE, until_clock_s=500.0), terminated).stage is Stage.TERMINATED
    assert termination_at(110.0, replace(LEASE, until_clock_s=500.0), terminated).stage is Stage.KILLED


def test_exit_after_the_warning_counts_as_requested() -> None:
    assert not is_stop_requested(69.0, LAUNCH, LEASE, Termination())
    assert is_stop_requested(70.0, LAUNCH, LEASE, Termination())


def test_next_change_is_the_warning_then_the_end_then_the_kill() -> None:
    terminated = termination_at(100.0)

    assert seconds_left(60.0, LAUNCH, LEASE, Termination(), reports=False) == 10.0
    assert seconds_left(90.0, LAUNCH, LEASE, Termination(), reports=False) == 10.0
    assert seconds_left(101.0, LAUNCH, LEASE, terminated, reports=False) == 9.0


def test_a_stop_after_the_last_step_waits_for_the_exit() -> None:
    launch, stop = replace(LAUNCH, finish_grace_s=40.0), replace(LEASE, stop=True)

    asked = next_termination(10.0, launch, stop, Termination(), reports=True, is_done=True)
    later = next_termination(49.9, launch, stop, asked, reports=True, is_done=True)
    over = next_termination(50.0, launch, stop, later, reports=True, is_done=True)

    assert (asked.stage, later.stage, over.stage) == (Stage.RUNNING, Stage.RUNNING, Stage.TERMINATED)


def test_the_end_of_the_lease_and_a_kill_apply_after_the_last_step_too() -> None:
    launch = replace(LAUNCH, finish_grace_s=600.0)
    killed = replace(LEASE, kill=True)

    over = next_termination(100.0, launch, replace(LEASE, stop=True), Termination(), reports=True, is_done=True)

    assert over.stage is Stage.TERMINATED
    assert next_termination(10.0, launch, killed, Termination(), reports=True, is_done=True).stage is Stage.KILLED
