"""Lease protection: a lease that has just started is protected from more urgent jobs, and from nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.journal.codec import encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NO_INTS, CheckpointSaved, JobSubmitted, NodeDraining, Outcome, ProgressReported
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, running_core, start, tell, wake


def make_turns(begins_s: float, *, lease_min_s: float = 100.0, **settings: float) -> SchedulerCore:
    """Jobs 0 and 1 take turns on one GPU, in rounds of 60 s; the lease of job 0 starts at `begins_s`."""
    specs = make_spec("a"), make_spec("b")
    core = make_core(*specs, round_s=60.0, lease_min_s=lease_min_s, lag_half_life_s=1e9, **settings)
    wake(core, 0.0)
    answer(core, (0, 0, 0.5), (1, 0, 0.5))
    start(core, 0, now_s=begins_s)
    return core


def holder(core: SchedulerCore, now_s: float) -> int:
    """The job on the GPU after a wake-up at `now_s`."""
    wake(core, now_s)
    return int(core.pool.job[0])


def test_without_a_guard_the_round_ends_it() -> None:
    assert holder(make_turns(20.0, lease_min_s=0.0), 60.0) == 1


def test_a_young_lease_outlives_its_round_and_goes_when_it_is_old_enough() -> None:
    core = make_turns(20.0)

    assert [holder(core, now_s) for now_s in (60.0, 120.0)] == [0, 1]


def test_a_query_does_not_extend_protection() -> None:
    """While a query is answered a job looks slow, which counts only if a plan sees it: queries are in no journal."""
    asked, unasked = (make_turns(1.0, lease_min_s=30.0, start_max_s=300.0) for _ in range(2))
    for core in (asked, unasked):
        tell(core, ProgressReported(NO_INTS, NO_INTS, np.zeros(0)), 40.0)

    explained = reasons(asked)

    assert explained.keys() == {1}
    for core in (asked, unasked):
        work(core, 50.0)
    assert encode_state(snapshot(asked)) == encode_state(snapshot(unasked))
    assert holder(asked, 60.0) == holder(unasked, 60.0) == 1


def test_what_counts_is_time_since_the_start_not_since_the_promise() -> None:
    core = make_turns(59.0)

    assert [holder(core, now_s) for now_s in (60.0, 120.0, 180.0)] == [0, 0, 1]


def test_a_promise_that_never_begins_is_not_kept_for_ever() -> None:
    core = make_core(make_spec("a"), make_spec("b"), round_s=60.0, lease_min_s=100.0)
    wake(core, 0.0)
    answer(core, (0, 0, 0.2), (1, 0, 0.8))
    first = int(core.pool.job[0])

    assert [holder(core, now_s) for now_s in (60.0, 120.0)] == [first, first]
    tell(core, JobSubmitted(make_spec("c")))
    wake(core)
    answer(core, (2, 0, 1.0))
    assert holder(core, 180.0) == 2


def work(core: SchedulerCore, now_s: float, kind: type[ProgressReported | CheckpointSaved] = ProgressReported) -> None:
    """Job 0 reports its first step under its first lease."""
    tell(core, kind(np.array([0]), np.array([0]), np.array([1.0])), now_s)


@pytest.mark.parametrize("kind", [ProgressReported, CheckpointSaved])
def test_a_job_that_starts_slowly_is_kept_from_its_first_progress_on(
    kind: type[ProgressReported | CheckpointSaved],
) -> None:
    core = make_turns(0.0, lease_min_s=50.0, start_max_s=1_000.0)

    assert [holder(core, now_s) for now_s in (60.0, 120.0)] == [0, 0]
    work(core, 175.0, kind)

    assert [holder(core, now_s) for now_s in (180.0, 240.0)] == [0, 1]


def test_a_job_that_starts_quickly_counts_from_its_start_whenever_it_tells_so() -> None:
    core = make_turns(0.0, lease_min_s=50.0, start_max_s=1_000.0)

    work(core, 60.0)

    assert holder(core, 60.0) == 1


def test_a_job_that_never_gets_going_is_not_kept_for_ever() -> None:
    core = make_turns(0.0, lease_min_s=50.0, start_max_s=150.0)

    assert [holder(core, now_s) for now_s in (60.0, 120.0, 180.0)] == [0, 0, 1]


def test_what_a_job_told_under_its_last_lease_is_no_progress_of_this_one() -> None:
    core = running_core(make_spec("a"))
    work(core, 1.0)
    first_s = core.jobs.worked_s[0]
    end(core, 0, 0, Outcome.STOPPED)
    wake(core)

    work(core, 2.0)

    assert core.jobs.lease[0] == 1
    assert (first_s, core.jobs.worked_s[0]) == (1.0, -1.0)


def test_a_drained_server_gives_up_young_leases_too() -> None:
    core = make_turns(20.0)
    tell(core, NodeDraining(NodeId("n0")))

    wake(core, 60.0)
    answer(core)

    assert core.jobs.lease[0] < 0


def test_gpus_that_fall_free_are_held_for_a_gang_that_was_passed_over() -> None:
    specs = [make_spec("a"), make_spec("b"), make_spec("gang", gpus=2), make_spec("c")]
    core = make_core(*specs, servers=[("v100", 2)], round_s=60.0, lease_min_s=100.0, solve_interval_s=1e6)
    wake(core, 1.0)
    answer(core, (0, 0, 0.4), (1, 0, 0.4), (2, 0, 0.3), (3, 0, 0.1))
    start(core, 0, 1, now_s=50.0)
    wake(core, 61.0)

    end(core, 0, int(core.jobs.lease[0]), Outcome.FINISHED, now_s=70.0)
    wake(core, 70.0)

    assert core.jobs.held_type[2] == 0
    assert core.jobs.lease[3] < 0
    wake(core, 121.0)
    wake(core, 181.0)
    assert core.pool.job.tolist() == [2, 2]


def test_gpus_of_other_types_are_not_held() -> None:
    specs = [make_spec("a"), make_spec("b"), make_spec("gang", gpus=2)]
    core = make_core(*specs, servers=[("v100", 2), ("k80", 1)], round_s=60.0, lease_min_s=100.0)
    wake(core, 1.0)
    answer(core, (0, 0, 0.4), (1, 0, 0.4), (2, 0, 0.3))
    start(core, 0, 1, now_s=50.0)
    wake(core, 61.0)
    end(core, 0, int(core.jobs.lease[0]), Outcome.FINISHED, now_s=70.0)
    tell(core, JobSubmitted(make_spec("c", rates={"v100": 10.0, "k80": 1.0})), 70.0)

    wake(core)
    answer(core, (1, 0, 0.4), (2, 0, 0.3), (3, 0, 0.5), (3, 1, 0.1))

    assert core.jobs.held_type[2] == 0
    assert core.jobs.lease_type[3] == 1


def test_a_gang_that_was_passed_over_comes_before_other_jobs_around_a_young_lease() -> None:
    """When a, b and c lose protection, d is still protected: three GPUs remain for s, t and the gang."""
    specs = [make_spec(name) for name in "abcd"]
    specs += [make_spec("gang", gpus=2), make_spec("s"), make_spec("t")]
    core = make_core(*specs, servers=[("v100", 4)], round_s=60.0, lease_min_s=100.0, solve_interval_s=1e6)
    wake(core, 1.0)
    answer(core, *((job, 0, 0.5) for job in range(4)), (4, 0, 0.3), (5, 0, 0.5), (6, 0, 0.5))
    running = core.jobs.leased.tolist()
    assert running == [0, 1, 2, 3]
    start(core, 0, 1, 2, now_s=50.0)
    wake(core, 61.0)
    start(core, 3, now_s=100.0)
    wake(core, 121.0)

    wake(core, 181.0)

    assert core.jobs.leased.tolist() == [3, 4, 5]
