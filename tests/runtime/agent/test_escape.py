"""A process that has left its job's session and environment ends with the lease, even if the shim was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from gavelpy.runtime.shim import processes
from gavelpy.runtime.wire import agent_pb2 as pb
from tests.runtime.agent.conftest import Node
from tests.runtime.agent.peer import Peer, order, until


@pytest.mark.parametrize("control_groups", ["true", "false"])
def test_no_process_outlives_a_lease_whose_shim_was_killed(
    peer: Peer, make_node: Callable[..., Node], tmp_path: Path, control_groups: str
) -> None:
    node = make_node(more=f"control_groups = {control_groups}\n")
    witness = tmp_path / "escaped"
    script = tmp_path / "escapes.sh"
    script.write_text(f"setsid env -i /bin/sh -c 'echo $$ > {witness}; exec sleep 100' &\nexec sleep 100\n")
    peer.order(order(1, f"sh {script}"))
    escaped = int(until(lambda: witness.exists() and witness.read_text().strip()))

    os.kill(node.shim(1).process, signal.SIGKILL)

    assert peer.until_phase(1, pb.LEASE_PHASE_ENDED).outcome == pb.LEASE_OUTCOME_LOST
    assert processes.process_facts(escaped) is None
    is_group = peer.nodes[-1].containment.startswith("cgroup")
    assert peer.nodes[-1].containment == "subreaper, no limits" or (is_group and control_groups == "true")
