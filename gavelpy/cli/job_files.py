"""Job descriptions from TOML files and command-line flags; job arrays."""

from __future__ import annotations

import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gavelpy.cli.job_sizes import (
    EFFICIENCY_ALLOWED,
    GPUS_ALLOWED,
    PLANS_ALLOWED,
    RATES_ALLOWED,
    Sizes,
    gpus_in_file,
    plans_in_file,
    size_fields,
)
from gavelpy.cli.job_texts import (
    ARRAY_MAX,
    NODES_ALLOWED,
    VALUE_ALLOWED,
    array_and_limit,
    array_indices,
    gpu_types,
    nodes,
    secrets,
)
from gavelpy.cli.times import BEGIN_ALLOWED, SPAN_ALLOWED, begin, span
from gavelpy.errors import InvalidInput
from gavelpy.model.toml_text import parsed_toml
from gavelpy.runtime.user_paths import user_path

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

INDEX = "{index}"
_FILE_BYTES_MAX = 4 << 20
_RENAMED = {"begin": "begin_at_s", "time": "time_s", "stall": "stall_s", "constraint": "gpu_types"}


_SOFTWARE = ("venv", "conda", "snapshot", "image")
_NOTIFY = ("notify", "webhook", "mail")
_NOT_SENT = frozenset({"array", "rates_by_size", *_SOFTWARE, *_NOTIFY})  # by themselves


@dataclass(frozen=True)
class JobTemplate:
    """One job or job array. The scheduler chooses values that are empty or 0."""

    command: str
    steps_total: float = 0.0  # 0 = the program announces it
    name: str = ""
    gpus: int = 1  # that it requests
    sizes: tuple[int, ...] = ()  # all numbers of GPUs on which it can run; empty = the requested one
    rates_by_size: dict[int, dict[str, float]] = field(default_factory=dict)  # of the others
    efficiency: dict[int, float] = field(default_factory=dict)  # of the others
    weight: float = 1.0
    job_type: str = ""
    rates_steps_per_s: dict[str, float] = field(default_factory=dict)
    deadline_s: float = 0.0
    entity: str = ""
    working_directory: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    one_process_a_node: bool = False
    checkpoint_every_s: float = 0.0
    warning_s: float = 0.0
    warning_signal: int = 0
    preemptible: bool = False
    venv: str = ""
    conda: str = ""
    snapshot: bool = False  # of the working directory
    image: str = ""
    secrets: dict[str, str] = field(default_factory=dict)  # names by variable
    notify: tuple[str, ...] = ()
    webhook: str = ""
    mail: str = ""
    no_preempt: bool = False
    after: tuple[str, ...] = ()
    priority: str = ""
    hold: bool = False
    begin_at_s: float = 0.0
    time_s: float = 0.0
    stall_s: float = 0.0
    gpu_memory_gib: float = 0.0
    cpus_per_gpu: float = 0.0
    memory_gib_per_gpu: float = 0.0
    plans: dict[int, str] = field(default_factory=dict)  # by number of GPUs
    completion_value: str = ""
    app: str = ""  # set by `sweep_files`
    gpu_types: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    reservation: str = ""
    array: str = ""
    array_size: int = 0  # set by `expand`
    array_position: int = 0
    array_limit: int = 0

    def expand(self) -> list[JobTemplate]:
        """The job itself, or one job per index of its array, with {index} filled in."""
        if not self.array:
            return [self]
        text, limit = array_and_limit(self.array)
        indices = array_indices(text)
        return [
            replace(self._at(index), array_size=len(indices), array_position=position, array_limit=limit)
            for position, index in enumerate(indices)
        ]

    def message(self, snapshots: Mapping[str, str] = MappingProxyType({})) -> client_pb2.JobDescription:
        """The message to the scheduler. `snapshots`: the digest of each directory that is archived for a job."""
        from gavelpy.runtime.wire import client_pb2, software_pb2

        values = {name: value for name, value in vars(self).items() if name not in _NOT_SENT}
        by_size = {size: client_pb2.Rates(rates_steps_per_s=rates) for size, rates in self.rates_by_size.items()}
        snapshot = snapshots[self.working_directory] if self.snapshot else ""
        software = software_pb2.Software(venv=self.venv, conda=self.conda, snapshot=snapshot, image=self.image)
        notify = client_pb2.Notify(kinds=self.notify, webhook=self.webhook, mail=self.mail)
        return client_pb2.JobDescription(**values, rates_by_size=by_size, software=software, notify=notify)

    def _at(self, index: int) -> JobTemplate:
        def filled(text: str) -> str:
            return text.replace(INDEX, str(index))

        numbered = self.name if INDEX in self.name or not self.name else f"{self.name}-{INDEX}"
        return replace(
            self,
            name=filled(numbered),
            command=filled(self.command),
            working_directory=filled(self.working_directory),
            environment={name: filled(value) for name, value in self.environment.items()},
            array="",
        )


