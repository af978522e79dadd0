"""Apps: losers end at rungs, winners continue, and restarts, snapshots and the archive change no decision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.app_table import NAMES_MAX, POINTS_MAX, AppTable, Curve, steps_max
from gavelpy.mechanism.commands import Command, KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    JobCancelled,
    JobsArchived,
    JobSubmitted,
    LeaseEnded,
    MetricsReported,
    Outcome,
    ProgressReported,
)
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import METERED, restore, snapshot
from gavelpy.model.apps import AppRole, Direction, HalvingSchedule, Rung
from gavelpy.model.job import JobSpec
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, running_core, start, tell, wake

ENDED, WAITS, RUNS = JobState.CANCELLED, JobState.WAITING, JobState.RUNNING


def members(jobs: int, *rungs: tuple[float, int], direction: Direction = Direction.MIN) -> list[JobSpec]:
    """The jobs of an app with one bracket."""
    steps = tuple(Rung(*rung) for rung in rungs)
    roles = [
        AppRole("tune", at, jobs, direction=direction, schedule=HalvingSchedule.SUCCESSIVE_HALVING, rungs=steps)
        for at in range(jobs)
    ]
    return [make_spec(f"j{role.at}", steps=1000.0, app=role.text) for role in roles]


def running_app(jobs: int, *rungs: tuple[float, int], direction: Direction = Direction.MIN) -> SchedulerCore:
    return running_core(*members(jobs, *rungs, direction=direction), servers=[("v100", 1)] * jobs)


def report(core: SchedulerCore, job: int, step: float, value: float, name: str = "loss") -> list[Command]:
    row = core.jobs.ids.row(job)
    lease = max(int(core.jobs.lease[row]), int(core.jobs.stopping[row]))
    at = np.array([job]), np.array([lease]), np.array([0])
    return tell(core, MetricsReported(*at, np.array([step], dtype=float), np.array([value], dtype=float), (name,)))


def stop(core: SchedulerCore, job: int, steps: float) -> list[Command]:
    """The lease that is being stopped ends, and has saved."""
    return end(core, job, int(core.jobs.stopping[core.jobs.ids.row(job)]), Outcome.STOPPED, steps=steps)


def states(core: SchedulerCore) -> list[JobState]:
    return [JobState(state) for state in core.jobs.state[: core.jobs.count].tolist()]


def restored(core: SchedulerCore) -> SchedulerCore:
    return restore(decode_state(encode_state(snapshot(core))))


def test_the_worst_jobs_end_when_all_have_reached_the_rung_and_the_best_continue() -> None:
    core = running_app(3, (100, 1))

    first = report(core, 0, 100, 0.5)
    stop(core, 0, 100)
    second = report(core, 1, 100, 0.2)
    stop(core, 1, 100)
    before = states(core)
    last = report(core, 2, 100, 0.9)

    assert [plan.revoke_jobs.tolist() for plan in plans([*first, *second])] == [[0], [1]]
    assert before == [WAITS, WAITS, RUNS]
    assert states(core) == [ENDED, WAITS, ENDED]
    assert core.jobs.apps.ended == {
        0: "ended by successive halving: rank 2 of 3 at 100 steps, loss 0.5",
        2: "ended by successive halving: rank 3 of 3 at 100 steps, loss 0.9",
    }
    assert [(kill.job, kill.lease) for kill in last if isinstance(kill, KillLease)] == [(2, 2)]
    assert core.unmet_jobs == [(0, 0), (2, 2)]
    assert not core.jobs.apps.members


def test_a_job_at_a_rung_says_for_what_it_waits_and_is_not_in_the_policys_problem() -> None:
    core = running_app(3, (100, 1))
    report(core, 1, 100, 0.2)
    stop(core, 1, 100)

    (request,) = [one for one in wake(core) if hasattr(one, "problem")]

    (reason,) = reasons(core).values()
    assert (reason.kind, reason.text) == (
        "at-rung",
        "waits at 100 steps for 2 other jobs of app tune, to be compared with them",
    )
    assert request.jobs.tolist() == [0, 2]


def test_a_winner_gets_a_lease_again() -> None:
    core = running_app(2, (100, 1))
    report(core, 0, 100, 0.1)
    stop(core, 0, 100)
    report(core, 1, 100, 0.3)

    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0)

    assert states(core) == [RUNS, ENDED]
    assert core.jobs.steps_saved[0] == 100


def test_larger_is_better_if_the_app_says_so() -> None:
    core = running_app(2, (100, 1), direction=Direction.MAX)

    report(core, 0, 100, 0.7)
    report(core, 1, 100, 0.8)

    assert states(core)[0] is ENDED


def test_the_value_at_the_rung_counts_not_a_later_one() -> None:
    core = running_app(2, (100, 1))
    report(core, 0, 90, 0.5)
    report(core, 0, 130, 0.1)

    report(core, 1, 100, 0.3)

    assert states(core)[0] is ENDED


def test_a_job_without_a_value_ranks_last_and_the_reason_says_so() -> None:
    core = running_app(2, (100, 1))
    tell(core, ProgressReported(np.array([0]), core.jobs.lease[:1].copy(), np.array([100.0])))

    report(core, 1, 100, 1e9)

    assert core.jobs.apps.ended == {0: "ended by successive halving: rank 2 of 2 at 100 steps, with no loss reported"}


def test_jobs_that_are_cancelled_or_fail_take_no_part() -> None:
    core = running_app(4, (100, 2))
    report(core, 0, 100, 0.5)
    report(core, 1, 100, 0.6)
    tell(core, JobCancelled(2))
    assert states(core)[:2] != [ENDED, ENDED]

    tell(core, JobCancelled(3))

    assert states(core) == [WAITS, WAITS, ENDED, ENDED]
    assert not core.jobs.apps.ended
    assert not core.jobs.apps.at_rung


def test_no_job_ends_before_all_jobs_of_the_app_were_submitted() -> None:
    specs = members(3, (100, 1))
    core = running_core(*specs[:2], servers=[("v100", 1)] * 3)
    report(core, 0, 100, 0.5)
    report(core, 1, 100, 0.6)

    assert ENDED not in states(core)

    tell(core, JobSubmitted(specs[2]))
    tell(core, JobCancelled(2))

    assert states(core)[1] is ENDED


def test_brackets_are_apart() -> None:
    roles = [
        AppRole("tune", at, 4, schedule=HalvingSchedule.HYPERBAND, bracket=at // 2, rungs=(Rung(100, 1),))
        for at in range(4)
    ]
    core = running_core(*(make_spec(f"j{one.at}", app=one.text) for one in roles), servers=[("v100", 1)] * 4)

    for job, value in enumerate((0.1, 0.2, 0.3, 0.4)):
        report(core, job, 100, value)

    assert [state is ENDED for state in states(core)] == [False, True, False, True]


def test_a_job_that_skips_a_rung_between_two_reports_counts_at_both() -> None:
    core = running_app(4, (100, 2), (200, 1))
    for job, value in enumerate((0.4, 0.3, 0.2, 0.1)):
        report(core, job, 99, value)

    for job in range(4):
        report(core, job, 250, 1.0)

    assert [state is ENDED for state in states(core)] == [True, True, True, False]


@pytest.mark.parametrize("seed", range(20))
def test_ended_jobs_are_those_of_a_plain_successive_halving(seed: int) -> None:
    """Oracle: sort, cut, repeat; the core gets the reports in random order, with restarts in between."""
    rng = np.random.default_rng(seed)
    jobs, rungs = 9, ((10.0, 3), (30.0, 1))
    curve = rng.random((jobs, 2)).round(1)  # with ties
    core = running_app(jobs, *rungs)
    expected = [*range(jobs)]
    for rung, (steps, keep) in enumerate(rungs):
        for job in rng.permutation(expected).tolist():
            if core.jobs.lease[job] < 0:
                wake(core)
                answer(core, *((one, 0, 1.0) for one in expected if core.jobs.lease[one] < 0))
                start(core, *(one for one in expected if states(core)[one] is JobState.GRANTED))
            report(core, job, steps, float(curve[job, rung]))
            if core.jobs.stopping[job] >= 0 and core.jobs.state[job] == WAITS:
                stop(core, job, steps)
            core = restored(core)
        expected = sorted(sorted(expected, key=lambda job: (curve[job, rung], job))[:keep])

        assert [job for job in range(jobs) if states(core)[job] is not ENDED] == expected


def test_a_replay_from_any_point_gives_the_same_state() -> None:
    specs, events = members(3, (100, 1)), []
    core = make_core(*specs, servers=[("v100", 1)] * 3)
    double = restored(core)
    core.__dict__["handle"] = lambda event, now_s: (
        events.append(encode(event, now_s)) or type(core).handle(core, event, now_s)
    )
    wake(core)
    answer(core, *((job, 0, 1.0) for job in range(3)))
    start(core, 0, 1, 2)
    for job, value in enumerate((0.5, 0.2, 0.9)):
        report(core, job, 100, value)
    del core.__dict__["handle"]

    for record in events:
        now_s, event = decode(record)
        double = restored(double)
        double.handle(event, now_s)

    assert encode_state(snapshot(double)) == encode_state(snapshot(core))
    assert len(core.jobs.apps.ended) == 2


def test_jobs_that_leave_for_the_archive_change_no_decision() -> None:
    core = running_app(3, (100, 2), (200, 1))
    for job, value in enumerate((0.5, 0.2, 0.9)):
        report(core, job, 100, value)
    for job in (0, 1, 2):
        row = core.jobs.ids.row(job)
        if core.jobs.stopping[row] >= 0:
            end(core, job, int(core.jobs.stopping[row]), Outcome.STOPPED, steps=100)
        elif core.jobs.lease[row] >= 0 and core.jobs.state[row] != RUNS:
            pytest.fail("a lease is neither running nor stopping")
    tell(core, JobsArchived(np.array([2])))
    core = restored(core)

    wake(core)
    answer(core, (0, 0, 1.0), (1, 0, 1.0))
    start(core, 0, 1)
    report(core, 0, 200, 0.4)
    report(core, 1, 200, 0.5)

    assert states(core)[1] is ENDED
    assert core.jobs.apps.ended[1].startswith("ended by successive halving: rank 2 of 2 at 200 steps")


def test_leases_end_at_the_next_rung() -> None:
    core = running_app(2, (100, 1), (2000, 1))

    before = steps_max(core.jobs, 0)
    report(core, 0, 100, 0.1)
    report(core, 1, 100, 0.2)

    assert (before, steps_max(core.jobs, 0)) == (100, 0.0), "the second rung is after the last step"


def test_reports_under_leases_that_are_over_and_metrics_beyond_the_limit_are_ignored() -> None:
    core = running_core(make_spec("j0"))
    late = MetricsReported(*(np.array([0]), np.array([77]), np.array([0])), np.array([1.0]), np.array([2.0]), ("loss",))

    tell(core, late)
    for number in range(NAMES_MAX + 3):
        report(core, 0, 1, 0.5, f"metric-{number}")

    assert list(core.jobs.apps.curves[0]) == [f"metric-{number}" for number in range(NAMES_MAX)]


@pytest.mark.parametrize(
    ("step", "value", "name", "message"),
    [
        (1.0, math.nan, "loss", "values must be finite"),
        (1.0, math.inf, "loss", "values must be finite"),
        (-1.0, 0.5, "loss", "metric_steps must be in"),
        (math.nan, 0.5, "loss", "metric_steps must be in"),
        (1.0, 0.5, "a b", "names must be 1 to 63"),
        (1.0, 0.5, "x" * 64, "names must be 1 to 63"),
    ],
)
def test_a_report_that_cannot_be_is_refused(step: float, value: float, name: str, message: str) -> None:
    core = running_core(make_spec("j0"))

    with pytest.raises(InvalidInput, match=message):
        report(core, 0, step, value, name)


def test_a_curve_is_bounded_keeps_the_newest_point_and_ascends() -> None:
    curve = Curve()
    for step in range(1000):
        curve = curve.with_point(step, -step)

    assert len(curve.steps) <= POINTS_MAX
    assert (curve.steps[0], curve.steps[-1], curve.values[-1]) == (0, 999, -999)
    assert all(before < after for before, after in zip(curve.steps, curve.steps[1:], strict=False))
    assert curve.with_point(500, 7.0).steps[-1] == 500, "steps that were lost are gone"


def test_a_core_with_metrics_needs_a_new_snapshot_and_one_without_does_not() -> None:
    core = running_core(make_spec("j0"))
    before = snapshot(core)["version"]

    report(core, 0, 5, 0.5)

    assert before < METERED == snapshot(core)["version"]
    assert restored(core).jobs.apps.curve(0, "loss") == Curve((5.0,), (0.5,))


def test_the_cost_of_a_report_does_not_grow_with_the_app() -> None:
    """Counted, not timed: a report looks at its own job only."""
    seen: list[int] = []
    core = running_app(30, (100, 1))
    core.jobs.apps.next_rung = lambda row, text: seen.append(row) or AppTable.next_rung(core.jobs.apps, row, text)

    core.handle(
        MetricsReported(
            *(np.array([7]), core.jobs.lease[7:8].copy(), np.array([0])), np.array([50.0]), np.array([0.5]), ("loss",)
        ),
        core.now_s,
    )

    assert seen == [7]


def test_the_end_of_a_lease_at_the_rung_after_its_report_is_booked_once() -> None:
    core = running_app(2, (100, 1))
    report(core, 0, 100, 0.1)

    stop(core, 0, 100)
    lease = int(core.jobs.lease[1])
    tell(core, LeaseEnded(np.array([1]), np.array([lease]), np.array([100.0]), Outcome.STOPPED))

    assert states(core) == [WAITS, ENDED]
