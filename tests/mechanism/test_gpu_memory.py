"""Measured GPU memory: when it counts, what it changes, and that it outlasts restarts and the end of other jobs."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationSolved,
    GpuMemoryMeasured,
    JobCancelled,
    JobsArchived,
    JobSubmitted,
    Outcome,
)
from gavelpy.mechanism.gpu_memory import MARGIN, GpuType, in_words, needed_gib
from gavelpy.mechanism.snapshot import NAMED, restore, snapshot
from tests.mechanism.builders import end, make_mechanism, make_spec, questions, running_core, tell, wake

V100 = (GpuType("v100", 16.0),)


def packed_core(*declared_gib: float, **settings: bool) -> SchedulerCore:
    """Jobs that run on GPUs of their own and declared so much GPU memory; 0 = none."""
    specs = [make_spec(f"j{n}", gpu_memory_gib=gib) for n, gib in enumerate(declared_gib)]
    return running_core(*specs, servers=[("v100", 1)] * len(specs), packing=True, gpu_types=V100, **settings)


def use(core: SchedulerCore, job: int, gib: float, *, lease: int | None = None) -> bool:
    """Reports GPU memory in use; returns whether the allocation is out of date after it."""
    number = int(core.jobs.lease[job]) if lease is None else lease
    core.question.stale = False
    tell(core, GpuMemoryMeasured(np.array([job]), np.array([number]), np.array([gib])))
    return core.question.stale


def needs(core: SchedulerCore) -> list[float]:
    rows = np.arange(core.jobs.count)
    found: list[float] = needed_gib(core.jobs, rows, core.settings).tolist()
    return found


def test_a_job_needs_what_it_declared_until_it_uses_more() -> None:
    core = packed_core(8.0)

    below, above = use(core, 0, 6.0), use(core, 0, 9.0)

    assert (below, above) == (False, True)
    assert needs(core) == [9.0]


def test_the_most_that_was_used_counts() -> None:
    core = packed_core(8.0)

    changes = [use(core, 0, gib) for gib in (9.0, 4.0, 9.5)]

    assert changes == [True, False, True]
    assert needs(core) == [9.5]


@pytest.mark.parametrize("counts", [False, True])
def test_measured_memory_of_a_job_that_declared_none_counts_only_if_the_operator_allows_it(counts: bool) -> None:
    core = packed_core(0.0, packing_measured=counts)

    before = needs(core)
    is_news = use(core, 0, 5.0)

    assert (before, is_news) == ([0.0], counts)
    assert needs(core) == [5.0 * MARGIN * counts]


def test_a_report_under_a_lease_that_is_over_is_ignored() -> None:
    core = packed_core(8.0)

    assert not use(core, 0, 12.0, lease=77)
    assert needs(core) == [8.0]


def test_the_next_request_has_the_measured_needs() -> None:
    core = packed_core(8.0, 0.0, packing_measured=True)
    use(core, 1, 5.0)

    (question,) = questions(wake(core, core.round_end_s))

    assert question.memory is not None
    assert question.memory.needed_gib.tolist() == pytest.approx([8.0, 5.5])


def test_without_packing_measured_memory_changes_no_allocation() -> None:
    core = running_core(make_spec("a", gpu_memory_gib=2.0))

    assert not use(core, 0, 12.0)


def test_measured_memory_is_in_journals_and_snapshots_of_its_version_and_of_no_other() -> None:
    core = packed_core(8.0, 0.0)
    plain = snapshot(core)["version"]
    record = encode(GpuMemoryMeasured(np.array([1]), core.jobs.lease[1:2].copy(), np.array([5.25])), core.now_s)

    tell(core, decode(record)[1])
    again = restore(decode_state(encode_state(snapshot(core))))

    assert plain < snapshot(core)["version"] == NAMED
    assert again.jobs.measured_gib == core.jobs.measured_gib == {1: 5.25}


def test_measured_memory_stays_with_its_job_when_others_leave() -> None:
    core = packed_core(8.0, 8.0)
    use(core, 1, 9.0)
    tell(core, JobCancelled(0))
    end(core, 0, 0, Outcome.STOPPED)

    tell(core, JobsArchived(np.array([0])))

    assert core.jobs.measured_gib == {0: 9.0}


@pytest.mark.parametrize("gib", [0.0, -1.0, np.nan, np.inf])
def test_memory_that_is_no_amount_is_refused(gib: float) -> None:
    with pytest.raises(InvalidInput, match="peak_gib must be in"):
        use(packed_core(8.0), 0, gib)


def test_measured_memory_needs_packing() -> None:
    with pytest.raises(InvalidInput, match="packing_measured must be false without packing"):
        make_mechanism(packing_measured=True)


@pytest.mark.parametrize(
    ("declared", "used", "text"),
    [(0.0, 0.0, ""), (8.0, 6.0, "of 8 GiB"), (8.0, 9.0, "more than the 8 GiB"), (0.0, 5.0, "declared none")],
)
def test_owners_read_what_their_job_uses(declared: float, used: float, text: str) -> None:
    found = in_words(declared, used)

    assert text in found
    assert bool(found) == bool(used)


def paired(used_gib: float, *, named: bool = False) -> bool:
    """Whether a round pairs two jobs that declared 8 GiB each of 16, if one uses this before the answer comes."""
    core = running_core(make_spec("a", gpu_memory_gib=8.0), packing=True, gpu_types=V100)
    tell(core, JobSubmitted(make_spec("b", gpu_memory_gib=8.0)))
    (question,) = questions(wake(core))
    tell(core, GpuMemoryMeasured(np.array([0]), core.jobs.lease[:1].copy(), np.array([used_gib])))
    pair = {"pair_jobs": np.array([[0, 1]]), "pair_gpu_type": np.array([0]), "pair_share": np.array([1.0])}
    row = np.array([[0, 1, 0, 1]]) if named else NO_INTS
    tell(core, AllocationSolved(question.epoch, NO_INTS, NO_INTS, np.zeros(0), 0.0, 0.0, "", **pair, next_round=row))
    wake(core, core.round_end_s)
    wake(core, core.now_s + core.settings.solve_patience_s)
    return int(core.jobs.partner[0]) == 1


@pytest.mark.parametrize("named", [False, True])
def test_jobs_that_do_not_fit_any_more_when_the_answer_comes_are_not_paired(named: bool) -> None:
    assert [paired(gib, named=named) for gib in (7.0, 8.0, 8.1, 12.0)] == [True, True, False, False]
