"""Virtual time, unreliable links and the schedule of faults, all drawn from one seed."""

from __future__ import annotations

import heapq
import math
import shutil
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import TypeVar

import numpy as np

from gavelpy.mechanism.events import Event, JobsReleased, JobSubmitted, NodeJoined
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.mechanism.original_gavel import PriorityRule, QueueRule
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.runtime.agent.leases.orders import Orders
from tests.mechanism.builders import make_mechanism
from tests.mechanism.faults.agent import Agent, Said
from tests.mechanism.faults.machine import Machine, Run
from tests.mechanism.faults.service import ENGINE_S_MAX, Service
from tests.mechanism.faults.troubles import OWNER, TICK_S, Hostility, Troubles, chosen_limits, chosen_nodes
from tests.mechanism.faults.truth import FINISH_GRACE_S, Truth

MEMORY = Path("/dev/shm")  # agents' disks, in memory where possible
MACHINES = (("v100", 2), ("v100", 2), ("k80", 2), ("k80", 1), ("v100", 1))
JOBS = 10
STEPS = (20, 150)  # steps of a job, at a few steps per second
CALM_S_MAX = 4000.0  # after the last fault, all jobs must be over within this time
LEFT_S_MAX = 90.0  # and all their traces must disappear within this time
DELAY_S_MAX = 6.0
Thing = TypeVar("Thing")


@dataclass(frozen=True)
class Episode:
    """Summary of an episode."""

    faults: int
    virtual_s: float
    events: int
    finished: int


def calm_settings(rng: Random) -> dict[str, float]:
    """Random settings of lease protection and back-off, possibly none."""
    return {"lease_min_s": rng.choice([0.0, 10.0, 30.0]), "retry_s": rng.choice([0.0, 1.0, 4.0]), "retry_max_s": 8.0,
            "losses_free": rng.choice([0, 1]), "start_max_s": rng.choice([0.0, 60.0]), "late_ends": True,
            "finish_grace_s": FINISH_GRACE_S}  # fmt: skip


@dataclass(order=True)
class _Due:
    at_s: float
    serial: int
    do: Callable[[], None] = field(compare=False)


