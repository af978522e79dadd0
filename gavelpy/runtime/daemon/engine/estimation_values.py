"""Messages between the scheduler and the estimator in the engine's process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.model.arrays import Floats, Ints


@dataclass(frozen=True)
class EstimationChoice:
    """Whether and how rates are estimated."""

    is_on: bool = False
    model_file: str = ""  # of `gavel throughput fit`; "" = the shipped model
    profile_gpu_s: float = 0.0  # GPU-seconds of each allocation for measurements
    probe_s: float = 360.0  # duration of one measurement: a round


@dataclass(frozen=True)
class KnownJob:
    """Properties of a job that the estimator uses."""

    serial: int
    job_type: str
    gpus: int
    claims: Mapping[str, float] = field(default_factory=dict)  # steps/s by GPU type, from its owner

    @property
    def key(self) -> Key:
        """The estimator's key of its rates."""
        return key_of(self.serial, self.job_type, self.gpus)


@dataclass(frozen=True, eq=False)
class KnownJobs:
    """Many jobs, in columns: ten times faster to make and send than one object per job."""

    serials: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    job_types: Sequence[str] = ()
    gpus: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    claims: Sequence[Mapping[str, float]] = ()

    def __len__(self) -> int:
        return len(self.serials)

    def __iter__(self) -> Iterator[KnownJob]:
        return map(KnownJob, self.serials.tolist(), self.job_types, self.gpus.tolist(), self.claims)


@dataclass(frozen=True)
class Measured:
    """The rate of a job over a period."""

    job: KnownJob
    gpu_type: str
    rate_steps_per_s: float
    seconds: float


@dataclass(frozen=True)
class LearnRates:
    """Request: take in measurements, and return the new rates of these jobs."""

    measured: tuple[Measured, ...]
    jobs: Iterable[KnownJob]  # all living jobs; empty = only take in
    gpu_types: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A comment on an accepted or refused measurement or claim."""

    job: int
    is_accepted: bool
    text: str


@dataclass(frozen=True, eq=False)
class RatesLearned:
    """Answer to LearnRates. NaN: unchanged."""

    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    rates_steps_per_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # (K, T)
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # for the owners of jobs, by serial
    remarks: tuple[Remark, ...] = ()
