"""The generator's distributions, against Gavel's (utils.generate_job of its artifact).

Tolerances are five standard errors of each statistic with 20,000 draws and fixed seeds: a wrong distribution misses
them by far, the right one would miss one of them for about one seed in a million.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import Trace
from gavelpy.traces.generator import (
    GAVEL_DEADLINES,
    GAVEL_GPU_MIX,
    GAVEL_WEIGHTS,
    Durations,
    GeneratorOptions,
    generate,
)
from tests.traces.samples import make_table

# Rates are so high that rounding to whole steps changes no duration by more than a millionth.
TABLE = make_table(
    {("ResNet", g): [1e5 * g, 1e6 * g] for g in (1, 2, 4, 8)}
    | {("LSTM", g): [3e5 * g, 2e6 * g] for g in (1, 2)}
    | {("A3C", 1): [1e6, 3e6], ("Big", 1): [1.0, 0.0]}
)
JOBS = 20_000
FULL = GeneratorOptions(
    JOBS, mean_interarrival_s=900.0, multi_gpu=True, weights=GAVEL_WEIGHTS, deadlines=GAVEL_DEADLINES
)


def make(options: GeneratorOptions, seed: int = 0) -> Trace:
    return generate(options, TABLE, np.random.default_rng(seed))


def durations_s(trace: Trace) -> np.ndarray:
    return np.array([job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs])


def standard_error(probability: float, count: int = JOBS) -> float:
    return math.sqrt(probability * (1 - probability) / count)


@pytest.fixture(scope="module")
def full() -> Trace:
    return make(FULL)


def test_same_seed_gives_the_same_trace() -> None:
    small = replace(FULL, jobs=200)

    first, second, other = make(small, 1), make(small, 1), make(small, 2)

    assert first.jobs == second.jobs
    np.testing.assert_array_equal(first.arrival_s, second.arrival_s)
    assert first.jobs != other.jobs


def test_two_traces_of_one_generator_differ() -> None:
    rng = np.random.default_rng(0)

    first, second = (generate(GeneratorOptions(50), TABLE, rng) for _ in range(2))

    assert first.jobs != second.jobs


def test_first_job_arrives_at_zero(full: Trace) -> None:
    assert full.arrival_s[0] == 0.0


def test_gaps_are_exponential(full: Trace) -> None:
    gaps_s = np.diff(full.arrival_s)

    assert gaps_s.mean() == pytest.approx(900.0, rel=5 / math.sqrt(JOBS))  # sd of an exponential = its mean
    assert (gaps_s > 900.0).mean() == pytest.approx(math.exp(-1), abs=5 * standard_error(math.exp(-1)))
    assert (gaps_s > 2700.0).mean() == pytest.approx(math.exp(-3), abs=5 * standard_error(math.exp(-3)))


def test_rate_is_another_word_for_the_mean_gap() -> None:
    by_rate = replace(FULL, jobs=50, mean_interarrival_s=None, rate_jobs_per_h=4.0)

    np.testing.assert_array_equal(make(by_rate).arrival_s, make(replace(FULL, jobs=50)).arrival_s)


def test_without_a_rate_all_arrive_at_zero() -> None:
    assert make(GeneratorOptions(10)).arrival_s.tolist() == [0.0] * 10


@pytest.mark.parametrize(("gpus", "share"), GAVEL_GPU_MIX.items())
def test_gang_sizes_follow_the_mix(full: Trace, gpus: int, share: float) -> None:
    found = np.mean([job.gpus == gpus for job in full.jobs])

    assert found == pytest.approx(share, abs=5 * standard_error(share))


def test_jobs_have_one_gpu_unless_asked() -> None:
    assert {job.gpus for job in make(GeneratorOptions(500)).jobs} == {1}


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [(1, {"ResNet": 1 / 3, "LSTM": 1 / 3, "A3C": 1 / 3}), (2, {"ResNet": 0.5, "LSTM": 0.5}), (8, {"ResNet": 1.0})],
)
def test_job_types_are_uniform_over_those_that_run_on_the_gang(
    full: Trace, gpus: int, expected: dict[str, float]
) -> None:
    drawn = [job.job_type for job in full.jobs if job.gpus == gpus]

    shares = {name: drawn.count(name) / len(drawn) for name in set(drawn)}
    assert shares == pytest.approx(expected, abs=5 * standard_error(0.5, len(drawn)))


def test_durations_are_log_uniform_in_two_pieces(full: Trace) -> None:
    exponent = np.log10(durations_s(full) / 60.0)

    # P(U <= 3) = 0.8; within each piece the median is its middle; no value lies outside
    assert (exponent <= 3.0).mean() == pytest.approx(0.8, abs=5 * standard_error(0.8))
    short, long = exponent[exponent <= 3.0], exponent[exponent > 3.0]
    assert (short <= 2.25).mean() == pytest.approx(0.5, abs=5 * standard_error(0.5, len(short)))
    assert (long <= 3.5).mean() == pytest.approx(0.5, abs=5 * standard_error(0.5, len(long)))
    assert exponent.min() >= 1.5 - 1e-6
    assert exponent.max() <= 4.0 + 1e-6


def test_durations_are_an_option() -> None:
    hour = Durations(short=(math.log10(60), math.log10(60)), long_share=0.0)

    trace = make(GeneratorOptions(100, durations=hour))

    np.testing.assert_allclose(durations_s(trace), 3600.0, rtol=1e-6)


def test_one_job_in_five_weighs_five(full: Trace) -> None:
    weights = np.array([job.weight for job in full.jobs])

    assert set(weights) == {1.0, 5.0}
    assert (weights == 5.0).mean() == pytest.approx(0.2, abs=5 * standard_error(0.2))


@pytest.mark.parametrize(("factor", "share"), GAVEL_DEADLINES.items())
def test_deadlines_are_multiples_of_the_duration(full: Trace, factor: float, share: float) -> None:
    factors = np.array([job.deadline_s for job in full.jobs]) / durations_s(full)

    assert np.isclose(factors, factor, rtol=1e-5).mean() == pytest.approx(share, abs=5 * standard_error(share))


def test_no_weights_and_no_deadlines_unless_asked() -> None:
    trace = make(GeneratorOptions(100))

    assert {(job.weight, job.deadline_s) for job in trace.jobs} == {(1.0, math.inf)}


def test_asking_for_more_does_not_change_the_rest() -> None:
    plain = make(GeneratorOptions(100, mean_interarrival_s=60.0))
    weighted = make(GeneratorOptions(100, mean_interarrival_s=60.0, weights=GAVEL_WEIGHTS, deadlines=GAVEL_DEADLINES))

    np.testing.assert_array_equal(plain.arrival_s, weighted.arrival_s)
    assert [job.steps_total for job in plain.jobs] == [job.steps_total for job in weighted.jobs]


def test_steps_are_whole_and_at_least_one() -> None:
    slow = make_table({("Slow", 1): [1e-9, 1e-9]})

    trace = generate(GeneratorOptions(100), slow, np.random.default_rng(0))

    assert {job.steps_total for job in trace.jobs} == {1.0}


def test_job_types_can_be_chosen() -> None:
    trace = make(GeneratorOptions(100, job_types=("A3C",)))

    assert {job.job_type for job in trace.jobs} == {"A3C"}


def test_jobs_bring_their_rates_on_every_type() -> None:
    trace = make(GeneratorOptions(5, job_types=("A3C",)))

    assert trace.jobs[0].rates_steps_per_s == {"k80": 1e6, "v100": 3e6}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"jobs": 0}, "jobs must be a whole number"),
        ({"jobs": 2.5}, "jobs must be a whole number"),
        ({"jobs": 10**9}, "jobs must be a whole number"),
        ({"mean_interarrival_s": -1.0}, "mean_interarrival_s must be"),
        ({"mean_interarrival_s": math.nan}, "mean_interarrival_s must be"),
        ({"rate_jobs_per_h": 0.0}, "rate_jobs_per_h must be"),
        ({"rate_jobs_per_h": 4.0, "mean_interarrival_s": 900.0}, "exclude each other"),
        ({"gpu_mix": {1: 0.5}}, "gpu_mix must hold probabilities that sum to 1"),
        ({"gpu_mix": {0: 1.0}}, "gpu_mix must hold finite values > 0"),
        ({"gpu_mix": {1.5: 1.0}}, "gpu_mix must hold whole numbers"),
        ({"gpu_mix": {}}, "must hold at least one value"),
        ({"weights": {1.0: 2.0, 2.0: -1.0}}, "must be a probability"),
        ({"deadlines": {math.inf: 1.0}}, "deadlines must hold finite values"),
    ],
)
def test_bad_options_are_refused_by_name(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        GeneratorOptions(**({"jobs": 10} | changes))  # type: ignore[arg-type]  # fields of the test's choice


@pytest.mark.parametrize("changes", [{"short": (2.0, 1.0)}, {"long": (3.0, 99.0)}, {"long_share": 1.5}])
def test_bad_durations_are_refused_by_name(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=f"durations.{next(iter(changes))} must be"):
        Durations(**changes)  # type: ignore[arg-type]  # fields of the test's choice


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"reference_gpu_type": "h100"}, "reference_gpu_type must be one of k80, v100, got 'h100'"),
        ({"job_types": ("BERT",)}, "job_types must be among ResNet, LSTM, A3C, Big, got 'BERT'"),
        ({"multi_gpu": True, "gpu_mix": {3: 1.0}}, "gpu_mix must hold gang sizes .* got 3"),
        ({"job_types": ("Big",)}, "has a job type with a rate on v100"),
    ],
)
def test_options_that_the_table_cannot_serve_are_refused(changes: dict[str, object], complaint: str) -> None:
    options = GeneratorOptions(10, **changes)  # type: ignore[arg-type]  # fields of the test's choice

    with pytest.raises(InvalidInput, match=complaint):
        make(options)
