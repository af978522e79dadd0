"""Priority classes by brute force: small clusters, random classes and jobs; and careless input with classes.

After each plan no job waits for GPUs that are free, or that leases have which its class may take back. No class loses
GPUs to one that may not preempt it, and none gets more while a job of such a class waits.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import rule

from gavelpy.engine import Engine
from gavelpy.mechanism.commands import Command, SolveAllocation
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.events import ConfigChanged, Event, JobCancelled, JobSubmitted, LeaseEnded, LeaseStarted, Outcome
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.non_preemptible import may_begin
from gavelpy.mechanism.priority_classes import NORMAL, PriorityClass, ranking
from gavelpy.model.job import JobId, JobSpec
from gavelpy.policies.max_min_fairness import MaxMinFairness
from tests.conftest import costly
from tests.mechanism.builders import make_core, plans, tell, wake
from tests.mechanism.test_state_machine import CarelessWorld

NAMES = ("urgent", "high", NORMAL, "low")


def random_classes(rng: Random) -> tuple[PriorityClass, ...]:
    """Classes in the order of NAMES, each of which preempts some lower ones."""
    lower = {name: NAMES[k + 1 :] for k, name in enumerate(NAMES)}
    return tuple(
        PriorityClass(name, value, tuple(other for other in lower[name] if rng.random() < 0.6))
        for name, value in zip(NAMES, (100, 50, 0, -50), strict=True)
    )


class SmallCluster:
    """A core whose nodes obey at once; `step` lets one thing happen and checks the plans that follow.

    `node_max`: nodes of one type; if there are several, jobs name nodes that they may use, or may not.
    """

    def __init__(self, seed: int, *, gpu_types: int, gang_max: int, node_max: int = 1) -> None:
        self.rng = rng = Random(seed)
        self.types = ("v100", "k80")[:gpu_types]
        self.gang_max = gang_max
        gpus = 4 if node_max == 1 else 3
        servers = [(name, rng.randint(1, gpus)) for name in self.types for _ in range(rng.randint(1, node_max))]
        self.chooses_nodes = node_max > 1
        self.core = make_core(servers=servers, priorities=random_classes(rng), round_s=100.0)
        self.order = ranking(self.core.settings.priorities)
        self.engine = Engine(MaxMinFairness())

    def step(self) -> None:
        core, rng = self.core, self.rng
        match rng.choice(["submit", "submit", "end", "cancel", "wait", "wait"]):
            case "submit":
                self.submit()
            case "end" if len(core.jobs.leased):
                job = rng.choice(core.jobs.leased.tolist())
                if core.jobs.state[job] == JobState.RUNNING:
                    self.tell(_ended(job, int(core.jobs.lease[job]), Outcome.FINISHED))
            case "cancel" if len(core.jobs.active):
                self.tell(JobCancelled(rng.choice(core.jobs.active.tolist())))
            case _:
                self.wake(max(core.wakeup_s, core.now_s) if np.isfinite(core.wakeup_s) else core.now_s + 100.0)
        self.wake(core.now_s)
        self.check_no_job_waits_in_vain()

    def submit(self) -> None:
        rng = self.rng
        rates = {name: rng.choice([0.0, 1.0, 4.0]) for name in self.types} | {self.types[0]: 2.0}
        spec = JobSpec(
            JobId(f"j{self.core.jobs.count}"), 1e6, gpus=rng.randint(1, self.gang_max), rates_steps_per_s=rates,
            priority=rng.choice(["", *NAMES]), no_preempt=rng.random() < 0.2,
        )  # fmt: skip
        self.tell(JobSubmitted(replace(spec, **self.choice_of_nodes()) if self.chooses_nodes else spec))

    def choice_of_nodes(self) -> dict[str, tuple[str, ...]]:
        ids = [str(node) for node in self.core.pool.node_ids]
        some = tuple(self.rng.sample(ids, self.rng.randint(1, len(ids))))
        return self.rng.choice([{}, {"nodes": some}, {"exclude": some[1:]}])

    def may_use(self, job: int, gpu: int) -> bool:
        pool = self.core.pool
        return self.core.jobs.specs[job].may_use(str(pool.node_ids[pool.node_of[gpu]]))

    def wake(self, now_s: float) -> None:
        self.obey(wake(self.core, now_s))

    def tell(self, event: Event) -> None:
        self.obey(tell(self.core, event))

    def obey(self, commands: list[Command]) -> None:
        for plan in plans(commands):
            for job, lease in zip(plan.revoke_jobs.tolist(), plan.revoke_leases.tolist(), strict=True):
                tell(self.core, _ended(job, lease, Outcome.STOPPED))
            self.start([job for job in plan.grant_jobs.tolist() if self.core.jobs.lease[job] >= 0])  # else it is over
        for command in commands:  # answers come later than the plans of the same instant
            if isinstance(command, SolveAllocation):
                before = self.held()
                answered = tell(self.core, self.engine.solve(command))
                self.check_plans(answered, before)
                self.obey(answered)

    def start(self, jobs: list[int]) -> None:
        for job in jobs:
            lease, gpus = int(self.core.jobs.lease[job]), self.core.jobs.gpus_held(job)
            tell(self.core, LeaseStarted(np.array([job]), np.array([lease]), np.array([0, len(gpus)]), gpus))

    def held(self) -> list[list[int]]:
        """GPUs that each class holds on each type."""
        jobs, pool = self.core.jobs, self.core.pool
        counts = [[0] * len(self.types) for _ in self.order.classes]
        for gpu, job in enumerate(pool.job.tolist()):
            if job != NONE:
                counts[jobs.rank[job]][pool.type_of[gpu]] += 1
        return counts

    def contenders(self) -> list[int]:
        jobs = self.core.jobs
        waiting = jobs.active[jobs.lease[jobs.active] < 0]
        waiting = waiting[may_begin(jobs, waiting, self.core.now_s)]
        return waiting[can_run(jobs, self.core.pool, waiting).any(axis=1)].tolist()

    def is_overtaken(self, rank: int, gpu_type: int) -> bool:
        """Whether a job of a higher class that may not preempt this one waits for the type."""
        jobs, may = self.core.jobs, self.order.may_preempt
        return any(
            jobs.rank[job] < rank and not may[jobs.rank[job], rank] and jobs.rate[job, gpu_type] > 0
            for job in self.contenders()
        )

    def check_no_job_waits_in_vain(self) -> None:
        core, jobs, pool, may = self.core, self.core.jobs, self.core.pool, self.order.may_preempt
        if core.awaiting or core.wakeup_s <= core.now_s:
            return
        exempt, held = set(core.exempt.jobs.tolist()), pool.job.tolist()
        self.check_places()
        for job in self.contenders():
            rank = int(jobs.rank[job])
            for gpu_type in np.flatnonzero(jobs.rate[job] > 0).tolist():
                if self.is_overtaken(rank, gpu_type):
                    continue
                of_type = np.flatnonzero(pool.type_of == gpu_type)
                here = [held[gpu] for gpu in of_type if self.may_use(job, gpu)]
                free = sum(other == NONE for other in here)
                taken = sum(o != NONE and o not in exempt and bool(may[rank, jobs.rank[o]]) for o in here)
                assert free + taken < jobs.gpus[job], f"job {job} waits for {free} free and {taken} preemptible GPUs"

    def check_places(self) -> None:
        assert all(self.may_use(job, gpu) for gpu, job in enumerate(self.core.pool.job.tolist()) if job != NONE)

    def check_plans(self, commands: list[Command], before: list[list[int]]) -> None:
        """Of single GPUs of one type: which class may lose or get GPUs in a plan."""
        if self.gang_max > 1 or len(self.types) > 1 or not plans(commands):
            return
        after, may = self.held(), np.linalg.matrix_power(np.eye(4) + self.order.may_preempt, 3) > 0  # transitive
        gained = [now[0] - then[0] for now, then in zip(after, before, strict=True)]
        for rank, gain in enumerate(gained):
            takers = sum(max(other, 0) for k, other in enumerate(gained) if may[k, rank] and k != rank)
            assert gain >= -takers, f"class {rank} lost {-gain} GPUs, and those above it got {takers}"
            assert gain <= 0 or not self.is_overtaken(rank, 0), f"class {rank} got GPUs that a higher one waits for"


def _ended(job: int, lease: int, outcome: Outcome) -> LeaseEnded:
    return LeaseEnded(np.array([job]), np.array([lease]), np.zeros(1), outcome)


@costly(2)
@given(seed=st.integers(0, 2**32))
def test_no_job_waits_while_leases_that_its_class_may_take_back_have_enough_gpus(seed: int) -> None:
    cluster = SmallCluster(seed, gpu_types=2, gang_max=3)

    for _ in range(25):
        cluster.step()


@costly(2)
@given(seed=st.integers(0, 2**32))
def test_no_job_waits_for_a_node_on_which_its_class_may_take_back_enough_gpus(seed: int) -> None:
    cluster = SmallCluster(seed, gpu_types=2, gang_max=3, node_max=2)

    for _ in range(25):
        cluster.step()


@costly(2)
@given(seed=st.integers(0, 2**32))
def test_a_class_loses_gpus_only_to_those_that_may_preempt_it(seed: int) -> None:
    cluster = SmallCluster(seed, gpu_types=1, gang_max=1)

    for _ in range(25):
        cluster.step()


class RankedWorld(CarelessWorld):
    """Careless input where the operator changes the classes at any time, and jobs are of all classes."""

    @rule(seed=st.integers(0, 1000), respects=st.booleans())
    def configure(self, seed: int, respects: bool) -> None:
        classes = tuple(replace(one, respect_lease_min=respects) for one in random_classes(Random(seed)))
        self._tell(ConfigChanged(replace(self.core.settings, priorities=classes)))

    def _tell(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            event = JobSubmitted(replace(event.spec, priority=NAMES[self.core.jobs.count * 7 // 4 % 4]))
        super()._tell(event)

    def _young(self) -> set[int]:
        """Without leases that a higher class may take back."""
        jobs, order = self.core.jobs, ranking(self.core.settings.priorities)
        safe = {rank for rank in range(len(order.classes)) if not order.may_preempt[:, rank].any()}
        leases = {int(jobs.lease[row]) for row in jobs.leased.tolist() if int(jobs.rank[row]) in safe}
        return super()._young() & leases


TestRankedWorld = RankedWorld.TestCase
TestRankedWorld.settings = costly(2)
del CarelessWorld
