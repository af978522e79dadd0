"""`gavel top`: a live view of the cluster."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import Output, as_json, as_rich, compact, console, duration, echo_json, printable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from rich.console import Group

    from gavelpy.cli.top_view import Frame, TopView
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_JOBS_SHOWN = 40
_LOG_LINES = 1000
_KEY_S = 0.2  # longest wait for a key before the next frame is drawn
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Z]|.", re.DOTALL)
_NAMES = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[D": "left", "\x1bOD": "left",
    "\x1b[5~": "page-up", "\x1b[6~": "page-down", "\n": "enter", "\r": "enter", "\x1b": "escape",
    "\x7f": "backspace", "\b": "backspace",
}  # fmt: skip


def top(
    once: Annotated[bool, typer.Option("--once", help="Print once; the default if stdout is not a terminal.")] = False,
    every: Annotated[float, typer.Option(metavar="S", parser=o.number(0.1, 3600), help="Refresh interval.")] = 1.0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Watch the cluster: GPUs by type, nodes, and your jobs with their progress.

    Keys: up and down select a job, s sorts, r reverses, / filters, e explains the job, l shows its logs, n the nodes,
    Esc goes back, q quits.

    \b
    Examples:
      gavel top
      gavel top --once -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        if output is Output.JSON:
            cluster, nodes, jobs = _fetched(client)
            echo_json(
                {
                    "cluster": as_json(cluster),
                    "nodes": [as_json(node) for node in nodes],
                    "jobs": [as_json(job) for job in jobs],
                }
            )
        elif once or not sys.stdout.isatty():
            console().print(_drawn(client))
        else:
            _watch(client, every, outlasts=timeout is None)


def _watch(client: Client, every_s: float, *, outlasts: bool) -> None:
    """Shows frames until `q`. A thread requests them, so that keys work while the scheduler does not answer."""
    from rich.console import Group
    from rich.live import Live

    from gavelpy.cli.top_view import TopView, lines

    screen = console()
    view, frame = TopView(), _frame(client, TopView(), None)
    request: Future[Frame] | None = None
    next_s, asked = time.monotonic() + every_s, (view.page, view.selected)
    with _keyboard() as keys, Live(console=screen, screen=True, auto_refresh=False) as live:
        while not view.is_over:
            if request is not None and request.done():
                frame = answered(request, frame, outlasts=outlasts)
                request, next_s = None, time.monotonic() + every_s
            live.update(Group(*lines(view, frame, screen.width, screen.height)), refresh=True)
            for key in keys(_KEY_S):
                view = view.after(key, frame, screen.height)
            if request is None and (time.monotonic() >= next_s or asked != (view.page, view.selected)):
                asked = (view.page, view.selected)
                request = _requested(client, view, frame)


def _requested(client: Client, view: TopView, frame: Frame) -> Future[Frame]:
    """The next frame, requested by a thread that does not delay the exit."""
    from concurrent.futures import Future
    from threading import Thread

    from gavelpy.errors import GavelError

    request: Future[Frame] = Future()

    def call() -> None:
        try:
            request.set_result(_frame(client, view, frame))
        except GavelError as error:
            request.set_exception(error)
        finally:
            request.cancel()  # without an answer because of a bug, so that the loop ends

    Thread(target=call, daemon=True).start()
    return request


def answered(request: Future[Frame], last: Frame, *, outlasts: bool) -> Frame:
    """The new frame; during an outage the last one, with a message."""
    from gavelpy.errors import SchedulerUnreachable

    try:
        return request.result()
    except SchedulerUnreachable as error:
        if not outlasts:
            raise
        return replace(last, notice=f"{error}; waiting for it. Last known state:")


def _frame(client: Client, view: TopView, last: Frame | None) -> Frame:
    """The cluster, and what the open page needs of the selected job."""
    from gavelpy.cli.top_view import Frame
    from gavelpy.errors import InvalidInput
    from gavelpy.runtime.wire import client_pb2

    frame = Frame(*_fetched(client))
    job = view.chosen(last or frame)
    if job is None or view.page not in ("logs", "explain"):
        return frame
    try:
        if view.page == "explain":
            return replace(frame, page_of=job.job, detail=client.job(str(job.job)))
        request = client_pb2.ReadLogsRequest(job=str(job.job), rank=-1, tail_lines=_LOG_LINES)
        batches = [message.batch.text for message in client.logs(request) if not message.notice]
        return replace(frame, page_of=job.job, page=[line for batch in batches for line in batch])
    except InvalidInput as error:  # the job is no longer stored
        return replace(frame, notice=str(error))


@contextmanager
def _keyboard() -> Iterator[Callable[[float], list[str]]]:
    """A function that waits for keys and returns their names; without a terminal as stdin, there are none."""
    if not sys.stdin.isatty():
        yield _no_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield lambda seconds: _read_keys(descriptor, seconds)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys(seconds: float) -> list[str]:
    time.sleep(seconds)
    return []


def _read_keys(descriptor: int, seconds: float) -> list[str]:
    """Names of the keys pressed within this time."""
    if not select.select([descriptor], [], [], seconds)[0]:
        return []
    text = os.read(descriptor, 1024).decode(errors="ignore")
    return [_NAMES.get(key, key) for key in _KEY.findall(text)]


def _fetched(
    client: Client,
) -> tuple[client_pb2.GetClusterResponse, list[client_pb2.NodeStatus], list[client_pb2.Job]]:
    return client.cluster(), client.nodes(), client.jobs()


def _drawn(client: Client) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from gavelpy.cli.job_tables import jobs_table
    from gavelpy.cli.nodes import nodes_table

    cluster, nodes, jobs = _fetched(client)
    head = (
        f"{cluster.cluster_name}: policy {cluster.policy}{' (blind)' if cluster.blind else ''}, round {cluster.round} "
        f"ends in {duration(cluster.round_ends_in_s)}; jobs: {cluster.jobs_running:,} running, "
        f"{cluster.jobs_waiting:,} waiting, {cluster.jobs_over:,} over; up for {duration(cluster.uptime_s)}"
    )
    types = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("GPU type", "GPUs", "in use", "marginal value"):
        types.add_column(title, justify="left" if title == "GPU type" else "right")
    for kind in cluster.types:
        types.add_row(printable(kind.gpu_type), str(kind.gpus), str(kind.gpus_in_use), compact(kind.price))
    ordered = sorted(jobs, key=lambda job: (job.lease < 0, job.job))
    more = [Text(f"and {len(jobs) - _JOBS_SHOWN:,} more jobs")] if len(jobs) > _JOBS_SHOWN else []
    trouble = [Text(printable(text)) for text in (cluster.warning, cluster.detail) if text]
    tables = (types, as_rich(nodes_table(nodes)), as_rich(jobs_table(ordered[:_JOBS_SHOWN])))
    return Group(Text(printable(head)), *trouble, *tables, *more)
