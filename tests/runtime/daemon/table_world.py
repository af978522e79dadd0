"""Nodes that lose, repeat, delay and reorder messages, fall silent and reboot, around a real core and lease table."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from gavelpy.mechanism.events import NodeJoined, NodeLost, NodeUnreachable, Outcome, SchedulerRestarted
from gavelpy.mechanism.lifecycle import ALIVE, NodeState
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.leases.lease import Order, PartReport, Phase, Wish
from gavelpy.runtime.daemon.leases.table import LeaseTable
from tests.runtime.daemon.table_builders import PATIENCE, Bench, ended

Mail = tuple[tuple[int, int], list[Order], list[int]]  # (incarnation, sequence), orders, leases to forget
STEPS_TOTAL = 3_000.0
RATE = 10.0


@dataclass
class WorldNode:
    """The true state of a node."""

    name: str
    leases: dict[int, PartReport] = field(default_factory=dict)
    until_s: dict[int, float] = field(default_factory=dict)
    gpus: dict[int, tuple[int, ...]] = field(default_factory=dict)
    mail: list[Mail] = field(default_factory=list)  # messages in transit to the node
    newest: tuple[int, int] = (0, 0)
    is_mute: bool = False  # cut off in both directions
    is_heard: bool = False  # connected to this incarnation
    booted: bool = False

    def running(self) -> dict[int, PartReport]:
        """Leases with live processes."""
        return {number: lease for number, lease in self.leases.items() if Phase.RUNNING <= lease.phase < Phase.ENDED}

    def obey(self, mail: Mail) -> None:
        """Follows orders as an agent does: the newest count, unlisted leases are killed, unknown ones reported lost."""
        stamp, orders, forget = mail
        if stamp <= self.newest:
            return
        self.newest = stamp
        for number in forget:
            if number in self.leases and self.leases[number].phase is Phase.ENDED:
                del self.leases[number]
        wanted = {order.lease: order for order in orders}
        for number, lease in self.leases.items():
            if number not in wanted and lease.phase is not Phase.ENDED:
                self.leases[number] = ended(number, lease.job, Outcome.LOST, steps_saved=lease.steps_saved)
        for order in orders:
            self._follow(order)

    def _follow(self, order: Order) -> None:
        lease = self.leases.get(order.lease)
        if lease is None and (order.start is None or order.wish >= Wish.STOP):
            self.leases[order.lease] = ended(order.lease, order.job, Outcome.LOST)
            return
        if lease is None:
            assert order.start is not None
            held = {gpu for number in self.running() for gpu in self.gpus[number]}
            assert held.isdisjoint(order.start.gpus), f"{self.name}: GPUs of lease {order.lease} are in use"
            lease = PartReport(order.lease, order.job, Phase.PREPARED, order.start.resume_steps)
            self.leases[order.lease] = replace(lease, steps_saved=order.start.resume_steps, rendezvous_port=1)
            self.gpus[order.lease] = order.start.gpus
            self.until_s[order.lease] = order.until_s
        lease = self.leases[order.lease]
        if lease.phase is Phase.ENDED:
            return
        self.until_s[order.lease] = max(self.until_s[order.lease], order.until_s)
        if order.wish is Wish.RUN and lease.phase < Phase.RUNNING:
            self.leases[order.lease] = replace(lease, phase=Phase.RUNNING)
        if order.wish is Wish.STOP:
            self.leases[order.lease] = self._stopped(lease, lease.steps_done)
        if order.wish is Wish.KILL:
            self.leases[order.lease] = self._stopped(lease, lease.steps_saved)

    def _stopped(self, lease: PartReport, steps: float) -> PartReport:
        return ended(lease.lease, lease.job, Outcome.STOPPED, steps_done=steps, steps_saved=steps)

    def work(self, now_s: float, seconds: float, rng: random.Random) -> None:
        """Advances time: jobs progress, save, finish, fail, or see their leases end."""
        for number, lease in self.running().items():
            done = min(lease.steps_done + RATE * seconds, STEPS_TOTAL)
            saved = done if rng.random() < 0.2 else lease.steps_saved
            moved = replace(lease, steps_done=done, steps_saved=saved)
            if done >= STEPS_TOTAL:
                moved = ended(number, lease.job, Outcome.FINISHED, steps_done=done, steps_saved=done)
            elif now_s >= self.until_s[number]:
                moved = self._stopped(lease, done)
            elif rng.random() < 0.01:
                moved = replace(moved, phase=Phase.ENDED, outcome=Outcome.FAILED)
            self.leases[number] = moved

    def boot(self) -> None:
        """Reboots: all processes die, and the agent restarts with an empty memory and reports that."""
        self.leases, self.mail, self.newest, self.booted = {}, [], (0, 0), True


class World:
    """A bench with such nodes. `step` does a random action; `check` checks the invariants."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.sizes = {f"n{i}": self.rng.choice((1, 2)) for i in range(4)}
        self.bench = Bench(*self.sizes.items(), failures_max=1_000)
        self.nodes = {name: WorldNode(name) for name in self.sizes}
        self.incarnation, self.sequence = 1, 0
        self.finished: set[int] = set()
        for job in range(8):
            self.bench.submit(f"j{job}", gpus=self.rng.choice((1, 1, 2, 3)))
        self.bench.core.jobs.steps_total[: self.bench.core.jobs.count] = STEPS_TOTAL
        for node in self.nodes.values():
            node.is_heard = True

    def step(self, *, calm: bool = False) -> None:
        """Advances the cluster by a few seconds."""
        bench, rng, seconds = self.bench, self.rng, self.rng.choice((0.5, 2.0, 8.0))
        bench.now_s += seconds
        for node in self.nodes.values():
            node.work(bench.now_s, seconds, rng)
            self._talk(node, calm)
        silent = {NodeId(name) for name, node in self.nodes.items() if self._is_silent(node)}
        bench.table.expire(bench.now_s, silent)
        bench.settle()
        bench.wake(bench.now_s)
        if not calm:
            self._mischief()
        self.check()

    def check(self) -> None:
        """Checks that no job runs twice at a time, no GPU has two orders to run, and nothing finishes twice."""
        copies: dict[int, set[int]] = {}
        for node in self.nodes.values():
            for number, lease in node.running().items():
                copies.setdefault(lease.job, set()).add(number)
        assert all(len(numbers) == 1 for numbers in copies.values()), f"two copies of a job run: {copies}"
        for name in self.nodes:
            entries = [entry for entry in self.bench.table.on_node(NodeId(name)) if not entry.is_held]
            for entry in entries:
                others = [set(e.parts[NodeId(name)].gpus) for e in entries if e is not entry]
                gpus = entry.parts[NodeId(name)].gpus
                is_alone = set(gpus).isdisjoint(set().union(*others))
                assert is_alone or entry.wish > Wish.RUN, f"{name}: lease {entry.lease} shall run where others may"

    @property
    def is_done(self) -> bool:
        """Whether all jobs are over."""
        jobs = self.bench.core.jobs
        return bool((jobs.state[: jobs.count] > ALIVE[-1]).all())

    def _is_silent(self, node: WorldNode) -> bool:
        pool = self.bench.core.pool
        return pool.node_unreachable[pool.node_row[NodeId(node.name)]]

    def _talk(self, node: WorldNode, calm: bool) -> None:
        """Delivers a report, unless lost, then orders: some of them lost, late, twice, or reordered."""
        if node.is_mute:
            return
        rng, bench = self.rng, self.bench
        if calm or rng.random() < 0.7:
            self._report(node)
        if node.is_heard:
            self.sequence += 1
            stamp = self.incarnation, self.sequence
            node.mail.append((stamp, bench.orders(node.name), list(bench.table.forgotten(NodeId(node.name)))))
        rng.shuffle(node.mail)
        for mail in list(node.mail):
            chance = rng.random()
            if calm or chance < 0.6:
                node.obey(mail)
            if calm or chance < 0.5 or chance > 0.9:  # otherwise it is delivered again later
                node.mail.remove(mail)

    def _report(self, node: WorldNode) -> None:
        bench, name = self.bench, NodeId(node.name)
        pool = bench.core.pool
        is_lost = pool.node_state[pool.node_row[name]] is NodeState.LOST
        bench.table.reported(name, list(node.leases.values()), bench.now_s, is_confirmed_dead=node.booted)
        node.booted = False
        bench.settle()
        if is_lost:
            bench.tell(NodeJoined(name, "v100", self.sizes[node.name]))
        elif not node.is_heard or pool.node_unreachable[pool.node_row[name]]:
            bench.tell(bench.table.rejoined(name))
        node.is_heard = True

    def _mischief(self) -> None:
        rng, chance = self.rng, self.rng.random()
        node = rng.choice(list(self.nodes.values()))
        if chance < 0.05:
            self._crash()
        elif chance < 0.12:
            node.is_mute = not node.is_mute
            if node.is_mute:
                node.mail.clear()
        elif chance < 0.14:
            node.boot()
        elif chance < 0.16 and node.is_mute:  # an operator has declared the node lost
            node.boot()
            self.bench.tell(NodeLost(NodeId(node.name)))
            self.bench.table.lost(NodeId(node.name), self.bench.now_s, "it burned")
        elif node.is_mute and not self._is_silent(node):
            self.bench.tell(NodeUnreachable(NodeId(node.name)))

    def _crash(self) -> None:
        """Loses everything outside the core."""
        bench = self.bench
        self.incarnation += 1
        bench.table = LeaseTable(bench.core, PATIENCE)
        bench.table.rebuild()
        bench.tell(SchedulerRestarted(self.incarnation))
        for node in self.nodes.values():
            node.is_heard = False
