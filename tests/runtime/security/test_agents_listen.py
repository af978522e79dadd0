"""Agents with a port of their own, and limits of the operating system that are checked at the start."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.capacity import files_needed, shortages, too_small
from gavelpy.runtime.daemon.config import parse_config
from gavelpy.runtime.daemon.config_sections import LimitSettings
from gavelpy.runtime.local_cluster import free_port
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc
from tests.runtime.client.serving import serving


def test_agents_connect_to_their_own_port_only(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, scheduler={"agents_listen": address}) as scheduler, scheduler.client() as client:
        leave = scheduler.join_node("n0", address=address)
        nodes = [node.node_id for node in client.nodes()]
        with pytest.raises(grpc.RpcError, match="agents_listen of the scheduler, which is") as refused:
            scheduler.join_node("n1")
        with grpc.insecure_channel(address) as own:
            missing = client_pb2_grpc.SchedulerServiceStub(own).ListJobs.future(pb.ListJobsRequest(), timeout=60.0)
            code = missing.code()
        leave()

    assert nodes == ["n0"]
    assert "FAILED_PRECONDITION" in str(refused.value)
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_port_of_agents_is_as_exposed_as_that_of_clients() -> None:
    text = '[scheduler]\nstate_directory = "/tmp/gavel"\nagents_listen = "0.0.0.0:7079"\n'

    with pytest.raises(InvalidInput, match=r"agents_listen = '0\.0\.0\.0:7079' is open to the network"):
        parse_config(text, "test.toml")


def test_limits_of_the_system_that_are_too_small_are_named_with_a_remedy() -> None:
    needed = files_needed(LimitSettings())

    notes = list(too_small(needed, 6_000, 128))

    assert needed == 14_500
    assert "the limit of open files is 6,000" in notes[0]
    assert "LimitNOFILE=14500" in notes[0]
    assert "set calls_max to 1,500 at most" in notes[0]
    assert "the accept queue has 128 places" in notes[1]
    assert list(too_small(needed, needed, 1_024)) == []
    assert [note for note in shortages(LimitSettings(calls_max=1)) if "open files" in note and "6,000" in note] == []