def expanded(jobs: Sequence[JobTemplate]) -> list[JobTemplate]:
    """All jobs, with one per index of each array. A job that comes after an array comes after each of its jobs."""
    members: dict[str, list[str]] = {}
    found: list[JobTemplate] = []
    for job in jobs:
        parts = [text.partition(":") for text in job.after]
        after = tuple(f"{name}{colon}{how}" for base, colon, how in parts for name in members.get(base, [base]))
        spread = replace(job, after=after).expand()
        if job.array and job.name:
            members[job.name] = [one.name for one in spread]
        found += spread
    return found


def read_job_file(path: Path) -> list[JobTemplate]:
    """The jobs of a TOML file, each a table [[job]]. Raises InvalidInput, which names file, job and field."""
    document = toml_of(path)
    tables = document.pop("job", None)
    if document:
        raise InvalidInput(f"tables must be [[job]], got {next(iter(document))!r}", file=str(path))
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise InvalidInput("file must have at least one table [[job]], got none", file=str(path))
    return [described(path, f"job[{row}]", table) for row, table in enumerate(tables)]


def toml_of(path: Path) -> dict[str, Any]:  # Any: TOML values
    """The content of a TOML file. Raises InvalidInput."""
    try:
        with path.open("rb") as file:
            content = file.read(_FILE_BYTES_MAX + 1)
        if len(content) > _FILE_BYTES_MAX:
            raise InvalidInput(f"file must have at most {_FILE_BYTES_MAX >> 20} MiB", file=str(path))
        return parsed_toml(content.decode("utf-8-sig"), str(path))
    except OSError as error:
        raise InvalidInput(f"file cannot be read ({error.strerror})", file=str(path)) from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"text must be UTF-8: {error}", file=str(path)) from None


def described(path: Path, where: str, table: dict[str, Any]) -> JobTemplate:
    """The job of one table; Any: TOML values."""
    for name in table:
        if name not in _FIELDS:
            raise InvalidInput(f"{where}: unknown field {name!r}; the fields are {', '.join(_FIELDS)}", file=str(path))
    if "command" not in table:
        raise InvalidInput(f"{where}.command must be given", file=str(path))
    values: dict[str, Any] = {}
    for name, value in table.items():
        allowed, read = _FIELDS[name]
        try:
            values[name] = read(value)
        except (TypeError, ValueError, OverflowError):  # OverflowError: an integer of hundreds of digits
            raise InvalidInput(f"{where}.{name} must be {allowed}, got {value!r:.80}", file=str(path)) from None
    try:
        rates_given, curve = values.get("rates_steps_per_s", {}), values.get("efficiency", {})
        values |= size_fields(values.get("gpus", Sizes(1)), rates_given, curve)
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}", file=str(path)) from None
    here = path.absolute().parent
    try:
        directory = here / user_path("working_directory", values.get("working_directory", "."))
        values |= {name: absolute(here, values[name], name) for name in ("venv", "conda") if values.get(name)}
    except InvalidInput as error:
        raise InvalidInput(f"{where}.{error}", file=str(path)) from None
    for name, field_name in _RENAMED.items():
        values |= {field_name: values.pop(name)} if name in values else {}
    return JobTemplate(**values | {"working_directory": str(directory.resolve())})


