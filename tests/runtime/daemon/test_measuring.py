"""Which reports of running jobs become readings, and which rates are passed to the core."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from gavelpy.estimator.learning_loop import KnownJob, Learner, MeasuredJob, RatesLearned
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobCancelled, ThroughputEstimated
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.config_sections import ThroughputSettings
from gavelpy.runtime.daemon.engine.measuring import Measuring
from gavelpy.runtime.daemon.leases.lease import Lease, Part, PartReport, Phase
from tests.estimator.tables import make_table
from tests.mechanism.builders import make_core, make_spec, start, tell, wake
from tests.mechanism.test_pairs import pack, sharing_core

NODE = NodeId("n0")
JOB, LEASE = 0, 5


def make_measuring(*, estimate: bool = True) -> Measuring:
    core = make_core(make_spec("a", rates={"v100": 10.0}), servers=(("v100", 1),))
    return Measuring(core, ThroughputSettings(estimate=estimate, warm_up_s=30.0))


def make_lease(*, rate: float = 4.0, steps: float = 100.0, by_time: bool = False) -> Lease:
    """A running lease on one node."""
    part = Part(NODE, 0, 0, (0,))
    part.report = PartReport(LEASE, JOB, Phase.RUNNING, steps, rate_steps_per_s=rate, is_by_time=by_time)
    lease = Lease(LEASE, JOB, np.array([0]), [part], 1000.0, 1)
    lease.gpu_type, lease.is_started, lease.steps_done = "v100", True, steps
    return lease


def looked(measuring: Measuring, lease: Lease, now_s: float) -> tuple[MeasuredJob, ...]:
    """The readings sent to the engine, which answers that nothing is new."""
    question = measuring.look({LEASE: lease}, now_s)
    measuring.learned(RatesLearned(), 0.0)
    return question.measured if question is not None else ()


def test_a_lease_is_believed_once_it_is_warm() -> None:
    measuring, lease = make_measuring(), make_lease()
    measuring.started(LEASE, 100.0)

    cold = looked(measuring, lease, 125.0)
    lease.steps_done += 40.0
    also_cold = looked(measuring, lease, 135.0)
    lease.steps_done += 40.0
    (warm,) = looked(measuring, lease, 145.0)

    assert (cold, also_cold) == ((), ())
    assert (warm.job.serial, warm.gpu_type, warm.rate_steps_per_s, warm.seconds) == (JOB, "v100", 4.0, 10.0)


@pytest.mark.parametrize(
    ("lease", "steps"),
    [(make_lease(by_time=True), 40.0), (make_lease(rate=0.0), 40.0), (make_lease(), 0.0)],
    ids=["counts by time", "has not measured", "has made no step"],
)
def test_a_job_says_nothing_that(lease: Lease, steps: float) -> None:
    measuring = make_measuring()

    looked(measuring, lease, 100.0)
    lease.steps_done += steps

    assert looked(measuring, lease, 200.0) == ()


def test_the_last_seconds_of_a_lease_count() -> None:
    measuring, lease = make_measuring(), make_lease()
    looked(measuring, lease, 100.0)
    lease.steps_done += 20.0

    measuring.ended(lease, 105.0)
    question = measuring.look({}, 111.0)

    assert question is not None
    assert [reading.seconds for reading in question.measured] == [5.0]


def test_the_engine_is_asked_one_thing_at_a_time_and_nothing_is_lost_meanwhile() -> None:
    measuring, lease = make_measuring(), make_lease()
    asked = measuring.look({LEASE: lease}, 100.0)
    lease.steps_done += 40.0
    waits = measuring.look({LEASE: lease}, 110.0)
    lease.steps_done += 40.0
    measuring.learned(RatesLearned(), 0.0)

    assert asked is not None
    assert waits is None
    assert len(looked(measuring, lease, 120.0)) == 2


def test_nothing_is_asked_where_estimates_are_not_wanted() -> None:
    assert make_measuring(estimate=False).look({LEASE: make_lease()}, 100.0) is None


@pytest.mark.parametrize(("rate", "told"), [(10.2, []), (9.0, [9.0])], ids=["by two per cent", "by ten"])
def test_the_core_hears_of_rates_that_have_changed(rate: float, told: list[float]) -> None:
    event = make_measuring().learned(RatesLearned(np.array([JOB]), np.array([[rate]])), 0.1)

    assert ([] if event is None else event.rates_steps_per_s[:, 0].tolist()) == told
    assert isinstance(event, ThroughputEstimated) == bool(told)


def test_the_engine_hears_of_every_living_job_what_its_owner_said() -> None:
    claims = {"v100": 10.0}
    core = make_core(make_spec("a", rates=claims, gpus=2), make_spec("b", rates={}, job_type="lstm"), make_spec("c"))
    tell(core, JobCancelled(2))
    measuring = Measuring(core, ThroughputSettings())

    question = measuring.look({}, 0.0)

    assert question is not None
    assert list(pickle.loads(pickle.dumps(question)).jobs) == [KnownJob(0, "", 2, claims), KnownJob(1, "lstm", 1, {})]


def test_a_reading_names_the_job_that_was_there_all_the_time() -> None:
    core = sharing_core()
    measuring = Measuring(core, ThroughputSettings(warm_up_s=0.0))
    leases = {int(core.jobs.lease[job]): held_by(job, int(core.jobs.lease[job])) for job in (0, 1)}
    for lease in leases:
        measuring.started(lease, 0.0)
    measured = []
    for now_s in (20.0, 40.0):
        for lease in leases.values():
            lease.steps_done += 10.0
        question = measuring.look(leases, now_s)
        measuring.learned(RatesLearned(), 0.0)
        measured.append(question.measured if question is not None else ())

    assert measured[0] == (), "they may have run alone before the first look"
    assert {(one.job.serial, one.partner and one.partner.serial) for one in measured[1]} == {(0, 1), (1, 0)}


def test_readings_of_a_pair_become_estimates_of_the_pair() -> None:
    specs = [make_spec(name, job_type=name, rates={"v100": 10.0}) for name in ("ant", "bee")]
    core = make_core(*specs, packing=True)
    wake(core, 0.0)
    pack(core, [], [(0, 1, 1.0)])
    start(core, 0, 1)
    measuring = Measuring(core, ThroughputSettings(warm_up_s=0.0))
    leases = {int(core.jobs.lease[job]): held_by(job, int(core.jobs.lease[job])) for job in (0, 1)}
    learner = Learner(
        ThroughputEstimator(make_table({(name, 1): {"v100": 10.0} for name in ("ant", "bee")}, ("v100",)))
    )
    keys = [("ant", 1), ("bee", 1)]
    before = learner.estimator.pairs(keys, ("v100",))[0, 1, 0]
    for lease in leases:
        measuring.started(lease, 0.0)
    for now_s in range(20, 140, 20):
        for lease in leases.values():
            lease.steps_done += 80.0
        if question := measuring.look(leases, float(now_s)):
            measuring.learned(learner.learn(question), 0.0)

    after = learner.estimator.pairs(keys, ("v100",))[0, 1, 0]

    assert after == pytest.approx(0.4, rel=0.05), "4 of 10 steps a second"
    assert abs(after - 0.4) < abs(before - 0.4)


def test_a_reading_from_before_a_partner_came_is_none_of_either() -> None:
    core = sharing_core()
    measuring = Measuring(core, ThroughputSettings(warm_up_s=0.0))
    one, other = (held_by(job, int(core.jobs.lease[job])) for job in (0, 1))
    measuring.started(one.lease, 0.0)
    measuring.look({one.lease: one}, 20.0)
    measuring.started(other.lease, 30.0)
    one.steps_done += 10.0

    question = measuring.look({one.lease: one, other.lease: other}, 40.0)

    assert question is None or question.measured == ()


def held_by(job: int, number: int) -> Lease:
    """A running lease of a job on the only GPU."""
    part = Part(NODE, 0, 0, (0,))
    part.report = PartReport(number, job, Phase.RUNNING, 100.0, rate_steps_per_s=4.0)
    lease = Lease(number, job, np.array([0]), [part], 1000.0, 1)
    lease.gpu_type, lease.is_started, lease.steps_done = "v100", True, 100.0
    return lease


def sized_core() -> SchedulerCore:
    sizes = {"sizes": (1, 2), "rates_by_size": {2: {"v100": 18.0}}}
    return make_core(make_spec("a", rates={"v100": 10.0}, **sizes), make_spec("b"), servers=(("v100", 2),))


def test_each_size_of_a_job_is_known_with_its_claims() -> None:
    question = Measuring(sized_core(), ThroughputSettings()).look({}, 0.0)

    assert question is not None
    assert list(question.jobs) == [
        KnownJob(0, "", 1, {"v100": 10.0}, several=True),
        KnownJob(0, "", 2, {"v100": 18.0}, several=True),
        KnownJob(1, "", 1, {"v100": 10.0}),
    ]


def test_a_reading_is_of_the_size_of_its_lease() -> None:
    measuring, lease = Measuring(sized_core(), ThroughputSettings(warm_up_s=0.0)), make_lease()
    lease.gpus = np.array([0, 1])
    looked(measuring, lease, 100.0)
    lease.steps_done += 40.0

    (reading,) = looked(measuring, lease, 120.0)

    assert (reading.job.gpus, dict(reading.job.claims)) == (2, {"v100": 18.0})


@pytest.mark.parametrize(("rate", "known"), [(18.2, [[10.0], [18.0]]), (9.0, [[10.0], [9.0]])])
def test_rate_of_a_size_replaces_that_of_this_size(rate: float, known: list[list[float]]) -> None:
    core = sized_core()
    answer = RatesLearned(np.array([0]), np.array([[rate]]), np.array([2]))

    event = Measuring(core, ThroughputSettings()).learned(answer, 0.1)
    if event is not None:
        tell(core, event)

    assert core.jobs.sizes[0].rate.tolist() == known
