"""The nodes that jobs may use: judged against brute force on small clusters, and step by step in the core."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import AllocationSolved, JobCancelled, JobSubmitted, NodeJoined, NodeLost, Outcome
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.node_sets import NodeSets, Room
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import copied, restore, snapshot
from gavelpy.mechanism.taking import Chosen
from gavelpy.model.job import JobSpec, NodeId
from tests.conftest import thorough
from tests.mechanism.builders import (
    answer,
    end,
    make_core,
    make_pool,
    make_spec,
    questions,
    running_core,
    start,
    tell,
    wake,
)
from tests.mechanism.test_priority_order import NAMES, random_classes

TWO = [("v100", 1), ("v100", 1)]
ROUND_S = 360.0


def nodes_of(core: SchedulerCore, job: int) -> set[str]:
    """The nodes of a job's lease; empty = it has none."""
    held = core.jobs.gpus_held(job) if core.jobs.lease[job] >= 0 else []
    return {core.pool.node_ids[core.pool.node_of[gpu]] for gpu in held}


def all_nodes(core: SchedulerCore) -> list[set[str]]:
    return [nodes_of(core, job) for job in range(core.jobs.count)]


def planned(core: SchedulerCore, now_s: float | None = None) -> SchedulerCore:
    """Wakes the core and answers its question with full shares."""
    wake(core, now_s)
    if core.question.open_epoch >= 0:
        answer(core, *((int(job), 0, 1.0) for job in core.jobs.active))
    return core


# Against brute force -------------------------------------------------------------------------------------------------


def fits(free: Sequence[int], jobs: Iterable[tuple[int, Sequence[bool]]]) -> bool:
    """Whether jobs (GPUs, nodes they may use) fit on nodes with these free GPUs together: tries all ways."""
    jobs = list(jobs)
    if not jobs:
        return True
    (need, may_use), rest = jobs[0], jobs[1:]
    ranges = [range(min(count, need) + 1 if allowed else 1) for count, allowed in zip(free, may_use, strict=True)]
    return any(
        fits([count - taken for count, taken in zip(free, split, strict=True)], rest)
        for split in product(*ranges)
        if sum(split) == need
    )


Cluster = tuple[list[int], list[tuple[int, list[bool]]]]  # free GPUs of nodes; jobs: GPUs, nodes they may use


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    free = draw(st.lists(st.integers(1, 2), min_size=1, max_size=4))
    sets = draw(st.lists(st.lists(st.booleans(), min_size=len(free), max_size=len(free)), min_size=1, max_size=4))
    may_use = st.sampled_from([[True] * len(free), *sets])
    return free, draw(st.lists(st.tuples(st.integers(1, 3), may_use), min_size=1, max_size=5))


@given(clusters())
@thorough(3)
def test_a_job_is_taken_exactly_if_it_fits_with_all_taken_before(cluster: Cluster) -> None:
    take_as_by_brute_force(*cluster)


def test_every_three_jobs_on_three_nodes_are_taken_in_every_order_as_by_brute_force() -> None:
    masks = [[*mask] for mask in product([True, False], repeat=3) if any(mask)]

    for choices in product(masks, repeat=3):  # some fit only if a job before them moves, and a further one with it
        take_as_by_brute_force([1, 1, 1], [(1, mask) for mask in choices])


def take_as_by_brute_force(free: list[int], jobs: list[tuple[int, list[bool]]]) -> None:
    """Offers the jobs one after the other: each must be taken if and only if it fits with those taken before."""
    pool = make_pool(*(("v100", count) for count in free))
    sets = sorted({tuple(may_use) for _, may_use in jobs})
    gpus = np.array([[True] * len(free), *sets])[:, pool.node_of]
    of_job = np.array([1 + sets.index(tuple(may_use)) for _, may_use in jobs])
    room = Room(pool, NodeSets(of_job, gpus), np.ones(len(pool.job), dtype=np.bool_))

    taken: list[tuple[int, Sequence[bool]]] = []
    for row, (need, may_use) in enumerate(jobs):
        expected = fits(free, [*taken, (need, may_use)])
        assert room.fits(0, room.kind(row), need) == expected
        assert room.take(0, room.kind(row), need) == expected
        taken += [(need, may_use)] if expected else []


