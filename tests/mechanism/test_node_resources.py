"""CPU cores and memory of nodes: who gets them in plans, judged by brute force, and why jobs wait for them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobSubmitted, NodeJoined, Outcome
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.node_resources import free_amounts
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import JobSpec, NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, questions, start, tell, wake

ROUND_S = 360.0
Node = tuple[int, float, float]  # GPUs, CPU cores, GiB


def core_of(*nodes: Node, **settings: Any) -> SchedulerCore:
    """A core with V100 nodes n0, n1, ..., whose CPU cores and memory are known unless they are 0."""
    core = make_core(servers=(), **settings)
    for i, (gpus, cpus, gib) in enumerate(nodes):
        tell(core, NodeJoined(NodeId(f"n{i}"), "v100", gpus, cpus=cpus, memory_gib=gib))
    return core


def needing(name: str, cpus: float, gib: float = 0.0, **options: Any) -> JobSpec:
    return make_spec(name, cpus_per_gpu=cpus, memory_gib_per_gpu=gib, **options)


def submit(core: SchedulerCore, *specs: JobSpec) -> None:
    for spec in specs:
        tell(core, JobSubmitted(spec))


def planned(core: SchedulerCore, now_s: float, *, shares: dict[int, float] | None = None) -> dict[int, list[str]]:
    """Wakes the core, answers with these shares (default: all of the time), starts leases; the nodes of each job."""
    wake(core, now_s)
    if core.question.open_epoch >= 0:
        active = core.jobs.active.tolist()
        answer(core, *((row, 0, 1.0 if shares is None else shares.get(row, 0.0)) for row in active), now_s=now_s)
    granted = [row for row in core.jobs.leased.tolist() if core.jobs.since_s[row] < 0 and core.jobs.stopping[row] < 0]
    if granted:
        start(core, *granted, now_s=now_s)
    return where(core)


def where(core: SchedulerCore) -> dict[int, list[str]]:
    pool = core.pool
    held = {row: core.jobs.gpus_held(row) for row in core.jobs.leased.tolist()}
    return {row: [pool.node_ids[node] for node in pool.node_of[gpus]] for row, gpus in held.items()}


def test_jobs_share_the_cores_of_a_node() -> None:
    core = core_of((4, 8.0, 0.0))
    submit(core, needing("a", 4), needing("b", 4), needing("c", 4))

    found = planned(core, 0.0)

    assert list(found) == [0, 1], "8 cores suffice for two jobs"
    assert free_amounts(core.jobs, core.pool).tolist() == [[0, 0]]
    assert reasons(core)[2].kind is ReasonKind.AWAITS_RESOURCES
    assert reasons(core)[2].text.startswith(
        "waits for 4 CPU cores per GPU: 1 GPU would be free, but n0 has 0 CPU cores left"
    )


def test_the_policy_gets_a_row_for_each_declared_resource() -> None:
    core = core_of((4, 8.0, 64.0), (2, 4.0, 0.0))
    submit(core, needing("a", 4, gpus=2), make_spec("b"))

    (question,) = questions(wake(core, 0.0))

    assert question.problem.resources == ("gpu", "cpus")
    assert question.problem.capacity.tolist() == [[6000, 12000]]
    assert question.problem.demand.tolist() == [[2000, 8000], [1000, 0]]


def test_jobs_that_declare_nothing_make_a_problem_of_gpus() -> None:
    core = core_of((4, 8.0, 64.0))
    submit(core, make_spec("a"), make_spec("b"))

    (question,) = questions(wake(core, 0.0))

    assert question.problem.is_plain


def test_a_node_that_reports_nothing_limits_no_job() -> None:
    core = core_of((1, 2.0, 0.0), (2, 0.0, 0.0))
    submit(core, needing("a", 16), needing("b", 16))

    assert planned(core, 0.0) == {0: ["n1"], 1: ["n1"]}


def test_an_urgent_job_gets_the_cores_that_less_urgent_ones_use() -> None:
    """Small jobs on every node could starve a job that needs all cores of one."""
    core = core_of((2, 8.0, 0.0), (2, 8.0, 0.0), fill_leftover=False)
    submit(core, *(needing(f"small{i}", 4, preemptible=True) for i in range(4)))
    planned(core, 0.0)
    submit(core, needing("large", 8))

    planned(core, ROUND_S, shares=dict.fromkeys(range(5), 0.5))
    found = planned(core, 2 * ROUND_S)

    assert 4 in found
    assert sorted(node for nodes in found.values() for node in nodes) in (["n0", "n0", "n1"], ["n0", "n1", "n1"])


def test_a_gang_takes_of_each_node_what_has_cores() -> None:
    core = core_of((4, 8.0, 0.0), (4, 16.0, 0.0))
    submit(core, needing("gang", 4, gpus=6))

    assert sorted(planned(core, 0.0)[0]) == ["n0"] * 2 + ["n1"] * 4


def test_running_jobs_stay_if_the_others_fit_around_them() -> None:
    core = core_of((2, 8.0, 0.0), (2, 8.0, 0.0))
    submit(core, needing("a", 6, preemptible=True))
    before = planned(core, 0.0)
    submit(core, needing("b", 6), needing("c", 2))

    found = planned(core, ROUND_S)

    assert found[0] == before[0]
    assert {found[0][0], found[1][0]} == {"n0", "n1"}
    assert len(found) == 3


def test_a_lease_that_ends_lets_a_waiting_job_start_within_the_round() -> None:
    core = core_of((2, 8.0, 0.0))
    submit(core, needing("a", 8), needing("b", 8))
    assert list(planned(core, 0.0)) == [0]

    end(core, 0, int(core.jobs.lease[0]), Outcome.FINISHED, steps=1e6, now_s=10.0)

    assert list(planned(core, 10.0)) == [1]


def test_a_node_that_reports_less_keeps_its_leases_until_the_round_ends() -> None:
    core = core_of((2, 8.0, 0.0))
    submit(core, needing("a", 4, preemptible=True), needing("b", 4, preemptible=True))
    planned(core, 0.0)

    tell(core, NodeJoined(NodeId("n0"), "v100", 2, cpus=4.0), 10.0)

    assert len(core.jobs.leased) == 2
    assert len(planned(core, ROUND_S + 10.0)) == 1


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (needing("j", 64), "needs 64 CPU cores per GPU; no v100 node has more than 32 CPU cores for jobs"),
        (needing("j", 1, 100), "needs 1 CPU core and 100 GiB of memory per GPU; no v100 node has more than 64 GiB"),
        (needing("j", 32, 48), "needs 32 CPU cores and 48 GiB of memory per GPU; no v100 node has both for jobs"),
        (needing("j", 16, gpus=4), "needs 16 CPU cores per GPU on 4 GPUs of one type; v100 nodes have that for 3 GPUs"),
        (needing("j", 16, gpus=5), "it needs 5 GPUs of one type; the cluster has at most 3 v100"),
    ],
)
def test_a_job_that_fits_on_no_node_is_told_why(spec: JobSpec, text: str) -> None:
    core = core_of((2, 32.0, 32.0), (2, 16.0, 64.0))
    submit(core, spec)

    assert cannot_run(core, np.array([0]))[0].startswith(text)
    is_gang = "it needs" in text
    assert reasons(core)[0].kind is (ReasonKind.GANG_TOO_LARGE if is_gang else ReasonKind.NODES_TOO_SMALL)
    assert is_gang or reasons(core)[0].text.startswith(text)


@given(
    nodes=st.lists(
        st.tuples(st.integers(1, 3), st.sampled_from([0.0, 2.0, 5.0]), st.sampled_from([0.0, 3.0])),
        min_size=1,
        max_size=3,
    ),
    others=st.lists(st.tuples(st.integers(1, 2), st.integers(0, 3), st.integers(0, 2)), max_size=4),
    last=st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2)),
)
def test_a_single_job_starts_exactly_if_some_choice_of_nodes_has_all_that_it_needs(
    nodes: list[Node], others: list[tuple[int, int, int]], last: tuple[int, int, int]
) -> None:
    core = core_of(*nodes)
    submit(core, *(needing(f"j{i}", cpus, gib, gpus=gpus) for i, (gpus, cpus, gib) in enumerate(others)))
    planned(core, 0.0)
    size, cpus, gib = last
    free = np.bincount(core.pool.node_of[core.pool.job < 0], minlength=len(nodes)).tolist()
    left = free_amounts(core.jobs, core.pool)
    splits = (split for split in product(*(range(count + 1) for count in free)) if sum(split) == size)
    needs = np.array([cpus, gib]) * 1000
    is_known = np.array(core.pool.node_amounts) > 0
    possible = any(((np.outer(split, needs) <= left) | ~is_known).all() for split in splits)

    submit(core, needing("last", cpus, gib, gpus=size))
    found = planned(core, 10.0)

    assert (len(others) in found) == possible


def test_needs_and_amounts_pass_through_journal_and_snapshot() -> None:
    core = core_of((2, 8.5, 64.0))
    joined = NodeJoined(NodeId("n0"), "v100", 2, cpus=8.5, memory_gib=64.0)
    submit(core, needing("a", 2.5, 16.0))

    copy = restore(decode_state(encode_state(snapshot(core))))

    assert decode(encode(joined, 1.0))[1] == joined or vars(decode(encode(joined, 1.0))[1]) == vars(joined)
    assert decode(encode(JobSubmitted(core.jobs.specs[0]), 1.0))[1].spec == core.jobs.specs[0]
    assert copy.jobs.needs == core.jobs.needs == {0: (2500, 16000)}
    assert copy.pool.node_amounts == core.pool.node_amounts == [(8500, 64000)]


@pytest.mark.parametrize("amount", [-1.0, float("nan"), 1e7])
def test_amounts_that_mean_nothing_are_refused(amount: float) -> None:
    with pytest.raises(InvalidInput, match="cpus_per_gpu of job 'a' must be in"):
        needing("a", amount)
    with pytest.raises(InvalidInput, match="cpus of 'n0' must be in"):
        core_of((1, amount, 0.0))
