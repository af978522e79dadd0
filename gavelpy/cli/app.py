"""`gavel app list`, `show` and `cancel`: hyper-parameter searches (`gavel submit --sweep`), each an app of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import (
    DASH,
    Output,
    TableData,
    compact,
    console,
    count,
    echo_json,
    enum_name,
    printable,
    show_table,
)
from gavelpy.errors import NotFound
from gavelpy.model.apps import AppRole, Direction, HalvingSchedule

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

app = typer.Typer(help="Hyper-parameter searches, of which losing jobs end early.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the app, the newest of this name.")]
AppArgument = Annotated[
    str,
    typer.Argument(
        metavar="APP",
        help="Name of the app, the newest of this name (admins: OWNER/NAME), or the number of one of its jobs.",
    ),
]
_OVER = ("finished", "cancelled", "failed")


@dataclass(frozen=True)
class App:
    """One app and its jobs in order."""

    first: int  # number of its first job
    role: AppRole  # of any of its jobs
    owner: str
    jobs: Sequence[client_pb2.Job]

    @property
    def best(self) -> client_pb2.Job | None:
        """The job with the best last value of the metric; None if no job has reported one."""
        found = [(value, job.job, job) for job in self.jobs if (value := value_of(job)) is not None]
        sign = 1 if self.role.direction is Direction.MIN else -1
        return min(found, key=lambda one: (sign * one[0], one[1]))[2] if found else None


@app.command(name="list")
def list_apps(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Show the apps, oldest first: how many jobs run, wait, have ended, and the best job so far.

    \b
    Examples:
      gavel submit --sweep search.toml
      gavel app list
      gavel app list -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        apps = apps_of(client)
    if output is Output.JSON:
        echo_json({"apps": [_summary(one) for one in apps]})
    elif apps:
        titles = ("app", "owner", "jobs", "running", "waiting", "over", "metric", "best job", "value", "at step")
        rows = [tuple(map(str, _row(one))) for one in apps]
        show_table(TableData(titles, frozenset(titles[2:6]), rows))
    else:
        console().print("No job belongs to an app: gavel submit --sweep FILE.toml submits one.")


@app.command()
def show(
    name: NameArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Show the jobs of an app, best first: the last value of the metric, and why jobs have ended.

    \b
    Examples:
      gavel app show tune
      gavel app show tune -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        found = [one for one in apps_of(client) if one.role.name == name]
    if not found:
        raise NotFound(f"name must be that of an app (gavel app list), got {name!r}")
    shown = found[-1]
    if output is Output.JSON:
        echo_json(_summary(shown) | {"members": [_member(job) for job in shown.jobs]})
        return
    console().print(printable(f"{shown.role.name}: {schedule_in_words(shown.role)}, by {shown.role.metric}"))
    sign = 1 if shown.role.direction is Direction.MIN else -1
    ranked = sorted(shown.jobs, key=lambda job: ((value := value_of(job)) is None, sign * (value or 0.0), job.job))
    rows = [_line(job) for job in ranked]
    titles = ("job", "name", "state", "steps", printable(shown.role.metric), "at step", "why")
    show_table(TableData(titles, frozenset(titles[3:6]), rows))


@app.command()
def cancel(
    name: AppArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Cancel all jobs of an app that are not over: running, waiting and held ones, all together or none.

    When the command returns, this is stored durably. A second call changes nothing.

    \b
    Examples:
      gavel app cancel tune
      gavel app cancel 12
      gavel app cancel tune -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        answer = client.cancel_app(name)
    if output is Output.JSON:
        echo_json({field: getattr(answer, field) for field in ("app", "owner", "first_job", "jobs", "cancelled")})
        return
    over = answer.jobs - answer.cancelled
    before = f"; {over:,} {'was' if over == 1 else 'were'} over before" if over else ""
    console().print(printable(f"{answer.app}: {answer.cancelled:,} of {answer.jobs:,} jobs cancelled{before}"))


def apps_of(client: Client) -> list[App]:
    """All apps that the caller may see, oldest first."""
    members: dict[tuple[str, str, int], list[client_pb2.Job]] = {}
    for job in client.jobs(all_states=True):
        if job.app:
            role = AppRole.parse(job.app)
            members.setdefault((job.owner, role.name, job.job - role.at), []).append(job)
    return [
        App(first, AppRole.parse(jobs[0].app), owner, jobs)
        for (owner, _, first), jobs in sorted(members.items(), key=lambda one: one[0][2])
    ]


def value_of(job: client_pb2.Job) -> float | None:
    """The last value of the metric of its app; None if it has reported none."""
    point = _point(job)
    return None if point is None else point.value


def schedule_in_words(role: AppRole) -> str:
    """How jobs of the bracket end early."""
    if role.schedule is HalvingSchedule.NONE:
        return "no job ends early"
    rungs = ", ".join(f"{rung.keep} continue after {rung.steps:g} steps" for rung in role.rungs)
    limit = f"; a job waits there at most {role.rung_wait_max_s:g} s for the others" if role.rung_wait_max_s else ""
    return f"{role.schedule.replace('_', ' ')} ({rungs}{limit})" if rungs else f"{role.schedule.replace('_', ' ')}"


def in_words(text: str) -> str:
    """The role of a job, for people."""
    role = AppRole.parse(text)
    return printable(
        f"{role.name}, job {role.at + 1} of {role.jobs}, bracket {role.bracket}; {schedule_in_words(role)}, "
        f"by the {'smallest' if role.direction is Direction.MIN else 'largest'} {role.metric}"
    )


def metrics_in_words(metrics: Sequence[client_pb2.JobMetric]) -> str:
    """The last values of a job, for people."""
    return printable(", ".join(f"{one.name} {one.value:.6g} at step {one.step:g}" for one in metrics))


def _point(job: client_pb2.Job) -> client_pb2.JobMetric | None:
    metric = AppRole.parse(job.app).metric
    return next((one for one in job.metrics if one.name == metric), None)


def _state(job: client_pb2.Job) -> str:
    from gavelpy.runtime.wire import client_pb2

    return enum_name(client_pb2.JobState, job.state)


def _summary(one: App) -> dict[str, Any]:  # Any: JSON values
    states = [_state(job) for job in one.jobs]
    best = one.best
    return {
        "app": one.role.name,
        "owner": one.owner,
        "first_job": one.first,
        "jobs": one.role.jobs,
        "running": sum(state in ("starting", "running", "stopping") for state in states),
        "waiting": states.count("waiting"),
        "over": sum(state in _OVER for state in states),
        "metric": one.role.metric,
        "direction": one.role.direction.value,
        "schedule": one.role.schedule.value,
        "best_job": None if best is None else best.job,
        "best_value": None if best is None else value_of(best),
    }


def _row(one: App) -> tuple[object, ...]:
    summary, best = _summary(one), one.best
    point = None if best is None else _point(best)
    shown = (DASH, DASH, DASH) if best is None or point is None else (best.job, f"{point.value:.6g}", f"{point.step:g}")
    counts = (summary[name] for name in ("jobs", "running", "waiting", "over"))
    return printable(one.role.name), printable(one.owner), *counts, printable(one.role.metric), *shown


def _member(job: client_pb2.Job) -> dict[str, Any]:  # Any: JSON values
    point = _point(job)
    return {
        "job": job.job,
        "name": job.name,
        "state": _state(job),
        "bracket": AppRole.parse(job.app).bracket,
        "steps_done": job.steps_done,
        "value": None if point is None else point.value,
        "at_step": None if point is None else point.step,
        "why": job.reason or job.detail,
    }


def _line(job: client_pb2.Job) -> tuple[str, ...]:
    point = _point(job)
    value, step = (DASH, DASH) if point is None else (f"{point.value:.6g}", compact(point.step))
    why = printable(job.reason or job.detail or DASH)
    return str(job.job), printable(job.name), _state(job), count(job.steps_done), value, step, why
