"""Cells: simulations of one policy, each described by options of `gavel simulate` and identified by its whole input.

The names, types and ranges of options are those of the command line: a new option of `gavel simulate` is one of sweeps.
A cell runs in any process that sees the same files. Its key is a hash of the values of its options, the contents of its
files, those that a scheduler's configuration names too, and the version of gavelpy, so equal keys have equal results. A
value that is given counts as another input than the same value as a default, because a given setting also holds for
policies with a default of their own.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

import typer

import gavelpy
from gavelpy.cli.experiment import Experiment, results_of
from gavelpy.cli.parsing import GeneratorChoices
from gavelpy.cli.scheduler_config import read_scheduler_file
from gavelpy.cli.simulate import experiment_of
from gavelpy.cli.simulation_choices import ClusterChoices, TraceChoices, takes_choices
from gavelpy.errors import GavelError, InvalidInput
from gavelpy.model.job import Trace
from gavelpy.policies.policy_file import is_in_file, split_name

# What a simulation with a mistake in its input, in a policy of the user's or in this package raises.
FAILURES: Final = (
    GavelError, ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError, NameError,
    OSError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
STOPPED: Final = "Stopped"  # error_type of a cell that was stopped before its end
_BUILD: Final = takes_choices(experiment_of)
_NOT_OPTIONS: Final = frozenset({"already_read"})
_OF_TRACES: Final = frozenset(
    {"throughputs", *(one.name for kind in (TraceChoices, GeneratorChoices) for one in fields(kind))}
)
SETTLED_NS: Final = 2_000_000_000  # after so long, a change of a file changes its times, also where they count 2 s
Scalar = str | int | float | bool


@dataclass(frozen=True)
class CellOption:
    """An option that a cell may have."""

    name: str
    parser: Callable[[str], Any] | None  # of the command line
    is_flag: bool
    is_path: bool
    is_whole: bool
    is_list: bool = False  # of paths: in a cell, texts joined by commas

    def value(self, given: object, directory: Path) -> Scalar:
        """The value, checked; raises InvalidInput. Paths are relative to `directory`."""
        if self.is_flag != isinstance(given, bool) or not isinstance(given, str | int | float):
            allowed = "true or false" if self.is_flag else "a text or a number, not a table, date or flag"
            raise InvalidInput(f"{self.name} must be {allowed}, got {given!r}")
        if self.parser is not None:
            try:
                parsed = self.parser(str(given))
            except typer.BadParameter as error:
                raise InvalidInput(f"{self.name} {error.message}") from None
            return parsed if isinstance(parsed, str | int | float) else str(given)
        if self.is_path:
            names = str(given).split(",") if self.is_list else [str(given)]
            return ",".join(str((directory / name.strip()).resolve()) for name in names)
        if not self.is_flag and not isinstance(given, str):
            raise InvalidInput(f"{self.name} must be a text in quotes, got {given!r}")
        is_file = self.name == "policy" and is_in_file(str(given).partition("@")[0])
        is_file = is_file or (self.name == "cluster" and ClusterChoices(cluster=str(given)).is_file)
        return str((directory / str(given)).resolve()) if is_file else given

    def paths(self, value: Scalar) -> list[Path]:
        """The files that a value names."""
        return [Path(name) for name in (str(value).split(",") if self.is_list else [str(value)])]

    def argument(self, value: Scalar) -> Any:  # Any: of several types
        """The value as the command line passes it."""
        return self.paths(value) if self.is_list else Path(str(value)) if self.is_path else value


@cache
def cell_options() -> Mapping[str, CellOption]:
    """The options of cells by name: those of `gavel simulate` without its outputs."""
    found = {}
    for name, parameter in option_parameters().items():
        kind, *details = getattr(parameter.annotation, "__metadata__", ()) and (
            parameter.annotation.__origin__,
            *parameter.annotation.__metadata__,
        )
        parser = next((one.parser for one in details if getattr(one, "parser", None)), None)
        kinds = set(getattr(kind, "__args__", (kind,)))
        is_list = list[Path] in kinds
        is_path, is_whole = Path in kinds or is_list, parser is not None and int in kinds
        found[name] = CellOption(name, parser, bool in kinds, is_path, is_whole, is_list)
    return found


def option_parameters() -> Mapping[str, inspect.Parameter]:
    """The options as parameters of a function, with typer's annotations."""
    parameters = inspect.signature(_BUILD).parameters
    return {name: one for name, one in parameters.items() if name not in _NOT_OPTIONS}


