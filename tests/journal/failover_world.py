"""A world in virtual time with schedulers, a database, agents and clients: what is written, acknowledged and run.

`TakeoverTimer` is the real one. The rest follows the rules of the runtime: an append is one transaction that needs the
newest incarnation and the session; a job is acknowledged, and an order sent, after the commit; agents obey the highest
incarnation that they have seen, and stop a lease at the end that its order has; a lease of an unreachable node is given
up after its end and a margin. Faults: a crash, a pause, a session that ends, a slow disk, a clock that steps, and cuts
between a scheduler and the database, the agents or the clients, between a node and all schedulers, and between the
standbys and the database.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from gavelpy.journal.leadership import Leader, TakeoverTimer, Turn

LEASE_S, LOOK_S, RENEW_S = 3.0, 0.25, 0.75  # of leadership
UNKNOWN_S = 2 * LEASE_S  # without a renewal, after which a leader stops
RUN_S, EXTEND_S, MARGIN_S = 6.0, 2.0, 2.5  # leases of GPUs: length, time between extensions, margin
SILENT_S = 2.0  # a node without a report is unreachable
WORK_S = 9.0  # a job needs so much, under one lease
RETRY_S, DELAY_S, STEP_S = 1.0, 0.3, 1.0  # of a call, a message, a step of a clock at most
FAILOVERS = ("crash", "pause", "session", "database cut")
FAULTS = (*FAILOVERS, "slow disk", "clock", "agents cut", "node cut", "standbys cut", "clients cut")
AGENTS, CLIENTS = 3, 2


@dataclass(frozen=True)
class Record:
    """An event of the journal, and the incarnation that wrote it."""

    kind: str  # job, grant, extend or end
    job: str
    lease: int = -1
    agent: int = -1
    until_s: float = 0.0
    incarnation: int = 0


@dataclass
class Database:
    """The journal, the leader's row and its session."""

    newest: int = 0
    holder: str = ""  # of the session of the newest incarnation
    beat: int = 0
    journal: list[Record] = field(default_factory=list)
    written_s: list[float] = field(default_factory=list)
    commit_s: float = 0.01

    def commit(self, name: str, incarnation: int, records: list[Record], now_s: float) -> bool:
        """Appends all or nothing."""
        if self.newest != incarnation or self.holder != name:
            return False
        self.journal += records
        self.written_s.append(now_s)
        return True


@dataclass
class Lease:
    """What a leader has of a lease in force."""

    job: str
    agent: int
    until_s: float


