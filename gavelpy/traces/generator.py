"""Generates random traces with the distributions of Gavel's generator (`utils.generate_job` in its artifact).

The distributions are the original's, the random streams are not: the original generates another trace from the same
seed. Each quantity has its own stream, so that, for example, weights do not change arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import GPUS_MAX, JobId, JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable

JOBS_MAX = 10_000_000
GAVEL_GPU_MIX: Mapping[int, float] = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}
GAVEL_WEIGHTS: Mapping[float, float] = {1.0: 0.8, 5.0: 0.2}
GAVEL_DEADLINES: Mapping[float, float] = {1.2: 0.33, 2.0: 0.34, 10.0: 0.33}


@dataclass(frozen=True)
class Durations:
    """Run time on the reference type, 60 s x 10^U: U uniform in `short` or, with probability `long_share`, in `long`.

    The defaults are Gavel's: 0.5 to 16.7 hours for most, 16.7 to 167 hours for one in five.
    """

    short: tuple[float, float] = (1.5, 3.0)
    long: tuple[float, float] = (3.0, 4.0)
    long_share: float = 0.2

    def __post_init__(self) -> None:
        for name in ("short", "long"):
            low, high = getattr(self, name)
            if not -3 <= low <= high <= 9:
                raise InvalidInput(f"durations.{name} must be exponents -3 <= low <= high <= 9, got {(low, high)!r}")
        if not 0 <= self.long_share <= 1:
            raise InvalidInput(f"durations.long_share must be in [0, 1], got {self.long_share!r}")


@dataclass(frozen=True)
class GeneratorOptions:
    """Options of a generated trace. Mappings are value → probability. Without an arrival rate, all jobs arrive at 0."""

    jobs: int
    mean_interarrival_s: float | None = None  # exponential; the original's --lam
    rate_jobs_per_h: float | None = None  # alternative: 3600 / mean_interarrival_s
    multi_gpu: bool = False  # False: one GPU for each job
    gpu_mix: Mapping[int, float] = field(default_factory=lambda: dict(GAVEL_GPU_MIX))  # used when multi_gpu
    durations: Durations = field(default_factory=Durations)
    weights: Mapping[float, float] = field(default_factory=lambda: {1.0: 1.0})  # GAVEL_WEIGHTS: priority 5 for 20 %
    deadlines: Mapping[float, float] = field(
        default_factory=dict
    )  # multiples of the run time; GAVEL_DEADLINES; {} = none
    reference_gpu_type: str = "v100"  # steps = run time x rate on it
    job_types: tuple[str, ...] = ()  # () = all of the table

    def __post_init__(self) -> None:
        if isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or not 1 <= self.jobs <= JOBS_MAX:
            raise InvalidInput(f"jobs must be a whole number in [1, {JOBS_MAX}], got {self.jobs!r}")
        if self.mean_interarrival_s is not None and self.rate_jobs_per_h is not None:
            raise InvalidInput(
                "mean_interarrival_s and rate_jobs_per_h exclude each other, got "
                f"{self.mean_interarrival_s!r} and {self.rate_jobs_per_h!r}"
            )
        _positive("rate_jobs_per_h", self.rate_jobs_per_h)
        if self.mean_interarrival_s is not None and not 0 <= self.mean_interarrival_s < 1e12:
            raise InvalidInput(f"mean_interarrival_s must be in [0, 1e12), got {self.mean_interarrival_s!r}")
        for name in ("gpu_mix", "weights", "deadlines"):
            _check_mix(name, getattr(self, name))
        for gpus in self.gpu_mix:
            if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus > GPUS_MAX:
                raise InvalidInput(f"gpu_mix must hold whole numbers in [1, {GPUS_MAX}], got {gpus!r}")
        if not self.gpu_mix or not self.weights:
            raise InvalidInput("gpu_mix and weights must hold at least one value, got none")

    @property
    def interarrival_s(self) -> float:
        """Mean seconds between arrivals; 0 = all at once."""
        return 3600.0 / self.rate_jobs_per_h if self.rate_jobs_per_h is not None else self.mean_interarrival_s or 0.0


def generate(options: GeneratorOptions, table: ThroughputTable, rng: np.random.Generator) -> Trace:
    """A trace of `options.jobs` jobs of types of `table`, with the table's rates; ids "0", "1", ... by arrival.

    >>> from gavelpy.traces.workloads import published_throughputs
    >>> trace = generate(GeneratorOptions(3), published_throughputs(), np.random.default_rng(0))
    >>> [job.id for job in trace.jobs]
    ['0', '1', '2']
    """
    J = options.jobs
    arrivals, gangs, kinds, lengths, weights, deadlines = rng.spawn(6)
    mix = options.gpu_mix if options.multi_gpu else {1: 1.0}
    gpus = _draw(gangs, mix, J).astype(np.int64)
    key = _job_keys(options, table, kinds, gpus, tuple(mix))
    duration_s = _durations_s(options.durations, lengths, J)
    reference = table.rate_steps_per_s[key, table.gpu_types.index(options.reference_gpu_type)]
    steps = np.maximum(np.rint(duration_s * reference), 1.0)
    factor = _draw(deadlines, options.deadlines, J) if options.deadlines else np.full(J, math.inf)
    gaps_s = arrivals.exponential(options.interarrival_s, J)
    gaps_s[0] = 0.0
    rates = [table.rates(*k) for k in table.keys]
    rows = zip(
        steps.tolist(),
        _draw(weights, options.weights, J).tolist(),
        (factor * duration_s).tolist(),
        key.tolist(),
        strict=True,
    )
    jobs = tuple(
        JobSpec(
            JobId(str(i)),
            steps_total,
            gpus=table.keys[row][1],
            weight=weight,
            job_type=table.keys[row][0],
            rates_steps_per_s=rates[row],
            deadline_s=deadline_s,
        )
        for i, (steps_total, weight, deadline_s, row) in enumerate(rows)
    )
    return Trace(jobs, np.cumsum(gaps_s), "generated")


def _job_keys(
    options: GeneratorOptions,
    table: ThroughputTable,
    rng: np.random.Generator,
    gpus: Ints,
    gangs: tuple[int, ...],
) -> Ints:
    """Row of the table for each job, (J,): uniform over the job types with a rate on its number of GPUs.

    Same distribution as the original's, which samples types until one can be distributed.
    """
    if options.reference_gpu_type not in table.gpu_types:
        known = ", ".join(table.gpu_types)
        raise InvalidInput(f"reference_gpu_type must be one of {known}, got {options.reference_gpu_type!r}")
    known_types = table.job_types()
    for job_type in options.job_types:
        if job_type not in known_types:
            raise InvalidInput(f"job_types must be among {', '.join(known_types)}, got {job_type!r}")
    reference = table.rate_steps_per_s[:, table.gpu_types.index(options.reference_gpu_type)]
    rows = np.zeros(len(gpus), dtype=np.int64)
    position = rng.random(len(gpus))
    for gang in gangs:
        candidates = np.array(
            [
                i
                for i, (job_type, count) in enumerate(table.keys)
                if count == gang and reference[i] > 0 and (not options.job_types or job_type in options.job_types)
            ],
            dtype=np.int64,
        )
        if not len(candidates):
            raise InvalidInput(
                f"gpu_mix must hold gang sizes for which the table has a job type with a rate on "
                f"{options.reference_gpu_type}, got {gang}"
            )
        mine = gpus == gang
        rows[mine] = candidates[(position[mine] * len(candidates)).astype(np.int64)]
    return rows


def _durations_s(durations: Durations, rng: np.random.Generator, count: int) -> Floats:
    is_long = rng.random(count) < durations.long_share
    low, high = (np.where(is_long, durations.long[i], durations.short[i]) for i in (0, 1))
    seconds: Floats = 60.0 * 10.0 ** (low + (high - low) * rng.random(count))
    return seconds


def _draw(rng: np.random.Generator, mix: Mapping[int, float] | Mapping[float, float], count: int) -> Floats:
    return rng.choice(np.array(list(mix), dtype=np.float64), size=count, p=np.array(list(mix.values())))


def _check_mix(name: str, mix: Mapping[int, float] | Mapping[float, float]) -> None:
    for value, probability in mix.items():
        if not 0 < value < math.inf:
            raise InvalidInput(f"{name} must hold finite values > 0, got {value!r}")
        if not 0 <= probability <= 1:
            raise InvalidInput(f"{name}[{value!r}] must be a probability in [0, 1], got {probability!r}")
    total = math.fsum(mix.values())
    if mix and abs(total - 1) > 1e-9:
        raise InvalidInput(f"{name} must hold probabilities that sum to 1, got a sum of {total!r}")


def _positive(name: str, value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise InvalidInput(f"{name} must be finite and > 0, got {value!r}")
