"""The conditions of a simulation: one declarative description of what costs time, with each cause off by default.

A file has the same names:

    [costs]
    start = 12                                # seconds
    restore = { gib = 14, gib_per_s = 2 }     # or a transfer
    [costs.types."LM (batch size 80)"]
    checkpoint = { median_s = 5, sigma = 0.4 }  # or a distribution
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from gavelpy.errors import InvalidInput
from gavelpy.model.toml_text import allowed_by, parsed_toml
from gavelpy.simulator.conditions.causes import (
    Cancellations,
    Checkpoints,
    Interference,
    JobFailures,
    Latency,
    Locality,
    Maintenance,
    NodeFailures,
    PriceChanges,
    RateVariation,
    SpotNodes,
    Stragglers,
    TrialRuns,
)
from gavelpy.simulator.conditions.job_costs import JobCosts

Section = TypeVar("Section")


@dataclass(frozen=True)
class Conditions:
    """What costs virtual jobs time; the default is nothing but `Costs`."""

    costs: JobCosts = field(default_factory=JobCosts)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    nodes: NodeFailures = field(default_factory=NodeFailures)
    spot: SpotNodes = field(default_factory=SpotNodes)
    prices: PriceChanges = field(default_factory=PriceChanges)
    maintenance: tuple[Maintenance, ...] = ()
    job_failures: JobFailures = field(default_factory=JobFailures)
    trials: TrialRuns = field(default_factory=TrialRuns)
    cancellations: Cancellations = field(default_factory=Cancellations)
    locality: Locality = field(default_factory=Locality)
    interference: Interference = field(default_factory=Interference)
    rates: RateVariation = field(default_factory=RateVariation)
    stragglers: Stragglers = field(default_factory=Stragglers)
    latency: Latency = field(default_factory=Latency)

    @property
    def causes(self) -> tuple[str, ...]:
        """The sections that are in force."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) != _default(one.name))

    def without(self, cause: str) -> Conditions:
        """These conditions with one section switched off."""
        if cause not in {one.name for one in fields(self)}:
            known = ", ".join(one.name for one in fields(self))
            raise InvalidInput(f"cause must be one of {known}, got {cause!r}")
        return Conditions(**{one.name: getattr(self, one.name) for one in fields(self) if one.name != cause})

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """The sections that are in force, with the fields that differ from their defaults."""
        return {name: _given(getattr(self, name)) for name in self.causes}


def _default(name: str) -> object:
    return getattr(Conditions(), name)


def _given(value: Any) -> Any:  # Any: values of fields
    if is_dataclass(value) and not isinstance(value, type):
        default = type(value)()
        given = {one.name: getattr(value, one.name) for one in fields(value)}
        return {name: _given(got) for name, got in given.items() if got != getattr(default, name)}
    if isinstance(value, Mapping):
        return {name: _given(got) for name, got in value.items()}
    if isinstance(value, tuple):
        return [asdict(one) if is_dataclass(one) and not isinstance(one, type) else one for one in value]
    return value


def read_conditions(path: Path) -> Conditions:
    """The conditions in a TOML file; raises InvalidInput with the file, the field and the value."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidInput(f"conditions cannot be read: {why}", file=str(path)) from None
    document = parsed_toml(text, str(path))
    try:
        return conditions_of(document)
    except InvalidInput as error:
        raise error.located(str(path)) from None


def conditions_of(values: Mapping[str, Any]) -> Conditions:  # Any: values as in the file
    """Conditions from nested values by name; raises InvalidInput with the field and the value."""
    _check_names(values, Conditions, "")
    given: dict[str, Any] = {}
    hints = get_type_hints(Conditions)
    for name, section in values.items():
        try:
            given[name] = msgspec.convert(section, hints[name])
        except msgspec.ValidationError as error:
            raise InvalidInput(_explained(name, section, error)) from None
        except InvalidInput as error:
            raise InvalidInput(f"[{name}]: {error}") from None
    return Conditions(**given)


def _explained(name: str, section: Any, error: msgspec.ValidationError) -> str:  # Any: a value of the file
    """The message for a value that is none of its field's: the field, what it may be, and the value."""
    text, _, path = str(error).rstrip("`").partition(" - at `$")
    value = section
    if "[...]" not in path:  # where msgspec leaves out the key of a table by name, the message shows the whole section
        for key, row in re.findall(r"\.(\w+)|\[(\d+)\]", path):
            value = value[int(row)] if row else value[key]
    return f"[{name}]: {path.removeprefix('.') or 'it'} must be {allowed_by(text)}, got {value!r:.80}"


def _check_names(values: Any, kind: Any, where: str) -> None:  # Any: nested values and types
    """Raises InvalidInput for a name that is no field."""
    kind = _table_in(kind)
    if isinstance(values, list | tuple):
        if get_origin(kind) is not tuple:
            raise InvalidInput(f"[{where}] must not be a list, got {values!r}")
        for k, one in enumerate(values):
            _check_names(one, get_args(kind)[0], f"{where}[{k}]")
    if not isinstance(values, Mapping):
        return
    if get_origin(kind) is not None:  # a table by name
        for name, one in values.items():
            _check_names(one, get_args(kind)[1], f"{where}.{name}")
        return
    if not is_dataclass(kind):
        raise InvalidInput(f"{where} must be a single value, got a table")
    hints = get_type_hints(kind)
    for name, one in values.items():
        if name not in hints:
            place = f"[{where}]: a field" if where else "a section"
            raise InvalidInput(f"{place} must be one of {', '.join(hints)}, got {name!r}")
        _check_names(one, hints[name], f"{where}.{name}".removeprefix("."))


def _table_in(kind: Any) -> Any:
    """The dataclass or container among the members of a union."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    members = [one for one in get_args(kind) if is_dataclass(one) or get_origin(one) is not None]
    return members[0] if members else get_args(kind)[0]
