"""1,000 nodes in one process: agents that use the protocol over real gRPC and simulate their jobs.

`python -m benchmarks.load_agents HOST:PORT[,HOST:PORT] NODES GPUS SECONDS [CLUSTER]` prints one JSON line at the end:
orders and heartbeats seen, the longest silence of the scheduler, jobs finished.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc

from gavelpy.runtime.addresses import Turns, addresses_of
from gavelpy.runtime.wire import agent_pb2 as pb
from gavelpy.runtime.wire.agent_pb2_grpc import AgentServiceStub

GPU_TYPES = ("v100", "p100", "k80")
CHANNELS = 16  # streams share connections, as an HTTP/2 client may


@dataclass
class Running:
    """A simulated lease."""

    job: int
    began_s: float
    steps_at_start: float
    rate_steps_per_s: float
    steps_total: float
    phase: int = pb.LEASE_PHASE_RUNNING
    outcome: int = pb.LEASE_OUTCOME_UNSPECIFIED

    def steps_done(self, now_s: float) -> float:
        return min(self.steps_total, self.steps_at_start + self.rate_steps_per_s * (now_s - self.began_s))


@dataclass
class Tally:
    """Counts over all agents."""

    orders: int = 0
    heartbeats: int = 0
    finished: int = 0
    reconnects: int = 0
    longest_silence_s: float = 0.0
    refused: list[str] = field(default_factory=list)


class HeadAgent:
    """One simulated node."""

    def __init__(self, number: int, gpus: int, tally: Tally, marker: str) -> None:
        gpu_type = GPU_TYPES[number % len(GPU_TYPES)]
        self.node = pb.Node(
            node_id=f"node{number:05d}",
            host_id=f"host{number:05d}",
            agent_version="load",
            api_versions=[1],
            gpu_type=gpu_type,
            gpu_count=gpus,
            address="127.0.0.1",
            checkpoint_marker=marker,
        )
        self.tally = tally
        self.leases: dict[int, Running] = {}
        self.interval_s = 1.0
        self.changed = asyncio.Event()

    async def run(self, turns: Turns, channels: dict[str, grpc.aio.Channel], until_s: float) -> None:
        while time.monotonic() < until_s:
            try:
                await self._connected(channels[turns.current], until_s)
            except grpc.aio.AioRpcError as error:
                self.tally.reconnects += 1
                self.tally.refused.append(f"{error.code()}: {error.details()}")
                if turns.failed():
                    await asyncio.sleep(random.uniform(0.5, 1.0))

    async def _connected(self, channel: grpc.aio.Channel, until_s: float) -> None:
        call = AgentServiceStub(channel).Connect(self._states(until_s), timeout=until_s - time.monotonic() + 30.0)
        heard_s = time.monotonic()
        async for orders in call:
            now_s = time.monotonic()
            self.tally.longest_silence_s = max(self.tally.longest_silence_s, now_s - heard_s)
            heard_s = now_s
            self.tally.orders += 1
            self.interval_s = orders.heartbeat_interval_s or self.interval_s
            if self._obey(orders, now_s):
                self.changed.set()

    async def _states(self, until_s: float) -> AsyncIterator[pb.ConnectRequest]:
        sequence = 0
        while (now_s := time.monotonic()) < until_s:
            sequence += 1
            self.tally.heartbeats += 1
            yield pb.ConnectRequest(
                sequence=sequence,
                clock_s=now_s,
                node=self.node if sequence == 1 else None,
                leases=self._reports(now_s),
            )
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), self.interval_s)
            except TimeoutError:
                continue

    def _reports(self, now_s: float) -> list[pb.LeaseReport]:
        reports = []
        for lease, running in self.leases.items():
            done = running.steps_done(now_s)
            if running.phase == pb.LEASE_PHASE_RUNNING and done >= running.steps_total:
                self._end(running, pb.LEASE_OUTCOME_FINISHED, now_s)
                self.tally.finished += 1
            reports.append(
                pb.LeaseReport(
                    lease=lease,
                    job=running.job,
                    phase=running.phase,  # type: ignore[arg-type]  # an int of the enumeration
                    steps_done=running.steps_at_start if running.outcome else done,
                    steps_saved=running.steps_at_start if running.outcome else done,
                    rate_steps_per_s=running.rate_steps_per_s,
                    outcome=running.outcome,  # type: ignore[arg-type]
                )
            )
        return reports

    def _obey(self, orders: pb.ConnectResponse, now_s: float) -> bool:
        for lease in orders.forget:
            self.leases.pop(lease, None)
        wanted = {order.lease: order for order in orders.leases}
        changed = False
        for lease, order in wanted.items():
            if lease not in self.leases and order.wish == pb.LEASE_WISH_RUN and order.HasField("launch"):
                launch = order.launch
                self.leases[lease] = Running(
                    order.job, now_s, launch.steps_done, launch.rate_steps_per_s or 1.0, launch.steps_total
                )
                changed = True
        for lease, running in self.leases.items():
            wish = wanted[lease].wish if lease in wanted else pb.LEASE_WISH_KILL
            stop = wish in (pb.LEASE_WISH_STOP, pb.LEASE_WISH_KILL)
            if running.phase == pb.LEASE_PHASE_RUNNING and stop:
                self._end(running, pb.LEASE_OUTCOME_STOPPED, now_s)
                changed = True
        return changed

    def _end(self, running: Running, outcome: int, now_s: float) -> None:
        running.steps_at_start = running.steps_done(now_s)
        running.phase, running.outcome = pb.LEASE_PHASE_ENDED, outcome


async def main(address: str, nodes: int, gpus: int, seconds: float, cluster: str = "") -> None:
    """Runs the agents for a while and prints the tally. `cluster`: the cluster with their checkpoint directory."""
    tally = Tally()
    until_s = time.monotonic() + seconds
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 1_000)]
    channels = [
        {one: grpc.aio.insecure_channel(one, options=options) for one in addresses_of(address)} for _ in range(CHANNELS)
    ]
    agents = [HeadAgent(number, gpus, tally, cluster) for number in range(nodes)]
    running = [
        asyncio.create_task(a.run(Turns(address), channels[i % CHANNELS], until_s)) for i, a in enumerate(agents)
    ]
    await asyncio.wait(running, timeout=seconds + 5.0)
    for channel in [one for shared in channels for one in shared.values()]:
        await channel.close(None)
    await asyncio.gather(*running, return_exceptions=True)
    seen = {
        "nodes": nodes,
        "orders": tally.orders,
        "heartbeats": tally.heartbeats,
        "finished": tally.finished,
        "reconnects": tally.reconnects,
        "longest_silence_s": round(tally.longest_silence_s, 3),
        "refused": tally.refused[:3],
    }
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:6]))
