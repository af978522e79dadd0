"""Options of `gavel submit`: the flags that describe a job, and those that say how it is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli import options as o

_JOB = "The job (with a command line; a file says these itself)"

WhatArgument = Annotated[
    list[str], typer.Argument(metavar="FILE.toml... | -- COMMAND...", help="Job files, or a program to run.")
]
NameOption = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=_JOB, help="Default: job-NUMBER.")]
StepsOption = Annotated[
    float | None, typer.Option(metavar="N", parser=o.number(1e-9), rich_help_panel=_JOB, help="Steps in all. Required.")
]
GpusOption = Annotated[
    int, typer.Option(metavar="N", parser=o.whole(1, o.GPUS_MAX), rich_help_panel=_JOB, help="At once.")
]
JobTypeOption = Annotated[
    str, typer.Option(metavar="TYPE", rich_help_panel=_JOB, help="What to look up in the table of throughputs.")
]
RateOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE:X", rich_help_panel=_JOB, help="Steps/s by GPU type, e.g. v100:10,k80:1."),
]
WeightOption = Annotated[
    float, typer.Option(metavar="W", parser=o.number(1e-9), rich_help_panel=_JOB, help="For policies that know it.")
]
DeadlineOption = Annotated[
    float, typer.Option(metavar="S", parser=o.number(), rich_help_panel=_JOB, help="From now; 0 = none.")
]
EntityOption = Annotated[
    str, typer.Option(metavar="NAME", rich_help_panel=_JOB, help="Whose share it takes, for hierarchical policies.")
]
DirectoryOption = Annotated[
    Path | None,
    typer.Option("--directory", "-C", metavar="DIR", rich_help_panel=_JOB, help="Where it runs. Default: here."),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", rich_help_panel=_JOB, help="May be said more than once."),
]
OneProcessOption = Annotated[
    bool, typer.Option("--one-process-a-node", rich_help_panel=_JOB, help="Instead of one a GPU.")
]
CheckpointEveryOption = Annotated[
    float, typer.Option(metavar="S", parser=o.number(), rich_help_panel=_JOB, help="0 = at the end of a lease.")
]
WarningOption = Annotated[
    str | None,
    typer.Option(metavar="SIGNAL@S", rich_help_panel=_JOB, help="Sent S seconds before a lease ends, e.g. USR1@60."),
]
PreemptibleOption = Annotated[
    bool,
    typer.Option(
        "--preemptible",
        rich_help_panel=_JOB,
        help="May be stopped for other jobs' sake though it never saved a checkpoint: it saves by its own means, or "
        "starts from scratch.",
    ),
]
ArrayOption = Annotated[
    str | None,
    typer.Option(
        metavar="0-9[:STEP][%N]",
        help="One job an index, {index} filled into name, command, directory and environment. "
        "%N (with --wait): at most N of them alive at once.",
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check, and say where and when they would run.")]
WaitOption = Annotated[bool, typer.Option("--wait", help="Stay until all are over; exit code 1 if one failed.")]
KeyOption = Annotated[
    str, typer.Option(metavar="KEY", help="The same key and jobs again make no new jobs. Default: a new one.")
]
