"""Shared options of the commands: names, ranges, help.

Every command of `gavel` imports this module, so it must not import numpy, which takes longer than the rest together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli.output import Output

GPUS_MAX = 1_000_000
JOBS_MAX = 1_000_000
_SEED_MAX = 2**63 - 1
TRACE_HELP = "Trace file: CSV, or Gavel's format with 7, 10 or 12 columns."

# A heading in --help
GENERATED = "Generated traces"


def complete_policy(incomplete: str) -> list[str]:
    """Policy names for shell completion; completes the last of a comma-separated list."""
    from gavelpy.policies.base import aliases, registered

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in (*registered(), *aliases()) if name.startswith(last)]


def whole(low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers in [low, high]."""

    def parse(text: str | int) -> int:
        digits = str(text).strip()
        plain = digits.removeprefix("-")
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= 20 and low <= int(digits) <= high):
            raise typer.BadParameter(f"must be a whole number in [{low}, {high}], got {digits[:60]!r}")
        return int(digits)

    parse.__name__ = "integer"  # what --help shows
    return parse


def number(low: float = 0.0, high: float = 1e12) -> Callable[[str], float]:
    """A parser of numbers in [low, high]; refuses NaN."""

    def parse(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise typer.BadParameter(f"must be a number in [{low:g}, {high:g}], got {str(text)[:60]!r}")
        return value

    parse.__name__ = "number"
    return parse


def _output(text: str) -> Output:
    if text not in list(Output):
        raise typer.BadParameter(f"must be one of {', '.join(Output)}, got {text[:60]!r}")
    return Output(text)


def _blind_view(text: str) -> str:
    from gavelpy.model.problem import BlindView

    if text not in list(BlindView):
        raise typer.BadParameter(f"must be one of {', '.join(BlindView)}, got {text[:60]!r}")
    return text


# Several commands
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", metavar="table|json", parser=_output, help="Output format.")
]
SeedOption = Annotated[int, typer.Option(metavar="N", parser=whole(0, _SEED_MAX), help="Seed of all random numbers.")]
ThroughputsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Throughput table (CSV or Gavel's JSON) with steps/s by job type and GPU type, for jobs without rates of "
        "their own. Default: the published rates that ship with gavel.",
    ),
]
TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help=TRACE_HELP)]

# Trace generator
RateOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        parser=number(1e-9, 1e9),
        rich_help_panel=GENERATED,
        help="Mean arrivals per hour (Poisson). Default: all jobs arrive at once.",
    ),
]
InterarrivalOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=GENERATED,
        help="Mean seconds between arrivals (Gavel's --lam), instead of --rate-per-h.",
    ),
]
MultiGpuOption = Annotated[
    bool,
    typer.Option(
        "--multi-gpu", rich_help_panel=GENERATED, help="Gangs of 1, 2, 4 and 8 GPUs, with Gavel's probabilities."
    ),
]
GpuMixOption = Annotated[
    str | None,
    typer.Option(
        metavar="N:P,...", rich_help_panel=GENERATED, help="Gang sizes and their probabilities, e.g. 1:0.7,4:0.3."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="W:P,...", rich_help_panel=GENERATED, help="Weights and their probabilities, e.g. 1:0.8,5:0.2."
    ),
]
DeadlinesOption = Annotated[
    str | None,
    typer.Option(
        metavar="F:P,...",
        rich_help_panel=GENERATED,
        help="Deadlines as multiples of the run time, and their probabilities, e.g. 1.2:0.5,2:0.5.",
    ),
]
ReferenceTypeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        rich_help_panel=GENERATED,
        help="GPU type with which run times are converted to steps. Default: v100.",
    ),
]

# gavel allocate
ProblemArgument = Annotated[
    Path, typer.Argument(metavar="PROBLEM.json", help="Problem file; its fields are in docs/traces.md.")
]
PolicyOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", autocompletion=complete_policy, help="Policy; see `gavel policies`, or FILE.py:CLASS."
    ),
]
BlindViewOption = Annotated[
    str,
    typer.Option(
        "--blind-view",
        metavar="mean|ones|first",
        parser=_blind_view,
        help="Rates that a blind policy assumes: mean (the job's mean rate over the types it can run on); as in the "
        "original Gavel, ones (1 step/s on all types) or first (the rate on the first type).",
    ),
]
WholeGangsOption = Annotated[
    bool,
    typer.Option(
        "--whole-gangs",
        help="Give a job no share of a GPU type with fewer GPUs than the job needs, as a scheduler must. "
        "Without it: the papers' constraint (GPUs x share <= GPUs), for comparison with published allocations.",
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Print what limits the rate of each job: its fastest GPUs, its time, full GPU types, a floor, the policy.",
    ),
]
BlindAllocateOption = Annotated[
    bool,
    typer.Option(
        "--blind", help="Hide the differences between GPU types from the policy; the rates shown are the true ones."
    ),
]

# gavel trace
JobsOption = Annotated[int, typer.Option(metavar="N", parser=whole(1, JOBS_MAX), help="Number of jobs.")]
TargetOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write. Default: stdout.")]
DeprecatedTargetOption = Annotated[Path | None, typer.Option("-o", "--output", hidden=True)]  # until 0.2
FormatOption = Annotated[
    str | None, typer.Option(metavar="csv|gavel", help="Format to write. Default: by the extension of OUT.")
]
SourceArgument = Annotated[Path, typer.Argument(metavar="IN", help=TRACE_HELP)]
TargetArgument = Annotated[
    Path, typer.Argument(metavar="OUT", help="File to write: .csv, or .trace for Gavel's format.")
]
ConvertThroughputsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Throughput table whose rates are added to jobs without any.")
]
