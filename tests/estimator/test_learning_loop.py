"""The learning loop: what measurements of running jobs teach, and which rates are published."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.estimator.learning_loop import (
    KnownJob,
    KnownJobs,
    Learner,
    LearningLoop,
    LearnRates,
    MeasuredJob,
    RatesLearned,
)
from gavelpy.estimator.online import ThroughputEstimator
from tests.estimator.tables import make_table

TYPES = ("v100", "k80")


def make_learner() -> Learner:
    return Learner(ThroughputEstimator(make_table({}, ())))


def learn(learner: Learner, *jobs: KnownJob, runs: KnownJob | None = None, rate: float = 40.0) -> RatesLearned:
    """The answer about these jobs after one of them has run for half a minute on a V100."""
    measured = (MeasuredJob(runs, "v100", rate, 10.0),) * 3 if runs is not None else ()
    return learner.learn(LearnRates(measured, jobs, TYPES))


def test_what_one_job_shows_counts_for_all_of_its_type() -> None:
    first, second = KnownJob(0, "resnet", 1), KnownJob(1, "resnet", 1)

    answer = learn(make_learner(), first, second, runs=first)

    assert answer.jobs.tolist() == [0, 1]
    assert answer.rates_steps_per_s[:, 0] == pytest.approx(40.0, rel=0.05)


def test_a_job_that_this_process_has_seen_nothing_of_keeps_its_rates() -> None:
    stranger = KnownJob(0, "resnet", 1)
    learner = make_learner()

    before = learn(learner, stranger)
    learner.guessed([(0, 1)])
    after = learn(learner, stranger)

    assert (before.jobs.tolist(), after.jobs.tolist()) == ([], [0])


def test_an_owner_who_is_right_is_believed_on_every_type() -> None:
    job = KnownJob(0, "resnet", 1, {"v100": 41.0, "k80": 3.0})

    answer = learn(make_learner(), job, runs=job)

    assert (answer.jobs.tolist(), answer.notes) == ([], {0: ()})


def test_an_owner_who_is_wrong_is_outvoted_and_told_on_the_types_that_were_claimed() -> None:
    job = KnownJob(0, "resnet", 1, {"v100": 120.0})

    answer = learn(make_learner(), job, runs=job)

    assert answer.rates_steps_per_s[0, 0] == pytest.approx(40.0, rel=0.05)
    assert np.isnan(answer.rates_steps_per_s[0, 1])
    assert answer.notes[0][0].startswith("claimed 120 steps/s on v100; measured 40 ± ")


def test_readings_that_can_hardly_be_are_refused_with_a_reason_until_three_in_a_row_agree() -> None:
    job = KnownJob(7, "resnet", 1, {"v100": 10.0})

    answer = learn(make_learner(), job, runs=job, rate=1e7)

    assert [(remark.job, remark.is_accepted) for remark in answer.remarks[:3]] == [(7, False), (7, False), (7, True)]
    assert "reported 1e+07 steps/s where" in answer.remarks[0].text
    assert "3 times in a row: accepted" in answer.remarks[2].text


def test_types_that_are_gone_are_kept_in_the_table_and_jobs_without_a_type_are_forgotten() -> None:
    learner = make_learner()
    typed, nameless = KnownJob(0, "resnet", 1), KnownJob(1, "", 1)
    learn(learner, typed, nameless, runs=typed)
    learn(learner, typed, nameless, runs=nameless)

    learn(learner, KnownJob(2, "lstm", 1))

    assert learner.estimator.table.keys == (("resnet", 1),)
    assert not learner.estimator.is_measured(nameless.key)
    rates = learner.estimator.rates([typed.key], ("v100",))
    assert rates[0, 0] == pytest.approx(40.0, rel=0.05)


def test_a_request_is_due_once_per_interval_and_one_is_pending_at_a_time() -> None:
    loop, jobs = LearningLoop(interval_s=30.0), KnownJobs(np.array([0]), [""], np.array([1]), [{}])

    first, second = loop.request(jobs, TYPES, 0.0), loop.request(jobs, TYPES, 40.0)
    loop.answered(seconds=2.0)

    assert first is not None
    assert second is None
    assert [loop.is_due(now_s) for now_s in (39.0, 40.0)] == [False, True]  # 20 times as long as the answer took


@pytest.mark.parametrize(("rate", "is_published"), [(10.2, False), (10.4, True), (float("nan"), False)])
def test_rates_are_published_that_differ_by_more_than_three_per_cent(rate: float, is_published: bool) -> None:
    answer = RatesLearned(np.array([0]), np.array([[rate]]))

    assert answer.notable(np.array([[10.0]])).tolist() == [is_published]


def test_a_co_located_rate_that_changed_is_published_with_the_rates_of_both_jobs() -> None:
    learner, one, two = make_learner(), KnownJob(0, "resnet", 1), KnownJob(1, "lstm", 1)
    learner.guessed([(0, 1), (1, 1)])

    learner.learn(LearnRates((MeasuredJob(one, "v100", 5.0, 60.0, partner=two),), (), TYPES))
    first, second = (learner.learn(LearnRates((), (one, two), TYPES)) for _ in range(2))

    assert first.notable(first.rates_steps_per_s).tolist() == [True, True]
    assert second.notable(second.rates_steps_per_s).tolist() == [False, False]


def test_a_measurement_that_the_table_has_already_is_not_added_again() -> None:
    learner, job = make_learner(), KnownJob(0, "resnet", 1)
    learn(learner, job, runs=job)
    before = learner.estimator.table

    learn(learner, job, runs=job, rate=40.4)

    assert learner.estimator.table is before


def sized(gpus: int, claims: dict[str, float] | None = None) -> KnownJob:
    return KnownJob(3, "", gpus, claims or {}, several=True)


def test_reading_on_one_size_replaces_the_estimates_of_the_others() -> None:
    learner, both = make_learner(), (sized(1, {"v100": 40.0}), sized(2))
    before = learn(learner, *both)

    answer = learn(learner, *both, runs=both[0])

    assert before.jobs.tolist() == []
    assert (answer.jobs.tolist(), answer.gpus.tolist()) == ([3], [2])
    assert 30.0 < answer.rates_steps_per_s[0, 0] < 100.0


def test_measured_size_outvotes_the_claim_on_that_size_only() -> None:
    learner, both = make_learner(), (sized(1, {"v100": 40.0}), sized(2, {"v100": 70.0}))

    answer = learn(learner, *both, runs=both[1], rate=20.0)

    assert (answer.jobs.tolist(), answer.gpus.tolist()) == ([3], [2])
    assert answer.rates_steps_per_s[0, 0] == pytest.approx(20.0, rel=0.1)
    assert answer.notes[3][0].startswith("claimed 70 steps/s on v100; measured 20")
    assert answer.notes[3][0].endswith("(2 GPUs)")
