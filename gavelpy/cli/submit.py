"""`gavel submit`: submits jobs from TOML files or from the command line."""

from __future__ import annotations

import shlex
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import job_files as f
from gavelpy.cli import options as o
from gavelpy.cli.formatting import DASH, as_json, duration
from gavelpy.cli.output import Output, console, echo_json, notify, printable, tabbed
from gavelpy.errors import InvalidInput
from gavelpy.runtime.snapshots import BYTES_MAX, store_snapshot

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_FILE_ENDING = ".toml"
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
SnapshotMaxOption = Annotated[
    int,
    typer.Option(
        metavar="MIB", parser=o.whole(1, 16_384), help="Largest snapshot, in MiB of files before compression."
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


def submit(
    what: WhatArgument,
    name: NameOption = "",
    steps: StepsOption = None,
    gpus: GpusOption = 1,
    job_type: JobTypeOption = "",
    rate: RateOption = None,
    weight: WeightOption = 1.0,
    deadline: DeadlineOption = 0.0,
    entity: EntityOption = "",
    directory: DirectoryOption = None,
    environment: EnvironmentOption = None,
    one_process_a_node: OneProcessOption = False,
    checkpoint_every: CheckpointEveryOption = 0.0,
    warning: WarningOption = None,
    preemptible: PreemptibleOption = False,
    venv: VenvOption = "",
    conda: CondaOption = "",
    snapshot: SnapshotOption = False,
    snapshot_max: SnapshotMaxOption = BYTES_MAX >> 20,
    hold: HoldOption = False,
    begin: BeginOption = None,
    array: ArrayOption = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    key: KeyOption = "",
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Submit jobs. When the command returns, they are stored durably in the scheduler's journal.

    \b
    Examples:
      gavel submit jobs.toml
      gavel submit --steps 10000 --job-type 'ResNet-18 (batch size 64)' -- python train.py --lr 0.1
      gavel submit --name sweep --steps 500 --array 0-9 -- python train.py --seed {index}
      gavel submit jobs.toml --dry-run
    """
    given: dict[str, Any] = {
        "name": name, "gpus": gpus, "weight": weight, "job_type": job_type, "rates_steps_per_s": f.rates(rate or []),
        "deadline_s": deadline, "entity": entity, "environment": f.pairs("--env", environment or [], "="),
        "one_process_a_node": one_process_a_node, "checkpoint_every_s": checkpoint_every,
        "preemptible": preemptible, "venv": venv and f.absolute(Path.cwd(), venv),
        "conda": conda and f.absolute(Path.cwd(), conda), "snapshot": snapshot, "hold": hold,
        "begin_at_s": 0.0 if begin is None else f.begin(begin, time.time()),
    }  # fmt: skip
    if warning is not None:
        given["warning_s"], given["warning_signal"] = f.warning(warning)
    indices, window = f.array_and_window(array) if array is not None else ("", 0)
    if window and (not wait or dry_run):
        raise InvalidInput(f"--array with %N needs --wait, since this command submits the rest; got {array!r} without")
    if all(word.endswith(_FILE_ENDING) for word in what):
        _refuse_flags(given, steps, directory)
        templates = [job for path in what for job in f.read_job_file(Path(path))]
    else:
        templates = [_from_flags(what, steps, directory, given)]
    expanded = [job for template in templates for job in _with_array(template, indices).expand()]
    connection = c.reconnecting if wait and not dry_run else c.connected
    with connection(scheduler, token_file, timeout) as client:
        snapshots = _stored_snapshots(client, expanded, snapshot_max << 20, is_stored=not dry_run)
        jobs = [job.message(snapshots) for job in expanded]
        if dry_run:
            _show_forecasts(client.submit(jobs, dry_run=True), output)
        elif wait:
            _submit_and_wait(client, jobs, key or str(uuid.uuid4()), window, output)
        else:
            _show_submitted(client.submit(jobs, key=key), output)


def _stored_snapshots(
    client: Client, jobs: Sequence[f.JobTemplate], bytes_max: int, *, is_stored: bool
) -> dict[str, str]:
    """Digests of the archives of the directories that jobs take a snapshot of; stores the archives."""
    sources = list(dict.fromkeys(job.working_directory for job in jobs if job.snapshot))
    if not sources:
        return {}
    directory = client.settings.snapshot_directory or client.server_info().snapshot_directory
    if not directory:
        raise InvalidInput(
            "a snapshot needs a directory that clients and nodes share: set snapshot_directory in the client's "
            "configuration, or nodes.checkpoint_directory of the scheduler; got neither"
        )
    where = Path(directory) if is_stored else None
    return {source: store_snapshot(Path(source), where, bytes_max) for source in sources}


def _from_flags(
    command: Sequence[str], steps: float | None, directory: Path | None, given: dict[str, Any]
) -> f.JobTemplate:
    if steps is None:
        raise InvalidInput("--steps N must be given with a command: the job's total training steps")
    where = str((directory or Path.cwd()).absolute())
    return f.JobTemplate(command=shlex.join(command), steps_total=steps, working_directory=where, **given)


def _refuse_flags(given: dict[str, Any], steps: float | None, directory: Path | None) -> None:
    """Raises InvalidInput for flags that a job file would override silently."""
    default = f.JobTemplate(command="", steps_total=0.0)
    flags = [name for name, value in given.items() if value != getattr(default, name)]
    flags += [name for name, value in (("steps", steps), ("directory", directory)) if value is not None]
    if flags:
        raise InvalidInput(f"a job file describes its jobs completely: remove these flags: {', '.join(flags)}")


def _with_array(job: f.JobTemplate, indices: str) -> f.JobTemplate:
    if indices and job.array:
        raise InvalidInput(f"--array must not be given if the file has an array, got {indices!r} and {job.array!r}")
    return job if not indices else f.JobTemplate(**vars(job) | {"array": indices})


def _submit_and_wait(
    client: Client, jobs: Sequence[client_pb2.JobDescription], key: str, window: int, output: Output
) -> None:
    """Submits all jobs at once; with a `window`, at most that many are unfinished, each with its own key."""
    from gavelpy.cli.wait import finish_with, wait_for, wait_for_one

    if not window:
        answer = client.submit(jobs, key=key)
        notify(f"{len(jobs):,} jobs submitted: {_named(answer)}")
        _warn(answer)
        finish_with(wait_for(client, [str(job.job) for job in answer.jobs]), output)
        return
    active: list[str] = []
    over: list[client_pb2.Job] = []
    for row, job in enumerate(jobs):
        while len(active) >= window:
            ended = wait_for_one(client, active)
            over += ended
            active = [number for number in active if number not in {str(job.job) for job in ended}]
        answer = client.submit([job], key=f"{key}/{row}")
        notify(f"submitted: {_named(answer)}")
        _warn(answer)
        active.append(str(answer.jobs[0].job))
    finish_with([*over, *wait_for(client, active)], output)


def _show_submitted(answer: client_pb2.SubmitJobsResponse, output: Output) -> None:
    if output is Output.JSON:
        echo_json(
            {
                "jobs": [
                    {"job": job.job, "name": job.name, "warning": job.warning, "note": job.note} for job in answer.jobs
                ],
                "repeated_submission": answer.repeated_submission,
            }
        )
        return
    for job in answer.jobs:
        typer.echo(tabbed(job.job, job.name))
    _warn(answer)
    if answer.repeated_submission:
        notify("note: these jobs were submitted before with the same key; no new jobs")
    if sys.stderr.isatty():
        _show_next_steps([job.job for job in answer.jobs])


def _show_next_steps(numbers: Sequence[int]) -> None:
    """Prints the commands that a user needs next, for people at a terminal."""
    first = numbers[0]
    notify(f"output:       gavel logs {first} --follow")
    notify(f"why it waits: gavel explain {first}")
    several = f"{first} {'... ' if len(numbers) > 2 else ''}{numbers[-1]}" if len(numbers) > 1 else str(first)
    notify(f"until over:   gavel wait {several}")


def _show_forecasts(answer: client_pb2.SubmitJobsResponse, output: Output) -> None:
    if output is Output.JSON:
        echo_json({"jobs": [{"name": job.name, **as_json(job.forecast), "note": job.note} for job in answer.jobs]})
        return
    for note in dict.fromkeys(job.note for job in answer.jobs if job.note):
        notify(f"note: {note}")
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("job", "runs", "on", "nodes", "starts in", "ends in", "why"):
        table.add_column(title, justify="right" if title.endswith("in") else "left")
    for job in answer.jobs:
        forecast = job.forecast
        table.add_row(
            printable(job.name or DASH),
            "yes" if forecast.can_run else "no",
            printable(forecast.gpu_type or DASH),
            printable(", ".join(forecast.node_ids) or DASH),
            duration(forecast.start_in_s),
            duration(forecast.finish_in_s),
            printable(forecast.reason),
        )
    console().print(table)


def _warn(answer: client_pb2.SubmitJobsResponse) -> None:
    """Prints warnings and notes on stderr, one line for all jobs with the same text."""
    by_text: dict[tuple[str, str], list[client_pb2.SubmittedJob]] = {}
    for job in answer.jobs:
        for kind, text in (("warning", job.warning), ("note", job.note)):
            if text:
                by_text.setdefault((kind, text), []).append(job)
    for (kind, text), jobs in by_text.items():
        first = f"job {jobs[0].job} ({jobs[0].name})"
        notify(f"{kind}: {first if len(jobs) == 1 else f'{first} and {len(jobs) - 1:,} more'}: {text}")


def _named(answer: client_pb2.SubmitJobsResponse) -> str:
    first, last = answer.jobs[0], answer.jobs[-1]
    return f"{first.job} ({first.name})" if first is last else f"{first.job} ({first.name}) to {last.job} ({last.name})"
