"""`gavel spool`: the submissions that wait on this machine because no scheduler answered (`gavel submit --spool`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import Output, TableData, duration, echo_json, notify, printable, show_table
from gavelpy.errors import CallFailed, GavelError, InvalidInput, SchedulerUnreachable
from gavelpy.runtime.client.spool import KEPT_S, KeptSubmission, spool_of

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client

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
    now_s, (found, unreadable) = time.time(), spool_of(os.environ).contents()
    if output is Output.JSON:
        entries = [
            {"key": one.key, "jobs": len(one.request.jobs), "scheduler": one.scheduler, "kept_at_s": one.at_s,
             "file": str(one.file)}
            for one in found
        ]  # fmt: skip
        bad = [{"file": str(file), "error": error.args[0]} for file, error in unreadable.items()]
        echo_json({"submissions": entries, "unreadable": bad})
    else:
        rows = [
            (one.key, str(len(one.request.jobs)), _names(one), duration(now_s - one.at_s), printable(one.scheduler))
            for one in found
        ]
        show_table(TableData(("key", "jobs", "names", "kept for", "scheduler"), frozenset({"jobs"}), rows))
    _report_unreadable(unreadable)
    if unreadable:
        raise CallFailed(f"{_count_unreadable(unreadable)}; delete with: gavel spool drop FILE")


@app.command()
def deliver(
    wait: WaitOption = False,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Submit all kept submissions, the oldest first; each counts once. Those that are refused stay.

    A file that cannot be read is named and stays; the others are delivered.

    \b
    Examples:
      gavel spool deliver
      gavel spool deliver --wait
    """
    now_s, (found, unreadable) = time.time(), spool_of(os.environ).contents()
    refused = 0
    if not found and not unreadable:
        notify("no submission is kept")
    _report_unreadable(unreadable)
    if found:
        with c.connected(scheduler, token_file, timeout) as client:
            if wait:
                _wait_for_scheduler(client.server_info)
            refused = sum(not _is_delivered(one, client, now_s) for one in found)
    if refused or unreadable:
        stay = [f"{refused} of {len(found)} submissions were refused"] if refused else []
        stay += [_count_unreadable(unreadable)] if unreadable else []
        raise CallFailed(f"{' and '.join(stay)}; they stay: gavel spool list")


@app.command()
def drop(keys: KeysArgument) -> None:
    """Delete kept submissions without submitting them; a file that cannot be read, by its name.

    \b
    Examples:
      gavel spool drop 9c1e6a2f-5a0c-4a51-8f5e-6f2a0d3f9a11
      gavel spool drop 20261123T101500-9c1e6a2f.json
    """
    kept = spool_of(os.environ).contents()
    found = {one.key: one.file for one in kept.submissions} | {file.name: file for file in kept.unreadable}
    for key in keys:
        if key not in found:
            raise InvalidInput(f"key must be one of {', '.join(found) or 'none, as none is kept'}, got {key!r}")
    for key in dict.fromkeys(keys):
        found[key].unlink(missing_ok=True)


def _is_delivered(one: KeptSubmission, client: Client, now_s: float) -> bool:
    """Submits it and deletes it; false if it is refused, which is printed. Raises SchedulerUnreachable."""
    try:
        if one.is_too_old(now_s):
            raise InvalidInput(f"it is older than {duration(KEPT_S)}, so it might count twice; submit again")
        answer = client.submit(one.request.jobs, key=one.key)
    except SchedulerUnreachable:
        raise
    except GavelError as error:
        notify(f"error: {one.key}: {error}")
        return False
    one.file.unlink(missing_ok=True)
    for job in answer.jobs:
        typer.echo(f"{job.job}\t{printable(job.name)}")
    return True


def _report_unreadable(unreadable: Mapping[Path, InvalidInput]) -> None:
    for error in unreadable.values():
        notify(f"error: {error}")


def _count_unreadable(unreadable: Mapping[Path, InvalidInput]) -> str:
    return f"{len(unreadable)} {'file' if len(unreadable) == 1 else 'files'} cannot be read"


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
