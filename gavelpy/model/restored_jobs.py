"""Jobs from their fields in a snapshot of the scheduler's state, without a second validation.

They were validated when they were submitted; to validate them again would be most of the work of a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, fields
from typing import Any

from gavelpy.model.job import JobKind, JobSpec
from gavelpy.model.notify import Notify
from gavelpy.model.slots import set_values
from gavelpy.model.software import OF_NODE, Software

_FIELDS = fields(JobSpec)
_TUPLES = ("after_ok", "after_any", "gpu_types", "nodes", "exclude", "sizes")
_KINDS = {kind.value: kind for kind in JobKind}


def restored_specs(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[JobSpec]:
    """Jobs from the values of these fields; earlier versions lack some fields."""
    shared = _Shared(names)
    lacking = [field for field in _FIELDS if field.name not in names]
    tuples = [name for name in _TUPLES if name in names]
    specs = []
    for row in rows:
        values = dict(zip(names, row, strict=True))
        values["kind"] = _KINDS[values["kind"]]
        shared.replace(values)
        for name in tuples:
            values[name] = tuple(values[name]) if values[name] else ()
        for field in lacking:
            values[field.name] = {} if field.default is MISSING else field.default
        spec = object.__new__(JobSpec)
        set_values(spec, [values[name] for name in JobSpec.__slots__])
        specs.append(spec)
    return specs


class _Shared:
    """Software and notifications from their fields. Jobs with equal ones share the object."""

    def __init__(self, names: Collection[str]) -> None:
        makers: dict[str, Callable[[Any], Any]] = {"software": Software.of, "notify": Notify.of}
        self._makers = {name: make for name, make in makers.items() if name in names}
        self._known: dict[tuple[Any, ...], Any] = {}  # Any: either, by their fields
        self._last: dict[str, tuple[Any, Any]] = dict.fromkeys(self._makers, (None, None))

    def replace(self, values: dict[str, Any]) -> None:
        """Replaces the fields of one job by objects, unless they are objects."""
        for name, make in self._makers.items():
            value = values[name]
            before, made = self._last[name]
            if value != before:  # most are equal to those of the job before
                made = self._made(name, make, value) if isinstance(value, dict) else value
                self._last[name] = value, made
            values[name] = made

    def _made(self, name: str, make: Callable[[Any], Any], value: dict[str, Any]) -> Any:  # Any: either
        key = (name, *((k, v if isinstance(v, str) else tuple(v)) for k, v in value.items()))
        if key not in self._known:
            made = make(value)
            self._known[key] = OF_NODE if made == OF_NODE else made
        return self._known[key]
