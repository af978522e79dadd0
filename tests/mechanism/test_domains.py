"""A job never runs on a node that cannot read its checkpoint; if all nodes share the directory, nothing changes."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.domains import can_run, can_run_somewhere
from gavelpy.mechanism.events import (
    CheckpointSaved,
    JobSubmitted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    Outcome,
    SchedulerRestarted,
)
from gavelpy.mechanism.gpus import CLUSTERS
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.original_gavel import QueueRule
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.model.job import JobSpec, NodeId
from tests.mechanism.builders import answer, end, make_mechanism, make_spec, plans, questions, start, tell, wake


def blind_core(*specs: JobSpec, servers: str, gpus: int = 1, **settings: object) -> SchedulerCore:
    """Nodes n0, n1, ... of V100: s sees the shared checkpoints, b does not."""
    core = SchedulerCore(make_mechanism(**settings))
    for i, kind in enumerate(servers):
        core.handle(NodeJoined(NodeId(f"n{i}"), "v100", gpus, kind == "s"), 0.0)
    submit(core, *specs)
    return core


def submit(core: SchedulerCore, *specs: JobSpec) -> None:

    for spec in specs:
        tell(core, JobSubmitted(spec))


def lose(core: SchedulerCore, servers: set[int]) -> None:
    for node in sorted(servers & set(range(len(core.pool.node_ids)))):
        tell(core, NodeLost(NodeId(f"n{node}")))


def run_and_save(core: SchedulerCore, job: int, steps: float = 100.0) -> None:
    start(core, job)
    lease = int(core.jobs.lease[job])
    tell(core, CheckpointSaved(np.array([job]), np.array([lease]), np.array([steps])))


def node_of(core: SchedulerCore, job: int) -> int:
    return int(core.pool.node_of[core.jobs.gpus_held(job)[0]])


def test_a_new_job_takes_a_server_that_sees_first() -> None:
    core = blind_core(make_spec("a"), make_spec("b"), servers="bs")
    wake(core)

    answer(core, (0, 0, 1.0), (1, 0, 1.0))

    assert [node_of(core, job) for job in (0, 1)] == [1, 0]


def test_a_job_that_saved_where_all_see_waits_for_a_server_that_sees() -> None:
    core = blind_core(make_spec("a"), servers="sb")
    wake(core)
    answer(core, (0, 0, 1.0))
    run_and_save(core, 0)

    tell(core, NodeLost(NodeId("n0")), 10.0)
    asked = questions(wake(core, 10.0))

    assert core.jobs.saved_in[0] == CLUSTERS
    assert asked == []
    reason = reasons(core)[0]
    assert reason.kind == ReasonKind.CHECKPOINT_AWAY
    assert reason.text == "needs 1 GPU of one type; on nodes that see its checkpoint the maximum is 0 v100"


def test_a_job_that_saved_on_a_blind_server_goes_on_there_only() -> None:
    core = blind_core(make_spec("a"), servers="bs")
    tell(core, NodeLost(NodeId("n1")))
    wake(core)
    answer(core, (0, 0, 1.0))
    run_and_save(core, 0)
    tell(core, NodeJoined(NodeId("n1"), "v100", 1), 5.0)
    end(core, 0, 0, Outcome.FAILED, now_s=10.0)

    wake(core, 10.0)
    answer(core, (0, 0, 1.0), now_s=10.0)

    assert node_of(core, 0) == 0


def test_a_job_whose_only_checkpoint_is_on_a_lost_server_says_so() -> None:
    core = blind_core(make_spec("a"), servers="bs")
    tell(core, NodeLost(NodeId("n1")))
    wake(core)
    answer(core, (0, 0, 1.0))
    run_and_save(core, 0)
    tell(core, NodeJoined(NodeId("n1"), "v100", 1), 5.0)

    tell(core, NodeLost(NodeId("n0")), 10.0)

    reason = reasons(core)[0]
    assert (reason.kind, reason.text) == (ReasonKind.CHECKPOINT_AWAY, "its checkpoint is only on n0 (lost)")


def test_a_job_that_may_still_save_on_a_blind_server_is_bound_to_it() -> None:
    """Its lease is being stopped, and may leave a checkpoint that no other node sees."""
    core = blind_core(make_spec("a"), make_spec("b"), servers="b", solve_interval_s=1e6)
    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0)
    core.jobs.target[:2, 0] = [0.0, 1.0]
    wake(core, 360.0)
    assert core.jobs.stopping[0] == 0
    tell(core, NodeJoined(NodeId("n1"), "v100", 1), 361.0)

    wake(core, 361.0)

    assert core.jobs.state[0] == JobState.WAITING


def test_a_job_that_left_no_checkpoint_is_free_again() -> None:
    core = blind_core(make_spec("a"), servers="bs")
    tell(core, NodeLost(NodeId("n1")))
    wake(core)
    answer(core, (0, 0, 1.0))
    start(core, 0)
    tell(core, NodeJoined(NodeId("n1"), "v100", 1), 5.0)
    end(core, 0, 0, Outcome.FAILED, now_s=10.0)

    wake(core, 10.0)
    answer(core, (0, 0, 1.0), now_s=10.0)

    assert node_of(core, 0) == 1


def test_a_gang_reaches_over_servers_that_see_and_over_no_others() -> None:
    core = blind_core(make_spec("g", gpus=2), servers="bsbs")
    wake(core)

    answer(core, (0, 0, 1.0))

    assert core.pool.node_of[core.jobs.gpus_held(0)].tolist() == [1, 3]


def test_a_gang_that_only_blind_servers_together_could_hold_waits() -> None:
    core = blind_core(make_spec("g", gpus=2), servers="bb")

    assert questions(wake(core)) == []
    assert reasons(core)[0].text == "needs 2 GPUs of one type; the maximum is 1 v100"


def test_a_gang_fits_on_one_blind_server() -> None:
    core = blind_core(make_spec("g", gpus=2), servers="bb", gpus=2)
    wake(core)

    answer(core, (0, 0, 1.0))

    assert len(set(core.pool.node_of[core.jobs.gpus_held(0)].tolist())) == 1


def test_what_was_saved_on_a_server_that_now_sees_can_go_anywhere() -> None:
    core = blind_core(make_spec("a"), servers="b")
    wake(core)
    answer(core, (0, 0, 1.0))
    run_and_save(core, 0)

    tell(core, NodeJoined(NodeId("n0"), "v100", 1, True), 5.0)

    assert core.pool.shares_checkpoints
    assert core.jobs.saved_in[0] == CLUSTERS


@given(
    servers=st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=2, max_size=5),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=8),
    queue=st.sampled_from(QueueRule),
    data=st.data(),
)
def test_jobs_follow_their_checkpoints_through_many_rounds(
    servers: list[tuple[bool, int]], sizes: list[int], queue: QueueRule, data: st.DataObject
) -> None:
    core = SchedulerCore(make_mechanism(queue=queue))
    for i, (sees, gpus) in enumerate(servers):
        core.handle(NodeJoined(NodeId(f"n{i}"), "v100", gpus, sees), 0.0)
    submit(core, *(make_spec(f"j{k}", gpus=size) for k, size in enumerate(sizes)))

    for round in range(6):
        wake(core, core.now_s if not round else core.round_end_s if core.is_in_round else core.now_s)
        asked = core.question.asked_jobs.tolist() if core.question.open_epoch >= 0 else []
        share = data.draw(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=len(asked), max_size=len(asked)))
        if asked:
            answer(core, *((job, 0, x) for job, x in zip(asked, share, strict=True) if x))
        for job in core.jobs.leased.tolist():
            check_reach(core, job)
            save(core, job, 10.0 * (round + 1), stopping=core.jobs.stopping[job] >= 0)
        tell(core, SchedulerRestarted(round + 1))


def check_reach(core: SchedulerCore, job: int) -> None:
    """Checks that the GPUs of a job's lease see its checkpoint, and the same directory."""
    nodes = set(core.pool.node_of[core.jobs.gpus_held(job)].tolist())
    directories = {core.pool.node_directory[node] for node in nodes}
    assert len(directories) == 1
    assert int(core.jobs.saved_in[job]) in (-1, *directories)


