"""Options of `gavel submit`: the description of a job, and how to submit it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli import options as o

_JOB = "Job (with a command; a job file has these as fields)"

WhatArgument = Annotated[
    list[str], typer.Argument(metavar="FILE.toml... | -- COMMAND...", help="Job files, or the command to run.")
]
NameOption = Annotated[
    str, typer.Option(metavar="NAME", rich_help_panel=_JOB, help="Name of the job. Default: job-NUMBER.")
]
StepsOption = Annotated[
    float | None,
    typer.Option(metavar="N", parser=o.number(1e-9), rich_help_panel=_JOB, help="Total training steps (required)."),
]
GpusOption = Annotated[
    int, typer.Option(metavar="N", parser=o.whole(1, o.GPUS_MAX), rich_help_panel=_JOB, help="Number of GPUs.")
]
JobTypeOption = Annotated[
    str, typer.Option(metavar="TYPE", rich_help_panel=_JOB, help="Job type in the throughput table.")
]
RateOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE:X", rich_help_panel=_JOB, help="Steps/s by GPU type, e.g. v100:10,k80:1. Repeatable."),
]
WeightOption = Annotated[
    float,
    typer.Option(metavar="W", parser=o.number(1e-9), rich_help_panel=_JOB, help="Weight, for policies that use it."),
]
DeadlineOption = Annotated[
    float,
    typer.Option(metavar="S", parser=o.number(), rich_help_panel=_JOB, help="Deadline in seconds from now; 0 = none."),
]
EntityOption = Annotated[
    str,
    typer.Option(metavar="NAME", rich_help_panel=_JOB, help="Entity that the job belongs to (hierarchical policies)."),
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option("--directory", "-C", metavar="DIR", rich_help_panel=_JOB, help="Working directory. Default: current."),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", rich_help_panel=_JOB, help="Environment variable. Repeatable."),
]
OneProcessOption = Annotated[
    bool,
    typer.Option(
        "--one-process-per-node",
        "--one-process-a-node",
        rich_help_panel=_JOB,
        help="Start one process per node instead of one per GPU.",
    ),
]
CheckpointEveryOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        parser=o.number(),
        rich_help_panel=_JOB,
        help="Checkpoint interval; 0 = only at the end of a lease.",
    ),
]
WarningOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIGNAL@S", rich_help_panel=_JOB, help="Signal to send S seconds before a lease ends, e.g. USR1@60."
    ),
]
PreemptibleOption = Annotated[
    bool,
    typer.Option(
        "--preemptible",
        rich_help_panel=_JOB,
        help="Allow preemption before the first checkpoint: the job saves its state by itself or restarts from "
        "scratch.",
    ),
]
ArrayOption = Annotated[
    str | None,
    typer.Option(
        metavar="0-9[:STEP][%N]",
        help="Submit one job per index; {index} is replaced in name, command, directory and environment. "
        "%N (with --wait): at most N unfinished jobs at once.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check the jobs and show where and when they would run.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until all jobs are over; exit code 1 if one failed.")]
KeyOption = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        help="Idempotency key: submitting again with the same key creates no duplicates. Default: random.",
    ),
]
