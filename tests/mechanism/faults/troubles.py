"""The faults, and how each of them is repaired."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import accept
from gavelpy.mechanism.events import (
    JobCancelled,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    NodeDraining,
    NodeLost,
    Outcome,
    ReservationAdded,
    ReservationRemoved,
)
from gavelpy.model.job import NodeId
from tests.mechanism.faults.agent import Agent
from tests.mechanism.faults.machine import Copy, Machine

if TYPE_CHECKING:
    from tests.mechanism.faults.world import World

TICK_S = 0.5
OWNER = "somebody"
RESERVATIONS = ("w0", "w1", "w2")


@dataclass(frozen=True)
class Hostility:
    """Fault rates. Those of messages are per message, the others per second."""

    drop: float = 0.1
    repeat: float = 0.1
    delay: float = 0.15
    crash_scheduler: float = 0.02
    crash_in_commit: float = 0.002  # for each batch and each event in it
    kill_agent: float = 0.06
    stop_agent: float = 0.02
    freeze_agent: float = 0.03
    kill_shim: float = 0.06
    break_job: float = 0.03
    freeze_shim: float = 0.06
    cut: float = 0.05
    part: float = 0.02
    power_off: float = 0.03
    drain: float = 0.02
    cancel: float = 0.005
    hold: float = 0.02
    requeue: float = 0.02
    fill_disk: float = 0.02
    hang_directory: float = 0.01
    reserve: float = 0.0
    unreserve: float = 0.0


class Troubles:
    """Injects faults into a world: each kind with its own chance at every tick."""

    def __init__(self, world: World, odds: Hostility) -> None:
        self.world = world
        self.odds = odds

    def befall(self) -> None:
        odds, rng = self.odds, self.world.rng
        self.world.service.crash_chance = odds.crash_in_commit
        for chance, fault in (
            (odds.crash_scheduler, self._crash_scheduler),
            (odds.kill_agent, self._kill_agent),
            (odds.stop_agent, self._stop_agent),
            (odds.freeze_agent, self._freeze_agent),
            (odds.kill_shim, self._kill_shim),
            (odds.break_job, self._break_job),
            (odds.freeze_shim, self._freeze_shim),
            (odds.cut, self._cut),
            (odds.part, self._part),
            (odds.power_off, self._power_off),
            (odds.drain, self._drain),
            (odds.cancel, self._cancel),
            (odds.hold, self._hold),
            (odds.requeue, self._requeue),
            (odds.fill_disk, self._fill_disk),
            (odds.hang_directory, self._hang_directory),
            (odds.reserve, self._reserve),
            (odds.unreserve, self.end_reservations),
        ):
            if chance and rng.random() < chance * TICK_S:
                self.world.faults += 1
                fault()

    def _crash_scheduler(self) -> None:
        self.world.service.end()

    def _kill_agent(self) -> None:
        agent = self.world.any(agent for agent in self.world.agents.values() if agent.is_alive)
        if agent is not None:
            self._agent_dies(agent)
            self.world.after(self.world.rng.uniform(0.5, 20.0), lambda: self.world.agent_begins(agent))

    def _stop_agent(self) -> None:
        """Stops an agent for so long, as in an update, that its leases end and are presumed lost before it is back."""
        agent = self.world.any(agent for agent in self.world.agents.values() if agent.is_alive)
        if agent is not None:
            self._agent_dies(agent)
            self.world.after(self.world.rng.uniform(20.0, 120.0), lambda: self.world.agent_begins(agent))

    def _agent_dies(self, agent: Agent) -> None:
        name, stream = agent.machine.name, agent.streams
        agent.end()
        self.world.after(self.world.rng.uniform(0.0, 1.0), lambda: self._disconnected(name, stream))

    def _disconnected(self, name: str, stream: int) -> None:
        if self.world.service.is_alive:
            self.world.service.disconnected(name, stream)

    def _freeze_agent(self) -> None:
        agent = self.world.any(agent for agent in self.world.agents.values() if agent.is_alive)
        if agent is not None:
            agent.is_frozen = True
            self.world.after(self.world.rng.uniform(1.0, 40.0), agent.thaw)

    def _copy(self) -> Copy | None:
        return self.world.any(copy for machine in self.world.machines.values() for copy in machine.copies)

    def _kill_shim(self) -> None:
        copy = self._copy()
        if copy is not None:
            copy.end(None)

    def _break_job(self) -> None:
        copy = self._copy()
        if copy is not None and not copy.is_frozen:
            copy.end(Outcome.FAILED)

    def _freeze_shim(self) -> None:
        copy = self._copy()
        if copy is not None:
            copy.is_frozen = True
            self.world.after(self.world.rng.uniform(1.0, 80.0), copy.thaw)

    def _cut(self) -> None:
        name = self.world.rng.choice(list(self.world.machines))
        self.world.cut_until_s[name] = self.world.now_s + self.world.rng.uniform(1.0, 60.0)

    def _part(self) -> None:
        """Partitions the nodes into two sides that cannot reach each other; at most one side reaches the scheduler."""
        world = self.world
        until_s = world.now_s + world.rng.uniform(5.0, 100.0)
        side = {name for name in world.machines if world.rng.random() < 0.5}
        for one, other in itertools.product(sorted(side), sorted(world.machines.keys() - side)):
            world.parted_until_s[frozenset((one, other))] = until_s
        for name in side if world.rng.random() < 0.8 else world.machines:
            world.cut_until_s[name] = until_s

    def _power_off(self) -> None:
        machine = self.world.any(machine for machine in self.world.machines.values() if machine.is_on)
        if machine is None:
            return
        machine.die()
        self.world.agents[machine.name].end()
        if self.world.rng.random() < 0.5:
            self.world.after(self.world.rng.uniform(1.0, 10.0), lambda: self._declare_lost(machine))
        self.world.after(self.world.rng.uniform(5.0, 60.0), lambda: self.world.boot(machine))

    def _declare_lost(self, machine: Machine) -> None:
        """An operator declares lost a machine that is off."""
        if not machine.is_on and self.world.knows(machine):
            self.world.tell(NodeLost(NodeId(machine.name)))

    def _drain(self) -> None:
        machine = self.world.rng.choice(list(self.world.machines.values()))
        if self.world.knows(machine):
            self.world.tell(NodeDraining(NodeId(machine.name)))
            self.world.after(self.world.rng.uniform(5.0, 60.0), lambda: self.world.resume(machine))

    def _hold(self) -> None:
        """Holds a job, which `World.release` ends a while later."""
        if (
            self.world.service.is_alive
            and (job := self.world.any(self.world.service.core.jobs.active.tolist())) is not None
        ):
            self.world.tell(JobsHeld(np.array([job])))
            self.world.after(self.world.rng.uniform(1.0, 60.0), lambda: self.world.release(job))

    def _requeue(self) -> None:
        if (
            self.world.service.is_alive
            and (job := self.world.any(self.world.service.core.jobs.leased.tolist())) is not None
        ):
            self.world.tell(JobsRequeued(np.array([job])))

    def _fill_disk(self) -> None:
        """The agent reports low disk space before any write fails."""
        machine = self.world.rng.choice(list(self.world.machines.values()))
        machine.trouble = "little room is left"
        self.world.after(self.world.rng.uniform(5.0, 60.0), machine.make_room)

    def _hang_directory(self) -> None:
        """Hangs the checkpoint directory of one machine, or of all."""
        machines = list(self.world.machines.values())
        hung = machines if self.world.rng.random() < 0.5 else [self.world.rng.choice(machines)]
        self.hang(hung, self.world.rng.uniform(2.0, 40.0))

    def hang(self, machines: Sequence[Machine], seconds: float) -> None:
        """Hangs the checkpoint directories of these machines for a while."""
        for machine in machines:
            machine.hung_until_s = max(machine.hung_until_s, self.world.now_s + seconds)

    def _reserve(self) -> None:
        """Reserves some machines for a while, for users or for maintenance, unless that is refused."""
        world, rng = self.world, self.world.rng
        nodes = [NodeId(one.name) for one in world.machines.values() if world.knows(one)]
        if not nodes:
            return
        begin_s = world.service.core.now_s + rng.choice([0.0, rng.uniform(0.0, 40.0)])
        users = rng.choice([(), (OWNER,), (OWNER,), ("other",)])
        some, end_s = tuple(rng.sample(nodes, rng.randint(1, len(nodes)))), begin_s + rng.uniform(5.0, 60.0)
        event = ReservationAdded(rng.choice(RESERVATIONS), some, begin_s, end_s, "", users)
        with suppress(InvalidInput):
            accept.check(world.service.core, event)
            world.tell(event)

    def end_reservations(self) -> None:
        """Deletes all reservations, and releases all jobs."""
        service = self.world.service
        for name in list(service.core.windows) if service.is_alive else ():
            if service.is_alive and name in service.core.windows:
                self.world.tell(ReservationRemoved(name))
        if service.is_alive:
            self.world.tell(JobsReleased(service.core.jobs.active.copy(), by_admin=True))

    def _cancel(self) -> None:
        job = self.world.any(
            job for job in self.world.truth.acknowledged - self.world.truth.cancelled - self.world.truth.finished
        )
        if job is not None and self.world.service.is_alive:
            self.world.truth.cancelled.add(job)
            self.world.tell(JobCancelled(job))


def chosen_limits(seed: int, number: int) -> dict[str, Any]:
    """The time limit of a job and the reservation within which it runs, now and then."""
    rng = Random(f"limits of job {number} of {seed}")
    return {"time_s": rng.choice([0.0, 0.0, 40.0, 200.0]), "reservation": rng.choice(["", "", *RESERVATIONS])}


def chosen_nodes(seed: int, number: int, names: list[str]) -> dict[str, tuple[str, ...]]:
    """Nodes that the owner of a job chooses or excludes, now and then; it can run on those that are left."""
    rng = Random(f"nodes of job {number} of {seed}")
    if rng.random() < 0.7:
        return {}
    some = tuple(rng.sample(names, rng.randint(1, min(3, len(names) - 1))))
    return {rng.choice(["nodes", "exclude"]): some}
