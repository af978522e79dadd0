"""Jobs whose number of steps is assumed, until their programs announce it or end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    CheckpointSaved,
    LeaseEnded,
    Outcome,
    ProgressReported,
    TotalAnnounced,
)
from gavelpy.mechanism.jobs import OPEN
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import JobId, JobSpec, assumed_steps
from tests.mechanism.builders import make_spec, running_core, tell

ASSUMED = 1_000.0
FIRST = np.array([0])
KINDS = {"progress": ProgressReported, "saved": CheckpointSaved, "total": TotalAnnounced}


def open_core(**fields: object) -> SchedulerCore:
    """One running job of unknown length."""
    return running_core(make_spec("a", steps=ASSUMED, open_ended=True, **fields))


def report(core: SchedulerCore, kind: str, number: float) -> None:
    tell(core, KINDS[kind](FIRST, core.jobs.lease[:1].copy(), np.array([number])))


def test_length_is_assumed_and_grows_with_the_steps() -> None:
    core = open_core()

    report(core, "progress", 400.0)
    before = core.jobs.steps_total[0]
    report(core, "progress", 800.0)

    assert (before, core.jobs.steps_total[0], core.jobs.total_by[0]) == (ASSUMED, 1_600.0, OPEN)


@pytest.mark.parametrize("submitted", [True, False])
def test_announced_total_counts_and_makes_the_allocation_out_of_date(submitted: bool) -> None:
    core = running_core(make_spec("a", steps=ASSUMED, open_ended=not submitted))
    core.question.stale = False

    report(core, "total", 70.0)
    is_stale, core.question.stale = core.question.stale, False
    report(core, "total", 70.0)

    assert (core.jobs.steps_total[0], core.jobs.total_by[0]) == (70.0, 0)
    assert (is_stale, core.question.stale) == (True, False)


@pytest.mark.parametrize(("announced", "total"), [(500.0, 500.0), (300.0, 300.0), (299.0, 900.0)])
def test_later_total_counts_if_no_checkpoint_is_beyond_it(announced: float, total: float) -> None:
    core = open_core()
    report(core, "total", 900.0)
    report(core, "saved", 300.0)
    report(core, "progress", 600.0)

    report(core, "total", announced)

    assert core.jobs.steps_total[0] == total
    assert core.jobs.steps_done[0] == min(600.0, total)


def test_total_of_another_lease_is_ignored() -> None:
    core = open_core()

    tell(core, TotalAnnounced(FIRST, np.array([7]), np.array([10.0])))

    assert core.jobs.steps_total[0] == ASSUMED


@pytest.mark.parametrize("total", [0.0, -1.0, float("nan"), float("inf")])
def test_total_that_means_nothing_is_refused(total: float) -> None:
    core = open_core()

    with pytest.raises(InvalidInput, match=r"steps_total must be in \(0, "):
        report(core, "total", total)


@pytest.mark.parametrize("announced", [None, 500.0])
def test_finished_job_has_the_steps_that_it_did(announced: float | None) -> None:
    core = open_core()
    reports = [] if announced is None else [announced]
    [report(core, "total", total) for total in reports]

    tell(core, LeaseEnded(FIRST, FIRST, np.array([123.0]), Outcome.FINISHED))

    assert core.jobs.state[0] == JobState.FINISHED
    assert (core.jobs.steps_done[0], core.jobs.steps_total[0]) == (123.0, 123.0)


@given(st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.floats(0.5, 1e6)), max_size=12))
def test_total_follows_from_the_reports_alone(told: list[tuple[str, float]]) -> None:
    """Against the newest announcement that no checkpoint contradicts, else twice the furthest step."""
    core = open_core()
    [report(core, kind, number) for kind, number in told]

    total, saved, is_known = ASSUMED, 0.0, False
    for kind, number in told:  # the oracle
        if kind == "total":
            total, is_known = (number, True) if number >= saved else (total, is_known)
            continue
        total = total if is_known else max(total, 2 * number)
        saved = max(saved, min(number, total)) if kind == "saved" else saved
    assert core.jobs.steps_total[0] == total
    assert core.jobs.steps_saved[0] == saved
    copy = restore(decode_state(encode_state(snapshot(core))))
    assert (copy.jobs.steps_total[0], copy.jobs.total_by[0]) == (total, core.jobs.total_by[0])


def test_snapshot_without_the_column_has_totals_as_submitted() -> None:
    state = snapshot(running_core(make_spec("a")))
    del state["jobs"]["total_by"]

    assert restore(state).jobs.total_by[0] == -1


def test_assumed_length_is_an_hour_at_the_fastest_rate() -> None:
    assert assumed_steps({"v100": 10.0, "k80": 2.0}) == 36_000.0
    assert assumed_steps({}) == assumed_steps({"v100": 0.0}) == 3_600.0
    with pytest.raises(InvalidInput, match="open_ended of job 'a' must be true or false, got 1"):
        JobSpec(JobId("a"), 1.0, open_ended=1)  # type: ignore[arg-type]  # what is tested
