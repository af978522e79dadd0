"""Clients see the trouble of an unhealthy node, and the jobs that wait because of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gavelpy.cli.nodes import nodes_table
from gavelpy.runtime.client.connection import Client
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire.software_pb2 import Software
from tests.runtime.client.serving import make_description, serving, until

TROUBLE = "the state directory cannot be used: No space left on device"


def test_trouble_of_a_node_is_shown_with_the_node_and_with_the_jobs_that_could_run_nowhere_else(tmp_path: Path) -> None:
    with serving(tmp_path, nodes={"silent_after_s": 60.0}) as scheduler, scheduler.client() as client:
        leave = scheduler.join_node("n0", trouble=TROUBLE)
        client.submit([make_description("stuck")])
        until(lambda: "n0" in client.job("stuck").job.reason, "the node is why it waits")

        (node,), explained = client.nodes(), client.job("stuck")
        leave()

    assert node.detail == TROUBLE
    assert nodes_table([node]).rows[0][-3:-1] == ("cgroup v2", "–")
    assert TROUBLE in nodes_table([node]).rows[0][-1]
    assert explained.job.reason == f"needs 1 GPU; only enough with those of n0 ({TROUBLE})"


def test_nodes_that_run_containers_are_shown_and_a_job_that_needs_one_says_so(tmp_path: Path) -> None:
    contained = make_description(software=Software(image="torch:2"), working_directory="/srv/work")
    with serving(tmp_path, nodes={"silent_after_s": 60.0}) as scheduler, scheduler.client() as client:
        leave = [scheduler.join_node("n0", images="no: podman is not installed")]
        until(lambda: len(client.nodes()) == 1, "the first node has joined")
        before = client.submit([contained]).jobs[0].note
        leave.append(scheduler.join_node("n1", images="podman 4.3.1"))
        until(lambda: len(client.nodes()) == 2, "the second node has joined")
        after = client.submit([contained]).jobs[0].note
        shown = {node.node_id: (node.images, nodes_table([node]).rows[0][-2]) for node in client.nodes()}
        for each in leave:
            each()

    assert "no node that is up runs containers" in before
    assert "containers" not in after
    assert shown == {"n0": ("no: podman is not installed", "–"), "n1": ("podman 4.3.1", "podman 4.3.1")}


@contextmanager
def node_that_fills_up_as_a_job_starts(directory: Path, *, round_s: float, **job: object) -> Iterator[Client]:
    """A node that reports its trouble when the job has a lease that has not started."""
    full = threading.Event()
    sections = {"nodes": {"silent_after_s": 60.0}, "mechanism": {"round_s": round_s}}
    with serving(directory, **sections) as scheduler, scheduler.client() as client:
        leave = scheduler.join_node("n0", trouble=TROUBLE, once=full)
        client.submit([make_description("stuck", **job)])
        until(lambda: client.jobs()[0].state == pb.JOB_STATE_STARTING, "the job has a lease")
        full.set()
        yield client
        leave()


def test_trouble_that_begins_while_a_job_starts_is_shown_with_the_job(tmp_path: Path) -> None:
    with node_that_fills_up_as_a_job_starts(tmp_path, round_s=3_600.0) as client:
        until(lambda: bool(client.nodes()[0].detail), "the node tells")
        explained = client.job("stuck")

    assert explained.job.reason == f"has a lease and is about to start; node n0: {TROUBLE}"


def test_a_lease_that_is_called_off_a_node_in_trouble_is_what_its_job_waits_for(tmp_path: Path) -> None:
    with node_that_fills_up_as_a_job_starts(tmp_path, round_s=1.0, preemptible=True) as client:
        until(lambda: client.jobs()[0].state == pb.JOB_STATE_STOPPING, "the lease is called off")
        explained = client.job("stuck")

    assert explained.job.reason == f"lease 0 is ending on n0 ({TROUBLE}), where what it saves will be"
