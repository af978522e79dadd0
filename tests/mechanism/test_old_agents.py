"""Nodes with agents that are too old for a job: it is not placed there, and waits with the reason."""

from __future__ import annotations

from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.events import JobCancelled, JobSubmitted, NodeJoined, Outcome
from gavelpy.mechanism.node_sets import node_sets
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import copied, restore, snapshot
from gavelpy.model.job import FEATURES, JobSpec, NodeId
from gavelpy.model.software import Software
from tests.mechanism.builders import end, make_core, make_spec, start, tell
from tests.mechanism.test_node_sets import ROUND_S, all_nodes, nodes_of, planned


def with_image(id: str) -> JobSpec:
    return make_spec(id, software=Software(image="docker.io/library/python:3.12"))


def old(node: str, *lacks: str) -> NodeJoined:
    return NodeJoined(NodeId(node), "v100", 1, lacks=lacks, agent="gavelpy 0.3")


def test_job_runs_on_no_node_with_an_agent_that_lacks_what_it_needs_until_that_has_it() -> None:
    core = make_core(servers=[])
    tell(core, old("n0", "image", "time"))
    tell(core, JobSubmitted(with_image("a")))
    tell(core, JobSubmitted(make_spec("b", stall_s=9.0)))
    planned(core)
    waiting, where = reasons(core)[0], all_nodes(core)
    copies = [restore(decode_state(encode_state(snapshot(core)))), copied(core)]

    tell(core, NodeJoined(NodeId("n0"), "v100", 2), ROUND_S)
    planned(core, ROUND_S)

    assert where == [set(), {"n0"}]
    assert waiting.kind is ReasonKind.NODES_TOO_OLD
    assert waiting.text == "needs 1 GPU, with none there: node n0 runs gavelpy 0.3, which has no --image"
    assert [reasons(one)[0] for one in copies] == [waiting, waiting]
    assert nodes_of(core, 0) == {"n0"}


def test_job_takes_the_node_that_has_what_it_needs_and_moves_others_there() -> None:
    core = make_core(make_spec("any"), servers=[("v100", 1)])
    planned(core)
    start(core, 0)
    tell(core, old("n1", "image"))
    tell(core, JobSubmitted(with_image("a")))
    tell(core, JobSubmitted(with_image("next")))

    planned(core, ROUND_S)
    (reason,) = [reason for job, reason in reasons(core).items() if job == 2]

    assert (nodes_of(core, 1), nodes_of(core, 2)) == ({"n0"}, set())
    assert reason.text.endswith("; node n1 runs gavelpy 0.3, which has no --image")


def test_job_that_runs_keeps_its_node_when_an_older_agent_takes_over_there() -> None:
    core = make_core(with_image("a"), servers=[("v100", 1)])
    planned(core)
    start(core, 0)

    tell(core, old("n0", "image"), 5.0)
    planned(core, ROUND_S)
    kept = nodes_of(core, 0)
    end(core, 0, int(core.jobs.lease[0]), Outcome.STOPPED)
    planned(core, 2 * ROUND_S)

    assert (kept, nodes_of(core, 0)) == ({"n0"}, set())


def test_jobs_that_need_nothing_of_agents_are_not_limited_by_old_ones() -> None:
    core = make_core(make_spec("a"), make_spec("b"), servers=[])
    tell(core, old("n0", *FEATURES))
    tell(core, JobSubmitted(with_image("c")))

    limited = node_sets(core.jobs, core.pool)
    tell(core, JobCancelled(2))

    assert limited is not None
    assert [int(limited.of(row).sum()) for row in range(3)] == [1, 1, 0]
    assert core.jobs.featured == {}
    assert node_sets(core.jobs, core.pool) is None
