"""What keeps a node from doing what it is told, as clients hear it."""

from __future__ import annotations

from pathlib import Path

from gavelpy.cli.nodes import nodes_sheet
from gavelpy.runtime.wire import client_pb2 as pb
from tests.runtime.client.serving import make_description, serving, until

TROUBLE = "the state directory cannot be used: No space left on device"


def test_trouble_of_a_node_is_told_with_the_node_and_with_the_jobs_that_wait_for_it(tmp_path: Path) -> None:
    with serving(tmp_path, nodes={"silent_after_s": 60.0}) as scheduler, scheduler.client() as client:
        leave = scheduler.join_node("n0", trouble=TROUBLE)
        client.submit([make_description("stuck")])
        until(lambda: client.jobs()[0].state == pb.JOB_STATE_STARTING, "the job has a lease")

        (node,), explained = client.nodes(), client.job("stuck")
        leave()

    assert node.detail == TROUBLE
    assert TROUBLE in nodes_sheet([node]).rows[0][-1]
    assert explained.job.reason == f"has a lease and is about to start; node n0: {TROUBLE}"
