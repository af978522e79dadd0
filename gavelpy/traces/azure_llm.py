"""Azure's LLM inference traces (AzurePublicDataset, 2023 and 2024): the load of a service becomes jobs, its replicas.

Columns: TIMESTAMP, ContextTokens, GeneratedTokens, a row for each request, in any order.

The trace states requests and no GPUs, so this rule turns the one into the other; its three numbers are our choice. A
replica has one GPU, which reads 10,000 tokens of prompts or generates 1,000 tokens per second. In each interval of 60 s
the service has the least number of replicas that serve the requests of the interval. Replica i is there while the
number is above i, and each such time is a job: submitted when it begins, with the length as its duration. A step is a
second on every GPU type, as a replica does not end earlier on a faster GPU. A replica that waits for a GPU runs for its
whole duration later, so its waiting time is how long the service lacked it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from gavelpy.model.job import Trace
from gavelpy.traces.durations import JobRow, PastJobs, cells_of, trace_of
from gavelpy.traces.fields import csv_table
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.source import Head, TraceFile
from gavelpy.traces.times import Clock

INTERVAL_S = 60.0
READ_TOKENS_PER_S = 10_000.0  # of prompts, by one GPU
GENERATED_TOKENS_PER_S = 1_000.0
_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TOKENS_MAX = 10_000_000  # of one request
_ROUNDING = 1e-9


class AzureLlmReader:
    """Reads `AzureLLMInferenceTrace_*.csv`."""

    name: ClassVar[str] = "azure_llm"
    title: ClassVar[str] = "Azure's LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens; replicas as jobs"

    def matches(self, head: Head) -> bool:
        """Whether the header has the columns."""
        return set(_COLUMNS) <= head.columns

    def read(self, path: Path, options: ReadOptions) -> Trace:
        """The trace: a job for each time of each replica."""
        source = TraceFile(path)
        clock, requests, busy_s = Clock(options.time_zone), 0, dict[int, float]()
        for place, cell in cells_of(csv_table(source.lines(), source.file), _COLUMNS):
            at_s = clock.seconds("TIMESTAMP", cell["TIMESTAMP"], place)
            read, generated = (place.whole(name, cell[name], 0, _TOKENS_MAX) for name in _COLUMNS[1:])
            interval = int(at_s // INTERVAL_S)
            work_s = read / READ_TOKENS_PER_S + generated / GENERATED_TOKENS_PER_S
            busy_s[interval] = busy_s.get(interval, 0.0) + work_s
            requests += 1
        history = PastJobs(source.file)
        history.notes |= {
            "time_zone": options.time_zone,
            "requests": requests,
            "interval_s": INTERVAL_S,
            "read_tokens_per_s": READ_TOKENS_PER_S,
            "generated_tokens_per_s": GENERATED_TOKENS_PER_S,
        }
        counts = {interval: math.ceil(work / INTERVAL_S - _ROUNDING) for interval, work in busy_s.items()}
        for replica, first, end in spells(counts):
            begin_s, length_s = first * INTERVAL_S, (end - first) * INTERVAL_S
            id = f"replica-{replica}-{begin_s:.0f}"
            history.add(JobRow(id, begin_s, length_s, 1, entity="llm-service"))
        return trace_of(history, self.name, source, replace(options, durations=DurationRule.SECONDS))


def spells(counts: Mapping[int, int]) -> Iterator[tuple[int, int, int]]:
    """Replica, first interval and interval after the last, of each time that a replica is there.

    `counts`: replicas by interval; an interval that is missing has none.

    >>> sorted(spells({0: 1, 1: 2, 2: 1, 5: 1}))
    [(0, 0, 3), (0, 5, 6), (1, 1, 2)]
    """
    began: list[int] = []  # of the replicas that are there, by their number
    for interval, count in _with_gaps(sorted(counts.items())):
        while len(began) > count:
            first = began.pop()
            yield len(began), first, interval
        began += [interval] * (count - len(began))


def _with_gaps(counts: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The intervals in order, with one of no replicas where some are missing, and at the end."""
    end: int | None = None
    for interval, count in counts:
        if end is not None and interval > end:
            yield end, 0
        yield interval, count
        end = interval + 1
    if end is not None:
        yield end, 0
