"""Random events for a core whose teams have limits: node sets, reservations, pairs of two teams, sizes, classes.

After each event no team exceeds its quota. In the plan of each round, no GPU that a waiting job may use, and that is
guaranteed to its team, stays idle, unless it is reserved for a gang of the team. All of it is computed with loops.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gavelpy.mechanism.commands import Command, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AllocationSolved,
    Event,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    ReservationAdded,
    SchedulerRestarted,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import LAST_ALIVE, JobState
from gavelpy.mechanism.non_preemptible import is_barred
from gavelpy.mechanism.priority_classes import PriorityClass
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.teams import Team
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.mechanism.builders import make_mechanism

TYPES = ("v100", "k80")
NODES = ("n0", "n1", "n2", "n3")
SHARES = (0.0, 0.0, 0.25, 0.5, 1.0)


class TeamStorm:
    """One random run; the same seed gives the same run."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng((seed, 5))
        self.teams = random_teams(rng)
        self.features = {name for name in ("nodes", "pairs", "sizes", "reserved", "classes") if rng.random() < 0.4}
        classes = (PriorityClass("high", 10, ("normal",) * int(rng.integers(0, 2))),)
        self.core = SchedulerCore(
            make_mechanism(
                teams=self.teams, round_s=100.0, lease_min_s=float(rng.choice([0.0, 50.0, 150.0])),
                fill_leftover=bool(rng.random() < 0.7), packing="pairs" in self.features,
                keep_unsaved=bool(rng.random() < 0.3), move_lag_s=float(rng.choice([0.0, 500.0])),
                priorities=classes if "classes" in self.features else (), solve_patience_s=0.0,
            )
        )  # fmt: skip
        self.question: SolveAllocation | None = None
        self.now_s, self.round, self.is_alike = 0.0, 0, True
        for node in NODES:
            self.tell(NodeJoined(NodeId(node), TYPES[rng.integers(2)], int(rng.integers(1, 5))))

    def run(self, steps: int) -> None:
        """Applies so many random events."""
        rules = (self.submit, self.submit, self.wake, self.wake, self.wake, self.answer, self.start, self.end, self.end,
                 self.cancel, self.flicker, self.reserve, self.restart)  # fmt: skip
        odds = np.array([3.0, 3, 4, 4, 4, 6, 3, 3, 2, 0.5, 0.3, 0.4 * ("reserved" in self.features), 0.1])
        for k in self.rng.choice(len(rules), steps, p=odds / odds.sum()).tolist():
            rules[k]()

    # Events -----------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        for command in self.core.handle(event, self.now_s):
            self.carry_out(command)
        check(self.core)
        self.check_quotas()

    def carry_out(self, command: Command) -> None:
        if isinstance(command, SolveAllocation):
            self.question = command
        if isinstance(command, RoundPlan):
            self.check_given(command.grant_jobs)
        if isinstance(command, RoundPlan) and command.round > self.round:
            self.round = command.round
            self.check_owed()

    def submit(self) -> None:
        rng, count = self.rng, self.core.jobs.count
        gpus = int(rng.choice([1, 1, 1, 2, 2, 3, 4]))
        rates = {name: float(rng.uniform(1, 9)) for name in TYPES if rng.random() < 0.8} or {"v100": 1.0}
        spec = JobSpec(
            JobId(f"j{count}"), 1e6, gpus=gpus, rates_steps_per_s=rates, owner="ann",
            entity=self.teams[rng.integers(len(self.teams))].name, preemptible=bool(rng.random() < 0.7),
            **{str(rng.choice(["nodes", "nodes", "exclude"])): self.some_nodes()},
            sizes=tuple(sorted({gpus, 1, 2})) if "sizes" in self.features and rng.random() < 0.4 else (),
            priority="high" if "classes" in self.features and rng.random() < 0.3 else "",
            reservation="r0" if "reserved" in self.features and rng.random() < 0.1 else "",
        )  # fmt: skip
        if spec.sizes and len(spec.sizes) > 1:
            more = {size: {name: rate * size for name, rate in rates.items()} for size in spec.sizes if size != gpus}
            spec = JobSpec(**{**_fields(spec), "rates_by_size": more})
        elif spec.sizes:
            spec = JobSpec(**{**_fields(spec), "sizes": ()})
        self.tell(JobSubmitted(spec))

    def some_nodes(self) -> tuple[str, ...]:
        if "nodes" not in self.features or self.rng.random() < 0.5:
            return ()
        return tuple(sorted({NODES[k] for k in self.rng.integers(0, 4, 2).tolist()}))

    def wake(self) -> None:
        self.now_s = min(max(self.core.wakeup_s, self.now_s), self.now_s + float(self.rng.uniform(1, 150)))
        self.tell(WakeupDue())

    def answer(self) -> None:
        """Random shares, of pairs too; not those of a policy."""
        if self.question is None or self.question.epoch != self.core.question.open_epoch:
            return
        rng, question, jobs = self.rng, self.question, self.core.jobs
        self.question, sized = None, set() if self.question.sizes is None else set(self.question.sizes.rows.tolist())
        rate, serials = question.problem.member_rate_steps_per_s, question.jobs
        left = dict.fromkeys(serials.tolist(), 1.0)
        alone: list[tuple[int, int, float, int]] = []
        both: list[tuple[list[int], int, float]] = []
        plain = [k for k in rng.permutation(len(serials)).tolist() if k not in sized]
        for a, b in pairwise(plain) if question.packing and not sized else ():
            pair = [int(serials[a]), int(serials[b])]
            types = np.flatnonzero((rate[a] > 0) & (rate[b] > 0)).tolist()
            share = min(*(left[one] for one in pair), float(rng.choice(SHARES)))
            alike = jobs.gpus[pair[0]] == jobs.gpus[pair[1]] and jobs.rank[pair[0]] == jobs.rank[pair[1]]
            if types and share and alike and rng.random() < 0.5:
                both.append((pair, types[0], share))
                left |= {one: left[one] - share for one in pair}
        places = [(k, int(question.problem.gpus_asked[k]), rate[k]) for k in range(len(serials))]
        if question.sizes is not None:
            own = question.sizes
            places += zip(own.rows.tolist(), own.gpus.tolist(), own.rate_steps_per_s, strict=True)
        for at in rng.permutation(len(places)).tolist():
            k, gpus, rates = places[at]
            for t in np.flatnonzero(rates > 0).tolist():
                share = min(left[int(serials[k])], float(rng.choice(SHARES)))
                left[int(serials[k])] -= share
                alone += [(int(serials[k]), t, share, gpus)] if share else []
        names, types_, shares, gpus_ = (
            (list(column) for column in zip(*alone, strict=True)) if alone else ([], [], [], [])
        )
        self.tell(
            AllocationSolved(
                question.epoch, np.array(names, dtype=np.int64), np.array(types_, dtype=np.int64),
                np.array(shares, dtype=np.float64),
                pair_jobs=np.array([pair for pair, _, _ in both], dtype=np.int64).reshape(-1, 2),
                pair_gpu_type=np.array([t for _, t, _ in both], dtype=np.int64),
                pair_share=np.array([share for _, _, share in both], dtype=np.float64),
                sizes=np.array(gpus_ if sized else [], dtype=np.int64),
            )
        )  # fmt: skip

    def start(self) -> None:
        jobs = self.core.jobs
        rows = jobs.active[jobs.state[jobs.active] == JobState.GRANTED]
        rows = rows[(jobs.stopping[rows] < 0) & (self.rng.random(len(rows)) < 0.7)]
        held = [jobs.gpus_held(row) for row in rows.tolist()]
        if len(rows):
            offsets = np.cumsum([0, *map(len, held)])
            self.tell(LeaseStarted(rows, jobs.lease[rows], offsets, np.concatenate(held)))

    def end(self) -> None:
        """A stopping lease ends, or the last step of a job is done."""
        jobs = self.core.jobs
        stopping = np.flatnonzero(jobs.stopping[: jobs.count] >= 0)
        running = jobs.active[jobs.state[jobs.active] == JobState.RUNNING]
        if len(stopping) and self.rng.random() < 0.8:
            row = int(self.rng.choice(stopping))
            self.tell(LeaseEnded(np.array([row]), jobs.stopping[[row]], np.array([1.0]), Outcome.STOPPED))
        elif len(running):
            row = int(self.rng.choice(running))
            self.tell(LeaseEnded(np.array([row]), jobs.lease[[row]], np.array([1e6]), Outcome.FINISHED))

    def cancel(self) -> None:
        if len(active := self.core.jobs.active):
            self.tell(JobCancelled(int(self.rng.choice(active))))

    def flicker(self) -> None:
        """A node is lost, or joins again."""
        node = NODES[self.rng.integers(4)]
        pool = self.core.pool
        here = pool.on(NodeId(node)) & pool.present
        if here.any():
            self.tell(NodeLost(NodeId(node)))
        else:
            self.tell(NodeJoined(NodeId(node), TYPES[self.rng.integers(2)], int(self.rng.integers(1, 5))))

    def reserve(self) -> None:
        begin_s = self.now_s + float(self.rng.uniform(0, 200))
        nodes = tuple(sorted({NODES[k] for k in self.rng.integers(0, 4, 2).tolist()}))
        users = ("ann",) if self.rng.random() < 0.7 else ()
        self.tell(ReservationAdded("r0", nodes, begin_s, begin_s + 300.0, users=users))

    def restart(self) -> None:
        self.question = None
        self.tell(SchedulerRestarted(self.core.incarnation + 1))

    # Checks -----------------------------------------------------------------------------------------------------

    def above(self, name: str) -> list[str]:
        """A team and those above it."""
        parent, chain = {team.name: team.parent for team in self.teams}, [name]
        while parent[chain[-1]]:
            chain.append(parent[chain[-1]])
        return chain

    def held(self) -> dict[tuple[str, int], int]:
        """GPUs under lease of each team and type, with those of the teams below it; of a pair of jobs once."""
        jobs, found = self.core.jobs, {(team.name, t): set[int]() for team in self.teams for t in range(2)}
        for row in jobs.leased.tolist():
            for name in self.above(jobs.specs[row].entity):
                found[name, self.type_of(int(jobs.lease_type[row]))].update(jobs.gpus_held(row).tolist())
        return {key: len(gpus) for key, gpus in found.items()}

    def type_of(self, column: int) -> int:
        return TYPES.index(self.core.pool.gpu_types[column])

    def check_quotas(self) -> None:
        quota = {team.name: team.quota for team in self.teams}
        for (name, t), count in self.held().items():
            assert count <= quota[name].get(TYPES[t], np.inf), f"{name} holds {count} {TYPES[t]}"

    def check_given(self, granted: Ints) -> None:
        """New leases that could not be given back leave other teams what is guaranteed to them."""
        core, jobs = self.core, self.core.jobs
        if self.features & {"classes", "reserved"}:
            return
        new = granted[is_barred(jobs, core.settings, granted)]
        for column in np.unique(jobs.lease_type[new]).tolist():
            gpu_type = core.pool.gpu_types[column]
            needed = self.promised_or_kept("", gpu_type, without=new)
            if needed <= core.pool.counts[column]:
                assert self.promised_or_kept("", gpu_type) <= core.pool.counts[column], f"{new} took {gpu_type}"

    def promised_or_kept(self, name: str, gpu_type: str, without: Ints = NO_INTS) -> int:
        """GPUs that a team's own jobs hold and could not give back, and at least what is guaranteed to teams below."""
        core, jobs = self.core, self.core.jobs
        guaranteed = {team.name: team.guaranteed.get(gpu_type, 0) for team in self.teams}
        rows = np.setdiff1d(jobs.leased[is_barred(jobs, core.settings, jobs.leased)], without)
        own = {
            gpu
            for row in rows.tolist()
            if jobs.specs[row].entity == name and self.type_of(int(jobs.lease_type[row])) == TYPES.index(gpu_type)
            for gpu in jobs.gpus_held(row).tolist()
        }
        below = [team.name for team in self.teams if team.parent == name]
        return len(own) + sum(max(guaranteed[one], self.promised_or_kept(one, gpu_type, without)) for one in below)

    def fits(self, row: int, gpu_type: str, held: dict[tuple[str, int], int]) -> bool:
        """Whether quotas leave a job so many more GPUs as it needs."""
        quota, t, need = {team.name: team.quota for team in self.teams}, TYPES.index(gpu_type), self.core.jobs.gpus[row]
        above = self.above(self.core.jobs.specs[row].entity)
        return all(held[name, t] + need <= quota[name].get(gpu_type, np.inf) for name in above)

    def share(self, row: int, column: int) -> float:
        """A job's share of a type that it can use now: next to a job that is over or beyond its quota, it has none."""
        jobs, claims, held = self.core.jobs, self.core.jobs.claims, self.held()
        gpu_type = self.core.pool.gpu_types[column]
        found = float(jobs.target[row, column])
        for k in range(claims.count):
            members = {int(claims.first[k]), int(claims.second[k])} - {-1}
            is_whole = all(jobs.state[one] <= LAST_ALIVE for one in members)
            is_whole &= all(jobs.lease[one] >= 0 or self.fits(one, gpu_type, held) for one in members)
            found += float(claims.target[k]) * (row in members and claims.gpu_type[k] == column and is_whole)
        return found

    def check_owed(self) -> None:
        """Idle GPUs that are guaranteed to the team of a waiting job, on nodes that it may use: it must have them."""
        core, jobs, pool, held = self.core, self.core.jobs, self.core.pool, self.held()
        floor = {team.name: team.guaranteed for team in self.teams}
        waiting = jobs.active[jobs.state[jobs.active] == JobState.WAITING]
        waiting = waiting[core.runnable(waiting) & (jobs.part[waiting] == 0) & (jobs.smallest[waiting] == 0)]
        if self.features & {"classes", "reserved"}:  # GPUs may be kept for a class, or for users
            return
        for row in waiting.tolist():
            spec, chain = jobs.specs[row], self.above(jobs.specs[row].entity)
            for column in np.flatnonzero(jobs.rate[row] > 0).tolist():
                t, need = self.type_of(column), spec.gpus
                if self.promised_or_kept("", TYPES[t]) > pool.counts[column]:
                    continue  # it is divided in proportion
                if not core.settings.fill_leftover and not self.share(row, column) > 0:
                    continue
                if not self.fits(row, TYPES[t], held):
                    continue
                owed = [name for name in chain if held[name, t] + need <= floor[name].get(TYPES[t], 0)]
                if is_barred(jobs, core.settings, np.array([row]))[0]:
                    # It could not give back what teams below are owed.
                    kept_of = {name: self.promised_or_kept(name, TYPES[t]) for name in owed}
                    owed = [name for name in owed if kept_of[name] + need <= floor[name][TYPES[t]]]
                marked = np.flatnonzero(jobs.held_type[: jobs.count] == column).tolist()
                kept = {name for other in marked for name in self.above(jobs.specs[other].entity)}
                allowed = [n in spec.nodes or not spec.nodes for n in pool.node_ids]
                allowed = [ok and n not in spec.exclude for ok, n in zip(allowed, pool.node_ids, strict=True)]
                idle = pool.usable & (pool.job < 0) & (pool.type_of == column) & np.array(allowed)[pool.node_of]
                assert idle.sum() < need or not set(owed) - kept, (
                    f"{spec.id} of {owed} waits for {need} of {idle.sum()} idle {TYPES[t]}: {reasons(core)[row].text}"
                )


def random_teams(rng: np.random.Generator) -> tuple[Team, ...]:
    """Up to five teams on three levels; what is guaranteed may be more than there is, but fits in the quotas."""
    count = int(rng.integers(1, 6))
    parent = [int(rng.integers(-1, k)) if k else -1 for k in range(count)]
    floors = np.zeros((count, 2), dtype=int)
    teams = []
    for k in reversed(range(count)):
        guaranteed, quota = {}, {}
        for t, gpu_type in enumerate(TYPES):
            whole = int(floors[k, t] + rng.choice([0, 0, 1, 2, 4]))
            if whole > floors[k, t]:
                guaranteed[gpu_type] = whole
            if rng.random() < 0.5:
                quota[gpu_type] = int(whole + rng.choice([0, 1, 2, 4]))
            if parent[k] >= 0:
                floors[parent[k], t] += whole
        above = f"t{parent[k]}" if parent[k] >= 0 else ""
        teams.append(Team(f"t{k}", 1.0 + k, parent=above, quota=quota, guaranteed=guaranteed))
    return tuple(teams)


def _fields(spec: JobSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}