def absolute(here: Path, path: str, field: str) -> str:
    """An absolute path without `.` and `..`; links stay, as they may differ on the nodes."""
    return os.path.normpath(here / user_path(field, path))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _array(value: object) -> str:
    array_indices(array_and_limit(text := _text(value))[0])
    return text


def _command(value: object) -> str:
    return value if isinstance(value, str) else shlex.join(map(_text, _list(value)))


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or not value:
        raise TypeError
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise TypeError
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError
    return float(value)


def _positive(value: object) -> float:
    if (number := _number(value)) <= 0:
        raise ValueError
    return number


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(name) if isinstance(name, int) else _text(name) for name in _list(value))


def _nodes(option: str, value: object) -> tuple[str, ...]:
    return nodes(option, ",".join(map(_text, _list(value))) if isinstance(value, list) else _text(value))


def _begin(value: object) -> float:
    """A begin as a string, or as a date or time of TOML."""
    if not isinstance(value, str | datetime | date | time):
        raise TypeError
    return begin(value if isinstance(value, str) else value.isoformat(), datetime.now().timestamp())


def _table(read: Callable[[object], Any]) -> Callable[[object], dict[str, Any]]:
    def of(value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise TypeError
        return {str(name): read(inner) for name, inner in value.items()}

    return of


_FIELDS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "name": ("a string", _text),
    "command": ("a string or a list of strings", _command),
    "steps_total": ("a number above 0", _positive),
    "gpus": (GPUS_ALLOWED, gpus_in_file),
    "plans": (PLANS_ALLOWED, lambda value: plans_in_file(_table(_text)(value))),
    "efficiency": (EFFICIENCY_ALLOWED, _table(_number)),
    "weight": ("a number", _number),
    "job_type": ("a string", _text),
    "rates_steps_per_s": (RATES_ALLOWED, _table(_number)),
    "deadline_s": ("a number of seconds", _number),
    "entity": ("a string", _text),
    "completion_value": (VALUE_ALLOWED, _text),
    "working_directory": ("a string", _text),
    "environment": ("a table of strings", _table(_text)),
    "one_process_a_node": ("true or false", _flag),
    "checkpoint_every_s": ("a number of seconds", _number),
    "gpu_memory_gib": ("a number of GiB", _number),
    "cpus_per_gpu": ("a number of CPU cores", _number),
    "memory_gib_per_gpu": ("a number of GiB", _number),
    "warning_s": ("a number of seconds", _number),
    "warning_signal": ("the number of a signal", _whole),
    "preemptible": ("true or false", _flag),
    "venv": ("the path of a virtual environment", _text),
    "conda": ("the path of a conda environment", _text),
    "snapshot": ("true or false", _flag),
    "secrets": ("a list of NAME or NAME=VARIABLE", lambda value: secrets(_names(value))),
    "image": ("the name of a container image, or the path of a .sif file", _text),
    "notify": ("a list of end, failure, preemption", lambda value: tuple(map(_text, _list(value)))),
    "webhook": ("a URL", _text),
    "mail": ("an address", _text),
    "no_preempt": ("true or false", _flag),
    "after": ("a list of numbers or names of jobs, each with :ok or :any", _names),
    "priority": ("the name of a priority class", _text),
    "hold": ("true or false", _flag),
    "begin": (BEGIN_ALLOWED, _begin),
    "time": (SPAN_ALLOWED, lambda value: span("time", _text(value))),
    "stall": (SPAN_ALLOWED, lambda value: span("stall", _text(value))),
    "constraint": ("a string such as v100|p100", lambda value: gpu_types(_text(value))),
    "nodes": (NODES_ALLOWED, lambda value: _nodes("nodes", value)),
    "exclude": (NODES_ALLOWED, lambda value: _nodes("exclude", value)),
    "reservation": ("the name of a reservation", _text),
    "array": (f"a string such as 0-9, 0-9:2, 1,5,7 or 0-99%4, with each of 1 to {ARRAY_MAX:,} indices once", _array),
}
