"""`gavel logs` and `gavel events`: print the output of jobs and the scheduler's journal."""

from __future__ import annotations

import json
import math
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import Output, as_json, json_line, notify, printable, tabbed
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2, log_pb2

_ALL_RANKS = -1
_LINES_MAX = 1_000_000
_NO_ORIGIN = {"job": 0, "job_name": "", "lease": 0, "rank": 0, "is_error_stream": False, "node_id": ""}


def logs(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", autocompletion=c.complete_job, help="Number or name. Default: all of your jobs."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until the job is over.")
    ] = False,
    rank: Annotated[
        int | None, typer.Option(metavar="N", parser=o.whole(0, 1_000_000), help="Only this rank. Default: all.")
    ] = None,
    grep: Annotated[
        str, typer.Option("--grep", metavar="REGEX", help="Only lines that match a regular expression (RE2 syntax).")
    ] = "",
    tail: Annotated[
        int, typer.Option("--tail", "-n", metavar="N", parser=o.whole(0, _LINES_MAX), help="Last N lines; 0 = all.")
    ] = 0,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", "-t", help="Print time, node, lease and rank of each line.")
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Print the output of jobs from all nodes, stdout and stderr, ordered by time.

    \b
    Examples:
      gavel logs train -f
      gavel logs 12 --rank 0 --tail 100
      gavel logs --grep 'CUDA out of memory'
    """
    from gavelpy.runtime.wire import client_pb2

    if job is None and not grep and not follow:
        raise InvalidInput("logs needs a JOB, or --grep REGEX or --follow for all of your jobs; got none of them")
    request = client_pb2.ReadLogsRequest(
        job=job or "",
        rank=_ALL_RANKS if rank is None else rank,
        pattern=grep,
        follow=follow,
        tail_lines=tail,
    )
    connection = c.reconnecting if follow else c.connected
    with connection(scheduler, token_file, timeout) as client:
        for message in client.logs(request):
            if message.notice and output is Output.TABLE:
                notify(f"note: {message.notice}")
                continue
            lines = _as_json(message) if output is Output.JSON else _as_text(message.batch, job is None, timestamps)
            if lines:
                _print("\n".join(lines))


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    after: Annotated[
        int, typer.Option(metavar="N", parser=o.whole(0, 2**62), help="Only events with a larger number.")
    ] = 0,
    job: Annotated[
        str, typer.Option(metavar="JOB", autocompletion=c.complete_job, help="Only events of this job.")
    ] = "",
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", parser=o.whole(0, _LINES_MAX), help="At most N; 0 = 1000."),
    ] = 0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Print the events of the scheduler's journal, oldest first; with -o json one JSON object per line.

    \b
    Examples:
      gavel events --follow
      gavel events --job train
      gavel events --after 1200 -o json
    """
    connection = c.reconnecting if follow else c.connected
    with connection(scheduler, token_file, timeout) as client:
        for event in client.events(after=after, follow=follow, events_max=limit, job=job):
            if output is Output.JSON:
                fields = json.loads(event.json) if event.json else {}
                _print(json_line({**as_json(event), "json": fields}))
            else:
                _print(tabbed(event.sequence, _local_time(event.time_s), event.kind, event.text))


def _as_text(batch: log_pb2.LogBatch, with_job: bool, with_time: bool) -> list[str]:
    """One line of output per line of a log. Prefixes are made once per origin, not per line."""
    prefixes = [_prefix(origin, with_job, with_time) for origin in batch.origins]
    texts = list(batch.text)
    if not "".join(texts).replace("\t", "").isprintable():
        texts = ["\t".join(map(printable, text.split("\t"))) for text in texts]  # no control characters but tabs
    if with_time:
        rows = zip(batch.time_s, batch.origin, texts, strict=True)
        return [f"{_local_time(time_s)} {prefixes[origin]}{text}" for time_s, origin, text in rows]
    if not any(prefixes):
        return texts
    return [prefixes[origin] + text for origin, text in zip(batch.origin, texts, strict=True)]


def _as_json(message: client_pb2.ReadLogsResponse) -> list[str]:
    """One JSON object per line of a log, or one for a notice."""
    if message.notice:
        return [json_line({**_NO_ORIGIN, "text": "", "time_s": 0.0, "notice": message.notice})]
    batch = message.batch
    origins = [{name: getattr(origin, name) for name in _NO_ORIGIN} for origin in batch.origins]
    return [
        json_line({**origins[origin], "text": text, "time_s": time_s if math.isfinite(time_s) else None, "notice": ""})
        for origin, time_s, text in zip(batch.origin, batch.time_s, batch.text, strict=True)
    ]


def _prefix(origin: log_pb2.LogOrigin, with_job: bool, with_time: bool) -> str:
    where = f"{origin.node_id} lease {origin.lease} " if with_time else ""
    job = f"{origin.job_name} " if with_job else ""
    rank = f"[{origin.rank}] " if origin.rank > 0 or with_time else ""
    return printable(f"{where}{job}{rank}")


def _local_time(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()  # --follow into a pipe