def spec_of(number: int, need: int, may_use: Sequence[bool], how: str) -> JobSpec:
    nodes = [f"n{k}" for k, allowed in enumerate(may_use) if allowed]
    others = [f"n{k}" for k, allowed in enumerate(may_use) if not allowed]
    chosen = {"nodes": tuple(nodes or ["elsewhere"])} if how == "nodes" else {"exclude": tuple(others)}
    return make_spec(f"j{number}", gpus=need, preemptible=True, **chosen)


@given(clusters(), st.lists(st.sampled_from(["nodes", "exclude"]), min_size=5, max_size=5), st.randoms())
@thorough(2)
def test_no_job_runs_elsewhere_or_waits_while_its_nodes_have_room(
    cluster: Cluster, how: list[str], rng: Random
) -> None:
    free, jobs = cluster
    specs = [spec_of(row, need, may_use, how[row]) for row, (need, may_use) in enumerate(jobs)]
    core = make_core(*specs, servers=[("v100", count) for count in free], lease_min_s=rng.choice([0.0, 180.0]))

    for number in range(1, 4):
        wake(core, (number - 1) * ROUND_S)
        if core.question.open_epoch >= 0:
            asked = [int(job) for job in core.question.asked_jobs]
            answer(core, *((job, 0, rng.choice([0.2, 0.5, 1.0])) for job in asked))

        judge(core, free, jobs)
        begin(core)


def judge(core: SchedulerCore, free: Sequence[int], jobs: Sequence[tuple[int, Sequence[bool]]]) -> None:
    """The running jobs fit together and with no waiting job, and each is on its nodes."""
    runs = [row for row in range(len(jobs)) if core.jobs.lease[row] >= 0]
    assert all(jobs[row][1][int(name[1:])] for row in runs for name in nodes_of(core, row))
    waiting = [row for row in range(len(jobs)) if row not in runs]
    assert not [row for row in waiting if fits(free, [jobs[one] for one in [*runs, row]])]


def begin(core: SchedulerCore) -> None:
    """Leases that are stopping end, and all others start."""
    for job in np.flatnonzero(core.jobs.stopping[: core.jobs.count] >= 0).tolist():
        end(core, job, int(core.jobs.stopping[job]), Outcome.STOPPED)
    granted = [job for job in core.jobs.leased.tolist() if core.jobs.state[job] == 1]
    if granted:
        start(core, *granted)


# In the core ----------------------------------------------------------------------------------------------------------


def test_job_runs_on_the_nodes_that_its_owner_chose() -> None:
    core = make_core(make_spec("a", nodes=("n1",)), make_spec("b", exclude=("n2", "n1")), servers=[("v100", 1)] * 3)

    planned(core)

    assert all_nodes(core) == [{"n1"}, {"n0"}]


def test_job_that_may_use_any_node_leaves_the_only_one_of_another() -> None:
    core = make_core(make_spec("any"), make_spec("limited", nodes=("n0",)), servers=TWO)

    planned(core)

    assert all_nodes(core) == [{"n1"}, {"n0"}]


def test_running_job_moves_if_another_can_run_only_there() -> None:
    core = running_core(make_spec("mover"), servers=TWO)
    (there,) = nodes_of(core, 0)
    tell(core, JobSubmitted(make_spec("limited", nodes=(there,))), 10.0)
    planned(core, 10.0)
    within = all_nodes(core)

    planned(core, ROUND_S)

    assert within == [{there}, set()]
    assert nodes_of(core, 1) == {there}
    assert nodes_of(core, 0) == {"n0", "n1"} - {there}
    assert core.jobs.stopping[0] == 0


def test_protected_job_does_not_move_and_the_other_waits() -> None:
    core = make_core(make_spec("mover"), servers=TWO, lease_min_s=180.0)
    planned(core)
    planned(core, 300.0)
    tell(core, JobCancelled(0), 300.0)
    tell(core, JobSubmitted(make_spec("young")), 300.0)
    planned(core, 300.0)
    (there,) = nodes_of(core, 1)
    tell(core, JobSubmitted(make_spec("limited", nodes=(there,))), 310.0)

    planned(core, ROUND_S)
    first = all_nodes(core)[1:]
    planned(core, core.wakeup_s)

    assert first == [{there}, set()]
    assert nodes_of(core, 2) == {there}


