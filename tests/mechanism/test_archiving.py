"""Jobs that leave the core change nothing for the others: two cores, of which one keeps all jobs, act alike."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.archiving import can_leave, can_retire
from gavelpy.mechanism.commands import Command, EstimateThroughput, SizesOfJobs, SolveAllocation
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import (
    NO_INTS,
    AgentRejoined,
    Event,
    JobCancelled,
    JobsArchived,
    JobsHeld,
    JobSubmitted,
    LeaseEnded,
    NodeJoined,
    NodeLost,
    Outcome,
    ProgressReported,
)
from gavelpy.mechanism.identities import JobGone
from gavelpy.mechanism.invariants import check
from gavelpy.mechanism.jobs import FLOAT_COLUMNS, INT_COLUMNS, JOB_COLUMNS, WIDE_COLUMNS
from gavelpy.mechanism.lifecycle import JobState
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import answer, end, make_core, make_spec, plans, running_core, tell, wake
from tests.mechanism.test_state_machine import CarelessWorld


class _Twins(SchedulerCore):
    """A core that keeps all jobs, with another one, `slim`, that jobs leave."""

    def __init__(self) -> None:
        super().__init__()
        self.slim = SchedulerCore()

    def handle(self, event: Event, now_s: float) -> list[Command]:
        try:
            commands = super().handle(event, now_s)
        except InvalidInput:
            with suppress(InvalidInput):  # or it is about a job that has left
                assert self.slim.handle(event, now_s) == []
            raise
        _assert_alike(commands, self.slim.handle(event, now_s))
        return commands


class ArchivingWorld(CarelessWorld):
    """The careless world, in which jobs leave at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.core: Any = _Twins()
        self.unfinished: set[int] = set()  # jobs that have left and did not finish

    @precondition(lambda self: len(self.core.jobs.active) < self.core.jobs.count)
    @rule(data=st.data())
    def archive(self, data: st.DataObject) -> None:
        slim = self.core.slim
        slim.settings = self.core.settings
        can = slim.jobs.ids.of_rows(np.flatnonzero(can_leave(slim, np.arange(slim.jobs.count)))).tolist()
        if can:
            gone = np.array(data.draw(st.lists(st.sampled_from(can), min_size=1, unique=True)), dtype=np.int64)
            self.unfinished |= set(gone[self.core.jobs.state[gone] != JobState.FINISHED].tolist())
            assert slim.handle(JobsArchived(gone), self.now_s) == []
            assert not slim.jobs.ids.has(gone).any()

    def _tell(self, event: Event) -> None:
        self.core.slim.settings = self.core.settings
        if isinstance(event, JobSubmitted) and self.unfinished & set(event.spec.after_ok):
            return  # the shell refuses it
        super()._tell(event)

    def keeps_every_promise(self) -> None:
        super().keeps_every_promise()
        core, slim = self.core, self.core.slim
        check(slim)
        by_serial, ids = slim.jobs.by_serial, slim.jobs.ids
        alive = core.jobs.active
        assert np.array_equal(by_serial.active, alive)
        assert np.array_equal(by_serial.leased, core.jobs.leased)
        kept = np.flatnonzero(ids.has(np.arange(core.jobs.count)))
        for name in (*INT_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS):
            if name not in JOB_COLUMNS:
                ours, theirs = getattr(core.jobs, name)[kept], getattr(by_serial, name)[kept]
                assert np.array_equal(ours, theirs, equal_nan=True), name
        assert np.array_equal(core.jobs.partner[alive], _serials(slim, slim.jobs.partner[slim.jobs.active]))
        ours = {job: reason.text for job, reason in reasons(core).items()}
        assert ours == {ids.serial(row): reason.text for row, reason in reasons(slim).items()}

    def teardown(self) -> None:
        slim = self.core.slim
        copy = restore(decode_state(encode_state(snapshot(slim))))
        assert encode_state(snapshot(copy)) == encode_state(snapshot(slim))
        super().teardown()


