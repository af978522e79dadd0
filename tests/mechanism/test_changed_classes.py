"""Submitted jobs that move to another priority class."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.events import JobCancelled, PriorityChanged
from gavelpy.mechanism.reasons import ReasonKind, reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from tests.mechanism.builders import plans, tell
from tests.mechanism.test_priority_classes import running, settled, start_after, submitted


def change(priority: str, *jobs: int) -> PriorityChanged:
    return PriorityChanged(np.array(jobs), priority)


def test_waiting_job_that_gets_a_higher_class_preempts_at_once() -> None:
    core = running("normal-a")
    job = submitted(core, "low-b", gpus=4)
    settled(core)
    before = core.jobs.lease[job]

    tell(core, change("high", job), core.now_s + 1.0)
    commands = settled(core)
    start_after(core, plans(commands)[-1])

    assert before == -1
    assert core.jobs.lease[job] >= 0
    assert reasons(core)[0].kind is ReasonKind.PREEMPTED
    assert core.jobs.specs[job].priority == "high"


def test_class_of_a_running_job_counts_and_outlives_a_snapshot() -> None:
    core = running("low-a")
    tell(core, change("high", 0))

    again = restore(decode_state(encode_state(snapshot(core))))

    for one in (core, again):
        assert (one.jobs.rank[0], one.jobs.specs[0].priority) == (0, "high")
        assert one.jobs.lease[0] >= 0


def test_class_that_does_not_exist_is_refused_and_a_job_that_is_over_keeps_its_class() -> None:
    core = running("low-a", "low-b")
    tell(core, JobCancelled(1))
    with pytest.raises(InvalidInput, match="priority must be one of high, polite, normal, low, got 'urgent'"):
        tell(core, change("urgent", 0))

    tell(core, change("polite", 0, 1))
    tell(core, change("", 0))

    assert [spec.priority for spec in core.jobs.specs] == ["", "low"]
