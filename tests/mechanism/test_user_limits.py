"""Limits on what one user's jobs have at once, against a loop over the jobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.competition import within_limits
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobsHeld, Outcome
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.arrays import Ints
from tests.mechanism.builders import answer, end, make_core, make_jobs, make_spec, plans, questions, start, tell, wake


def owned(*specs: tuple[str, int], gpus: int = 8, **limits: int) -> SchedulerCore:
    """A core with jobs of these owners and sizes."""
    jobs = [make_spec(f"j{k}", owner=owner, gpus=size) for k, (owner, size) in enumerate(specs)]
    return make_core(*jobs, servers=[("v100", gpus)], **limits)


def competing(core: SchedulerCore, now_s: float = 0.0) -> list[int]:
    """The jobs of the next problem."""
    (question,) = questions(wake(core, now_s))
    return list(question.jobs.tolist())


def test_no_more_jobs_of_a_user_run_than_allowed() -> None:
    core = owned(("ann", 1), ("ann", 1), ("ben", 1), ("ann", 1), jobs_running_a_user_max=2)

    assert competing(core) == [0, 1, 2]
    (plan,) = plans(answer(core, (0, 0, 1.0), (1, 0, 1.0), (2, 0, 1.0)))

    assert plan.grant_jobs.tolist() == [0, 1, 2]
    assert reasons(core)[3].kind is ReasonKind.USER_LIMIT
    assert reasons(core)[3].text == (
        "user 'ann' may run 2 jobs (jobs_running_a_user_max) at once; other jobs of this user come first"
    )


def test_the_next_job_of_a_user_follows_when_one_is_over() -> None:
    core = owned(("ann", 1), ("ann", 1), jobs_running_a_user_max=1)
    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0, 0)
    end(core, 0, 0, Outcome.FINISHED, steps=1e6, now_s=50.0)

    assert competing(core, 50.0) == [1]


def test_small_jobs_of_a_user_do_not_pass_a_gang_that_exceeds_the_limit() -> None:
    core = owned(("ann", 3), ("ann", 2), ("ann", 1), ("ben", 4), gpus_a_user_max=4)

    assert competing(core) == [0, 3]


def test_a_job_of_a_higher_class_does_not_wait_for_one_that_waits_for_its_class() -> None:
    """Else the lower class is kept from GPUs because the higher one waits, and that one by the limit: forever."""
    classes = (PriorityClass("high", 100), PriorityClass("low", -100))
    jobs = [make_spec("low", owner="ann", gpus=4, priority="low"), make_spec("high", owner="ann", priority="high")]
    core = make_core(*jobs, servers=[("v100", 4)], gpus_a_user_max=4, priorities=classes, solve_patience_s=0.0)

    (plan,) = plans(wake(core))

    assert plan.grant_jobs.tolist() == [1]


def test_a_gang_larger_than_the_limit_waits_alone() -> None:
    core = owned(("ann", 6), ("ann", 2), gpus_a_user_max=4)

    assert competing(core) == [1]
    assert reasons(core)[0].text == "needs 6 GPUs; user 'ann' may have 4 at once (gpus_a_user_max)"


def test_a_job_that_cannot_run_keeps_nothing_from_others() -> None:
    core = owned(("ann", 16), ("ann", 1), ("ann", 1), jobs_running_a_user_max=1)
    tell(core, JobsHeld(np.array([1])))

    assert competing(core) == [2]
    assert reasons(core)[0].kind is ReasonKind.GANG_TOO_LARGE


def test_a_restored_core_keeps_the_limits() -> None:
    core = owned(("ann", 1), ("ben", 1), ("ann", 1), jobs_running_a_user_max=1)

    assert competing(restore(snapshot(core))) == [0, 1]


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"gpus_a_user_max must be in \[0, 1e\+07\], got -1"):
        MechanismSettings(gpus_a_user_max=-1)


JOB = st.tuples(st.integers(0, 2), st.integers(1, 4), st.booleans(), st.booleans(), st.booleans())


@given(jobs=st.lists(JOB, max_size=12), jobs_max=st.integers(0, 3), gpus_max=st.integers(0, 6))
def test_within_limits_equals_a_loop(
    jobs: list[tuple[int, int, bool, bool, bool]], jobs_max: int, gpus_max: int
) -> None:
    table = make_jobs([[1.0]] * len(jobs) or [[1.0]], gpus=[size for _, size, *_ in jobs] or 1)
    for row, (owner, _, is_leased, has_run, _) in enumerate(jobs):
        table.owner[row], table.attained_gpu_s[row] = owner, float(has_run)
        table.set_leases(np.array([row]), row if is_leased else -1)
    able = np.array([row for row, (*_, is_able) in enumerate(jobs) if is_able], dtype=np.int64)
    settings = MechanismSettings(jobs_running_a_user_max=jobs_max, gpus_a_user_max=gpus_max)

    found = within_limits(table, able, settings)

    assert found.tolist() == _one_by_one(jobs, able, jobs_max, gpus_max)


def _one_by_one(jobs: list[tuple[int, int, bool, bool, bool]], able: Ints, jobs_max: int, gpus_max: int) -> list[int]:
    within = []
    for owner in range(3):
        rows = [row for row, job in enumerate(jobs) if job[0] == owner and (job[2] or row in able)]
        count = gpus = 0
        is_full = False
        for row in sorted(rows, key=lambda row: (not jobs[row][2], not jobs[row][3], row)):
            size, is_leased = jobs[row][1], jobs[row][2]
            if gpus_max and size > gpus_max and not is_leased:
                continue
            count, gpus = count + 1, gpus + size
            is_full |= bool(jobs_max and count > jobs_max) or bool(gpus_max and gpus > gpus_max)
            if not is_full or is_leased:
                within.append(row)
    return sorted(set(within) & set(able.tolist()))
