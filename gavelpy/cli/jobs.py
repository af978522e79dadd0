"""`gavel jobs`, `status`, `explain` and `cancel`: lists, explains and cancels jobs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.app import in_words, metrics_in_words
from gavelpy.cli.job_tables import ended_table, jobs_table, priority_table, sizes_text
from gavelpy.cli.output import (
    Output,
    as_json,
    compact,
    console,
    count,
    duration,
    echo_json,
    echo_json_list,
    enum_name,
    percent,
    printable,
    show_table,
    timestamp,
    with_interval,
)
from gavelpy.cli.usage import since as parse_since
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from gavelpy.runtime.wire import client_pb2

_OVER = ("finished", "cancelled", "failed")
_STATES = ("waiting", "starting", "running", "stopping", "finished", "cancelled", "failed")


def job_state(text: str) -> str:
    """A state of a job; raises BadParameter."""
    if text not in _STATES:
        raise typer.BadParameter(f"must be one of {', '.join(_STATES)}, got {text[:60]!r}")
    return text


def jobs(
    all_states: Annotated[
        bool, typer.Option("--all", "-a", help="Include finished, failed and cancelled jobs.")
    ] = False,
    state: Annotated[
        list[str] | None, typer.Option(metavar="STATE", parser=job_state, help="Only jobs in this state. Repeatable.")
    ] = None,
    ended: Annotated[
        bool, typer.Option("--ended", help="Only jobs that are over, with their times and GPU-hours.")
    ] = False,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="TIME",
            parser=parse_since,
            help="With --ended or --all: without jobs that ended before. "
            "A duration like 12h or 7d, or a local date like 2026-11-01.",
        ),
    ] = None,
    priority: Annotated[
        bool, typer.Option("--priority", help="In order of class and urgency, with share, time owed, received and lag.")
    ] = False,
    owner: Annotated[str, typer.Option(metavar="NAME", help="Only jobs of this user. For admins.")] = "",
    expand: Annotated[
        bool,
        typer.Option("--expand", "--array", help="One line for each job of an array, not one for those in a state."),
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """List your unfinished jobs, or all with --all. Admins see the jobs of all users.

    \b
    Examples:
      gavel jobs
      gavel jobs --state waiting --state running
      gavel jobs --all -o json
      gavel jobs --ended --since 7d
      gavel jobs --priority
      gavel jobs --expand
    """
    from gavelpy.runtime.wire import client_pb2

    if ended and (all_states or state or priority):
        raise InvalidInput("--ended selects states itself: leave out --all, --state and --priority")
    if priority and all_states:
        raise InvalidInput("--priority orders jobs that are not over: leave out --all")
    if since is not None and not (ended or all_states):
        raise InvalidInput("--since selects by the end of jobs: add --ended or --all")
    if expand and (ended or priority or output is Output.JSON):
        raise InvalidInput(
            "--expand is for the table of jobs: --ended, --priority and -o json have each job of an array"
        )
    names = _OVER if ended else state or []
    states = [client_pb2.JobState.Value(f"JOB_STATE_{name.upper()}") for name in names]
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.jobs(states=states, all_states=all_states, owner=owner, ended_since_s=since or 0.0)
    if priority:
        found.sort(key=lambda job: (job.priority_rank, -job.urgency, job.job))
    if output is Output.JSON:
        echo_json_list("jobs", [as_json(job) for job in found], c.staleness(client))
    else:
        show_table(
            ended_table(found) if ended else priority_table(found) if priority else jobs_table(found, expand=expand)
        )


def status(
    names: c.JobsArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Show the state of jobs, one line per job.

    \b
    Examples:
      gavel status 12
      gavel status train evaluate -o json
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = list(client.wait(names, wait_s=0.0).jobs)
    if output is Output.JSON:
        echo_json_list("jobs", [as_json(job) for job in found], c.staleness(client))
    else:
        show_table(jobs_table(found))


def explain(
    name: c.JobArgument,
    environment: Annotated[
        bool,
        typer.Option("--environment", help="Show the variables that you set for the job, with their values."),
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Show a job in detail: why it waits, time owed and received, expected start and end, history.

    \b
    Examples:
      gavel explain 12
      gavel explain train -o json
      gavel explain train --environment
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.job(name, environment=environment)
    if output is Output.JSON:
        echo_json(as_json(found) | c.staleness(client))
        return
    if environment:
        _show_environment(found.description)
        return
    out = console()
    for line in _sentences(found):
        out.print(printable(line))
    if found.accounts:
        out.print(_accounts_table(found.accounts))
    if found.sizes:
        out.print(_sizes_table(found.sizes))
    out.print("History:")
    for line in found.history:
        out.print(f"  {printable(line)}")


def _show_environment(description: client_pb2.JobDescription) -> None:
    """One line per variable, as for a shell. The scheduler does not have the values of secrets."""
    for name, value in sorted(description.environment.items()):
        typer.echo(f"{name}={printable(shlex.quote(value))}")
    for variable, secret in sorted(description.secrets.items()):
        typer.echo(f"# {variable} from the secret {secret}")


def explanation(found: client_pb2.GetJobResponse) -> list[str]:
    """The same as lines of text."""
    accounts = [
        f"{account.gpu_type}: {compact(account.rate_steps_per_s)} steps/s, share {100 * account.share:.1f} %, owed "
        f"{duration(account.owed_s)}, received {duration(account.received_s)}, marginal value {compact(account.price)}"
        for account in found.accounts
    ]
    accounts += [
        f"{size.gpus} {size.gpu_type}: {compact(size.rate_steps_per_s)} steps/s, share {100 * size.share:.1f} %, owed "
        f"{duration(size.owed_s)}, received {duration(size.received_s)}"
        for size in found.sizes
    ]
    return [*_sentences(found), *accounts, "History:", *(f"  {line}" for line in found.history)]


def _sentences(found: client_pb2.GetJobResponse) -> list[str]:
    from gavelpy.runtime.wire import client_pb2

    job = found.job
    state = enum_name(client_pb2.JobState, job.state)
    where = f" on {job.gpu_type} of {', '.join(job.node_ids)} under lease {job.lease}" if job.lease >= 0 else ""
    where += "".join(f", shared with job {other}" for other in job.co_located_with)
    requested = found.description.gpus or job.gpus
    gpus = "1 GPU" if requested == 1 else f"{requested} GPUs"
    if job.sizes:
        gpus += f", runs on {sizes_text(job.sizes)}{f', has {job.gpus} now' if job.lease >= 0 else ''}"
    team = f"team {printable(job.entity)}, " if job.entity else ""
    steps = f"{count(job.steps_done)} of {count(job.steps_total)} steps ({percent(job.steps_done, job.steps_total)})"
    if job.total_open:
        steps = f"{count(job.steps_done)} steps; how many there are in all is not known yet"
    if job.steps_estimated:
        steps = f"about {steps}, an estimate by time as the job reports none"
    saved = f"{count(job.steps_saved)} of them in a checkpoint" if job.steps_saved else "none in a checkpoint"
    lines = [
        f"job {job.job} ({job.name}) of {job.owner}: {state}{where}",
        *([f"Why: {job.reason}."] if job.reason else []),
        f"Requests {gpus}, weight {job.weight:g}, {team}priority class {printable(job.priority)}; "
        f"command {found.description.command!r}.",
        *_software(found.description),
        *_plans(found.description),
        *([f"Value of completion: {value}."] if (value := found.description.completion_value) else []),
        *_variables(found.description),
        *_notifications(found.description),
        f"Done: {steps}; {saved}; leases: {job.restarts + 1 if job.started_at_s else 0}, failures: {job.failures}.",
        f"Submitted {timestamp(job.submitted_at_s)}, first started {timestamp(job.started_at_s)}, "
        f"ended {timestamp(job.ended_at_s)}.",
    ]
    limits = _limits(found)
    if limits:
        lines.append(f"Limits: {'; '.join(limits)}.")
    if job.failure:
        lines.append(f"Last failure: {job.failure}.")
    if job.preemptible_why and not job.ended_at_s:
        cost = f"; {found.preemption_cost}" if found.preemption_cost else ""
        lines.append(f"Preemption: {job.preemptible_why}{cost}.")
    if job.held_by and job.lease >= 0:
        lines.append(f"Held by its {job.held_by}: it gets no other lease once it loses this one, until its release.")
    if job.array_size:
        last, limit = job.array_first + job.array_size - 1, f", {job.array_limit} at once" if job.array_limit else ""
        lines.append(f"Array: jobs {job.array_first} to {last}{limit}.")
    lines += [f"App: {in_words(job.app)}."] if job.app else []
    lines += [f"Metrics: {metrics_in_words(job.metrics)}."] if job.metrics else []
    lines += [f"After: {', '.join(job.after)}."] if job.after else []
    if found.start_in_s >= 0 or found.finish_in_s >= 0:
        start = with_interval(found.start_in_s, found.start_low_s, found.start_high_s)
        end = with_interval(found.finish_in_s, found.finish_low_s, found.finish_high_s)
        lines.append(f"Expected to {'' if job.lease >= 0 else f'start in {start} and '}end in {end}.")
    if found.forecast:
        lines.append(f"Forecast: {found.forecast}.")
    if found.checkpoint:
        lines.append(f"{'Last checkpoint:' if job.ended_at_s else 'Would resume from'} {found.checkpoint}.")
    if job.detail:
        lines.append(f"Last event: {job.detail}")
    lines += [f"Note: {note}." for note in found.notes]
    return lines


def _software(description: client_pb2.JobDescription) -> list[str]:
    """A line with what the job runs with, if it is not only the software of its node."""
    parts = [f"{field.name} {value}" for field, value in description.software.ListFields()]
    return [printable(f"Runs with {', '.join(parts)}.")] if parts else []


def _plans(description: client_pb2.JobDescription) -> list[str]:
    """A line with the plans by number of GPUs, if there are any."""
    plans = ", ".join(f"{plan} on {gpus}" for gpus, plan in sorted(description.plans.items()))
    return [printable(f"Plans by number of GPUs: {plans}.")] if plans else []


def _limits(found: client_pb2.GetJobResponse) -> list[str]:
    """Where and how long a job may run, and what it needs of its nodes."""
    job = found.job
    limits = [f"runs on {' or '.join(found.description.gpu_types)} only"] if found.description.gpu_types else []
    limits += [f"runs on {' or '.join(found.description.nodes)} only"] if found.description.nodes else []
    needs = ((found.description.cpus_per_gpu, "CPU cores"), (found.description.memory_gib_per_gpu, "GiB of memory"))
    limits += [f"needs {amount:g} {what} per GPU" for amount, what in needs if amount]
    limits += [f"excluded from {', '.join(found.description.exclude)}"] if found.description.exclude else []
    limits += [f"runs within reservation {found.description.reservation} only"] if job.reservation else []
    if found.description.time_s:
        limits.append(f"running time {duration(job.ran_s)} of at most {duration(found.description.time_s)}")
    if found.description.stall_s:
        limits.append(f"ended after {duration(found.description.stall_s)} without progress")
    return limits


def _variables(description: client_pb2.JobDescription) -> list[str]:
    """A line with the variables that the owner set, as the scheduler answers them, and the secrets."""
    shown = [f"{name}={value}" for name, value in sorted(description.environment.items())]
    shown += [f"{variable} from the secret {name}" for variable, name in sorted(description.secrets.items())]
    return [printable(f"Variables: {', '.join(shown)}.")] if shown else []


def _notifications(description: client_pb2.JobDescription) -> list[str]:
    """A line with the requested notifications, if there are any."""
    notify = description.notify
    receivers = " and ".join(part for part in (notify.webhook, notify.mail) if part)
    return [printable(f"Notifies of {', '.join(notify.kinds)}: {receivers}.")] if notify.kinds else []


def _accounts_table(accounts: Sequence[client_pb2.TypeAccount]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("GPU type", "steps/s", "share", "owed", "received", "marginal value"):
        table.add_column(title, justify="left" if title == "GPU type" else "right")
    for account in accounts:
        table.add_row(
            printable(account.gpu_type),
            compact(account.rate_steps_per_s),
            f"{100 * account.share:.1f} %",
            duration(account.owed_s),
            duration(account.received_s),
            compact(account.price),
        )
    return table


def _sizes_table(sizes: Sequence[client_pb2.SizeAccount]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("GPUs", "GPU type", "steps/s", "share", "owed", "received"):
        table.add_column(title, justify="left" if title == "GPU type" else "right")
    for size in sizes:
        table.add_row(
            str(size.gpus),
            printable(size.gpu_type),
            compact(size.rate_steps_per_s),
            f"{100 * size.share:.1f} %",
            duration(size.owed_s),
            duration(size.received_s),
        )
    return table