@dataclass(frozen=True)
class Cell:
    """One simulation of a sweep."""

    options: Mapping[str, Scalar]  # only those that are given
    contents: Mapping[str, str] = field(default_factory=dict)  # SHA-256 of the file of an option, by option
    version: str = ""  # of gavelpy, and of its source if it is not a release

    @classmethod
    def of(cls, options: Mapping[str, Scalar]) -> Cell:
        """The cell with these options; reads its files for their hashes."""
        known = cell_options()
        paths = {name: known[name].paths(value) for name, value in options.items() if known[name].is_path}
        if ClusterChoices(cluster=(cluster := str(options.get("cluster", "")))).is_file:
            paths["cluster"] = [Path(cluster)]
        policy = str(options.get("policy", ""))
        if is_in_file(policy.partition("@")[0]):
            paths["policy"] = [Path(split_name(policy)[0].rpartition(":")[0])]
        if "scheduler_config" in options:
            paths["scheduler_config"] += _named_inside(paths["scheduler_config"][0], options)
        return cls(
            dict(options),
            {name: "+".join(_digest(name, path) for path in found) for name, found in paths.items()},
            version_of_source(),
        )

    @cached_property
    def key(self) -> str:
        """A hash of the whole input: 32 hexadecimal digits."""
        values: dict[str, Any] = dict(self.options)  # Any: JSON values
        for name, digest in self.contents.items():
            value = str(values[name])
            what = value.rpartition(".py:")[2] if name == "policy" else ""
            if cell_options()[name].is_list:  # names of such files have a meaning
                what = str(self.shown()[name])
            values[name] = [digest, what]
        text = json.dumps([self.version, sorted(values.items())], allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def label(self) -> str:
        """The options on one line."""
        return " ".join(f"{name}={value}" for name, value in self.shown().items())

    def experiment(self) -> Experiment:
        """The experiment; raises InvalidInput. The trace that the process read last is not read again."""
        values = {name: one.default for name, one in option_parameters().items()}
        values |= {name: cell_options()[name].argument(value) for name, value in self.options.items()}
        of_trace = {name: self.contents.get(name, value) for name, value in self.options.items() if name in _OF_TRACES}
        of_trace["scheduler_config"] = self.contents.get("scheduler_config", "")  # it may name the rates
        of_trace["seed"] = self.options.get("seed", 0)  # also of durations that are drawn
        what = tuple(sorted(of_trace.items()))
        made: Experiment = _BUILD(**values, already_read=_last_read.get(what))
        _last_read.clear()
        _last_read[what] = made.trace
        return made

    def shown(self) -> dict[str, Scalar]:
        """The options as a person reads them: files without their directories."""
        names = {name: str(self.options[name]).split(",") for name in self.contents}
        return {**self.options, **{name: ",".join(Path(one).name for one in found) for name, found in names.items()}}


_last_read: dict[Any, Trace] = {}  # at most one


def run_cell(cell: Cell, **watched: Any) -> dict[str, Any]:  # Any: JSON values; as of `results_of`
    """The results of a cell: its metrics, or its error and the error's type; and warnings, a line each.

    Runs in another process, possibly on another machine. `watched`: `progress` and `stop` of the simulation. Once
    `stop()` is true, the simulation ends and is an error of type `STOPPED`.
    """
    started_s, warnings = time.process_time(), io.StringIO()
    try:
        with contextlib.redirect_stderr(warnings):
            _check_inputs(cell)
            found = _metrics(cell.experiment(), **watched)
    except FAILURES as error:
        found = {"error": str(error) or type(error).__name__, "error_type": type(error).__name__}
    return {**found, "warnings": warnings.getvalue().strip(), "cell_cpu_s": time.process_time() - started_s}


def _metrics(experiment: Experiment, **watched: Any) -> dict[str, Any]:  # Any: as of `results_of`
    if len(experiment.runs) != 1:
        raise InvalidInput(f"a cell must have one policy, got {', '.join(run.label for run in experiment.runs)}")
    (result,) = results_of(experiment, **watched).values()
    if result.partial:
        return {"error": result.partial, "error_type": STOPPED, "jobs": len(experiment.trace)}
    values = result.allocation_values
    marginal = {
        f"marginal_value_{name}": math.fsum(by_type.get(name, 0.0) for _, by_type in values) / len(values)
        for name in (experiment.cluster.gpu_types if values else ())
    }
    source = {"trace_provenance": json.dumps(dict(experiment.trace.provenance)) if experiment.trace.provenance else ""}
    found = {**_flat(result.metrics.to_json()), **marginal, "jobs": len(experiment.trace), **source}
    return {**found, "error": result.stalled, "error_type": "Stalled"} if result.stalled else found


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with those of a mapping as NAME_KEY."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= {f"{name}_{key}": one for key, one in value.items()} if isinstance(value, Mapping) else {name: value}
    return flat


def _check_inputs(cell: Cell) -> None:
    """Raises InvalidInput if this process sees another version of gavelpy or of a file than the one that began."""
    if cell.version != version_of_source():
        raise InvalidInput(f"gavelpy must be version {cell.version} here, too, got {version_of_source()}")
    now = Cell.of(cell.options).contents
    for name, digest in cell.contents.items():
        if now[name] != digest:
            raise InvalidInput(
                f"{name} must be as it was at the start, got another content", file=str(cell.options[name])
            )


@cache
def version_of_source() -> str:
    """The version; followed by a hash of the source if it is not a release, because it may change then."""
    version = gavelpy.__version__
    if "dev" not in version:
        return version
    digest = hashlib.sha256()
    package = Path(gavelpy.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return f"{version}+{digest.hexdigest()[:12]}"


def _named_inside(path: Path, options: Mapping[str, Scalar]) -> list[Path]:
    """Files that a scheduler's configuration names and the cell reads: those that no option replaces."""
    _digest("scheduler_config", path)  # raises the error of a file that cannot be read
    config = read_scheduler_file(path).config
    throughputs = config.throughputs.file if "throughputs" not in options else ""
    policy = config.policy.name if "policy" not in options else ""
    found = [Path(throughputs)] if throughputs else []
    return [*found, *([Path(policy.rpartition(":")[0])] if is_in_file(policy) else [])]


def _digest(name: str, path: Path) -> str:
    """The SHA-256 of the file of an option."""
    try:
        found = path.stat()  # before the content: a change meanwhile is found by the next call
        changed_ns = max(found.st_mtime_ns, found.st_ctime_ns)
        if time.time_ns() - changed_ns <= SETTLED_NS:  # a further change may leave the times as they are
            return _digest_of.__wrapped__(path)
        return _digest_of(path, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{name} must be a readable file, got {str(path)!r} ({reason})") from None


@lru_cache(maxsize=64)
def _digest_of(path: Path, *_state: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