class Scheduler:
    """Leads or stands by."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.is_alive = True
        self.life = 0  # grows with each start: what was planned before does not happen
        self.paused_until_s = 0.0
        self.cut_until_s = dict.fromkeys(("database", "agents", "clients"), 0.0)
        self.clock_s = world.rng.uniform(-STEP_S, STEP_S)  # error of its clock
        self.stand_by()

    def stand_by(self) -> None:
        """As after a start."""
        self.leads = 0
        self.patience = TakeoverTimer(self.name, LEASE_S)
        self.jobs: dict[str, str] = {}  # state: waits, runs, over
        self.leases: dict[int, Lease] = {}
        self.seen_s = dict.fromkeys(range(AGENTS), -np.inf)
        self.is_writing, self.renewed_s = False, 0.0

    def reaches(self, what: str) -> bool:
        """Whether nothing is cut between it and the database, agents or clients."""
        return self.world.now_s >= self.cut_until_s[what]

    def act(self) -> None:
        """One look of a standby, or one beat of a leader."""
        now_s, database = self.world.now_s, self.world.database
        if not self.leads:
            if self.reaches("database"):
                seen = Leader(database.newest, bool(database.holder), "x", database.beat)
                if self.patience.turn(seen, now_s + self.clock_s) is not Turn.WAIT:
                    self.take_over()
            return
        if self.reaches("database"):
            if database.newest != self.leads or database.holder != self.name:
                self.stand_by()
                return
            database.beat, self.renewed_s = database.beat + 1, now_s
        elif now_s - self.renewed_s > UNKNOWN_S:
            self.stand_by()
            return
        self.plan()

    def take_over(self) -> None:
        """Ends the session of the leader, begins an incarnation, and reads the journal."""
        database = self.world.database
        database.newest, database.holder, database.beat = database.newest + 1, self.name, 0
        self.leads, self.renewed_s = database.newest, self.world.now_s
        for record in database.journal:
            self.apply(record)

    def apply(self, record: Record) -> None:
        """One event."""
        match record.kind:
            case "job":
                self.jobs[record.job] = "waits"
            case "grant":
                self.jobs[record.job] = "runs"
                self.leases[record.lease] = Lease(record.job, record.agent, record.until_s)
            case "extend":
                self.leases[record.lease].until_s = record.until_s
            case "end":
                self.jobs[record.job] = "over" if record.until_s else "waits"
                del self.leases[record.lease]

    def write(self, records: list[Record], then: Callable[[], None]) -> None:
        """One append at a time; `then` happens after its commit, if the answer arrives."""
        if self.is_writing or not self.reaches("database") or not records:
            return
        self.is_writing = True
        leads, life, world = self.leads, self.life, self.world

        def commit() -> None:
            is_in = world.database.commit(self.name, leads, records, world.now_s)

            def answer() -> None:
                if self.leads != leads:
                    return
                self.is_writing = False
                if not is_in or not self.reaches("database"):  # unknown: the runtime's store is unusable then
                    self.stand_by()
                    return
                for record in records:
                    self.apply(record)
                then()

            world.later(0.01, lambda: world.when_able(self, life, answer))

        world.later(world.database.commit_s, commit)

    def plan(self) -> None:
        """Grants, extends and gives up leases."""
        now_s = self.world.now_s + self.clock_s
        records = []
        for number, lease in self.leases.items():
            is_near = now_s - self.seen_s[lease.agent] < SILENT_S
            if not is_near and now_s > lease.until_s + MARGIN_S:
                records.append(Record("end", lease.job, number, incarnation=self.leads))
            elif is_near and lease.until_s - now_s < RUN_S - EXTEND_S:
                records.append(Record("extend", lease.job, number, lease.agent, now_s + RUN_S, self.leads))
        busy = {lease.agent for lease in self.leases.values()}
        near = [one for one in range(AGENTS) if one not in busy and now_s - self.seen_s[one] < SILENT_S]
        waiting = [job for job, state in self.jobs.items() if state == "waits"]
        for agent, job in zip(near, waiting, strict=False):
            records.append(Record("grant", job, next(self.world.numbers), agent, now_s + RUN_S, self.leads))
        self.write(records, self.send_orders)

    def send_orders(self) -> None:
        """All leases in force of each agent."""
        for agent in range(AGENTS):
            here = {number: lease for number, lease in self.leases.items() if lease.agent == agent}
            self.world.send_order(self, agent, here)


@dataclass
class Agent:
    """A node with one GPU."""

    number: int
    obeyed: tuple[int, int] = (0, 0)  # highest incarnation seen, and the number of its last order
    running: dict[int, tuple[str, float, float]] = field(default_factory=dict)  # by lease: job, end, done at
    ended: dict[int, bool] = field(default_factory=dict)  # whether the job is done
    cut_until_s: float = 0.0  # from all schedulers


class World:
    """Runs until a time; `problems` has what must not happen."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.now_s = 0.0
        self.database = Database()
        self.numbers = itertools.count()
        self.schedulers = [Scheduler(self, name) for name in "abc"]
        self.agents = [Agent(number) for number in range(AGENTS)]
        self.acknowledged: set[str] = set()
        self.problems: list[str] = []
        self.faults: list[str] = []
        self._order = itertools.count()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def later(self, after_s: float, what: Callable[[], None]) -> None:
        """Does something after a time."""
        heapq.heappush(self._queue, (self.now_s + after_s, next(self._order), what))

    def when_able(self, scheduler: Scheduler, life: int, what: Callable[[], None]) -> None:
        """Does something in a scheduler: after its pause, and not if it has died meanwhile."""
        if not scheduler.is_alive or scheduler.life != life:
            return
        if self.now_s < scheduler.paused_until_s:
            self.later(scheduler.paused_until_s - self.now_s, lambda: self.when_able(scheduler, life, what))
            return
        what()

    def run(self, until_s: float, faults: int, kinds: tuple[str, ...] = FAULTS) -> None:
        """All actors, with faults of these kinds at random times; the last quarter is quiet."""
        for scheduler in self.schedulers:
            self.later(self.rng.uniform(0.0, LOOK_S), lambda it=scheduler: self._turn_of(it))
        for agent in self.agents:
            self.later(self.rng.uniform(0.0, 0.5), lambda it=agent: self._report(it))
        for client in range(CLIENTS):
            self.later(self.rng.uniform(0.0, 1.0), lambda it=client: self._submit(it, 0, 0))
        for k in range(faults):
            at_s = 4.0 + (0.75 * until_s - 4.0) * (k + self.rng.random()) / faults
            self.later(at_s, lambda: self._fault(kinds))
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._queue)
            what()

    # Actors -------------------------------------------------------------------------------------------------------

    def _turn_of(self, it: Scheduler) -> None:
        if it.is_alive and self.now_s >= it.paused_until_s:
            it.act()
        self.later((RENEW_S if it.leads else LOOK_S) * self.rng.uniform(0.9, 1.1), lambda: self._turn_of(it))

    def _report(self, agent: Agent) -> None:
        """Ends leases whose time is over, and reports to each scheduler that leads, or thinks so."""
        for number, (_, until_s, done_s) in list(agent.running.items()):
            if self.now_s >= min(until_s, done_s):
                del agent.running[number]
                agent.ended[number] = self.now_s >= done_s
        for it in self.schedulers:
            if it.leads and it.reaches("agents") and self.now_s >= agent.cut_until_s:
                life, state = it.life, dict(agent.ended)
                message = lambda it=it, life=life, state=state: self.when_able(  # noqa: E731
                    it, life, lambda: self._hear(it, agent.number, state)
                )
                self.later(self.rng.uniform(0.0, DELAY_S), message)
        self.later(0.5, lambda: self._report(agent))

    def _hear(self, it: Scheduler, agent: int, ended: dict[int, bool]) -> None:
        if not it.leads or not it.reaches("agents"):
            return
        it.seen_s[agent] = self.now_s + it.clock_s
        over = [number for number in ended if number in it.leases]
        records = [
            Record("end", it.leases[number].job, number, agent, float(ended[number]), it.leads) for number in over
        ]
        it.write(records, it.send_orders)

    def send_order(self, it: Scheduler, number: int, leases: dict[int, Lease]) -> None:
        """A complete order for an agent, which may be late or lost."""
        is_cut = not it.reaches("agents") or self.now_s < self.agents[number].cut_until_s
        if is_cut or self.rng.random() < 0.05:
            return
        order = it.leads, next(self._order)
        ends = {name: (lease.job, lease.until_s - it.clock_s) for name, lease in leases.items()}
        self.later(self.rng.uniform(0.0, DELAY_S), lambda: self._obey(self.agents[number], order, ends))

    def _obey(self, agent: Agent, order: tuple[int, int], ends: dict[int, tuple[str, float]]) -> None:
        """Runs the leases of an order, and no others."""
        if order < agent.obeyed:
            return
        agent.obeyed = order
        for name in [name for name in agent.running if name not in ends]:
            job, until_s, _ = agent.running.pop(name)
            agent.ended[name] = False
            if self.now_s < until_s and self._is_in_force(name):
                self.problems.append(f"{self.now_s:.2f}: {job} was stopped on agent {agent.number}")
        for name, (job, until_s) in ends.items():
            if name in agent.ended or until_s <= self.now_s:
                continue
            if name in agent.running:
                _, before_s, done_s = agent.running[name]
                agent.running[name] = job, max(before_s, until_s), done_s
                continue
            agent.running[name] = job, until_s, self.now_s + WORK_S
            self._check_leases(job, agent.number)

    def _is_in_force(self, lease: int) -> bool:
        last = next(record for record in reversed(self.database.journal) if record.lease == lease)
        return last.kind != "end"

    def _check_leases(self, job: str, number: int) -> None:
        """A job runs once, and a GPU has one job."""
        where = [
            one.number for one in self.agents for own, until_s, _ in one.running.values()
            if own == job and self.now_s < until_s
        ]  # fmt: skip
        if len(where) > 1:
            self.problems.append(f"{self.now_s:.2f}: {job} runs on {where}")
        here = self.agents[number].running.values()
        alive = [own for own, until_s, done_s in here if self.now_s < min(until_s, done_s)]
        if len(alive) > 1:
            self.problems.append(f"{self.now_s:.2f}: agent {number} runs {alive}")

    def _submit(self, client: int, count: int, turn: int) -> None:
        """One job after another, each again at the next address until it is acknowledged."""
        job, it = f"{client}-{count}", self.schedulers[turn % len(self.schedulers)]
        self.later(RETRY_S, lambda: self._submit(client, count + (job in self.acknowledged), turn + 1))
        if not (it.is_alive and it.leads and it.reaches("clients")):
            return

        def acknowledge() -> None:
            if it.reaches("clients"):
                self.acknowledged.add(job)

        def receive() -> None:
            if not it.leads:
                return
            if job in it.jobs:  # the key is known
                acknowledge()
            else:
                it.write([Record("job", job, incarnation=it.leads)], acknowledge)

        self.when_able(it, it.life, receive)

    # Faults -------------------------------------------------------------------------------------------------------

    def _fault(self, kinds: tuple[str, ...]) -> None:
        """One fault, mostly of the leader; often another one at the same time."""
        if kinds is FAULTS and self.rng.random() < 0.3:
            self._fault(kinds)
        database = self.database
        leader = next((one for one in self.schedulers if one.name == database.holder), self.schedulers[0])
        hit = leader if self.rng.random() < 0.7 else self.schedulers[int(self.rng.integers(3))]
        kind = str(self.rng.choice(kinds))
        self.faults.append(kind)
        longest_s = 4 * LEASE_S
        match kind:
            case "crash":
                hit.is_alive, hit.life = False, hit.life + 1
                hit.stand_by()
                self.later(self.rng.uniform(0.0, 0.3), lambda: self._end_session(hit.name))
                self.later(self.rng.uniform(1.0, longest_s), lambda: setattr(hit, "is_alive", True))
            case "pause":
                hit.paused_until_s = self.now_s + self.rng.uniform(0.0, longest_s)
            case "session":
                self._end_session(hit.name)
            case "slow disk":
                database.commit_s = self.rng.uniform(0.5, 5.0)
                self.later(self.rng.uniform(1.0, longest_s), lambda: setattr(database, "commit_s", 0.01))
            case "clock":
                hit.clock_s = self.rng.uniform(-STEP_S, STEP_S)
            case "node cut":
                agent = self.agents[int(self.rng.integers(AGENTS))]
                agent.cut_until_s = self.now_s + self.rng.uniform(0.0, longest_s)
            case "standbys cut":  # from the database, so that only the leader sees it
                for one in self.schedulers:
                    if one is not leader:
                        one.cut_until_s["database"] = self.now_s + self.rng.uniform(0.0, longest_s)
            case _:
                hit.cut_until_s[kind.split()[0]] = self.now_s + self.rng.uniform(0.0, longest_s)

    def _end_session(self, name: str) -> None:
        if self.database.holder == name:
            self.database.holder = ""
