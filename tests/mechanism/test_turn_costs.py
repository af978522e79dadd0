"""What starts and stops cost, as measured: moves and resizes of leftover GPUs pay, leases of slow jobs last longer."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, JobCancelled, JobSubmitted, TurnMeasured
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.turn_costs import HOLD_MAX, REFERENCE_S, hold_weights, turn_s
from gavelpy.model.job import JobSpec
from tests.mechanism.builders import make_core, make_spec, plans, running_core, start, tell, wake

LAG_S = 360.0  # `move_lag_s`, one round


def measure(core: SchedulerCore, job: int, restart_s: float, save_s: float, lease: int | None = None) -> None:
    number = int(core.jobs.lease[job]) if lease is None else lease
    found = np.array([job]), np.array([number]), np.array([restart_s]), np.array([save_s])
    tell(core, TurnMeasured(*found))


def costs(core: SchedulerCore) -> list[float]:
    rows = np.arange(core.jobs.count)
    found: list[float] = turn_s(core.jobs, rows).tolist()
    return found


def resized(gpus: int, rate: float, more: float, restart_s: float, steps: float = 1e9) -> int:
    """GPUs of a job on leftover GPUs after those of another job, that has ended, are free for it, too."""
    elastic = JobSpec(
        make_spec("a").id,
        steps,
        rates_steps_per_s={"v100": rate},
        sizes=(1, gpus),
        rates_by_size={gpus: {"v100": more}},
    )
    core = make_core(make_spec("b", gpus=gpus), elastic, servers=[("v100", gpus + 1)], move_lag_s=LAG_S)
    wake(core)
    tell(
        core,
        AllocationSolved(core.question.open_epoch, np.array([0]), np.array([0]), np.ones(1), sizes=np.array([gpus])),
    )
    start(core, 0)
    start(core, 1)
    measure(core, 1, restart_s, 0.0)
    tell(core, JobCancelled(0), 100.0)
    wake(core, 100.0)
    nothing = np.zeros(0, dtype=np.int64)
    tell(core, AllocationSolved(core.question.open_epoch, nothing, nothing, np.zeros(0)))
    wake(core, 360.0)
    return int(core.jobs.gpus[1])


@given(
    gpus=st.integers(2, 4),
    rate=st.floats(0.1, 10.0),
    factor=st.floats(1.001, 4.0),
    restart_s=st.floats(0.5, 500.0),
    left_s=st.one_of(st.just(1e9), st.floats(150.0, 2_000.0)),
)
def test_a_job_grows_on_leftover_gpus_only_if_it_has_more_steps_when_a_lag_has_built_up(
    gpus: int, rate: float, factor: float, restart_s: float, left_s: float
) -> None:
    found = resized(gpus, rate, rate * factor, restart_s, steps=left_s * rate * factor)

    stay_s = min(LAG_S, left_s)  # time, or until the end at the higher rate
    steps_if_it_stays, steps_if_it_grows = rate * stay_s, rate * factor * max(stay_s - restart_s, 0.0)
    assert found == (gpus if steps_if_it_grows > steps_if_it_stays else 1)


def test_a_job_that_was_not_measured_grows_at_once() -> None:
    assert resized(2, 10.0, 10.1, 0.0) == 2


@given(restart_s=st.floats(0.0, 1e6), save_s=st.floats(0.0, 1e6))
def test_a_lease_counts_more_the_more_its_job_loses_up_to_a_limit(restart_s: float, save_s: float) -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 1)] * 2)

    measure(core, 0, restart_s, save_s)

    known_s = restart_s + save_s if restart_s > 0 else 0.0
    expected = min(max((known_s / REFERENCE_S) ** 0.5, 1.0), HOLD_MAX)
    np.testing.assert_allclose(hold_weights(core.jobs, np.array([0, 1])), [expected, 1.0])


def takes_over_after(restart_s: float) -> int:
    """Rounds until a waiting job, which is owed half of the only GPU, gets it from a job with this restart."""
    core = make_core(make_spec("a"), make_spec("b"), servers=[("v100", 1)], move_lag_s=LAG_S, fill_leftover=False)
    wake(core)
    half = AllocationSolved(core.question.open_epoch, np.array([0, 1]), np.zeros(2, dtype=np.int64), np.full(2, 0.5))
    tell(core, half)
    start(core, 0)
    core.jobs.attained_gpu_s[1] = 1.0  # not a new job
    measure(core, 0, restart_s, 0.0)
    rounds = 0
    while core.jobs.lease[1] < 0:
        rounds += 1
        wake(core, 360.0 * rounds)
    return rounds


def test_a_job_that_starts_slowly_keeps_its_gpus_for_longer_up_to_a_limit() -> None:
    assert [takes_over_after(s) for s in (0.0, REFERENCE_S, 4 * REFERENCE_S, 1e6)] == [1, 1, 2, 3]


def test_a_new_job_does_not_wait_for_the_lag_of_a_job_that_starts_slowly() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1)], move_lag_s=LAG_S, solve_patience_s=0.0)
    measure(core, 0, 1e4, 0.0)
    tell(core, JobSubmitted(make_spec("b")), 100.0)
    wake(core, 100.0)
    shares = np.array([0, 1]), np.zeros(2, dtype=np.int64), np.full(2, 0.5)
    tell(core, AllocationSolved(core.question.open_epoch, *shares), 101.0)

    (plan,) = plans(wake(core, 360.0))

    assert plan.grant_jobs.tolist() == [1]


def test_later_measurements_count_half_and_those_of_other_leases_nothing() -> None:
    core = running_core(make_spec("a"), servers=[("v100", 1)])

    measure(core, 0, 100.0, 10.0)
    measure(core, 0, 50.0, 0.0)
    measure(core, 0, 1e5, 1e5, lease=77)

    assert costs(core) == [85.0]


def test_measured_costs_outlast_journal_and_snapshot() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 1)] * 2)
    before = snapshot(core)["version"]
    event = TurnMeasured(np.array([1]), core.jobs.lease[1:2].copy(), np.array([90.5]), np.array([3.25]))

    tell(core, decode(encode(event, core.now_s))[1])
    again = restore(decode_state(encode_state(snapshot(core))))

    assert before < snapshot(core)["version"] == 14
    assert costs(again) == costs(core) == [0.0, 93.75]
    assert again.jobs.any_turn_measured
