"""Parses names of job types into a family and a batch size, and compares jobs by them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gavelpy.model.arrays import Floats, Ints

Key = tuple[str, int]  # (job type, GPUs)
ClaimedSize = tuple[int, Mapping[str, float]]  # GPUs, and an owner's steps/s there by GPU type
RATE_MAX_STEPS_PER_S = 1e9
_BATCH = re.compile(r"(?P<family>.*?)\s*\(batch size (?P<batch>[1-9]\d{0,8})\)")


@dataclass(frozen=True)
class Kind:
    """A family at a batch size; a name without one is a family of its own at batch size 1."""

    family: str
    batch: int = 1


@lru_cache(maxsize=65536)
def kind_of(job_type: str) -> Kind:
    """The family and batch size of a job type.

    >>> kind_of("ResNet-50 (batch size 64)")
    Kind(family='ResNet-50', batch=64)
    """
    match = _BATCH.fullmatch(job_type)
    return Kind(job_type) if match is None else Kind(match["family"], int(match["batch"]))


def key_of(serial: int, job_type: str, gpus: int) -> Key:
    """The key under which the rates of a job are kept: its type, or the job itself if it has none."""
    return job_type or f"job {serial} (no type)", gpus


@dataclass(frozen=True, eq=False)
class Sides:
    """Side information of N keys, which the kernels compare."""

    family: Ints  # (N,) number of the family, in order of first occurrence
    log2_batch: Floats  # (N,)
    log2_gpus: Floats  # (N,)
    job_type: Ints  # (N,) number of the job type
    level_sd: Floats  # (N,) prior sd of the speed on all types


def sides(keys: Sequence[Key], level_sd: Floats | None = None) -> Sides:
    """Side information of each key; `level_sd` is 1 for all unless given."""
    kinds = [kind_of(job_type) for job_type, _ in keys]
    families = {name: i for i, name in enumerate(dict.fromkeys(kind.family for kind in kinds))}
    types = {name: i for i, name in enumerate(dict.fromkeys(job_type for job_type, _ in keys))}
    return Sides(
        np.array([families[kind.family] for kind in kinds], dtype=np.int64),
        np.array([math.log2(kind.batch) for kind in kinds], dtype=np.float64),
        np.array([math.log2(gpus) for _, gpus in keys], dtype=np.float64),
        np.array([types[job_type] for job_type, _ in keys], dtype=np.int64),
        np.ones(len(keys)) if level_sd is None else level_sd,
    )
