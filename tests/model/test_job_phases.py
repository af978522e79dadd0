"""Phases of jobs: what is refused, and the mean rates that give the same run time."""

from __future__ import annotations

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.job_phases import JobPhase, Phases, mean_rates

SLOW, FAST = {"v100": 1.0}, {"v100": 2.0}


def phases(*from_steps: float) -> Phases:
    return tuple(JobPhase(step, FAST if k else SLOW) for k, step in enumerate(from_steps))


def trace_of(own: Phases, name: str = "a", sizes: tuple[int, ...] = ()) -> Trace:
    job = JobSpec(JobId("a"), 100.0, rates_steps_per_s=SLOW, sizes=sizes)
    return Trace((job,), np.zeros(1), phases={JobId(name): own})


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ((), "phases of job 'a' must be 1 to 10000, the first from step 0, got 0"),
        (phases(5.0), "the first from step 0, got 1: .5.0."),
        (phases(0.0, 50.0, 50.0), "must begin at ascending steps, got 50.0 after 50.0"),
        (phases(0.0, 100.0), "must begin before its last step .100.0., got 100.0"),
        ((JobPhase(0.0, {"k80": 1.0}),), "must have rates > 0 on the types of the job .v100., got {'k80': 1.0}"),
        ((JobPhase(0.0, {"v100": 0.0}),), "must have rates > 0 on the types of the job .v100."),
    ],
)
def test_phases_that_do_not_cover_a_job_are_refused(own: Phases, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        trace_of(own)


def test_phases_of_an_unknown_job_or_one_with_sizes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="phases must be of jobs of the trace, got 'b'"):
        trace_of(phases(0.0), "b")
    with pytest.raises(InvalidInput, match="must be none, because it has several sizes"):
        trace_of(phases(0.0), sizes=(1, 2))


@pytest.mark.parametrize("step", [-1.0, float("nan"), float("inf")])
def test_a_phase_begins_at_a_finite_step(step: float) -> None:
    with pytest.raises(InvalidInput, match="from_step of a phase"):
        JobPhase(step, SLOW)


def test_a_batch_has_a_size() -> None:
    with pytest.raises(InvalidInput, match="batch_scale of a phase must be > 0"):
        JobPhase(0.0, SLOW, 0.0)


def test_mean_rates_leave_out_types_on_which_a_phase_does_not_run() -> None:
    own = (JobPhase(0.0, {"v100": 1.0, "k80": 1.0}), JobPhase(40.0, {"v100": 3.0, "k80": 0.0}))

    assert mean_rates(own, 100.0) == pytest.approx({"v100": 100.0 / (40.0 + 20.0)})
