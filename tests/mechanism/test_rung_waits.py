"""Limited waits at rungs: a silent job delays its bracket no longer than the app allows, in every replay alike."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, encode, encode_state
from gavelpy.journal.versions import METERED, WAITED
from gavelpy.mechanism.commands import KillLease
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobCancelled, JobSubmitted, ProgressReported, SchedulerRestarted
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import WAITED as WAITED_SNAPSHOT
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.apps import AppRole
from gavelpy.model.job import JobSpec
from tests.mechanism.builders import answer, make_core, running_core, start, tell, wake
from tests.mechanism.test_apps import ENDED, RUNS, WAITS, members, report, restored, states, stop

RUNGS = ((10.0, 4), (30.0, 1))


def limited(jobs: int, *rungs: tuple[float, int], wait_s: float) -> list[JobSpec]:
    """The jobs of an app that limits how long a job waits at a rung."""
    found = members(jobs, *rungs)
    return [replace(spec, app=replace(AppRole.parse(spec.app), rung_wait_max_s=wait_s).text) for spec in found]


def running(jobs: int, *rungs: tuple[float, int], wait_s: float) -> SchedulerCore:
    return running_core(*limited(jobs, *rungs, wait_s=wait_s), servers=[("v100", 1)] * jobs)


def progress(core: SchedulerCore, job: int, steps: float, now_s: float) -> None:
    tell(core, ProgressReported(np.array([job]), core.jobs.lease[job : job + 1].copy(), np.array([steps])), now_s)


def test_a_rung_is_decided_without_the_job_that_never_reports() -> None:
    core = running(3, (100, 1), wait_s=50.0)
    core.now_s = 7.0
    report(core, 0, 100, 0.5)
    core.now_s = 20.0
    report(core, 1, 100, 0.2)

    wakeup_s, before = core.wakeup_s, states(core)
    wake(core, 56.0)
    early = states(core)
    commands = wake(core, 57.0)

    assert wakeup_s <= 57.0
    assert core.jobs.apps.next_due_s == math.inf
    assert before == early == [WAITS, WAITS, RUNS]
    assert states(core) == [ENDED, WAITS, ENDED]
    assert core.jobs.apps.ended == {
        0: "ended by successive halving: rank 2 of 3 at 100 steps, loss 0.5",
        2: "ended by successive halving: rank 3 of 3 at 100 steps, which it did not reach within 50 s of the first job",
    }
    assert [(kill.job, kill.lease) for kill in commands if isinstance(kill, KillLease)][-1] == (2, 2)
    assert core.unmet_jobs == [(0, 0), (2, 2)]


def test_places_that_no_other_job_takes_go_to_late_jobs_with_most_steps_which_run_on() -> None:
    core = running(4, (100, 2), wait_s=50.0)
    progress(core, 1, 40.0, 1.0)
    progress(core, 2, 60.0, 1.0)
    report(core, 3, 100, 0.9)

    wake(core, 51.0)

    assert states(core) == [ENDED, ENDED, RUNS, WAITS]
    assert core.jobs.lease[2] == 2, "a late job keeps its lease"


def test_without_a_limit_jobs_wait_and_the_core_is_not_woken_for_them() -> None:
    core = running_core(*members(2, (100, 1)), servers=[("v100", 1)] * 2)
    report(core, 0, 100, 0.1)

    assert core.jobs.apps.next_due_s == math.inf
    assert not core.jobs.apps.due_s


def test_the_reason_names_the_end_of_the_wait() -> None:
    core = running(2, (100, 1), wait_s=50.0)
    report(core, 0, 100, 0.1)
    stop(core, 0, 100)

    (reason,) = reasons(core, np.array([0])).values()

    assert reason.text.endswith("for 1 other job of app tune, to be compared with them, until 50 s at most")


def test_when_the_jobs_that_wait_are_cancelled_nothing_is_due() -> None:
    core = running(3, (100, 1), wait_s=50.0)
    report(core, 0, 100, 0.1)

    tell(core, JobCancelled(0))

    assert not core.jobs.apps.due_s
    assert states(core)[1:] == [RUNS, RUNS]


def test_an_incomplete_app_decides_nothing_and_waits_once_more() -> None:
    specs = limited(3, (100, 1), wait_s=50.0)
    core = running_core(*specs[:2], servers=[("v100", 1)] * 3)
    report(core, 0, 100, 0.5)

    wake(core, 50.0)

    assert ENDED not in states(core)
    assert core.jobs.apps.next_due_s == 100.0

    tell(core, JobSubmitted(specs[2]))
    wake(core, 100.0)

    assert states(core)[1:] == [ENDED, ENDED]


def test_after_a_restart_jobs_have_a_round_to_report() -> None:
    core = running_core(*limited(2, (100, 1), wait_s=50.0), servers=[("v100", 1)] * 2, round_s=30.0)
    report(core, 0, 100, 0.5)

    tell(core, SchedulerRestarted(1), 500.0)
    report(core, 1, 100, 0.1)

    assert states(core)[0] is ENDED, "the job that reported after the restart counts"

    core = running_core(*limited(2, (100, 1), wait_s=50.0), servers=[("v100", 1)] * 2, round_s=30.0)
    report(core, 0, 100, 0.5)
    tell(core, SchedulerRestarted(1), 500.0)

    assert core.jobs.apps.next_due_s == 530.0


def expected_survivors(wait_s: float, delay_s: np.ndarray, values: np.ndarray) -> tuple[list[int], float]:
    """Oracle: the jobs that are left after the rungs, and the time of the last decision; infinite = none comes."""
    alive, now_s, steps = list(range(len(values))), 0.0, np.zeros(len(values))
    for rung, (at, keep) in enumerate(RUNGS):
        arrival = {job: now_s + float(delay_s[job, rung]) for job in alive}
        if min(arrival.values()) == math.inf:
            return sorted(alive), math.inf
        now_s = min(max(arrival.values()), min(arrival.values()) + wait_s)
        come = [job for job in alive if arrival[job] <= now_s]
        steps[come] = at
        late = [job for job in alive if arrival[job] > now_s]
        come.sort(key=lambda job: (values[job, rung], job))
        late.sort(key=lambda job: (-steps[job], job))
        alive = [*come, *late][:keep]
    return sorted(alive), now_s


@pytest.mark.parametrize("seed", range(8))
def test_survivors_are_those_of_a_plain_loop_over_rungs_also_in_a_replay(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, wait_s = 7, float(rng.uniform(1, 12))
    delay_s = np.where(rng.random((jobs, 2)) < 0.25, math.inf, rng.uniform(1, 20, (jobs, 2)))
    values = rng.random((jobs, 2)).round(1)  # with ties
    core = make_core(*limited(jobs, *RUNGS, wait_s=wait_s), servers=[("v100", 1)] * jobs)
    double, records = restored(core), list[bytes]()
    handle = core.handle
    core.__dict__["handle"] = lambda event, now_s: records.append(encode(event, now_s)) or handle(event, now_s)
    wake(core)
    answer(core, *((job, 0, 1.0) for job in range(jobs)))
    start(core, *range(jobs))
    table, began_s = core.jobs.apps, 0.0

    while table.members:
        rung = next(iter(table.rungs.values()))
        left = [job for job in table.members if job not in table.at_rung]
        next_s, job = min((began_s + float(delay_s[job, rung]), job) for job in left)
        if (now_s := min(next_s, table.next_due_s)) == math.inf:
            break
        if table.next_due_s < next_s:
            wake(core, now_s)
        else:
            core.now_s = now_s
            report(core, job, RUNGS[rung][0], float(values[job, rung]))
        for one in np.flatnonzero(core.jobs.stopping[:jobs] >= 0).tolist():
            stop(core, one, RUNGS[rung][0])
        if next(iter(table.rungs.values()), 9) != rung:  # decided: those that are left run on
            began_s = now_s
            wake(core)
            answer(core, *((one, 0, 1.0) for one in core.jobs.active.tolist()))
            granted = np.flatnonzero(core.jobs.state[:jobs] == JobState.GRANTED).tolist()
            if granted:
                start(core, *granted)
    del core.__dict__["handle"]
    for number, record in enumerate(records):
        now_s, event = decode(record)
        double = restored(double) if number % 5 == seed % 5 else double
        double.handle(event, now_s)

    survivors, decided_s = expected_survivors(wait_s, delay_s, values)
    assert core.jobs.active.tolist() == survivors
    assert (not table.members) == (decided_s < math.inf)
    assert encode_state(snapshot(double)) == encode_state(snapshot(core))


def test_only_apps_with_the_limit_need_the_new_versions() -> None:
    plain, other = (JobSubmitted(specs[0]) for specs in (members(2, (9, 1)), limited(2, (9, 1), wait_s=5.0)))

    versions = [encode(event, 0.0)[1] for event in (plain, other)]

    assert versions == [METERED, WAITED]
    assert decode(encode(other, 0.0))[1].spec.app == other.spec.app
    assert snapshot(running(2, (9, 1), wait_s=5.0))["version"] == WAITED_SNAPSHOT
    assert snapshot(running_core(*members(2, (9, 1)), servers=[("v100", 1)] * 2))["version"] < WAITED_SNAPSHOT


@pytest.mark.parametrize("wait_s", ["-1", "nan", "inf", "1e300"])
def test_a_limit_that_cannot_be_is_refused(wait_s: str) -> None:
    with pytest.raises(InvalidInput, match=r"rung_wait_max_s of an app must be in \[0, "):
        AppRole.parse(f"tune:at=0:jobs=1:schedule=hyperband:rungs=9/1:rung_wait_max_s={wait_s}")


def test_a_limit_without_a_schedule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="rung_wait_max_s of an app must be left out with schedule=none"):
        AppRole.parse("tune:at=0:jobs=1:rung_wait_max_s=5")
