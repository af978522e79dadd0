"""Who this node is, as it tells the scheduler."""

from __future__ import annotations

import os
import socket
from typing import Final

from gavelpy import __version__
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.orders import API_VERSIONS
from gavelpy.runtime.security.exposure import is_loopback
from gavelpy.runtime.shim.processes import boot_id, this_process
from gavelpy.runtime.wire import agent_pb2

LOOPBACK: Final = "127.0.0.1"


def describe_node(config: NodeConfig, gpus: Gpus, checkpoint_marker: str) -> agent_pb2.Node:
    """The node, but for what its leases say."""
    return agent_pb2.Node(
        node_id=config.node_id,
        host_id=boot_id(),
        agent_version=__version__,
        api_versions=API_VERSIONS,
        gpu_type=gpus.gpu_type,
        gpu_count=len(gpus.devices),
        address=config.address or address_towards(config.scheduler),
        checkpoint_marker=checkpoint_marker,
        agent_process=os.getpid(),
        agent_process_start=this_process().start_ticks,
        state_directory=str(config.state),
    )


def address_towards(scheduler: str) -> str:
    """This machine's address on the way to HOST:PORT, by which others that reach the scheduler may reach it."""
    if is_loopback(scheduler):
        return LOOPBACK
    host, _, port = scheduler.rpartition(":")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()
