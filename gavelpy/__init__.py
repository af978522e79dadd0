"""Heterogeneity-aware scheduling of GPU clusters.

Names are loaded when first used, so that `import gavelpy` stays quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0.dev0"

_HOMES = {
    "Allocation": "gavelpy.model.allocation",
    "AllocationProblem": "gavelpy.model.problem",
    "BlindView": "gavelpy.model.problem",
    "Certificate": "gavelpy.model.allocation",
    "Cluster": "gavelpy.model.cluster",
    "Entity": "gavelpy.model.problem",
    "InvalidInput": "gavelpy.errors",
    "JobSpec": "gavelpy.model.job",
    "LeaseExpired": "gavelpy.errors",
    "LeaseIterator": "gavelpy.runtime.iterator",
    "Size": "gavelpy.model.configurations",
    "SolverFailed": "gavelpy.errors",
    "ThroughputTable": "gavelpy.model.throughput",
    "Trace": "gavelpy.model.job",
    "report_metric": "gavelpy.runtime.iterator.metrics",
    "sweep": "gavelpy.sweeps.run",
}

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandas import DataFrame

    from gavelpy.errors import InvalidInput, LeaseExpired, SolverFailed
    from gavelpy.model.allocation import Allocation, Certificate
    from gavelpy.model.cluster import Cluster
    from gavelpy.model.configurations import Size
    from gavelpy.model.job import JobSpec, Trace
    from gavelpy.model.problem import AllocationProblem, BlindView, Entity
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.runtime.iterator import LeaseIterator
    from gavelpy.runtime.iterator.metrics import report_metric

    sweep: Callable[..., DataFrame]  # not imported: modules below `sweeps` read the version here

__all__ = [
    "Allocation",
    "AllocationProblem",
    "BlindView",
    "Certificate",
    "Cluster",
    "Entity",
    "InvalidInput",
    "JobSpec",
    "LeaseExpired",
    "LeaseIterator",
    "Size",
    "SolverFailed",
    "ThroughputTable",
    "Trace",
    "report_metric",
    "sweep",
]


def __getattr__(name: str) -> Any:  # the type of a lazily loaded name is the name's own
    if name not in _HOMES:
        raise AttributeError(f"module 'gavelpy' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
