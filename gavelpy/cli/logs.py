"""`gavel logs` and `gavel events`: what jobs wrote and what the scheduler did, as it was or as it comes."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.formatting import as_json
from gavelpy.cli.log_lines import clock, json_lines, texts
from gavelpy.cli.output import Output, notify, tabbed
from gavelpy.errors import InvalidInput

_ALL_RANKS = -1
_LINES_MAX = 1_000_000


def logs(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", autocompletion=c.complete_job, help="Number or name. Default: all of yours."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come, until the job is over.")] = False,
    rank: Annotated[
        int | None, typer.Option(metavar="N", parser=o.whole(0, 1_000_000), help="Only of this rank. Default: all.")
    ] = None,
    grep: Annotated[str, typer.Option("--grep", metavar="REGEX", help="Only lines that match.")] = "",
    tail: Annotated[
        int, typer.Option("--tail", "-n", metavar="N", parser=o.whole(0, _LINES_MAX), help="The last N; 0 = all.")
    ] = 0,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Say when and where each was written.")
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Print what jobs wrote, gathered from all nodes they ran on. Their stderr goes to stdout, too.

    \b
    Examples:
      gavel logs train -f
      gavel logs 12 --rank 0 --tail 100
      gavel logs --grep 'CUDA out of memory'
    """
    from gavelpy.runtime.wire import client_pb2

    if job is None and not grep and not follow:
        raise InvalidInput("logs needs a JOB, or --grep REGEX or --follow over all of yours; got none of them")
    request = client_pb2.ReadLogsRequest(
        job=job or "",
        rank=_ALL_RANKS if rank is None else rank,
        pattern=grep,
        follow=follow,
        tail_lines=tail,
    )
    reach = c.reconnecting if follow else c.connected
    with reach(scheduler, token_file, timeout) as client:
        for message in client.logs(request):
            if message.notice and output is Output.TABLE:
                notify(f"note: {message.notice}")
                continue
            lines = json_lines(message) if output is Output.JSON else texts(message.batch, job is None, timestamps)
            if lines:
                _line("\n".join(lines))


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as they happen.")] = False,
    after: Annotated[
        int, typer.Option(metavar="N", parser=o.whole(0, 2**62), help="Only those with a larger number.")
    ] = 0,
    job: Annotated[
        str, typer.Option(metavar="JOB", autocompletion=c.complete_job, help="Only those of this job.")
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", parser=o.whole(0, _LINES_MAX), help="At most so many; 0 = 1000."),
    ] = 0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Print what happened, from the scheduler's journal, oldest first; with -o json a JSON object a line.

    \b
    Examples:
      gavel events --follow
      gavel events --job train
      gavel events --after 1200 -o json
    """
    reach = c.reconnecting if follow else c.connected
    with reach(scheduler, token_file, timeout) as client:
        for event in client.events(after=after, follow=follow, events_max=limit, job=job):
            if output is Output.JSON:
                fields = json.loads(event.json) if event.json else {}
                _line(json.dumps({**as_json(event), "json": fields}))
            else:
                _line(tabbed(event.sequence, clock(event.time_s), event.kind, event.text))


def _line(text: str) -> None:
    """At once: who follows waits for it."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
