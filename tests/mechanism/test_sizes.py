"""Jobs with several sizes: resized in one plan, as much as fits of leftover GPUs, rates by size, limits, refusals."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.commands import EstimateThroughput, RequestedSize
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, ConfigChanged, JobSubmitted, ThroughputEstimated
from gavelpy.mechanism.original_gavel import OriginalRules
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.mechanism.view import account, size_accounts
from gavelpy.model.job import JobSpec
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.estimator.tables import make_table
from tests.mechanism.builders import make_core, make_spec, plans, questions, start, tell, wake

SIZES = {"sizes": (1, 2, 4), "rates_by_size": {2: {"v100": 18.0}, 4: {"v100": 30.0}}}


def make_elastic(name: str, **options: object) -> JobSpec:
    """A job on 1, 2 or 4 V100s, with rates of 10, 18 and 30 steps/s."""
    return make_spec(name, **(SIZES | options))


def solved(core: SchedulerCore, *shares: tuple[int, int, float], now_s: float | None = None) -> list[object]:
    """Sends the answer to the open request; each share is (job, GPUs, share) on the only type."""
    jobs, gpus, share = np.array(shares).reshape(-1, 3).T
    types = np.zeros(len(jobs), dtype=np.int64)
    answer = AllocationSolved(core.question.open_epoch, jobs.astype(int), types, share, sizes=gpus.astype(int))
    return list(tell(core, answer, now_s))


def test_a_job_without_a_share_gets_the_size_on_which_it_is_fastest_of_those_that_fit() -> None:
    core = make_core(make_elastic("a"), servers=[("v100", 3)], solve_patience_s=0.0)

    (plan,) = plans(wake(core))

    assert len(plan.grant_gpus) == 2
    assert core.jobs.gpus[0] == 2


def test_a_share_of_another_size_ends_the_lease_and_grants_the_other_in_one_plan() -> None:
    core = make_core(make_elastic("a"), servers=[("v100", 4)], move_lag_s=360.0)
    wake(core)
    solved(core, (0, 4, 1.0))
    start(core, 0)
    tell(core, JobSubmitted(make_spec("b", gpus=2)), 100.0)
    wake(core, 100.0)
    solved(core, (0, 2, 1.0), (1, 2, 1.0))

    (plan,) = plans(wake(core, 360.0))

    assert plan.revoke_jobs.tolist() == [0]
    assert dict(zip(plan.grant_jobs.tolist(), np.diff(plan.grant_gpu_offsets).tolist(), strict=True)) == {0: 2, 1: 2}
    assert core.jobs.attained_gpu_s[0] == 4 * 360.0
    assert core.jobs.ran_s(np.array([0]), 360.0).tolist() == [360.0]
    assert core.jobs.total("received_s")[0].tolist() == [360.0]


def test_the_same_share_keeps_the_lease() -> None:
    core = make_core(make_elastic("a"), servers=[("v100", 4)])
    wake(core)
    solved(core, (0, 2, 1.0))
    start(core, 0)

    (plan,) = plans(wake(core, 360.0))

    assert (plan.extend_jobs.tolist(), plan.grant_jobs.tolist()) == ([0], [])


def test_the_problem_has_the_requested_size_and_the_others_within_the_cluster() -> None:
    core = make_core(make_elastic("a", gpus=2, rates_by_size={1: {"v100": 5.0}}), servers=[("v100", 2)])

    (question,) = questions(wake(core))

    assert question.problem.gpus_asked.tolist() == [2.0]
    assert question.problem.member_rate_steps_per_s.tolist() == [[10.0]]
    assert question.sizes is not None
    assert question.sizes.gpus.tolist() == [1, 4]
    assert question.sizes.rate_steps_per_s.tolist() == [[5.0], [0.0]]  # 4 do not fit, nor is their rate known


def test_unknown_rates_are_asked_for_by_size_and_stored_by_size() -> None:
    core = make_core(make_spec("a", sizes=(1, 2), job_type="lm"), make_spec("b"), servers=[("v100", 2)])
    (request,) = [command for command in wake(core) if isinstance(command, EstimateThroughput)]

    event = ThroughputEstimated(request.jobs, np.array([[17.0]]), request.gpus)
    tell(core, decode(encode(event, 0.0))[1])

    assert (request.jobs.tolist(), request.gpus.tolist()) == ([0], [2])
    assert core.jobs.sizes[0].rate.tolist() == [[10.0], [17.0]]
    assert core.jobs.unmeasured.tolist() == []


def test_table_answers_for_the_size_without_rates_only() -> None:
    core = make_core(make_spec("a", sizes=(1, 2), job_type="lm"), servers=[("v100", 2)])
    (request,) = [command for command in wake(core) if isinstance(command, EstimateThroughput)]
    table = make_table({("lm", 1): {"v100": 3.0}, ("lm", 2): {"v100": 17.0}}, ("v100",))

    tell(core, Engine(MaxMinFairness(), throughputs=table).estimate(request))

    assert request.several == (RequestedSize(1, {"v100": 10.0}),)
    assert core.jobs.sizes[0].rate.tolist() == [[10.0], [17.0]]


def test_a_snapshot_restores_sizes_with_their_rates() -> None:
    core = make_core(make_elastic("a"), make_spec("b", sizes=(1, 2)), servers=[("v100", 4)])
    wake(core)
    solved(core, (0, 2, 0.5), (0, 4, 0.25), (1, 1, 0.5))
    start(core, *core.jobs.leased.tolist())

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert encode_state(snapshot(copy)) == encode_state(snapshot(core))
    assert copy.jobs.sizes[0].rate.tolist() == core.jobs.sizes[0].rate.tolist()
    assert copy.jobs.claims.gpus.tolist() == core.jobs.claims.gpus.tolist()


def test_a_job_too_large_in_all_its_sizes_says_what_it_needs_at_least() -> None:
    core = make_core(make_spec("a", gpus=4, sizes=(2, 4)), servers=[("v100", 1)])
    wake(core)

    assert "needs 2 GPUs of one type; the maximum is 1 v100" in reasons(core)[0].text


def test_the_limit_of_a_user_counts_the_largest_size() -> None:
    jobs = [make_elastic("a", owner="ann"), make_elastic("b", owner="ann"), make_elastic("c", owner="ben")]
    core = make_core(*jobs, servers=[("v100", 12)], gpus_a_user_max=4, solve_patience_s=0.0)

    (plan,) = plans(wake(core))

    assert plan.grant_jobs.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (AllocationSolved(1, np.array([0]), np.array([0]), np.array([1.0])), "on how many GPUs 'a' has shares"),
        (AllocationSolved(1, np.array([0]), np.array([0]), np.array([1.0]), sizes=np.array([3])), "of 1, 2, 4, got 3"),
        (ThroughputEstimated(np.array([0]), np.array([[1.0]]), np.array([8])), "of 1, 2, 4, got 8"),
        (ConfigChanged(MechanismSettings(rules=OriginalRules())), "no job may have several sizes, and 'a' has"),
    ],
)
def test_events_that_contradict_the_sizes_of_a_job_are_refused(event: AllocationSolved, said: str) -> None:
    core = make_core(make_elastic("a"), servers=[("v100", 4)])
    wake(core)

    with pytest.raises(InvalidInput, match=said):
        core.handle(event, 0.0)


def test_queues_by_type_refuse_sizes_at_submission() -> None:
    core = make_core(servers=[("v100", 4)])
    tell(core, ConfigChanged(MechanismSettings(rules=OriginalRules())))

    with pytest.raises(InvalidInput, match="no job may have several sizes, got 1, 2, 4 for 'a'"):
        tell(core, JobSubmitted(make_elastic("a")))


@pytest.mark.parametrize(
    ("sizes", "rates", "said"),
    [
        ((2, 4), {}, "1 among them, got 2, 4"),
        ((1, 1), {}, "each once"),
        ((0, 1), {}, r"whole numbers > 0.* got \[0, 1\]"),
        ((1, 2), {3: {"v100": 1.0}}, r"other than the requested one \(2\), got 3"),
        ((1, 2), {1: {"v100": 1.0}}, "other than the requested one"),
        ((1, 2), {2: {"v100": -1.0}}, "must be in"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes: tuple[int, ...], rates: dict[int, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        make_spec("a", sizes=sizes, rates_by_size=rates)


def test_one_size_alone_is_no_choice() -> None:
    assert make_spec("a", gpus=2, sizes=(2,)) == make_spec("a", gpus=2)


def test_account_by_size_has_share_and_time_of_each() -> None:
    core = make_core(make_elastic("a"), make_spec("b"), servers=[("v100", 4)])
    wake(core)
    solved(core, (0, 1, 0.25), (0, 4, 0.5), (1, 1, 0.25))
    start(core, *core.jobs.leased.tolist())

    found, now = size_accounts(core, 0, 100.0), account(core, 0, 100.0)

    assert found is not None
    assert found.gpus.tolist() == [1, 2, 4]
    assert found.share[:, 0].tolist() == [0.25, 0.0, 0.5]
    assert found.owed_s.sum(axis=0) == pytest.approx(now.owed_s)
    assert found.received_s[:, 0].tolist() == [100.0 * (gpus == core.jobs.gpus[0]) for gpus in (1, 2, 4)]
    assert found.received_s.sum(axis=0) == pytest.approx(now.received_s)
    assert core.jobs.claims.gpus_owed(2).tolist() == [0.25 + 4 * 0.5, 0.0]
    assert size_accounts(core, 1, 100.0) is None
