"""Copies the core between two events, for snapshots and forecasts that run outside the event loop."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from gavelpy.mechanism.core import SchedulerCore

_PARTS = "gavelpy.mechanism."


def copied(core: SchedulerCore) -> SchedulerCore:
    """A deep copy of the core that shares immutable values (job specifications, GPUs of a gang)."""
    double = _double(core, {})
    assert isinstance(double, SchedulerCore), "a copy has the type of the original"
    return double


def _double(part: Any, known: dict[int, Any]) -> Any:  # Any: a part of the core
    """A copy with its own arrays, containers and parts; a part that occurs twice is copied once."""
    if id(part) in known:
        return known[id(part)]
    double = known[id(part)] = copy.copy(part)
    for name, value in vars(double).items():
        if isinstance(value, np.ndarray | list | dict | set):
            setattr(double, name, value.copy())
        elif _is_part(value):
            setattr(double, name, _double(value, known))
    return double


def _is_part(value: object) -> bool:
    """Whether it is a mutable object of the mechanism."""
    kind = type(value)
    is_value = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in the stubs
    return kind.__module__.startswith(_PARTS) and hasattr(value, "__dict__") and not is_value
