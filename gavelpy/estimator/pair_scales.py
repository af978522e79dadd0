"""Hyper-parameters of pairs, and the likeness of jobs that they define."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.estimator.kinds import Sides
from gavelpy.model.arrays import Floats, Ints


@dataclass(frozen=True)
class PairScales:
    """Hyper-parameters; standard deviations are relative to one another. Defaults: fitted to Gavel's table."""

    everybody: float = 0.1
    family: float = 0.4
    near: float = 0.6
    batch_length: float = 1.9
    own: float = 0.08
    all_types: float = 0.8
    first: float = 0.25
    second: float = 0.2
    both: float = 0.23
    noise: float = 0.05


def likeness(k: PairScales, s: Sides, row: Ints, other: Ints) -> Floats:
    """Likeness of jobs, (n, m)."""
    family = s.family[row][:, None] == s.family[other][None, :]
    job_type = s.job_type[row][:, None] == s.job_type[other][None, :]
    gpus = np.square(s.log2_gpus[row][:, None] - s.log2_gpus[other][None, :])
    batch = np.square((s.log2_batch[row][:, None] - s.log2_batch[other][None, :]) / k.batch_length)
    alike = k.family**2 + k.near**2 * np.exp(-0.5 * batch) + k.own**2 * job_type
    return np.asarray(k.everybody**2 + family * alike * np.exp(-0.5 * gpus))


def prior_variance(k: PairScales) -> float:
    """Prior variance of a slowdown, in units of its type's spread."""
    own = own_variance(k)
    return (k.all_types**2 + 1.0) * (k.first**2 * own + k.second**2 * own + k.both**2 * own**2)


def own_variance(k: PairScales) -> float:
    """Likeness of a job to itself."""
    return k.everybody**2 + k.family**2 + k.near**2 + k.own**2
