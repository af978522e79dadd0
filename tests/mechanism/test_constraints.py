"""A job runs only on the GPU types that its owner allows, whatever its rates."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.journal.codec import decode, decode_state, encode, encode_state
from gavelpy.mechanism.events import JobSubmitted, NodeJoined, ThroughputEstimated
from gavelpy.mechanism.feasibility import cannot_run
from gavelpy.mechanism.reasons import reasons
from gavelpy.mechanism.snapshot import restore, snapshot
from gavelpy.model.job import NodeId
from tests.mechanism.builders import make_core, make_spec, questions, tell, wake

BOTH = (("k80", 1), ("v100", 1))
RATES = {"k80": 1.0, "v100": 10.0}


def test_the_policy_sees_no_rate_on_other_types() -> None:
    core = make_core(make_spec("a", rates=RATES, gpu_types=("k80",)), make_spec("b", rates=RATES), servers=BOTH)

    (question,) = questions(wake(core))

    assert question.problem.member_rate_steps_per_s.tolist() == [[1.0, 0.0], [1.0, 10.0]]


def test_an_estimate_does_not_open_other_types() -> None:
    core = make_core(make_spec("a", rates={}, job_type="x", gpu_types=("v100",)), servers=BOTH)

    tell(core, ThroughputEstimated(np.array([0]), np.array([[1.0, 10.0]])))

    assert core.jobs.rate[0].tolist() == [0.0, 10.0]


def test_a_type_that_joins_later_is_open_only_if_it_is_allowed() -> None:
    specs = [
        make_spec(name, rates=rates, gpu_types=("p100",))
        for name, rates in (("a", {"p100": 5.0, "k80": 1.0}), ("b", {}))
    ]
    core = make_core(*specs, servers=BOTH)

    tell(core, NodeJoined(NodeId("late"), "p100", 1))

    assert core.jobs.rate[0].tolist() == [0.0, 0.0, 5.0]
    assert core.jobs.rate[1, :2].tolist() == [0.0, 0.0]
    assert math.isnan(core.jobs.rate[1, 2])


def test_job_without_an_allowed_type_waits_with_the_reason() -> None:
    core = make_core(make_spec("a", rates={"p100": 1.0}, gpu_types=("p100", "a100")), servers=BOTH)
    wake(core)

    text = "its constraint allows p100 or a100; the cluster has k80 and v100"
    assert reasons(core)[0].text == text
    assert cannot_run(core, np.array([0])) == {0: text}


def test_limits_and_types_come_back_from_journal_and_snapshot() -> None:
    spec = make_spec("a", rates=RATES, gpu_types=("k80",), time_s=7200.0, stall_s=60.0)

    _, event = decode(encode(JobSubmitted(spec), 0.0))
    core = make_core(spec)
    again = restore(decode_state(encode_state(snapshot(core))))

    assert isinstance(event, JobSubmitted)
    assert event.spec == again.jobs.specs[0] == spec


@pytest.mark.parametrize("fields", [{"time_s": -1.0}, {"stall_s": math.inf}, {"gpu_types": ("",)}], ids=str)
def test_a_limit_that_means_nothing_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=next(iter(fields))):
        make_spec("a", **fields)