class RetiringWorld(CarelessWorld):
    """The careless world, in which lost nodes are forgotten, and others join in their rows."""

    @precondition(lambda self: any(can_retire(self.core, node) for node in self.core.pool.node_row))
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        can = [node for node in self.core.pool.node_row if can_retire(self.core, node)]
        self._tell(JobsArchived(NO_INTS, 0.0, (data.draw(st.sampled_from(can)),)))

    @rule(name=st.integers(4, 9), gpu_type=st.sampled_from(("v100", "k80")), count=st.integers(1, 4))
    def join_newly(self, name: int, gpu_type: str, count: int) -> None:
        rows = len(self.core.pool.node_ids)
        self._tell(NodeJoined(NodeId(f"n{name}"), gpu_type, count))
        assert len(self.core.pool.node_ids) <= rows + 1


TestRetiringWorld = RetiringWorld.TestCase
TestRetiringWorld.settings = settings(max_examples=8, stateful_step_count=40, deadline=None)
TestArchivingWorld = ArchivingWorld.TestCase
TestArchivingWorld.settings = settings(max_examples=12, stateful_step_count=40, deadline=None)


def _serials(core: SchedulerCore, rows: Any) -> Any:
    return np.where(rows < 0, rows, core.jobs.ids.of_rows(np.maximum(rows, 0)))


def _assert_alike(ours: Sequence[Command], theirs: Sequence[Command]) -> None:
    """The same commands, but for requests for rates, which may name jobs that are over."""
    ours, theirs = ([one for one in each if not isinstance(one, EstimateThroughput)] for each in (ours, theirs))
    assert [type(command) for command in ours] == [type(command) for command in theirs]
    for one, other in zip(ours, theirs, strict=True):
        for name, value in vars(one).items():
            if isinstance(one, SolveAllocation) and name == "problem":
                for field in (
                    "job_ids",
                    "member_rate_steps_per_s",
                    "weight",
                    "steps_remaining",
                    "isolated_s",
                    "entity",
                ):
                    assert np.array_equal(getattr(value, field), getattr(other.problem, field)), field
            elif isinstance(value, np.ndarray):
                assert np.array_equal(value, getattr(other, name)), name
            elif isinstance(value, SizesOfJobs):
                for field, array in vars(value).items():
                    assert np.array_equal(array, getattr(getattr(other, name), field)), field
            elif name not in ("tiers", "parts"):
                assert value == getattr(other, name), name


def _archive(core: SchedulerCore, *jobs: int) -> None:
    assert tell(core, JobsArchived(np.array(jobs, dtype=np.int64))) == []


def _over_core() -> SchedulerCore:
    """Jobs 0 and 2 are over, job 1 waits."""
    core = make_core(make_spec("a"), make_spec("b"), make_spec("c"))
    tell(core, JobCancelled(0))
    tell(core, JobCancelled(2))
    return core


def test_rows_are_reused_and_serials_are_not() -> None:
    core = _over_core()

    _archive(core, 0, 2)
    tell(core, JobSubmitted(make_spec("d")))

    assert core.jobs.count == 2
    assert core.jobs.ids.serials.tolist() == [1, 3]
    assert core.jobs.by_serial.specs[3].id == "d"
    assert core.jobs.by_serial.count == 4
    with pytest.raises(JobGone, match="job 2 has left"):
        core.jobs.by_serial.state[2]


def test_names_of_owners_and_job_types_leave_with_their_last_job() -> None:
    core = make_core(make_spec("a", owner="ann", job_type="x"), make_spec("b", owner="ben", job_type="y"))
    tell(core, JobCancelled(0))

    _archive(core, 0)

    again = restore(snapshot(core)).jobs
    for jobs in (core.jobs, again):
        assert (dict(jobs.owners), dict(jobs.job_types)) == ({"ben": 0}, {"y": 0})
        assert (jobs.owner[:1].tolist(), jobs.job_type[:1].tolist()) == ([0], [0])


def test_commands_name_serials() -> None:
    core = make_core(make_spec("a"), make_spec("b"))
    tell(core, JobCancelled(0))
    _archive(core, 0)

    wake(core)
    granted = plans(answer(core, (1, 0, 1.0)))[0]

    assert granted.grant_jobs.tolist() == [1]
    assert core.jobs.lease[0] == granted.grant_leases[0]


@pytest.mark.parametrize("job", [1, 4])
def test_a_job_that_is_not_over_stays(job: int) -> None:
    core = _over_core()
    before = encode_state(snapshot(core))

    with pytest.raises(InvalidInput, match="jobs must be"):
        tell(core, JobsArchived(np.array([0, job])))

    assert encode_state(snapshot(core)) == before


