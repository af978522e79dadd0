"""Options of the commands: their names, ranges and help."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli.output import Output
from gavelpy.model.problem import BlindView

GPUS_MAX = 1_000_000
JOBS_MAX = 1_000_000
_SEED_MAX = 2**63 - 1

# Headings in --help
_GENERATED = "Generated traces"
_CLUSTER = "Cluster"
_POLICIES = "Policies"
_ROUNDS = "Rounds and costs"
_ANSWER = "Answer"


def complete_policy(incomplete: str) -> list[str]:
    """Names of policies, for the shell's completion; the last of a comma-separated list is completed."""
    from gavelpy.policies.registry import aliases, registered

    done, comma, last = incomplete.rpartition(",")
    return [f"{done}{comma}{name}" for name in (*registered(), *aliases()) if name.startswith(last)]


def whole(low: int, high: int) -> Callable[[str], int]:
    """Reads a whole number in [low, high]; refuses anything else in a sentence that names both."""

    def parse(text: str | int) -> int:
        digits = str(text).strip()
        plain = digits.removeprefix("-")
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= 20 and low <= int(digits) <= high):
            raise typer.BadParameter(f"must be a whole number in [{low}, {high}], got {digits[:60]!r}")
        return int(digits)

    parse.__name__ = "integer"  # what --help shows
    return parse


def number(low: float = 0.0, high: float = 1e12) -> Callable[[str], float]:
    """Reads a number in [low, high]; refuses anything else, NaN too."""

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


# Of several commands
OutputOption = Annotated[
    Output, typer.Option("-o", "--output", metavar="table|json", parser=_output, help="How to print the answer.")
]
SeedOption = Annotated[int, typer.Option(metavar="N", parser=whole(0, _SEED_MAX), help="Same seed, same answer.")]
ThroughputsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Steps/s by job type and GPU type (our CSV or Gavel's JSON), for jobs that bring no rates of their own. "
        "Default: the published figures that ship with gavel.",
    ),
]
TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="Our CSV, or Gavel's 10, 7 or 12 columns.")]

# Of the generator
RateOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        parser=number(1e-9, 1e9),
        rich_help_panel=_GENERATED,
        help="Jobs that arrive per hour on average (Poisson). Default: all arrive at once.",
    ),
]
InterarrivalOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=_GENERATED,
        help="The same said as mean seconds between arrivals (Gavel's --lam).",
    ),
]
MultiGpuOption = Annotated[
    bool, typer.Option("--multi-gpu", rich_help_panel=_GENERATED, help="Gangs of 1, 2, 4 and 8 GPUs, in Gavel's mix.")
]
GpuMixOption = Annotated[
    str | None,
    typer.Option(
        metavar="N:P,...", rich_help_panel=_GENERATED, help="Gangs and their probabilities, e.g. 1:0.7,4:0.3."
    ),
]
WeightsOption = Annotated[
    str | None,
    typer.Option(
        metavar="W:P,...", rich_help_panel=_GENERATED, help="Weights and their probabilities, e.g. 1:0.8,5:0.2."
    ),
]
DeadlinesOption = Annotated[
    str | None,
    typer.Option(
        metavar="F:P,...",
        rich_help_panel=_GENERATED,
        help="Deadlines in run times, and their probabilities, e.g. 1.2:0.5,2:0.5.",
    ),
]
ReferenceTypeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        rich_help_panel=_GENERATED,
        help="GPU type whose rates turn run times into steps. Default: v100.",
    ),
]

