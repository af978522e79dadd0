"""The options of `gavel submit` that describe a job: name, type, default and help of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli.job_sizes import Sizes, gpus_option

_JOB = "Job (with a command; a job file has these as fields)"

NameOption = Annotated[
    str, typer.Option(metavar="NAME", rich_help_panel=_JOB, help="Name of the job. Default: job-NUMBER.")
]
StepsOption = Annotated[
    float | None,
    typer.Option(
        metavar="N",
        parser=o.number(1e-9),
        rich_help_panel=_JOB,
        help="Total training steps. Default: those that the program announces.",
    ),
]
GpusOption = Annotated[
    Sizes,
    typer.Option(
        metavar="N|N,N|N..M",
        parser=gpus_option,
        rich_help_panel=_JOB,
        help="Number of GPUs; or several on which the job can run, such as 1,2,4,8 or 1..8, the requested one first: "
        "the scheduler chooses among them, and restarts the job from its checkpoint when it changes.",
    ),
]
JobTypeOption = Annotated[
    str, typer.Option(metavar="TYPE", rich_help_panel=_JOB, help="Job type in the throughput table.")
]
RateOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TYPE[@GPUS]:X",
        rich_help_panel=_JOB,
        help="Steps/s by GPU type, e.g. v100:10,k80:1; on 4 of several numbers of GPUs: v100@4:36. Repeatable.",
    ),
]
EfficiencyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPUS:X",
        rich_help_panel=_JOB,
        help="Rate on several numbers of GPUs, as a part of that in proportion to the requested one, e.g. "
        "2:0.95,4:0.85. Default: estimated by the scheduler. Repeatable.",
    ),
]
PlanOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="GPUS:TEXT",
        rich_help_panel=_JOB,
        help="What the program receives as GAVEL_PLAN when it runs on this number of GPUs, e.g. 4:tp2. Repeatable.",
    ),
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
    typer.Option(
        "--team",
        "--entity",
        metavar="NAME",
        rich_help_panel=_JOB,
        help="Team (entity) that the job belongs to, for the policy hierarchical. Default: your only team, where "
        "there are teams.",
    ),
]
CompletionValueOption = Annotated[
    str,
    typer.Option(
        metavar="SHAPE:worth=X:time_s=S",
        rich_help_panel=_JOB,
        help="What the job's end is worth by the time from its submission, for policies that use it: "
        "linear:worth=5:time_s=3600, sigmoid:worth=5:time_s=3600:decay_per_s=0.002 or step:worth=5:time_s=3600.",
    ),
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
CpusPerGpuOption = Annotated[
    float,
    typer.Option(
        metavar="N",
        parser=o.number(),
        rich_help_panel=_JOB,
        help="CPU cores that the job needs with each GPU, on the same node; it may use no more.",
    ),
]
MemoryPerGpuOption = Annotated[
    float,
    typer.Option(
        metavar="GIB",
        parser=o.number(),
        rich_help_panel=_JOB,
        help="Memory of the node that the job needs with each GPU; it may use no more.",
    ),
]
GpuMemoryOption = Annotated[
    float,
    typer.Option(
        metavar="GIB",
        parser=o.number(),
        rich_help_panel=_JOB,
        help="GPU memory that the job needs of each GPU. With it, the job may share its GPUs with another one, where "
        "the scheduler co-locates jobs and both fit.",
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
VenvOption = Annotated[
    str,
    typer.Option(
        metavar="DIR", rich_help_panel=_JOB, help="Virtual environment to activate, by its path on the nodes."
    ),
]
CondaOption = Annotated[
    str,
    typer.Option(metavar="DIR", rich_help_panel=_JOB, help="Conda environment to activate, by its path on the nodes."),
]
SnapshotOption = Annotated[
    bool,
    typer.Option(
        "--snapshot",
        rich_help_panel=_JOB,
        help="Archive the working directory now (without what git ignores); the job runs in a copy of it.",
    ),
]
ImageOption = Annotated[
    str,
    typer.Option(
        metavar="IMAGE",
        rich_help_panel=_JOB,
        help="Run the job in a container: a name such as docker.io/library/python:3.12, or a .sif file on the nodes.",
    ),
]
SecretOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secret",
        metavar="NAME[=VARIABLE]",
        rich_help_panel=_JOB,
        help="Set a variable to one of your secrets (gavel secret), which the node reads. Repeatable.",
    ),
]
NotifyOption = Annotated[
    str,
    typer.Option(
        metavar="KIND,...", rich_help_panel=_JOB, help="Notify of these: end, failure, preemption (--webhook, --mail)."
    ),
]
WebhookOption = Annotated[
    str, typer.Option(metavar="URL", rich_help_panel=_JOB, help="Send notifications to this URL, as JSON by POST.")
]
MailOption = Annotated[
    str, typer.Option(metavar="ADDRESS", rich_help_panel=_JOB, help="Send notifications to this address.")
]
NoPreemptOption = Annotated[
    bool,
    typer.Option(
        "--no-preempt",
        rich_help_panel=_JOB,
        help="Once started, run the job to its end, without giving GPUs to others.",
    ),
]
AfterOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="JOB[:ok|any]",
        rich_help_panel=_JOB,
        help="Start after this job has finished (ok, the default), or is over in any way. Repeatable.",
    ),
]
HoldOption = Annotated[
    bool, typer.Option("--hold", rich_help_panel=_JOB, help="Do not start the job before `gavel release`.")
]
BeginOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        rich_help_panel=_JOB,
        help="Do not start the job before this time: 2026-05-01T08:00, 22:00, or +2h (local time).",
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        rich_help_panel=_JOB,
        help="Stop the job for good after this running time, over all its leases: 90m, 2h, 1d or 1:30:00.",
    ),
]
StallOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPAN",
        rich_help_panel=_JOB,
        help="Stop the job for good after this time without progress: no further step or, if it reports none, no "
        "output.",
    ),
]
ConstraintOption = Annotated[
    str | None,
    typer.Option(metavar="TYPE|TYPE", rich_help_panel=_JOB, help="Run the job on these GPU types only: 'v100|p100'."),
]
PriorityOption = Annotated[
    str,
    typer.Option(
        metavar="CLASS",
        rich_help_panel=_JOB,
        help="Priority class, one of those that the operator configured. Default: normal.",
    ),
]
NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes", "--nodelist", metavar="NODE,NODE", rich_help_panel=_JOB, help="Run the job on these nodes only."
    ),
]
ExcludeOption = Annotated[
    str | None, typer.Option(metavar="NODE,NODE", rich_help_panel=_JOB, help="Do not run the job on these nodes.")
]
ReservationOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_JOB,
        help="Run the job within this reservation only, on its nodes (gavel reservations).",
    ),
]
JOB_OPTIONS: Mapping[str, tuple[Any, Any]] = {  # type and default of each; Any: typer's types of all kinds
    "name": (NameOption, ""),
    "steps": (StepsOption, None),
    "gpus": (GpusOption, "1"),
    "job_type": (JobTypeOption, ""),
    "rate": (RateOption, None),
    "efficiency": (EfficiencyOption, None),
    "plan": (PlanOption, None),
    "weight": (WeightOption, 1.0),
    "deadline": (DeadlineOption, 0.0),
    "entity": (EntityOption, ""),
    "completion_value": (CompletionValueOption, ""),
    "directory": (DirectoryOption, None),
    "environment": (EnvironmentOption, None),
    "one_process_a_node": (OneProcessOption, False),
    "checkpoint_every": (CheckpointEveryOption, 0.0),
    "gpu_memory": (GpuMemoryOption, 0.0),
    "cpus_per_gpu": (CpusPerGpuOption, 0.0),
    "memory_per_gpu": (MemoryPerGpuOption, 0.0),
    "warning": (WarningOption, None),
    "preemptible": (PreemptibleOption, False),
    "venv": (VenvOption, ""),
    "conda": (CondaOption, ""),
    "snapshot": (SnapshotOption, False),
    "image": (ImageOption, ""),
    "secret": (SecretOption, None),
    "notify": (NotifyOption, ""),
    "webhook": (WebhookOption, ""),
    "mail": (MailOption, ""),
    "no_preempt": (NoPreemptOption, False),
    "after": (AfterOption, None),
    "priority": (PriorityOption, ""),
    "hold": (HoldOption, False),
    "begin": (BeginOption, None),
    "time": (TimeOption, None),
    "stall": (StallOption, None),
    "constraint": (ConstraintOption, None),
    "nodes": (NodesOption, None),
    "exclude": (ExcludeOption, None),
    "reservation": (ReservationOption, ""),
}
