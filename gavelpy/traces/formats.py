"""Trace formats: what a reader is, the registry of readers, and recognition of a format from a file's beginning.

Readers of other packages register a class without arguments in the entry point group `gavelpy.traces`:

    [project.entry-points."gavelpy.traces"]
    ours = "our_package.traces:OurReader"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Protocol, cast

from gavelpy.errors import InvalidInput
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.fields import Place, shown
from gavelpy.traces.source import Head

GROUP = "gavelpy.traces"
_BUILT_IN: Mapping[str, str] = {
    "csv": "gavelpy.traces.csv_format:CsvReader",
    "gavel": "gavelpy.traces.gavel:GavelReader",
    "philly": "gavelpy.traces.philly:PhillyReader",
    "slurm": "gavelpy.traces.slurm:SlurmReader",
    "elasticflow": "gavelpy.traces.elasticflow:ElasticFlowReader",
    "sia": "gavelpy.traces.sia:SiaReader",
    "openb": "gavelpy.traces.alibaba:OpenbReader",
    "helios": "gavelpy.traces.helios:HeliosReader",
    "pai": "gavelpy.traces.alibaba:PaiReader",
    "alibaba_spot": "gavelpy.traces.alibaba:AlibabaSpotReader",
    "kueue": "gavelpy.traces.kueue:KueueReader",
    "azure_llm": "gavelpy.traces.azure_llm:AzureLlmReader",
}


class DurationRule(StrEnum):
    """How the recorded duration of a job becomes steps and rates."""

    TABLE = "table"  # the rates of a job type of the throughput table, drawn if the trace does not state it
    SECONDS = "seconds"  # a step is a second, on every GPU type


@dataclass(frozen=True)
class ReadOptions:
    """What a reader needs apart from the file."""

    throughputs: ThroughputTable | None = None  # None = the published table, where one is needed
    durations: DurationRule = DurationRule.TABLE
    reference_gpu_type: str = "v100"  # on which jobs ran whose trace states no GPU type
    seed: int = 0  # of everything that is drawn
    time_zone: str = "UTC"  # of times without one


class TraceReader(Protocol):
    """Reads one format. `matches` sees the beginning of the file only."""

    name: ClassVar[str]
    title: ClassVar[str]  # one line for `gavel trace formats`

    def matches(self, head: Head) -> bool:
        """Whether the file or directory is in this format, as far as its beginning shows."""
        ...

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace; raises InvalidInput with file, line, field, value and what is allowed."""
        ...


def reader_names() -> tuple[str, ...]:
    """Names of all formats that can be read: the built-in ones, then those of other packages."""
    return (*_BUILT_IN, *sorted(_plugins()))


def reader_named(name: str) -> TraceReader:
    """The reader with this name; raises InvalidInput with the known names."""
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        return cast(TraceReader, getattr(import_module(module), attribute)())
    if name in _plugins():
        return _plugins()[name]
    raise InvalidInput(f"the format must be one of {', '.join(reader_names())}, got {name!r}")


def reader_for(head: Head) -> TraceReader:
    """The only reader that recognises the file; raises InvalidInput with all names if none or several do.

    Readers of other packages see files that no built-in one recognises.
    """
    found = [reader for reader in map(reader_named, _BUILT_IN) if reader.matches(head)]
    found = found or [reader for reader in _plugins().values() if reader.matches(head)]
    if len(found) == 1:
        return found[0]
    known, file = ", ".join(reader_names()), str(head.path)
    if found:
        several = " and ".join(reader.name for reader in found)
        raise Place(file, 1).error("format", f"chosen with --from FORMAT, as {several} fit", head.first_line)
    if head.names or head.path.is_dir():
        reason = f"a directory with the files of no known format; formats: {known}"
        raise InvalidInput(f"file must be readable, got {file!r} ({reason})", file=file)
    allowed = f"a trace in one of the formats {known}, or --from FORMAT must name its format"
    raise InvalidInput(f"file must be {allowed}, got the first line {shown(head.first_line)}", file=file, line=1)


@cache
def _plugins() -> Mapping[str, TraceReader]:
    from importlib.metadata import entry_points

    found: dict[str, TraceReader] = {}
    for entry in entry_points(group=GROUP):
        if entry.name in _BUILT_IN:
            raise InvalidInput(f"a format of another package must have a name of its own, got {entry.name!r}")
        found[entry.name] = entry.load()()
    return found
