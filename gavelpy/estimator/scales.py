"""Hyper-parameters of rates alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

SLOPE_SD: Final = 0.1  # of a family's slopes, per doubling of batch size or GPUs


@dataclass(frozen=True)
class IsolatedScales:
    """Lengths in doublings, standard deviations of log rates. Defaults: fitted to Gavel's table."""

    FIXED: ClassVar = ("few",)  # not a term of the covariance

    batch_length: float = 4.0
    gpus_length: float = 1.0
    level_near: float = 1.2
    level_job: float = 0.05
    relative_all: float = 0.7
    relative_family: float = 0.25
    relative_batch: float = 0.1
    relative_near: float = 0.35
    relative_gpus: float = 0.2
    relative_job_type: float = 0.15
    noise: float = 0.07
    level: float = 1.0  # factor on the prior sd of a job's speed, `Sides.level_sd`
    few: float = 1.0  # widens the intervals of a row with one known entry or none


@dataclass(frozen=True)
class Likeness:
    """Likeness of GPU types: a covariance of their effects on jobs, learned from a table."""

    gpu_types: tuple[str, ...] = ()
    values: tuple[tuple[float, ...], ...] = ()
