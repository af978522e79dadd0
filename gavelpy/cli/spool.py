"""`gavel spool`: the submissions that wait on this machine because no scheduler answered (`gavel submit --spool`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import Output, TableData, duration, echo_json, notify, printable, show_table
from gavelpy.errors import CallFailed, GavelError, InvalidInput, SchedulerUnreachable
from gavelpy.runtime.client.spool import KEPT_S, KeptSubmission, spool_of

app = typer.Typer(help="Show and deliver submissions that are kept on this machine.", no_args_is_help=True)
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait until the scheduler answers.")]
KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY...", help="Keys, as `gavel spool list` shows them.")]


@app.command("list")
def list_(output: o.OutputOption = Output.TABLE) -> None:
    """List the submissions that are kept, the oldest first.

    \b
    Examples:
      gavel spool list
      gavel spool list -o json
    """
    now_s, found = time.time(), spool_of(os.environ).submissions()
    if output is Output.JSON:
        entries = [
            {"key": one.key, "jobs": len(one.request.jobs), "scheduler": one.scheduler, "kept_at_s": one.at_s,
             "file": str(one.file)}
            for one in found
        ]  # fmt: skip
        echo_json({"submissions": entries})
        return
    rows = [
        (one.key, str(len(one.request.jobs)), _names(one), duration(now_s - one.at_s), printable(one.scheduler))
        for one in found
    ]
    show_table(TableData(("key", "jobs", "names", "kept for", "scheduler"), frozenset({"jobs"}), rows))


@app.command()
def deliver(
    wait: WaitOption = False,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Submit all kept submissions, the oldest first; each counts once. Those that are refused stay.

    \b
    Examples:
      gavel spool deliver
      gavel spool deliver --wait
    """
    spool, now_s, refused = spool_of(os.environ), time.time(), 0
    found = spool.submissions()
    if not found:
        notify("no submission is kept")
        return
    with c.connected(scheduler, token_file, timeout) as client:
        if wait:
            _wait_for_scheduler(client.server_info)
        for one in found:
            try:
                if one.is_too_old(now_s):
                    raise InvalidInput(f"it is older than {duration(KEPT_S)}, so it might count twice; submit again")
                answer = client.submit(one.request.jobs, key=one.key)
            except SchedulerUnreachable:
                raise
            except GavelError as error:
                refused += 1
                notify(f"error: {one.key}: {error}")
                continue
            spool.remove(one)
            for job in answer.jobs:
                typer.echo(f"{job.job}\t{printable(job.name)}")
    if refused:
        raise CallFailed(f"{refused} of {len(found)} submissions were refused and stay: gavel spool list")


@app.command()
def drop(keys: KeysArgument) -> None:
    """Delete kept submissions without submitting them.

    \b
    Example:
      gavel spool drop 9c1e6a2f-5a0c-4a51-8f5e-6f2a0d3f9a11
    """
    spool = spool_of(os.environ)
    found = {one.key: one for one in spool.submissions()}
    for key in keys:
        if key not in found:
            raise InvalidInput(f"key must be one of {', '.join(found) or 'none, as none is kept'}, got {key!r}")
    for key in dict.fromkeys(keys):
        spool.remove(found[key])


def _names(one: KeptSubmission) -> str:
    names = [job.name or "-" for job in one.request.jobs[:3]]
    return printable(", ".join(names) + (", ..." if len(one.request.jobs) > len(names) else ""))


def _wait_for_scheduler(call: Callable[[], object]) -> None:
    waits = False
    while True:
        try:
            call()
        except SchedulerUnreachable as error:
            if not waits:
                notify(f"{error}; waiting for it")
            waits = True
            time.sleep(1.0)
        else:
            return
