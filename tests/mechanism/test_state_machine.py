"""All invariants hold under any order of events: hypothesis drives the core with careless input.

Reports come late, twice, or for leases that are gone; answers are outdated; nodes join and leave. The invariants are
checked after each event; at the end, a core restored from a serialised snapshot must behave as the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.commands import Command, KillLease, RoundPlan, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    DirectorySeen,
    Event,
    JobCancelled,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    Outcome,
    ProgressReported,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    WakeupDue,
)
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.original_gavel import PriorityRule, QueueRule
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.arrays import Ints
from gavelpy.model.job import JobId, JobSpec, NodeId
from tests.mechanism.builders import make_mechanism
from tests.mechanism.careless_input import WRONG, forced_drain, pairs_of, sizes_with, some_sizes
from tests.mechanism.careless_leases import check_users, leases_to, pinned_leases, unsaved_leases

TYPES = ("v100", "k80")
OFTEN = st.sampled_from([True, True, True, False])
CORES = (0.0, 4.0, 6.0, 2.5)  # of each node; that of the first is not known


@dataclass(frozen=True, eq=False)
class _Lease:
    job: int
    lease: int
    gpus: Ints


class CarelessWorld(RuleBasedStateMachine):
    """`granted` leases may start, `running` leases may end, `gone` leases are over but may still be reported."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.core = SchedulerCore()
        self.question: SolveAllocation | None = None
        self.granted: list[_Lease] = []
        self.running: list[_Lease] = []
        self.gone: list[_Lease] = []
        self.working: set[int] = set()  # leases that have reported progress

    @initialize(
        fill=st.booleans(),
        leftover=st.booleans(),
        rule=st.sampled_from(PriorityRule),
        queue=st.sampled_from([(QueueRule.GLOBAL, True), (QueueRule.GLOBAL, False), (QueueRule.BY_TYPE, False)]),
        patience=st.sampled_from([(0.0, 0.0), (500.0, 0.0), (0.0, 10.0), (500.0, 10.0)]),
        start_max_s=st.sampled_from([0.0, 800.0, 2000.0]),
        keep_unsaved=st.booleans(),
        limits=st.sampled_from([(0, 0), (0, 0), (2, 0), (0, 4)]),
    )
    def begin(
        self,
        fill: bool,
        leftover: bool,
        rule: PriorityRule,
        queue: tuple[QueueRule, bool],
        patience: tuple[float, float],
        start_max_s: float,
        keep_unsaved: bool,
        limits: tuple[int, int],
    ) -> None:
        self.core.settings = make_mechanism(
            fill_within_round=fill,
            fill_leftover=leftover,
            priority=rule,
            queue=queue[0],
            failures_max=1,
            packing=queue[1],
            lease_min_s=patience[0],
            retry_s=patience[1],
            losses_free=1,
            start_max_s=start_max_s,
            keep_unsaved=keep_unsaved,
            jobs_running_a_user_max=limits[0],
            gpus_a_user_max=limits[1],
            move_lag_s=patience[0] if rule is PriorityRule.LAG else 0.0,
        )

    @rule(name=st.integers(0, 3), gpu_type=st.sampled_from(TYPES), count=st.integers(1, 4), sees=OFTEN)
    def join(self, name: int, gpu_type: str, count: int, sees: bool) -> None:
        """A node joins for the first time, after a loss, or with different GPUs."""
        amounts = (CORES[name], 2 * CORES[name])
        self._tell(NodeJoined(NodeId(f"n{name}"), gpu_type, count, sees, "", (), "", *amounts))

    @precondition(lambda self: self.core.pool.node_row)
    @rule(data=st.data(), kind=st.sampled_from([NodeDraining, forced_drain, *[NodeUnreachable] * 2, NodeLost]))
    def leave(self, data: st.DataObject, kind: Callable[[NodeId], Event]) -> None:
        self._tell(kind(data.draw(st.sampled_from(list(self.core.pool.node_row)))))

    @precondition(lambda self: self.core.pool.node_row)
    @rule(data=st.data(), why=st.sampled_from(["its disk is full", "its disk is full", ""]))
    def hinder(self, data: st.DataObject, why: str) -> None:
        self._tell(NodeUnhealthy(data.draw(st.sampled_from(list(self.core.pool.node_row))), why))

    @precondition(lambda self: self.core.pool.node_row)
    @rule(data=st.data(), directory=st.sampled_from(["d0", "d0", "d1"]), is_marked=OFTEN)
    def see_directory(self, data: st.DataObject, directory: str, is_marked: bool) -> None:
        """d0 is the cluster's, and may be marked late; d1 is the unmounted directory, or another file system."""
        node = data.draw(st.sampled_from(list(self.core.pool.node_row)))
        self._tell(DirectorySeen(node, directory, directory == "d0" and is_marked))

    @precondition(lambda self: self.core.pool.node_row)
    @rule(data=st.data(), wrong=st.sampled_from(WRONG))
    def say_what_makes_no_sense(self, data: st.DataObject, wrong: Event) -> None:
        before = encode_state(snapshot(self.core))
        try:
            self.core.handle(wrong, self.now_s)
        except InvalidInput:
            assert encode_state(snapshot(self.core)) == before
        else:
            raise AssertionError(f"{wrong} was accepted")

    @rule(
        gpus=st.integers(1, 5),
        rates=st.lists(st.sampled_from([0.0, 1.0, 3.0]), min_size=2, max_size=2),
        known=OFTEN,
        preemptible=st.booleans(),
        owner=st.sampled_from(["ann", "ben"]),
        needs=st.sampled_from([(0.0, 0.0), (0.0, 0.0), (2.0, 0.0), (3.0, 1.0), (0.5, 3.0)]),
    )
    def submit(
        self,
        gpus: int,
        rates: list[float],
        known: bool,
        preemptible: bool,
        owner: str,
        needs: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        name = JobId(f"j{self.core.jobs.count}")
        speeds = dict(zip(TYPES, rates, strict=True)) if known else {}
        several = sizes_with(gpus) if self.core.settings.rules.allows_sizes else ()
        options: dict[str, Any] = {"gpus": gpus, "preemptible": preemptible, "owner": owner, "sizes": several}
        options |= {"cpus_per_gpu": needs[0], "memory_gib_per_gpu": needs[1]}
        self._tell(JobSubmitted(JobSpec(name, 1000.0, rates_steps_per_s=speeds, **options)))

    @rule(
        data=st.data(),
        begin_s=st.sampled_from([0.0, 0.0, 500.0]),
        limit=st.integers(0, 2),
        size=st.integers(1, 3),
        keeps=st.booleans(),
        is_held=st.sampled_from([False, False, True]),
    )
    def submit_array(
        self, data: st.DataObject, begin_s: float, limit: int, size: int, keeps: bool, is_held: bool
    ) -> None:
        """An array of jobs that begin later, come after others, are held, or are not preempted."""
        others = st.lists(st.integers(0, max(self.core.jobs.count - 1, 0)), max_size=2, unique=True)
        after_ok, after_any = (data.draw(others) if self.core.jobs.count else [] for _ in range(2))
        for position in range(size):
            spec = JobSpec(
                JobId(f"j{self.core.jobs.count}"), 1000.0, rates_steps_per_s={"v100": 1.0, "k80": 3.0},
                after_ok=tuple(after_ok), after_any=tuple(after_any), begin_s=begin_s, no_preempt=keeps, hold=is_held,
                array_size=size, array_position=position, array_limit=limit,
            )  # fmt: skip
            self._tell(JobSubmitted(spec))

    @precondition(lambda self: self.core.jobs.count)
    @rule(data=st.data(), kind=st.sampled_from([JobsHeld, JobsReleased]), by_admin=st.booleans())
    def hold_or_release(self, data: st.DataObject, kind: type[JobsHeld | JobsReleased], by_admin: bool) -> None:
        self._tell(kind(self._some_jobs(data), by_admin))

    @precondition(lambda self: self.core.jobs.count)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        self._tell(JobsRequeued(self._some_jobs(data)))

    def _some_jobs(self, data: st.DataObject) -> Ints:
        serials = st.integers(0, self.core.jobs.count - 1)
        return np.array(data.draw(st.lists(serials, min_size=1, max_size=3)), dtype=np.int64)

    @precondition(lambda self: self.core.jobs.count)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self._tell(JobCancelled(data.draw(st.integers(0, self.core.jobs.count - 1))))

    @precondition(lambda self: self.core.jobs.count and self.core.pool.gpu_types)
    @rule(data=st.data(), rate=st.sampled_from([0.0, 2.0, float("nan")]))
    def estimate(self, data: st.DataObject, rate: float) -> None:
        job = data.draw(st.integers(0, self.core.jobs.count - 1))
        sizes = np.array([data.draw(st.sampled_from(self.core.jobs.specs[job].sizes or (1,)))])
        self._tell(ThroughputEstimated(np.array([job]), np.full((1, len(self.core.pool.gpu_types)), rate), sizes))

    @rule(late_s=st.sampled_from([0.0, 0.0, 1.0, 400.0]))
    def wake(self, late_s: float) -> None:
        due_s = self.core.wakeup_s
        self.now_s = max(self.now_s, due_s if np.isfinite(due_s) else self.now_s) + late_s
        self._tell(WakeupDue())

    @precondition(lambda self: self.question is not None)
    @rule(data=st.data(), fails=st.booleans(), old=st.booleans())
    def answer(self, data: st.DataObject, fails: bool, old: bool) -> None:
        question = self.question
        assert question is not None
        epoch = question.epoch - old
        J, T = len(question.jobs), len(question.problem.gpu_types)
        shares = data.draw(st.lists(st.sampled_from([0.0, 0.25, 0.5]), min_size=J * T, max_size=J * T))
        matrix = np.array(shares).reshape(J, T) / max(T, 1)
        row, column = np.nonzero(matrix)
        pairs = pairs_of(data, self.core, question) if question.packing else ()
        of_jobs = question.jobs[row], column, matrix[row, column]
        sizes = some_sizes(data, self.core, question.jobs[row])
        solved = AllocationSolved(epoch, *of_jobs, 0.0, 0.0, "", *pairs, sizes=sizes)
        self._tell(AllocationFailed(epoch, "no") if fails else solved)

    @precondition(lambda self: self.core.jobs.count and self.core.pool.node_row)
    @rule(data=st.data(), jobs=st.integers(0, 3))
    def go_on(self, data: st.DataObject, jobs: int) -> None:
        """The usual sequence: jobs arrive, the core is woken and answered, and granted leases start."""
        gpus = data.draw(st.integers(1, 2))
        for _ in range(jobs):
            self.submit(gpus, [1.0, 3.0], True, data.draw(st.booleans()), data.draw(st.sampled_from(["ann", "ben"])))
        self.wake(0.0)
        if self.question is not None:
            self.answer(data, False, False)
        for lease in [lease for lease in self.granted if self.core.jobs.stopping[lease.job] < 0]:
            self._begin(lease)

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A shell starts a lease only when its job's older lease has ended."""
        lease = data.draw(st.sampled_from(self.granted))
        if self.core.jobs.stopping[lease.job] >= 0:
            return
        self._begin(lease)

    @precondition(lambda self: self.running or self.gone)
    @rule(data=st.data(), steps=st.floats(0, 1200), saved=st.booleans())
    def progress(self, data: st.DataObject, steps: float, saved: bool) -> None:
        lease = data.draw(st.sampled_from(self.running + self.gone))
        self.working.add(lease.lease)
        kind = CheckpointSaved if saved else ProgressReported
        self._tell(kind(*_rows(lease), np.array([steps])))

    @precondition(lambda self: self.running or self.gone)
    @rule(data=st.data(), kind=st.sampled_from([SavingDeclared, LastStepReported]))
    def declare(self, data: st.DataObject, kind: type[SavingDeclared | LastStepReported]) -> None:
        self._tell(kind(*_rows(data.draw(st.sampled_from(self.running + self.gone)))))

    @precondition(lambda self: self.running or self.gone)
    @rule(data=st.data(), steps=st.floats(0, 1000), outcome=st.sampled_from(Outcome))
    def end(self, data: st.DataObject, steps: float, outcome: Outcome) -> None:
        lease = data.draw(st.sampled_from(self.running + self.gone))
        self._forget(lease)
        self._tell(LeaseEnded(*_rows(lease), np.array([steps]), outcome))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def lose_a_start(self, data: st.DataObject) -> None:
        """The first lost start of a job causes no back-off."""
        lease, jobs = data.draw(st.sampled_from(self.granted)), self.core.jobs
        row, settings = lease.job, self.core.settings
        is_free = jobs.lease[row] == lease.lease and jobs.losses[row] < settings.losses_free
        self._forget(lease)
        self._tell(LeaseEnded(*_rows(lease), np.array([0.0]), Outcome.LOST))
        assert not (is_free and jobs.retry_at_s[row] > self.now_s), "a loss that was free made its job wait"
        is_paid = settings.retry_s > 0 and jobs.losses[row] > settings.losses_free
        assert not is_paid or jobs.retry_at_s[row] > self.now_s or jobs.lease[row] >= 0, "a server may make us spin"

    @precondition(lambda self: self.core.pool.node_row)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self._tell(SchedulerRestarted(self.core.incarnation + 1))
        self.question = None
        node = data.draw(st.sampled_from(list(self.core.pool.node_row)))
        told = data.draw(st.lists(st.sampled_from(self.running + self.gone), max_size=3)) if self.running else []
        jobs, leases = (np.array([getattr(lease, k) for lease in told], dtype=np.int64) for k in ("job", "lease"))
        self._tell(AgentRejoined(node, jobs, leases, np.full(len(told), 10.0)))

    @invariant()
    def keeps_every_promise(self) -> None:
        check(self.core)
        before = encode_state(snapshot(self.core))
        assert all(reason.text for reason in reasons(self.core).values())
        assert encode_state(snapshot(self.core)) == before, "a query changed the core, which a replay would not repeat"

    def teardown(self) -> None:
        original, copy = self.core, restore(decode_state(encode_state(snapshot(self.core))))
        assert encode_state(snapshot(copy)) == encode_state(snapshot(original))
        ours, theirs = (core.handle(WakeupDue(), self.now_s + 1000.0) for core in (original, copy))
        assert [type(command) for command in ours] == [type(command) for command in theirs]
        assert encode_state(snapshot(copy)) == encode_state(snapshot(original))

    def _begin(self, lease: _Lease) -> None:
        self.granted.remove(lease)
        self.running.append(lease)
        self._tell(LeaseStarted(*_rows(lease), np.array([0, len(lease.gpus)]), lease.gpus))

    def _tell(self, event: Event) -> None:
        young, paused = self._young(), self._paused()
        pinned, unsaved = pinned_leases(self.core), unsaved_leases(self.core)
        for command in self.core.handle(event, self.now_s):
            if isinstance(command, RoundPlan):
                assert not (self.core.jobs.hold[command.grant_jobs] >= 0).any(), "a held job got a lease"
                check_users(self.core, command.grant_jobs)
            if isinstance(command, RoundPlan) and not isinstance(event, JobsRequeued):
                assert not unsaved & set(command.revoke_leases.tolist()), "a job was stopped that never saved anything"
                reached = unsaved_leases(self.core, is_unreachable=False)
                assert reached <= leases_to(self.core, self.core.round_end_s), (
                    "a job that never saved anything is let go"
                )
                assert not young & set(command.revoke_leases.tolist()), "a young lease was taken away"
                assert not pinned & set(command.revoke_leases.tolist()), "a lease was taken from where nobody can begin"
                assert self.core.pool.usable[command.grant_gpus].all(), "a node got a lease that it cannot begin"
                assert not paused & set(command.grant_jobs.tolist()), "a job was tried again too early"
            self._obey(command)

    def _young(self) -> set[int]:
        """Leases that no plan may end now, entirely on usable GPUs of one type.

        They started recently, or have not reported any progress yet.
        """
        core, jobs = self.core, self.core.jobs
        if not core.settings.lease_min_s or not core.pool.shares_checkpoints:
            return set()
        rows = jobs.leased[jobs.state[jobs.leased] == JobState.RUNNING]
        age_s, is_idle = self.now_s - jobs.began_s[rows], ~np.isin(jobs.lease[rows], list(self.working))
        rows = rows[(age_s < core.settings.lease_min_s) | (is_idle & (age_s < core.settings.start_max_s))]
        fit = [row for row in rows.tolist() if core.pool.usable[jobs.gpus_held(row)].all()]
        able = [row for row in fit if jobs.rate[row, jobs.lease_type[row]] > 0 and jobs.partner[row] < 0]
        return set(jobs.lease[np.array(able, dtype=np.int64)].tolist())

    def _paused(self) -> set[int]:
        jobs = self.core.jobs
        return set(jobs.active[jobs.retry_at_s[jobs.active] > self.now_s].tolist())

    def _obey(self, command: Command) -> None:
        match command:
            case SolveAllocation():
                self.question = command
            case RoundPlan():
                revoked = set(command.revoke_leases.tolist())
                for lease in [lease for lease in self.granted if lease.lease in revoked]:
                    self._forget(lease)
                gpus = np.split(command.grant_gpus, command.grant_gpu_offsets[1:-1])
                if len(command.grant_jobs):
                    jobs, leases = command.grant_jobs.tolist(), command.grant_leases.tolist()
                    self.granted += [_Lease(*parts) for parts in zip(jobs, leases, gpus, strict=True)]
            case KillLease():
                for lease in [lease for lease in self.granted if lease.lease == command.lease]:
                    self._forget(lease)

    def _forget(self, lease: _Lease) -> None:
        for leases in (self.granted, self.running):
            if lease in leases:
                leases.remove(lease)
        if lease not in self.gone:
            self.gone.append(lease)


def _rows(lease: _Lease) -> tuple[Ints, Ints]:
    return np.array([lease.job]), np.array([lease.lease])


TestCarelessWorld = CarelessWorld.TestCase