def test_gang_uses_several_of_its_nodes() -> None:
    core = make_core(make_spec("gang", gpus=4, exclude=("n1",)), servers=[("v100", 2)] * 3)

    planned(core)

    assert nodes_of(core, 0) == {"n0", "n2"}


def test_policy_sees_no_type_that_the_nodes_of_a_job_lack() -> None:
    spec = make_spec("a", gpus=2, nodes=("n0", "n2"), rates={"v100": 10.0, "k80": 1.0})
    core = make_core(spec, servers=[("v100", 1), ("v100", 8), ("k80", 2)])

    (question,) = questions(wake(core))

    assert question.problem.gpu_types == ("v100", "k80")
    assert question.problem.member_rate_steps_per_s.tolist() == [[0.0, 1.0]]


def test_job_that_may_run_nowhere_waits_with_the_reason_and_starts_when_its_node_joins() -> None:
    core = make_core(make_spec("a", nodes=("n7",)), make_spec("b", exclude=("n0", "n1")), servers=TWO)
    planned(core)
    why = reasons(core)

    tell(core, NodeJoined(NodeId("n7"), "v100", 1), 5.0)
    planned(core, 5.0)

    assert {reason.kind for reason in why.values()} == {ReasonKind.NODES_EXCLUDED}
    assert why[0].text == "needs 1 GPU, with none there: runs on n7 only by its owner; n7 has not joined"
    assert why[1].text == "needs 1 GPU, with none there: excluded from n0 and n1 by its owner"
    assert nodes_of(core, 0) == {"n7"}


def test_job_that_waits_for_its_turn_says_which_nodes_it_may_use() -> None:
    core = running_core(make_spec("first", nodes=("n0",)), servers=TWO)
    tell(core, JobSubmitted(make_spec("second", nodes=("n0",))))
    planned(core)

    (reason,) = reasons(core).values()

    assert reason.kind is ReasonKind.BEHIND_OTHERS
    assert reason.text.endswith("; runs on n0 only by its owner")
    assert nodes_of(core, 1) == set()


def test_job_returns_to_its_own_nodes_after_a_loss() -> None:
    core = running_core(make_spec("a", nodes=("n0", "n1")), servers=[("v100", 1)] * 3)
    (lost,) = nodes_of(core, 0)

    tell(core, NodeLost(NodeId(lost)), 10.0)
    planned(core, 10.0)

    assert nodes_of(core, 0) == {"n0", "n1"} - {lost}


def test_gang_that_waits_reserves_gpus_of_its_own_nodes_only() -> None:
    blocker = make_spec("blocker", nodes=("n0",))
    core = make_core(blocker, servers=[("v100", 2), ("v100", 2)], keep_unsaved=True)
    planned(core)
    start(core, 0)
    tell(core, JobSubmitted(make_spec("gang", gpus=2, nodes=("n0",))), 1.0)
    tell(core, JobSubmitted(make_spec("there", nodes=("n1",))), 1.0)
    tell(core, JobSubmitted(make_spec("here", nodes=("n0",))), 1.0)

    planned(core, 1.0)

    assert all_nodes(core) == [{"n0"}, set(), {"n1"}, set()]
    assert reasons(core)[3].kind is ReasonKind.BEHIND_GANG


def test_pair_shares_a_node_that_both_may_use() -> None:
    specs = [make_spec("a", exclude=("n0",)), make_spec("b", exclude=("n2",))]
    core = make_core(*specs, servers=[("v100", 1)] * 3, packing=True)
    (question,) = questions(wake(core))
    none = np.zeros(0, dtype=np.int64)
    tell(core, AllocationSolved(question.epoch, none, none, np.zeros(0), 0.0, 0.0, "", np.array([[0, 1]]),
                                np.array([0]), np.array([1.0])))  # fmt: skip

    assert all_nodes(core) == [{"n1"}, {"n1"}]


HIGH = PriorityClass("high", 100, preempts=("normal",))


