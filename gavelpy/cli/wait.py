"""`gavel wait`: waits for jobs; the exit code reports how they ended."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import FAILED, TIMED_OUT, Output, as_json, echo_json, notify, tabbed

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_MARGIN_S = 2.0  # a call may fail at most this long before the time is over
_CALL_S = 30.0  # longest wait of one call; then it is repeated


def wait(
    jobs: c.JobsArgument,
    timeout: Annotated[
        float | None,
        typer.Option("--for", metavar="S", parser=o.number(), help="Wait at most S seconds. Default: no limit."),
    ] = None,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    call_timeout: c.TimeoutOption = None,
) -> None:
    """Wait until jobs are over. Exit code 0: all finished; 1: one failed or was cancelled; 124: timeout.

    The command waits through outages of the scheduler; --timeout limits that.

    \b
    Examples:
      gavel wait 12 13 14
      gavel wait train --for 3600 && ./evaluate.sh
    """
    with c.reconnecting(scheduler, token_file, call_timeout) as client:
        found = wait_for(client, jobs, timeout)
    finish_with(found, output)


def wait_for(client: Client, jobs: Sequence[str], timeout_s: float | None = None) -> list[client_pb2.Job]:
    """The jobs, when all are over or after `timeout_s`."""
    from gavelpy.errors import SchedulerUnreachable

    ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, min(_CALL_S, ends_s - time.monotonic()))
        try:
            answer = client.wait(jobs, wait_s=left_s, ends_s=ends_s)
        except SchedulerUnreachable as error:
            if time.monotonic() + _MARGIN_S < ends_s:
                raise
            notify(f"timed out; {error}")
            raise typer.Exit(TIMED_OUT) from None
        if answer.all_over or time.monotonic() >= ends_s:
            return list(answer.jobs)


def finish_with(jobs: Sequence[client_pb2.Job], output: Output) -> None:
    """Prints how the jobs ended and exits with the matching code."""
    from gavelpy.cli.output import enum_name
    from gavelpy.runtime.client.connection import is_over
    from gavelpy.runtime.wire import client_pb2

    states = [enum_name(client_pb2.JobState, job.state) for job in jobs]
    if output is Output.JSON:
        echo_json({"jobs": [as_json(job) for job in jobs]})
    else:
        for job, state in zip(jobs, states, strict=True):
            why = f": {job.detail}" if job.detail and state == "failed" else ""
            typer.echo(tabbed(job.job, job.name, f"{state}{why}"))
    if not all(is_over(job) for job in jobs):
        notify("timed out; the jobs continue")
        raise typer.Exit(TIMED_OUT)
    if any(state != "finished" for state in states):
        raise typer.Exit(FAILED)