# Of simulate
OptionalTraceArgument = Annotated[
    Path | None, typer.Argument(metavar="[TRACE]", help="Our CSV, or Gavel's 10, 7 or 12 columns.")
]
GenerateOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole(1, JOBS_MAX),
        rich_help_panel=_GENERATED,
        help="Draw N jobs instead of reading a trace.",
    ),
]
ClusterOption = Annotated[
    str, typer.Option(metavar="TYPE:COUNT,...", rich_help_panel=_CLUSTER, help="GPUs of each type.")
]
GpusPerServerOption = Annotated[
    int,
    typer.Option(
        metavar="N", parser=whole(1, GPUS_MAX), rich_help_panel=_CLUSTER, help="GPUs in each server of the cluster."
    ),
]
PricesOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE:USD,...",
        rich_help_panel=_CLUSTER,
        help="Price of a GPU-hour. Default: list prices of known types.",
    ),
]
PoliciesOption = Annotated[
    str,
    typer.Option(
        metavar="NAME[,NAME...]",
        autocompletion=complete_policy,
        rich_help_panel=_POLICIES,
        help="See `gavel policies`. A name may take parameters (shortest_job_first:by=total) and end in @blind, "
        "to run it both ways in one command.",
    ),
]
BlindOption = Annotated[
    bool,
    typer.Option("--blind", rich_help_panel=_POLICIES, help="Run every policy blind to differences between GPU types."),
]
PresetOption = Annotated[
    str,
    typer.Option(metavar="NAME", rich_help_panel=_ROUNDS, help="default, or gavel-osdi20: the original's semantics."),
]
RoundOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(1, 86_400),
        rich_help_panel=_ROUNDS,
        help="Length of a round, 1 to 86400. Default: 360.",
    ),
]
SolveIntervalOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=_ROUNDS,
        help="The policy is asked at most this often. Default: the preset's, 0 or 1920.",
    ),
]
CheckpointOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=_ROUNDS,
        help="Seconds that stopping a job costs. Default: the preset's, 5 or 0.",
    ),
]
RestartOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=_ROUNDS,
        help="Seconds that starting a job costs. Default: the preset's, 15 or 0.",
    ),
]
MigrationOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(),
        rich_help_panel=_ROUNDS,
        help="Seconds, besides, that starting on other GPUs costs. Default: the preset's, 5 or 0.",
    ),
]
LeaseMinOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(0, 86_400),
        rich_help_panel=_ROUNDS,
        help="A lease that is not this old is not preempted. Default: the preset's, half of a round or 0.",
    ),
]
StartMaxOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(0, 86_400),
        rich_help_panel=_ROUNDS,
        help="Nor one that is not this old and has made no step yet. Default: the preset's, 300 or 0.",
    ),
]
RetryOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(0, 86_400),
        rich_help_panel=_ROUNDS,
        help="Pause before a failed job is tried again, doubled each time up to --retry-max-s. Jobs of a trace do not "
        "fail: it is for the journal. Default: the preset's, 10 or 0.",
    ),
]
RetryMaxOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(0, 86_400),
        rich_help_panel=_ROUNDS,
        help="The longest of these pauses. Default: 300.",
    ),
]
PackingOption = Annotated[
    bool,
    typer.Option(
        "--packing",
        rich_help_panel=_ROUNDS,
        help="Two jobs may share GPUs where the policy gains by it; --throughputs must hold rates of pairs.",
    ),
]
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate",
        rich_help_panel=_POLICIES,
        help="Notify the scheduler no rates: it learns them from what running jobs show.",
    ),
]
ClaimsOffOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        parser=number(1, 1000),
        rich_help_panel=_POLICIES,
        help="With --estimate: users say rates, wrong by factors of up to X, 1 to 1000. Default: they say none.",
    ),
]
ProfileGpuSOption = Annotated[
    float | None,
    typer.Option(
        "--profile-gpu-s",
        metavar="X",
        parser=number(0, 1e9),
        rich_help_panel=_POLICIES,
        help="With --estimate: GPU-seconds of each allocation for measurements that are worth most, of jobs alone and, "
        "with --packing, of pairs. Default: 0.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:B", rich_help_panel=_ANSWER, help="Measure only jobs A to B-1 in order of arrival; end with them."
    ),
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=_ANSWER, help="Write an HTML report there.")
]
JournalOption = Annotated[
    Path | None, typer.Option(metavar="DIR", rich_help_panel=_ANSWER, help="Write the journal of each run there.")
]

# Of allocate
ProblemArgument = Annotated[
    Path, typer.Argument(metavar="PROBLEM.json", help="The problem file; docs/cli.md has its schema.")
]
PolicyOption = Annotated[
    str, typer.Option(metavar="NAME", autocompletion=complete_policy, help="See `gavel policies`.")
]
BlindViewOption = Annotated[
    BlindView,
    typer.Option(
        "--blind-view",
        help="What a blind policy believes: a job's mean rate on the types it can run on; ones (1 step/s everywhere), "
        "or first (its rate on the first type everywhere), as the original Gavel's blind policies do.",
    ),
]
WholeGangsOption = Annotated[
    bool,
    typer.Option(
        "--whole-gangs",
        help="Give a job no share of a type with fewer GPUs than it asks for, as a scheduler must. "
        "Without it: the papers' constraint (GPUs x share <= GPUs), for comparison with published allocations.",
    ),
]
ExplainOption = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Say for each job what holds its rate: its own speed, its time, which GPUs are full, a floor, the policy.",
    ),
]
BlindAllocateOption = Annotated[
    bool, typer.Option("--blind", help="Hide differences between GPU types from the policy; the rates shown are true.")
]

# Of trace
JobsOption = Annotated[int, typer.Option(metavar="N", parser=whole(1, JOBS_MAX), help="How many jobs.")]
TargetOption = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write it. Default: stdout.")
]
FormatOption = Annotated[
    str | None, typer.Option(metavar="csv|gavel", help="The format to write. Default: by the ending of OUT.")
]
SourceArgument = Annotated[Path, typer.Argument(metavar="IN", help="Our CSV, or Gavel's 10, 7 or 12 columns.")]
TargetArgument = Annotated[Path, typer.Argument(metavar="OUT", help="A name in .csv (ours) or .trace (Gavel's).")]
ConvertThroughputsOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write these rates into the CSV, for jobs that have none.")
]
