"""`gavel cancel`, `hold`, `release`, `requeue` and `update`: what people order about jobs, by name or by selection."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.job_tables import jobs_table
from gavelpy.cli.jobs import job_state
from gavelpy.cli.output import Output, as_json, echo_json_list, enum_name, notify, show_table, tabbed
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_SELECTION = "Selection (jobs to which all of these apply)"
_CANCEL_AT_ONCE = 10_000


def cancel(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB...]", autocompletion=c.complete_job, help="Job numbers or names."),
    ] = None,
    user: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_SELECTION, help="Of this user. For admins.")
    ] = "",
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", parser=job_state, rich_help_panel=_SELECTION, help="In this state. Repeatable."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="PATTERN", rich_help_panel=_SELECTION, help="With such a name, e.g. 'sweep-*'.")
    ] = "",
    array: Annotated[
        int | None,
        typer.Option(
            metavar="JOB", parser=o.whole(0, 2**62), rich_help_panel=_SELECTION, help="Of the array with this job."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before a selection is cancelled.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the jobs that would be cancelled.")] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Cancel jobs: stop them for good. Jobs that are over stay as they are.

    With a selection instead of jobs, the command shows how many there are, and requires a confirmation or --yes.

    \b
    Examples:
      gavel cancel 12 13
      gavel cancel train
      gavel cancel --name 'sweep-*' --state waiting
      gavel cancel --user ann --dry-run
    """
    is_selection = bool(user or state or name or array is not None)
    if bool(names) == is_selection:
        got = "both" if names else "neither"
        raise InvalidInput(f"give jobs, or a selection (--user, --state, --name or --array), got {got}")
    with c.connected(scheduler, token_file, timeout) as client:
        if not is_selection and not dry_run:
            _show_cancelled(client.cancel(names or []), output)
            return
        found = selected(client, user, state or [], name, array) if is_selection else _named(client, names or [])
        if dry_run:
            _show_selected(found, output)
        elif _may_cancel(found, yes=yes):
            numbers = [str(job.job) for job in found]
            parts = [numbers[k : k + _CANCEL_AT_ONCE] for k in range(0, len(numbers), _CANCEL_AT_ONCE)]
            _show_cancelled([job for part in parts for job in client.cancel(part)], output)


def selected(client: Client, user: str, states: Sequence[str], pattern: str, array: int | None) -> list[client_pb2.Job]:
    """Unfinished jobs of the caller, or of that user, in these states, with such a name, and of that array."""
    from gavelpy.runtime.client.connection import is_over
    from gavelpy.runtime.wire import client_pb2

    codes = [client_pb2.JobState.Value(f"JOB_STATE_{state.upper()}") for state in states]
    found = [job for job in client.jobs(states=codes, owner=user) if not is_over(job)]
    if pattern:
        found = [job for job in found if fnmatchcase(job.name, pattern)]
    if array is not None:
        found = [job for job in found if job.array_size and 0 <= array - job.array_first < job.array_size]
    return found


def _named(client: Client, names: Sequence[str]) -> list[client_pb2.Job]:
    from gavelpy.runtime.client.connection import is_over

    return [job for job in client.wait(names, wait_s=0.0).jobs if not is_over(job)]


def _may_cancel(found: Sequence[client_pb2.Job], *, yes: bool) -> bool:
    """Whether a selection may be cancelled, as confirmed on the terminal. Raises InvalidInput without one."""
    owners = sorted({job.owner for job in found})
    of = f" of {owners[0]}" if len(owners) == 1 else f" of {len(owners)} users" if owners else ""
    what = f"{len(found):,} {'job' if len(found) == 1 else 'jobs'}{of}"
    if not found:
        notify("no unfinished job is selected")
        return False
    if yes:
        return True
    if not sys.stdin.isatty():
        raise InvalidInput(f"a selection needs --yes where there is no terminal to ask; it has {what}")
    return typer.confirm(f"Cancel {what}?", err=True)


def _show_selected(found: Sequence[client_pb2.Job], output: Output) -> None:
    if output is Output.JSON:
        echo_json_list("jobs", [as_json(job) for job in found])
        return
    notify(f"would cancel {len(found):,} {'job' if len(found) == 1 else 'jobs'}")
    if found:
        show_table(jobs_table(found))


def _show_cancelled(found: Sequence[client_pb2.Job], output: Output) -> None:
    if output is Output.JSON:
        echo_json_list("jobs", [as_json(job) for job in found])
        return
    from gavelpy.runtime.wire import client_pb2

    for job in found:
        typer.echo(tabbed(job.job, job.name, enum_name(client_pb2.JobState, job.state)))


def hold(
    names: c.JobsArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Hold jobs back: they get no GPUs until `gavel release`. A job that runs keeps running.

    If an admin holds a job of another user, only admins can release it.

    \b
    Examples:
      gavel hold 12 13
      gavel hold train
    """
    from gavelpy.runtime.wire import client_pb2

    with c.connected(scheduler, token_file, timeout) as client:
        _show_changed(client.change_jobs(names, client_pb2.JOB_CHANGE_HOLD), output)


def release(
    names: c.JobsArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Release jobs that are held, by `gavel hold` or `gavel submit --hold`.

    \b
    Examples:
      gavel release 12 13
      gavel release train
    """
    from gavelpy.runtime.wire import client_pb2

    with c.connected(scheduler, token_file, timeout) as client:
        _show_changed(client.change_jobs(names, client_pb2.JOB_CHANGE_RELEASE), output)


def requeue(
    names: c.JobsArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also jobs that never saved a checkpoint; they start from scratch.")
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Put running jobs back into the queue: they save, stop, and compete for GPUs again.

    A job may get its GPUs again at once; hold it first to keep it from starting.

    \b
    Examples:
      gavel requeue 12
      gavel hold train && gavel requeue train
    """
    from gavelpy.runtime.wire import client_pb2

    with c.connected(scheduler, token_file, timeout) as client:
        _show_changed(client.change_jobs(names, client_pb2.JOB_CHANGE_REQUEUE, force=force), output)


def update(
    names: c.JobsArgument,
    priority: Annotated[str, typer.Option(metavar="CLASS", help="Priority class to move the jobs to.")] = "",
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Move jobs that are not over to another priority class; it counts from the next plan on.

    The class must be open to the owner of the jobs; admins may choose any class.

    \b
    Examples:
      gavel update 12 13 --priority high
      gavel update train --priority normal
    """
    from gavelpy.runtime.wire import client_pb2

    if not priority:
        raise InvalidInput("--priority must be given; nothing else of a job can change, got none")
    with c.connected(scheduler, token_file, timeout) as client:
        _show_changed(client.change_jobs(names, client_pb2.JOB_CHANGE_PRIORITY, priority=priority), output)


def _show_changed(found: Sequence[client_pb2.ChangedJob], output: Output) -> None:
    """One line per job, and notes on stderr."""
    if output is Output.JSON:
        echo_json_list("jobs", [{**as_json(changed.job), "note": changed.note} for changed in found])
        return
    from gavelpy.runtime.wire import client_pb2

    for changed in found:
        job = changed.job
        state = enum_name(client_pb2.JobState, job.state)
        typer.echo(tabbed(job.job, job.name, f"{state}, held" if job.held_by else state))
        if changed.note:
            notify(f"note: job {job.job} ({job.name}): {changed.note}")
