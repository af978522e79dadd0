"""A copy of the core that nothing here will change: made in a moment between two events, for slow work elsewhere."""

from __future__ import annotations

import copy
from typing import TypeVar

import numpy as np

from gavelpy.mechanism.core import SchedulerCore

Thing = TypeVar("Thing")


def copied(core: SchedulerCore) -> SchedulerCore:
    """The whole core. What never changes once it is there (specifications of jobs, GPUs of a gang) is shared."""
    double = _shallow(core)
    double.jobs, double.pool = _shallow(core.jobs), _shallow(core.pool)
    double.question, double.throughput = _shallow(core.question), _shallow(core.throughput)
    double.leases = _shallow(core.leases)
    double.leases.jobs, double.leases.pool = double.jobs, double.pool
    return double


def _shallow(thing: Thing) -> Thing:
    """A copy whose arrays and containers are its own."""
    double = copy.copy(thing)
    for name, value in vars(double).items():
        if isinstance(value, np.ndarray | list | dict | set):
            setattr(double, name, value.copy())
    return double
