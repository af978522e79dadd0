"""Phases of jobs: what is refused, and the mean rates that give the same run time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.job_phases import JobPhase, Phases, mean_rates, parsed_phases, phases_text

RATE = st.floats(0.01, 100)
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


@given(
    st.lists(
        st.tuples(st.floats(0, 1e12), st.dictionaries(st.sampled_from(["v100", "a=b", "x"]), st.floats(0, 1e9)), RATE),
        min_size=1,
        max_size=3,
    )
)
def test_phases_survive_their_text(parts: list[tuple[float, dict[str, float], float]]) -> None:
    own = tuple(JobPhase(step, rates or SLOW, scale) for step, rates, scale in parts)

    assert parsed_phases(phases_text(own)) == own


@pytest.mark.parametrize("text", ["", "0", "0:", "0:v100", "x2:v100=1", "0:v100=1;", "0xbig:v100=1", "0:v100=1|"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="phases must look like"):
        parsed_phases(text)


def test_a_gpu_type_that_the_text_cannot_hold_is_refused() -> None:
    with pytest.raises(InvalidInput, match="to be written, got 'a;b'"):
        phases_text((JobPhase(0.0, {"a;b": 1.0}),))
