"""A snapshot is the whole state: nothing may be missing, and what is damaged is said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gavelpy.errors import JournalCorrupt
from gavelpy.journal.codec import decode_state, encode_state
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import JobSubmitted
from gavelpy.mechanism.snapshot import restore, snapshot
from tests.mechanism.builders import fail, make_core, make_spec, running_core, tell, wake


def make_state() -> dict[str, Any]:
    """A gang runs, a job waits, the policy has failed once."""
    core = running_core(make_spec("g", gpus=2), servers=[("v100", 2), ("k80", 1)])
    tell(core, JobSubmitted(make_spec("b", rates={}, job_type="mystery", entity="vision")), 5.0)
    wake(core, 5.0)
    fail(core)
    return snapshot(core)


def test_a_restored_core_has_the_same_snapshot() -> None:
    state = make_state()

    again = snapshot(restore(decode_state(encode_state(state))))

    assert encode_state(again) == encode_state(state)


def test_a_restored_core_shares_nothing_with_its_snapshot() -> None:
    state = make_state()
    before = encode_state(state)
    core = restore(state)

    wake(core, core.wakeup_s)
    core.jobs.rate[:] = 7.0
    core.pool.job[:] = 0

    assert encode_state(state) == before


def test_a_failed_question_is_still_put_off_after_a_restart() -> None:
    core = make_core(make_spec("a"))
    wake(core, 0.0)
    fail(core)

    assert restore(snapshot(core)).wakeup_s == core.wakeup_s == 360.0


@pytest.mark.parametrize("version", [0, 2, None, "1"])
def test_a_snapshot_of_another_version_is_refused(version: object) -> None:
    with pytest.raises(JournalCorrupt, match=f"snapshot version must be 1, got {version!r}"):
        restore(make_state() | {"version": version})


@pytest.mark.parametrize("key", sorted(snapshot(SchedulerCore()).keys() - {"version"}))
def test_a_snapshot_without_a_part_is_refused(key: str) -> None:
    state = make_state()
    del state[key]

    with pytest.raises(JournalCorrupt, match="snapshot is not whole"):
        restore(state)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("settings", {"round_s": -1.0}),
        ("settings", 5),
        ("core", []),
        ("jobs", {}),
        ("nodes", [["n0", 9]]),
        ("nodes", []),
        ("specs", [{"id": "a"}]),
        ("specs", 5),
        ("gangs", {"x": np.array([0])}),
        ("gangs", []),
        ("type_order", ["first"]),
    ],
)
def test_a_snapshot_with_a_damaged_part_is_refused(key: str, value: object) -> None:
    with pytest.raises(JournalCorrupt, match="snapshot is not whole"):
        restore(make_state() | {key: value})
