"""`gavel submit`: submits jobs from TOML files or from the command line."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import job_files as f
from gavelpy.cli import job_texts as t
from gavelpy.cli import options as o
from gavelpy.cli.job_options import refuse_job_options, takes_job_options, template_of
from gavelpy.cli.output import DASH, Output, as_json, console, echo_json, notify, printable, tabbed, with_interval
from gavelpy.cli.sweep_files import read_sweep_file
from gavelpy.errors import InvalidInput, SchedulerUnreachable
from gavelpy.runtime.snapshots import BYTES_MAX, store_snapshot

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_FILE_ENDING = ".toml"

WhatArgument = Annotated[
    list[str] | None, typer.Argument(metavar="FILE.toml... | -- COMMAND...", help="Job files, or the command to run.")
]
SnapshotMaxOption = Annotated[
    int,
    typer.Option(
        metavar="MIB", parser=o.whole(1, 16_384), help="Largest snapshot, in MiB of files before compression."
    ),
]
ArrayOption = Annotated[
    str | None,
    typer.Option(
        metavar="0-9[:STEP][%N]",
        help="Submit one job per index; {index} is replaced in name, command, directory and environment. "
        "%N: at most N of them compete for GPUs at once.",
    ),
]
SweepOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.toml",
        help="Submit the jobs of a hyper-parameter search as one app, of which losing jobs end early "
        "(`gavel app show NAME`). For grids of simulations: `gavel sweep`.",
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


SpoolOption = Annotated[
    bool,
    typer.Option(
        "--spool",
        help="If no scheduler answers, keep the jobs on this machine until `gavel spool deliver` submits them.",
    ),
]


@takes_job_options
def submit(
    what: WhatArgument = None,
    snapshot_max: SnapshotMaxOption = BYTES_MAX >> 20,
    sweep: SweepOption = None,
    array: ArrayOption = None,
    dry_run: DryRunOption = False,
    wait: WaitOption = False,
    key: KeyOption = "",
    spool: SpoolOption = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    **description: Any,  # Any: values of the options that describe a job
) -> None:
    """Submit jobs. When the command returns, they are stored durably in the scheduler's journal.

    \b
    Examples:
      gavel submit jobs.toml
      gavel submit --steps 10000 --job-type 'ResNet-18 (batch size 64)' -- python train.py --lr 0.1
      gavel submit --gpus 1,2,4,8 --rate v100:10 --efficiency 2:0.95,4:0.9,8:0.8 -- python train.py
      gavel submit --gpus 1..4 --rate v100:10,v100@2:19,v100@3:27,v100@4:34 -- python train.py
      gavel submit --name seeds --steps 500 --array 0-9 -- python train.py --seed {index}
      gavel submit --sweep search.toml --key search-1
      gavel submit --steps 10000 --image docker.io/pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime -- python train.py
      gavel submit --steps 10000 --secret WANDB_API_KEY -- python train.py
      gavel submit jobs.toml --dry-run
      gavel submit jobs.toml --spool
    """
    if spool and (dry_run or wait):
        raise InvalidInput(f"--spool must not be given with {'--dry-run' if dry_run else '--wait'}")
    what = what or []
    if sweep is not None:
        if what or array:
            raise InvalidInput(f"--sweep must be given without jobs, --array and a command, got {what or [array]}")
        refuse_job_options(description)
        templates = read_sweep_file(sweep)
    elif not what:
        raise InvalidInput("FILE.toml, --sweep FILE or -- COMMAND must be given, got nothing")
    elif all(word.endswith(_FILE_ENDING) for word in what):
        refuse_job_options(description)
        templates = [job for path in what for job in f.read_job_file(Path(path))]
    else:
        templates = [template_of(what, description)]
    expanded = f.expanded([_with_array(template, array) for template in templates])
    connection = c.reconnecting if wait and not dry_run else c.connected
    with connection(scheduler, token_file, timeout) as client:
        snapshots = _stored_snapshots(client, expanded, snapshot_max << 20, is_stored=not dry_run)
        jobs = [job.message(snapshots) for job in expanded]
        if dry_run:
            _show_forecasts(client.submit(jobs, dry_run=True), output)
        elif wait:
            _submit_and_wait(client, jobs, key or str(uuid.uuid4()), output)
        else:
            _submit(client, jobs, key or str(uuid.uuid4()), output, spools=spool)


def _submit(
    client: Client, jobs: Sequence[client_pb2.JobDescription], key: str, output: Output, *, spools: bool
) -> None:
    try:
        answer = client.submit(jobs, key=key)
    except SchedulerUnreachable as error:
        if not spools:
            raise
        from gavelpy.runtime.client.spool import spool_of
        from gavelpy.runtime.wire import client_pb2 as pb

        request = pb.SubmitJobsRequest(idempotency_key=key, jobs=jobs)
        file = spool_of(os.environ).keep(client.settings.scheduler, request, time.time())
        notify(f"{error}: {len(jobs):,} jobs are kept in {file}; submit them later: gavel spool deliver")
        if output is Output.JSON:
            echo_json({"jobs": [], "repeated_submission": False, "kept_in": str(file)})
        return
    _show_submitted(answer, output)


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


def _with_array(job: f.JobTemplate, array: str | None) -> f.JobTemplate:
    if array is None:
        return job
    if job.array:
        raise InvalidInput(f"--array must not be given if the file has an array, got {array!r} and {job.array!r}")
    t.array_indices(t.array_and_limit(array)[0])
    return replace(job, array=array)


def _submit_and_wait(client: Client, jobs: Sequence[client_pb2.JobDescription], key: str, output: Output) -> None:
    from gavelpy.cli.wait import finish_with, wait_for

    answer = client.submit(jobs, key=key)
    notify(f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'} submitted: {_named(answer)}")
    _warn(answer)
    numbers = [job.job for job in answer.jobs]
    try:
        found = wait_for(client, list(map(str, numbers)))
    except KeyboardInterrupt:
        notify(f"still submitted; wait again: gavel wait {_listed(numbers)}; end: gavel cancel {_listed(numbers)}")
        raise
    finish_with(found, output)


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
    notify(f"until over:   gavel wait {_listed(numbers)}")


_SHORTENED_FROM = 7


def _listed(numbers: Sequence[int]) -> str:
    """These numbers as arguments that can be copied to a shell; many consecutive ones by `seq`."""
    words: list[str] = []
    for _, run in groupby(enumerate(numbers), key=lambda item: item[1] - item[0]):
        found = [number for _, number in run]
        words += [f"$(seq {found[0]} {found[-1]})"] if len(found) >= _SHORTENED_FROM else map(str, found)
    return " ".join(words)


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
            printable(f"{forecast.gpus} {forecast.gpu_type}" if forecast.gpu_type else DASH),
            printable(", ".join(forecast.node_ids) or DASH),
            with_interval(forecast.start_in_s, forecast.start_low_s, forecast.start_high_s),
            with_interval(forecast.finish_in_s, forecast.finish_low_s, forecast.finish_high_s),
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