def test_job_of_a_higher_class_takes_back_the_lease_on_its_node() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=TWO, priorities=(HIGH,))
    older = next(job for job in (0, 1) if nodes_of(core, job) == {"n0"})
    tell(core, JobSubmitted(make_spec("c", nodes=("n0",), priority="high")), 10.0)

    planned(core, 10.0)

    assert nodes_of(core, 2) == {"n0"}
    assert (nodes_of(core, older), nodes_of(core, 1 - older)) == (set(), {"n1"})


@given(clusters(), st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 180.0]))
@thorough(2)
def test_classes_and_protected_leases_never_place_a_job_elsewhere(
    cluster: Cluster, seed: int, keeps: bool, lease_min_s: float
) -> None:
    (free, jobs), rng = cluster, Random(seed)
    core = make_core(
        servers=[("v100", count) for count in free], priorities=random_classes(rng), lease_min_s=lease_min_s,
        keep_unsaved=keeps,
    )  # fmt: skip

    for row, (need, may_use) in enumerate(jobs * 2):  # `tell` checks that each lease is on nodes of its job
        spec = spec_of(row, need, may_use, rng.choice(["nodes", "exclude"]))
        tell(core, JobSubmitted(replace(spec, priority=rng.choice(NAMES), preemptible=rng.random() < 0.5)))
        planned(core, rng.choice([core.now_s + 20.0, core.now_s + ROUND_S]))
        begin(core)

    assert core.round > 0 or not any(fits(free, [job]) for job in jobs)


def test_without_a_choice_of_nodes_there_are_no_sets() -> None:
    core = make_core(make_spec("a", nodes=("n0",)), make_spec("b"), servers=TWO)
    planned(core)
    before = core.planner.sets

    tell(core, JobCancelled(0))

    assert before is not None
    assert core.planner.sets is None
    assert (core.pool.job != NONE).sum() == 1


def test_snapshot_and_copy_know_the_choice() -> None:
    core = make_core(make_spec("a", nodes=("n1",)), make_spec("b", exclude=("n1",)), make_spec("c"), servers=TWO)
    tell(core, JobCancelled(1))

    again = restore(decode_state(encode_state(snapshot(core))))

    assert list(again.jobs.limited) == list(copied(core).jobs.limited) == [0]
    assert again.jobs.specs[0].nodes == ("n1",)
    assert nodes_of(planned(again), 0) == {"n1"}


def test_submission_is_a_new_version_of_its_record_only_with_a_choice() -> None:
    chosen, plain = JobSubmitted(make_spec("a", exclude=("n1",))), JobSubmitted(make_spec("a"))

    _, event = decode(encode(chosen, 1.0))

    assert isinstance(event, JobSubmitted)
    assert event.spec.exclude == ("n1",)
    assert (encode(chosen, 1.0)[1], encode(plain, 1.0)[1]) == (8, 2)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"nodes": ("",)}, "nodes of job 'a' must be names of nodes"),
        ({"exclude": ("n1", "n1")}, "exclude of job 'a' must have at most 1000 nodes, each once, got 'n1, n1'"),
        ({"nodes": ("n1",), "exclude": ("n1", "n2")}, "exclude of job 'a' must leave one of its nodes, got n1, n2"),
    ],
)
def test_bad_choice_is_refused(values: dict[str, tuple[str, ...]], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        make_spec("a", **values)


@pytest.mark.parametrize(("partner", "stays"), [(1, [1]), (-1, [0, 1])], ids=["a pair", "each alone"])
def test_a_job_leaves_its_gpu_if_its_next_partner_may_not_use_the_node(partner: int, stays: list[int]) -> None:
    """A plan keeps the pair on n1 then: n0, where job a runs, is not a node that b may use."""
    core = planned(make_core(make_spec("a"), make_spec("b", nodes=("n1",)), servers=TWO))
    before = all_nodes(core)
    zero, partners = np.zeros(2, dtype=np.int64), np.array([partner, 0 if partner >= 0 else -1])

    found = core.leases.staying(Chosen(np.array([0, 1]), zero, partners, np.ones(2, dtype=np.int64)))

    assert before == [{"n0"}, {"n1"}]
    assert found.tolist() == stays