def test_a_job_stays_while_a_node_may_run_its_lease() -> None:
    core = running_core(make_spec("a"))
    tell(core, JobCancelled(0))
    assert core.jobs.stopping[0] == 0

    with pytest.raises(InvalidInput, match="without a lease that may run"):
        _archive(core, 0)
    tell(core, LeaseEnded(np.array([0]), np.array([0]), np.array([0.0]), Outcome.STOPPED))
    _archive(core, 0)

    assert core.jobs.count == 0


def test_reports_on_jobs_that_have_left_are_ignored() -> None:
    core = running_core(make_spec("a"), make_spec("b"), servers=[("v100", 2)])
    end(core, 0, 0, Outcome.FINISHED)
    _archive(core, 0)

    both, steps = np.array([0, 1]), np.array([5.0, 7.0])
    tell(core, ProgressReported(both, both, steps))
    tell(core, LeaseEnded(np.array([0]), np.array([0]), np.array([0.0]), Outcome.FINISHED))
    tell(core, JobsHeld(both))

    assert core.jobs.by_serial.steps_done[1] == 7.0
    assert core.jobs.hold[: core.jobs.count].tolist() == [0]


def test_a_lease_of_a_job_that_has_left_is_killed() -> None:
    core = running_core(make_spec("a"))
    end(core, 0, 0, Outcome.FINISHED)
    _archive(core, 0)

    killed = tell(core, AgentRejoined(NodeId("n0"), np.array([0]), np.array([0]), np.array([3.0])))

    assert [(command.job, command.lease) for command in killed] == [(0, 0)]


def test_a_serial_that_was_never_given_is_refused_still() -> None:
    core = _over_core()
    _archive(core, 0)

    with pytest.raises(InvalidInput, match=r"jobs must be in \[0, 3\), got 3"):
        tell(core, JobCancelled(3))


def test_a_job_comes_after_one_that_has_left() -> None:
    core = running_core(make_spec("a"))
    end(core, 0, 0, Outcome.FINISHED)
    _archive(core, 0)

    tell(core, JobSubmitted(make_spec("b", after_ok=(0,), after_any=(0,))))
    wake(core)
    answer(core, (1, 0, 1.0))

    assert core.jobs.state[0] == JobState.GRANTED
    assert core.jobs.unmet[0] == 0


def test_a_dependent_names_a_living_job_after_rows_have_moved() -> None:
    core = _over_core()
    tell(core, JobSubmitted(make_spec("d", after_ok=(1,))))
    _archive(core, 0)

    assert "(job 1)" in reasons(core)[2].text
    tell(core, JobCancelled(1))

    assert core.unmet_jobs == [(3, 1)]
    assert core.jobs.by_serial.state[3] == JobState.CANCELLED


def test_a_node_takes_the_rows_of_one_that_is_forgotten() -> None:
    core = make_core(make_spec("a"), servers=[("v100", 2), ("v100", 4)])
    tell(core, NodeLost(NodeId("n1")))
    tell(core, JobsArchived(NO_INTS, 0.0, ("n1",)))

    tell(core, NodeJoined(NodeId("small"), "k80", 3))
    tell(core, NodeJoined(NodeId("other"), "v100", 1))

    assert core.pool.node_ids == ["n0", "small", "other"]
    assert core.pool.type_counts(core.pool.usable).tolist() == [3, 3]
    assert len(core.pool.job) == 7
    copy = restore(decode_state(encode_state(snapshot(core))))
    assert copy.pool.node_row == core.pool.node_row


def test_a_node_that_is_not_lost_stays() -> None:
    core = make_core(make_spec("a"))

    with pytest.raises(InvalidInput, match="nodes must be lost"):
        tell(core, JobsArchived(NO_INTS, 0.0, ("n0",)))


def test_usage_leaves_although_nothing_has_happened_in_the_hour() -> None:
    core = make_core(make_spec("a"))

    tell(core, JobsArchived(NO_INTS, 3600.0), 3605.0)

    assert core.now_s == 3605.0
    with pytest.raises(InvalidInput, match="usage_before_s must be a time"):
        tell(core, JobsArchived(NO_INTS, -1.0))
