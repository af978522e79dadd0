"""A copy of the core that nothing here will change: made in a moment between two events, for slow work elsewhere."""

from __future__ import annotations

import copy
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from gavelpy.mechanism.core import SchedulerCore

_PARTS = "gavelpy.mechanism."


def copied(core: SchedulerCore) -> SchedulerCore:
    """The whole core. What never changes once it is there (specifications of jobs, GPUs of a gang) is shared."""
    double = _double(core, {})
    assert isinstance(double, SchedulerCore), "a copy is of the kind of what was copied"
    return double


def _double(part: Any, known: dict[int, Any]) -> Any:  # Any: whatever the core is made of
    """A copy whose arrays, containers and parts are its own; a part of two parts stays one."""
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
    """Whether it is a table or a book of the mechanism's, and no value that never changes."""
    kind = type(value)
    is_value = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in the stubs
    return kind.__module__.startswith(_PARTS) and hasattr(value, "__dict__") and not is_value
