"""What the scheduler tells the estimator in the engine's process, and what it hears: as plain values."""

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
    probe_s: float = 360.0  # what one takes: a round


@dataclass(frozen=True)
class KnownJob:
    """What the estimator needs to know of a job."""

    serial: int
    job_type: str
    gpus: int
    claims: Mapping[str, float] = field(default_factory=dict)  # steps/s by GPU type, as its owner says

    @property
    def key(self) -> Key:
        """Whose rates its are."""
        return key_of(self.serial, self.job_type, self.gpus)


@dataclass(frozen=True, eq=False)
class KnownJobs:
    """Many jobs, by columns: made and sent in a tenth of the time that an object a job takes."""

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
    """The rate at which a job has run for a while."""

    job: KnownJob
    gpu_type: str
    rate_steps_per_s: float
    seconds: float


@dataclass(frozen=True)
class LearnRates:
    """Take measurements in, and say what they change for these jobs."""

    measured: tuple[Measured, ...]
    jobs: Iterable[KnownJob]  # all that live; none = only take in
    gpu_types: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """What became of a measurement or a claim, where there is something to say."""

    job: int
    is_accepted: bool
    text: str


@dataclass(frozen=True, eq=False)
class RatesLearned:
    """The answer. NaN: as before."""

    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    rates_steps_per_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # (K, T)
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # for the owners of jobs, by serial
    remarks: tuple[Remark, ...] = ()