class World:
    """One episode: jobs arrive, a given number of faults occurs, then all jobs must end."""

    def __init__(
        self,
        seed: int,
        faults: int,
        hostility: Hostility | None = None,
        steps: tuple[int, int] = STEPS,
        *,
        keep_unsaved: bool = False,
        classes: tuple[PriorityClass, ...] = (),
    ) -> None:
        self.classes = classes
        self.steps = steps
        self.seed = seed
        self.rng = rng = Random(seed)
        self.hostility = hostility or Hostility()
        self.troubles = Troubles(self, self.hostility)
        self.faults_wanted = faults
        self.faults = 0
        self.now_s = 0.0
        self._timeline: list[_Due] = []
        self._serial = 0
        self.is_restarting = False
        is_fencing = rng.random() < 0.25
        self.truth = Truth(is_fencing=is_fencing)
        self.runs: dict[int, Run] = {}
        blind = set(rng.sample(range(len(MACHINES)), rng.choice([0, 0, 1, 2])))
        self.machines = {
            f"n{i}": Machine(
                f"n{i}", kind, count, sees=i not in blind, ahead_s=rng.uniform(0, 1e5), drift=rng.uniform(-1e-3, 1e-3)
            )
            for i, (kind, count) in enumerate(MACHINES)
        }
        self.disks = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        weakref.finalize(self, shutil.rmtree, self.disks, ignore_errors=True)
        self.agents = {name: self._agent(name) for name in self.machines}
        self.cut_until_s = dict.fromkeys(self.machines, -math.inf)
        self.parted_until_s: dict[frozenset[str], float] = {}  # pairs of nodes that cannot reach each other
        self.called: dict[
            tuple[str, int], int
        ] = {}  # incarnation of the scheduler at the other end, by node and stream
        settings = make_mechanism(
            round_s=rng.choice([12.0, 20.0, 40.0]),
            solve_patience_s=rng.choice([0.0, 5.0]),
            fill_within_round=rng.random() < 0.8,
            settled_rounds_max=rng.choice([1, 1, 5]),
            priority=(priority := rng.choice(list(PriorityRule))),
            queue=rng.choice(list(QueueRule)),
            failures_max=1_000_000,
            keep_unsaved=keep_unsaved,
            priorities=classes,
            move_lag_s=Random(seed).choice([0.0, 20.0, 60.0]) if priority is PriorityRule.LAG else 0.0,
            **calm_settings(rng),
        )
        on_node_lost, orphan_max_s = "fence" if is_fencing else "wait", rng.choice([0.0, 30.0, 120.0, 120.0])
        self.service = Service(settings, self.machines, self.truth, rng, on_node_lost, orphan_max_s)
        for number in range(JOBS):
            self.after(rng.uniform(0.0, 60.0), lambda number=number: self._submit(self._spec(number)))

    def _agent(self, name: str) -> Agent:
        disk = self.disks / name
        disk.mkdir()
        return Agent(self.machines[name], self.runs, self.truth, self.rng, disk)

    def run(self) -> Episode:
        """Runs the episode; raises AssertionError with the seed if an invariant is violated."""
        try:
            while self.faults < self.faults_wanted:
                self._tick(is_calm=False)
                if self.truth.acknowledged and len(self.truth.acknowledged) >= JOBS and self._is_over():
                    self._more_work()
            self._calm_down()
            self.truth.check_end(self.service.core)
            self._check_nothing_is_left()
        except (AssertionError, LookupError, ValueError, TypeError) as error:
            raise AssertionError(f"seed {self.seed} at {self.now_s:.1f} s, fault {self.faults}: {error!r}") from error
        return Episode(self.faults, self.now_s, len(self.service.journal), len(self.truth.finished))

    # Time ---------------------------------------------------------------------------------------------------------

    def _tick(self, *, is_calm: bool) -> None:
        until_s = self.now_s + TICK_S
        while self._timeline and self._timeline[0].at_s <= until_s:
            due = heapq.heappop(self._timeline)
            self.now_s = due.at_s
            due.do()
        self.now_s = until_s
        if not is_calm:
            self.troubles.befall()
        for machine in self.machines.values():
            machine.tick(self.now_s)
        for run in list(self.runs.values()):
            run.advance(self.now_s, TICK_S)
            if not any(copy.is_alive for copy in run.copies) and len(run.copies) == run.node_count:
                del self.runs[run.lease]
        for name, agent in self.agents.items():
            if agent.is_alive and not agent.is_frozen:
                agent.tick(self.now_s)
                self._speak(name, agent)
                self._ask(name, agent)
        if self.service.is_alive:
            self.service.look(self.now_s)
        self._serve()

    def advance(self, seconds: float) -> None:
        """Advances virtual time without random faults; the caller injects its own."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._tick(is_calm=True)

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._timeline, _Due(self.now_s + delay_s, self._serial, do))

    # Links --------------------------------------------------------------------------------------------------------

    def _is_cut(self, name: str) -> bool:
        return self.now_s < self.cut_until_s[name]

    def _carry(self, name: str, deliver: Callable[[], None]) -> None:
        """Carries a message over the link between a node and the scheduler."""
        rng, odds = self.rng, self.hostility
        if self._is_cut(name):
            return
        if self.faults < self.faults_wanted:
            if rng.random() < odds.drop:
                self.faults += 1
                return
            if rng.random() < odds.repeat:
                self.faults += 1
                self.after(rng.uniform(0.0, DELAY_S_MAX), deliver)
            if rng.random() < odds.delay:
                self.faults += 1
                self.after(rng.uniform(0.0, DELAY_S_MAX), deliver)
                return
        self.after(rng.uniform(0.001, 0.05), deliver)

    def _speak(self, name: str, agent: Agent) -> None:
        said = agent.speak(self.now_s, is_reachable=self.service.is_alive and not self._is_cut(name))
        if said is not None and said.is_first:
            self.called[name, said.stream] = self.service.incarnation
        if said is not None:
            self._carry(name, lambda: self._arrives(said))

    def _ask(self, name: str, agent: Agent) -> None:
        """Queries other agents if the scheduler is silent; each answer may be lost, and all may be late."""
        if not agent.is_asking:
            return
        contact, asked_clock_s, life = agent.orphans.contact, agent.machine.clock_s, agent.orphans
        others = [other for other in self.agents.items() if other[0] != name and self._reaches(name, *other)]
        is_lossy = self.faults < self.faults_wanted
        answers = [o.contact() for _, o in others if not (is_lossy and self.rng.random() < self.hostility.drop)]

        def answered() -> None:
            if agent.is_alive and not agent.is_frozen and agent.orphans is life:
                agent.answered(contact, answers, asked_clock_s)

        self.after(self.rng.choice([0.01, 0.1, self.rng.uniform(0.0, DELAY_S_MAX)]), answered)

    def _reaches(self, name: str, other: str, agent: Agent) -> bool:
        is_parted = self.now_s < self.parted_until_s.get(frozenset((name, other)), -math.inf)
        return agent.machine.is_on and agent.is_alive and not agent.is_frozen and not is_parted

    def _arrives(self, said: Said) -> None:
        is_theirs = self.called[said.node, said.stream] == self.service.incarnation  # a stream ends with its process
        if self.service.is_alive and is_theirs and not self._is_cut(said.node):
            self.service.hear(said, self.now_s)
            self._serve()

    def _serve(self) -> None:
        """Sends orders, and schedules the engine's answers."""
        service = self.service
        if not service.is_alive:
            if not self.is_restarting:
                self._scheduler_died()
            return
        for name, orders in service.orders(self.now_s):
            self._carry(name, lambda name=name, orders=orders: self._ordered(name, orders))
        incarnation = service.incarnation
        for event in service.answers():
            self.after(self.rng.uniform(0.0, ENGINE_S_MAX), lambda event=event: self._answered(event, incarnation))

    def _ordered(self, name: str, orders: Orders) -> None:
        agent = self.agents[name]
        if agent.is_alive and not self._is_cut(name):
            agent.hear(orders, self.now_s)

    def _answered(self, event: Event, incarnation: int) -> None:
        if self.service.is_alive and self.service.incarnation == incarnation:
            self.service.put(event)
            self.service.step(self.now_s)

    # Jobs ---------------------------------------------------------------------------------------------------------

    def _spec(self, number: int) -> JobSpec:
        rng = self.rng
        rates = {"v100": rng.uniform(2.0, 5.0), "k80": rng.uniform(1.0, 3.0)}
        steps_total, gpus = float(rng.randint(*self.steps)), rng.choice([1, 1, 1, 2, 2, 3])
        is_known = rng.random() < 0.9 or gpus > 2  # the one known type may lack three such GPUs
        is_open, name = number % 3 == 2, JobId(f"j{number}")
        self.truth.totals[name] = steps_total
        return JobSpec(
            name,
            3.0 * steps_total if is_open and number % 2 else steps_total,
            gpus=gpus,
            rates_steps_per_s=rates if is_known else {},
            owner=OWNER,
            priority=rng.choice(self.classes).name if self.classes else "",
            open_ended=is_open,
            **(chosen_nodes(self.seed, number, list(self.machines)) if is_known and gpus == 1 else {}),
            **(chosen_limits(self.seed, number) if self.hostility.reserve else {}),
        )

    def _submit(self, spec: JobSpec) -> None:
        """Repeats a submission until it is acknowledged; the scheduler recognises one that its journal already has."""
        if not self.service.is_alive:
            self.after(2.0, lambda: self._submit(spec))
            return
        core = self.service.core
        if spec.id in core.jobs.serial_of:
            self.truth.acknowledged.add(core.jobs.serial_of[spec.id])
            return
        self.service.put(JobSubmitted(spec), lambda: self.truth.acknowledged.add(core.jobs.serial_of[spec.id]))
        self.service.step(self.now_s)
        if not self.service.is_alive:
            self.after(2.0, lambda: self._submit(spec))

    def _more_work(self) -> None:
        for _ in range(JOBS // 2):
            number = self.service.core.jobs.count + self._serial
            self._serial += 1
            self._submit(self._spec(number))

    def _is_over(self) -> bool:
        return self.service.is_alive and self.truth.is_over(self.service.core)

    # Faults -------------------------------------------------------------------------------------------------------

    def _scheduler_died(self) -> None:
        """The agents notice the death of the scheduler a little later; it restarts after a while."""
        self.is_restarting = True
        for agent in self.agents.values():
            self.after(
                self.rng.uniform(0.0, 2.0), lambda agent=agent, stream=agent.streams: self._hung_up(agent, stream)
            )
        self.after(
            self.rng.choice([0.3, 2.0, 8.0, 30.0, 90.0]) if self.faults < self.faults_wanted else 0.3, self._restart
        )

    def _hung_up(self, agent: Agent, stream: int) -> None:
        if agent.is_alive and agent.streams == stream:
            agent.disconnect(self.now_s)

    def _restart(self) -> None:
        self.is_restarting = False
        self.service.begin(self.now_s)
        self._serve()

    def agent_begins(self, agent: Agent) -> None:
        if agent.machine.is_on and not agent.is_alive:
            agent.begin()

    def boot(self, machine: Machine) -> None:
        if machine.is_on:
            return
        index = list(self.machines).index(machine.name)
        grown = machine.sees and self.rng.random() < 0.2  # not where a gang may have its checkpoint: it could not move
        machine.gpu_count = MACHINES[index][1] + grown
        machine.boot(self.rng.uniform(0.0, 1e5), self.now_s)
        self.agents[machine.name].begin()

    def resume(self, machine: Machine) -> None:
        if self.knows(machine) and self.service.core.pool.node_state[self.row(machine)] is NodeState.DRAINING:
            self.tell(NodeJoined(NodeId(machine.name), machine.gpu_type, machine.gpu_count, machine.sees))

    def release(self, job: int) -> None:
        """Releases a job, when the scheduler is there."""
        if not self.service.is_alive:
            self.after(2.0, lambda: self.release(job))
            return
        self.tell(JobsReleased(np.array([job])))
        if not self.service.is_alive:
            self.after(2.0, lambda: self.release(job))

    def tell(self, event: Event) -> None:
        self.service.put(event)
        self.service.step(self.now_s)
        self._serve()

    def knows(self, machine: Machine) -> bool:
        return self.service.is_alive and machine.name in self.service.core.pool.node_row

    def row(self, machine: Machine) -> int:
        return self.service.core.pool.node_row[NodeId(machine.name)]

    def any(self, things: Iterable[Thing]) -> Thing | None:
        found = list(things)
        return self.rng.choice(found) if found else None

    def _calm_down(self) -> None:
        """Ends all faults."""
        self.service.crash_chance = 0.0
        self.cut_until_s = dict.fromkeys(self.machines, -math.inf)
        self.parted_until_s = {}
        for machine in self.machines.values():
            machine.make_room()
            for copy in machine.copies:
                copy.thaw()
            if not machine.is_on:
                self.boot(machine)
            agent = self.agents[machine.name]
            agent.thaw()
            self.agent_begins(agent)
        until_s = self.now_s + CALM_S_MAX
        while self.now_s < until_s and not (len(self.truth.acknowledged) >= JOBS and self._is_over()):
            self._tick(is_calm=True)
            for machine in self.machines.values():
                self.resume(machine)
            if self.hostility.reserve:
                self.troubles.end_reservations()

    def _check_nothing_is_left(self) -> None:
        """Checks that no process, GPU or entry in a table or on a disk outlives the last job for long."""
        until_s = self.now_s + LEFT_S_MAX
        while self.now_s < until_s:
            self._tick(is_calm=True)
        left = [(copy.record.job, copy.record.lease) for m in self.machines.values() for copy in m.copies]
        assert not left, f"copies of jobs and leases that run on: {left}"
        assert (self.service.core.pool.job == NONE).all(), "GPUs are held by jobs that are over"
        assert not self.service.execution.leases.leases, "the lease table holds leases of jobs that are over"
        records = {machine.name: list(machine.records) for machine in self.machines.values() if machine.records}
        assert not records, f"leases that nodes were never told to forget: {records}"
