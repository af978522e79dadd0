"""Options of commands that simulate: names, ranges, help. `simulation_choices` groups them for the commands.

As `options`, this module must not import numpy, which takes longer than the rest together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gavelpy.cli.options import GENERATED, GPUS_MAX, JOBS_MAX, TRACE_HELP, complete_policy, number, whole

# Headings in --help
CLUSTER = "Cluster"
POLICIES = "Policies"
ROUNDS = "Rounds and costs"
CONDITIONS = "Conditions"
RESULTS = "Results"


def seconds(most: float, text: str) -> Any:  # Any: as typer.Option
    """An option in seconds, up to `most`, of simulated rounds."""
    return typer.Option(metavar="S", parser=number(0, most), rich_help_panel=ROUNDS, help=text)


OptionalTraceArgument = Annotated[Path | None, typer.Argument(metavar="[TRACE]", help=TRACE_HELP)]
GenerateOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        parser=whole(1, JOBS_MAX),
        rich_help_panel=GENERATED,
        help="Generate N jobs instead of reading a trace.",
    ),
]
ClusterOption = Annotated[
    str,
    typer.Option(
        metavar="TYPE:COUNT,...|FILE",
        rich_help_panel=CLUSTER,
        help="Number of GPUs of each type, or a file (.csv or .toml) with nodes, racks and prices.",
    ),
]
NodeEventsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--node-events",
        metavar="FILE",
        rich_help_panel=CLUSTER,
        help="Nodes that join, drain or are lost during the simulation: our CSV, or SkyPilot's availability of spot "
        "nodes (JSON). Repeatable.",
    ),
]
GpusPerNodeOption = Annotated[
    int,
    typer.Option(
        "--gpus-per-node",
        "--gpus-per-server",
        metavar="N",
        parser=whole(1, GPUS_MAX),
        rich_help_panel=CLUSTER,
        help="GPUs of each node.",
    ),
]
PricesOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE:USD,...",
        rich_help_panel=CLUSTER,
        help="USD per GPU-hour. Default: list prices of known types.",
    ),
]
NodeResourcesOption = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE:CORES:GIB,...",
        rich_help_panel=CLUSTER,
        help="CPU cores and memory of each node, 0 = unlimited. Default: they limit no job.",
    ),
]
PoliciesOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME[,NAME...]",
        autocompletion=complete_policy,
        rich_help_panel=POLICIES,
        help="Policies to run; see `gavel policies`. Parameters follow a colon (shortest_job_first:by=total); the "
        "suffix @blind hides GPU types from the policy. FILE.py:CLASS is a policy of your own. Default: "
        "max_min_fairness, or that of --scheduler-config.",
    ),
]
BlindOption = Annotated[
    bool,
    typer.Option("--blind", rich_help_panel=POLICIES, help="Hide the differences between GPU types from all policies."),
]
SchedulerConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--scheduler-config",
        metavar="FILE",
        rich_help_panel=ROUNDS,
        help="A scheduler's configuration (TOML), whose policy, mechanism, teams, priorities, GPU types, prices and "
        "throughputs apply where no option does.",
    ),
]
PresetOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", rich_help_panel=ROUNDS, help="default, or gavel-osdi20: the rules of the original Gavel."
    ),
]
RoundOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(1, 86_400),
        rich_help_panel=ROUNDS,
        help="Length of a round, 1 to 86400. Default: 360.",
    ),
]
SolveIntervalOption = Annotated[
    float | None, seconds(1e12, "Least time between two allocations. Default: the preset's, one round or 1920.")
]
CheckpointOption = Annotated[float | None, seconds(1e12, "Time to stop a job. Default: the preset's, 5 or 0.")]
RestartOption = Annotated[float | None, seconds(1e12, "Time to start a job. Default: the preset's, 15 or 0.")]
MigrationOption = Annotated[
    float | None, seconds(1e12, "Additional time to start a job on other GPUs. Default: the preset's, 5 or 0.")
]
ConditionsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=CONDITIONS,
        help="TOML file of what costs time: costs by job type, checkpoints, failures of nodes and jobs, spot nodes, "
        "slow nodes, delays: see docs/simulation-conditions.md. Default: none of these.",
    ),
]
CostsFromOption = Annotated[
    str | None,
    typer.Option(
        metavar="DATABASE",
        rich_help_panel=CONDITIONS,
        help="A scheduler's journal (sqlite:///PATH, postgresql://..., or a file of --journal): starts, checkpoints "
        "and migrations take as long as there, by job type.",
    ),
]
AblateOption = Annotated[
    bool,
    typer.Option(
        "--ablate",
        rich_help_panel=CONDITIONS,
        help="Simulate again without each section of the conditions, and show what each changes.",
    ),
]
CheckpointEveryOption = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        parser=number(1, 1e9),
        rich_help_panel=CONDITIONS,
        help="Jobs also save after this much work. Default: when they are stopped only.",
    ),
]
NodeMtbfOption = Annotated[
    float | None,
    typer.Option(
        metavar="H",
        parser=number(0.01, 1e9),
        rich_help_panel=CONDITIONS,
        help="Mean hours between failures of a node. Default: nodes do not fail.",
    ),
]
LeaseMinOption = Annotated[
    float | None,
    seconds(86_400, "Minimum age of a lease before it can be preempted. Default: the preset's, half a round or 0."),
]
TeamsOption = Annotated[
    Path | None,
    typer.Option(
        "--teams",
        metavar="FILE",
        rich_help_panel=POLICIES,
        help=r"Teams, for the policy hierarchical: a TOML file with tables \[teams.NAME], such as a scheduler's "
        "configuration. Each job's entity must be a team. Default: entities of weight 1.",
    ),
]
MoveLagOption = Annotated[
    float | None,
    seconds(
        604_800,
        "A running job is preempted by one whose lag (time owed less received) is this much larger; 0 = at any lag. "
        "Default: the preset's, five rounds (of policies that use deadlines: one) or 0.",
    ),
]
StartMaxOption = Annotated[
    float | None, seconds(86_400, "The same for a lease without any step yet. Default: the preset's, 300 or 0.")
]
RetryOption = Annotated[
    float | None,
    seconds(
        86_400,
        "Delay before a failed job is restarted, doubled each time up to --retry-max-s. Jobs of a trace do not "
        "fail; the journal records the setting. Default: the preset's, 10 or 0.",
    ),
]
RetryMaxOption = Annotated[float | None, seconds(86_400, "Longest delay before a restart. Default: 300.")]
PlacementOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=ROUNDS,
        help="Which nodes new leases get: best_fit, first_fit, random or fgd. Default: best_fit.",
    ),
]
ConsolidateOption = Annotated[
    float | None,
    seconds(604_800, "How long a gang waits for one node, then for one rack and so on. Default: 0, it does not wait."),
]
DefragmentOption = Annotated[
    bool,
    typer.Option(
        "--defragment",
        rich_help_panel=ROUNDS,
        help="Move running jobs to make a place for a gang that waits, where that pays. Needs --consolidate-s.",
    ),
]
MoveWithinRoundOption = Annotated[
    bool,
    typer.Option(
        "--move-within-round",
        rich_help_panel=ROUNDS,
        help="Move running jobs to faster GPUs as soon as these fall free, where that pays. "
        "Default: at the end of the round.",
    ),
]
PackingOption = Annotated[
    bool,
    typer.Option(
        "--packing",
        rich_help_panel=ROUNDS,
        help="Co-locate two jobs on the same GPUs if the policy gains by it; --throughputs must have rates of pairs.",
    ),
]
EstimateOption = Annotated[
    bool,
    typer.Option(
        "--estimate",
        rich_help_panel=POLICIES,
        help="Hide the rates from the scheduler, which learns them from the progress of running jobs.",
    ),
]
ClaimsOffOption = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        parser=number(1, 1000),
        rich_help_panel=POLICIES,
        help="With --estimate: jobs declare rates that are wrong by factors of up to X, 1 to 1000. Default: they "
        "declare none.",
    ),
]
ProfileGpuSOption = Annotated[
    float | None,
    typer.Option(
        "--profile-gpu-s",
        metavar="X",
        parser=number(0, 1e9),
        rich_help_panel=POLICIES,
        help="With --estimate: GPU-seconds of each allocation reserved to measure the most valuable unknown rates (of "
        "pairs, too, with --packing). Default: 0.",
    ),
]
WindowOption = Annotated[
    str | None,
    typer.Option(
        metavar="A:B",
        rich_help_panel=RESULTS,
        help="Measure only jobs A to B-1 in order of arrival, and end when they have finished.",
    ),
]
FairnessOption = Annotated[
    bool,
    typer.Option(
        "--fairness",
        rich_help_panel=RESULTS,
        help="Report finish-time fairness, which takes another simulation, under `isolated`. Without this, it is "
        "reported if `isolated` is one of the policies.",
    ),
]
IdealOption = Annotated[
    bool,
    typer.Option(
        "--ideal",
        rich_help_panel=RESULTS,
        help="Report in addition the average JCT and makespan of each policy's ideal: its shares delivered "
        "continuously and exactly, without rounds, starts and moves.",
    ),
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE", rich_help_panel=RESULTS, help="HTML report to write.")
]
FiguresOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", rich_help_panel=RESULTS, help="Directory to write each figure to, as SVG, PDF and CSV."
    ),
]
JournalOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", rich_help_panel=RESULTS, help="Directory to write the journal of each run to."),
]