def save(core: SchedulerCore, job: int, steps: float, *, stopping: bool) -> None:
    if stopping:
        end(core, job, int(core.jobs.stopping[job]), Outcome.STOPPED, steps=steps - 5.0)
    start(core, job)
    tell(core, CheckpointSaved(np.array([job]), core.jobs.lease[[job]], np.array([steps])))


def test_the_seeing_servers_of_a_mixed_cluster_fill_up() -> None:
    core = blind_core(*(make_spec(f"j{k}") for k in range(4)), servers="sbsb")
    wake(core)

    plan = plans(answer(core, *((job, 0, 1.0) for job in range(4))))[0]

    assert sorted(plan.grant_gpus.tolist()) == [0, 1, 2, 3]


@given(
    servers=st.text("sb", min_size=1, max_size=4),
    lost=st.sets(st.integers(0, 3)),
    gpus=st.integers(1, 9),
    rate=st.sampled_from([0.0, 1.0, math.nan]),
)
def test_one_new_job_can_run_where_many_can(servers: str, lost: set[int], gpus: int, rate: float) -> None:
    core = blind_core(make_spec("a", gpus=gpus, rates={"v100": 1.0}), servers=servers, gpus=4)
    lose(core, lost)
    core.jobs.rate[0] = rate

    one = can_run_somewhere(core.jobs, core.pool, 0)

    assert one == can_run(core.jobs, core.pool, np.array([0])).any()


def test_usable_gpus_of_lots_follow_the_servers() -> None:
    core = blind_core(servers="sb", gpus=2)

    before = core.pool.usable_counts.tolist()
    tell(core, NodeDraining(NodeId("n1")))
    drained = core.pool.usable_counts.tolist()
    tell(core, NodeJoined(NodeId("n2"), "v100", 3, False))

    assert (before, drained, core.pool.usable_counts.tolist()) == ([2, 2], [2, 0], [2, 0, 3])
