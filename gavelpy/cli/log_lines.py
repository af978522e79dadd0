"""Batches of lines of logs as text and as JSON: what is the same for many lines is worked out once."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

from gavelpy.cli.output import printable

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2, log_pb2


def texts(batch: log_pb2.LogBatch, is_named: bool, has_times: bool) -> list[str]:
    """A line each; with whose it is, or when and where it was written, if that is asked for."""
    prefixes = [_prefix(origin, is_named, has_times) for origin in batch.origins]
    told = list(batch.text)
    if not "".join(told).replace("\t", "").isprintable():
        told = [_text(text) for text in told]
    if has_times:
        rows = zip(batch.time_s, batch.origin, told, strict=True)
        return [f"{clock(time_s)} {prefixes[origin]}{text}" for time_s, origin, text in rows]
    if not any(prefixes):
        return told
    return [prefixes[origin] + text for origin, text in zip(batch.origin, told, strict=True)]


def json_lines(message: client_pb2.ReadLogsResponse) -> list[str]:
    """A JSON object a line of a log, or a notice."""
    if message.notice:
        return [json.dumps({**_NOWHERE, "text": "", "time_s": 0.0, "notice": message.notice})]
    batch = message.batch
    origins = [
        {
            "job": origin.job,
            "job_name": origin.job_name,
            "lease": origin.lease,
            "rank": origin.rank,
            "is_error_stream": origin.is_error_stream,
            "node_id": origin.node_id,
        }
        for origin in batch.origins
    ]
    return [
        json.dumps({**origins[origin], "text": text, "time_s": time_s if math.isfinite(time_s) else None, "notice": ""})
        for origin, time_s, text in zip(batch.origin, batch.time_s, batch.text, strict=True)
    ]


def clock(unix_s: float) -> str:
    """Local date and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


_NOWHERE = {"job": 0, "job_name": "", "lease": 0, "rank": 0, "is_error_stream": False, "node_id": ""}


def _prefix(origin: log_pb2.LogOrigin, is_named: bool, has_times: bool) -> str:
    where = f"{origin.node_id} lease {origin.lease} " if has_times else ""
    whose = f"{origin.job_name} " if is_named else ""
    rank = f"[{origin.rank}] " if origin.rank > 0 or has_times else ""
    return printable(f"{where}{whose}{rank}")


def _text(text: str) -> str:
    """A log's own line: its tabs stay, what would command the terminal does not."""
    return "\t".join(printable(part) for part in text.split("\t"))
