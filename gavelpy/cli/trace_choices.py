"""Options of commands that read a trace: its format, and how durations become steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.model.job import Trace
    from gavelpy.model.throughput import ThroughputTable

HISTORIES = "Traces of other systems"

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="FORMAT",
        rich_help_panel=HISTORIES,
        help="Format of the trace; `gavel trace formats` lists them. Default: recognised from its beginning.",
    ),
]
DurationsOption = Annotated[
    str | None,
    typer.Option(
        "--durations",
        metavar="table|seconds",
        rich_help_panel=HISTORIES,
        help="How recorded durations become steps: table (by the rates of a job type of the throughput table, drawn "
        "with --seed where the trace has none) or seconds (one step per second on every GPU type). Default: table.",
    ),
]
TimeZoneOption = Annotated[
    str | None,
    typer.Option(
        "--time-zone",
        metavar="ZONE",
        rich_help_panel=HISTORIES,
        help="Zone of times in the trace that have none, such as Europe/Berlin. Default: UTC.",
    ),
]


@dataclass(frozen=True)
class FormatChoices:
    """How a trace file is read."""

    from_format: FromOption = None
    durations: DurationsOption = None
    time_zone: TimeZoneOption = None

    def read_file(
        self, path: Path, table: ThroughputTable | None, seed: int, reference_gpu_type: str | None = None
    ) -> Trace:
        """The trace in `path`; refuses options that have no effect on its format."""
        from gavelpy.traces.formats import DurationRule, ReadOptions
        from gavelpy.traces.reader import read_trace

        if self.durations is not None and self.durations not in list(DurationRule):
            raise InvalidInput(f"--durations must be one of {', '.join(DurationRule)}, got {self.durations!r}")
        options = ReadOptions(
            durations=DurationRule(self.durations or DurationRule.TABLE),
            reference_gpu_type=reference_gpu_type or ReadOptions.reference_gpu_type,
            seed=seed,
            time_zone=self.time_zone or ReadOptions.time_zone,
        )
        trace = read_trace(path, throughputs=table, from_format=self.from_format or "", options=options)
        given = {"--durations": self.durations, "--reference-gpu-type": reference_gpu_type}
        for name, value in given.items():
            if value is not None and "durations" not in trace.provenance:
                raise InvalidInput(
                    f"{name} is for traces with durations; {str(path)!r} has steps (format "
                    f"{trace.provenance.get('format')}), got {value!r}"
                )
        if self.durations not in (None, rule := trace.provenance.get("durations")):
            of = f"traces of format {trace.provenance.get('format')}"
            raise InvalidInput(f"--durations must be {rule} for {of}, got {self.durations!r}")
        if self.time_zone is not None and "time_zone" not in trace.provenance:
            raise InvalidInput(f"--time-zone is for traces with dates, got {self.time_zone!r} for {str(path)!r}")
        return trace
