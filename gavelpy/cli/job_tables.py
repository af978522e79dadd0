"""Tables of jobs: those of `gavel jobs` and `status`, of jobs that are over, and in order of priority."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from gavelpy.cli.output import (
    DASH,
    TableData,
    compact,
    count,
    duration,
    enum_name,
    percent,
    printable,
    timestamp,
)

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2


def jobs_table(found: Iterable[client_pb2.Job], *, expand: bool = True) -> TableData:
    """One row per job; unless `expand`, one for all jobs of an array that are in the same state.

    If there are jobs of several priority classes, a column shows them.
    """
    titles: tuple[str, ...] = ("job", "name", "owner", "state", "GPUs", "on", "steps", "done", "steps/s", "why")
    groups = [[job] for job in found] if expand else _by_array_and_state(found)
    rows = [_row(group) for group in groups]
    if len({group[0].priority for group in groups}) > 1:
        titles = (*titles[:3], "class", *titles[3:])
        classes = [printable(group[0].priority) for group in groups]
        rows = [(*row[:3], name, *row[3:]) for row, name in zip(rows, classes, strict=True)]
    return TableData(titles, frozenset(("job", "GPUs", "steps", "done", "steps/s")), rows)


def _by_array_and_state(found: Iterable[client_pb2.Job]) -> list[list[client_pb2.Job]]:
    """Jobs of one array, owner and state together, in the order of the first of each."""
    groups: dict[tuple[int, int], list[client_pb2.Job]] = {}
    for job in found:
        key = (job.array_first, job.state) if job.array_size else (-1 - job.job, 0)
        groups.setdefault(key, []).append(job)
    return list(groups.values())


def _row(jobs: Sequence[client_pb2.Job]) -> tuple[str, ...]:
    """The row of a job, or of several of one array: their numbers, and the sums of steps and rates."""
    from gavelpy.runtime.wire import client_pb2

    job, is_one = jobs[0], len(jobs) == 1
    reasons = Counter(each.reason or (each.detail if each.lease < 0 else "") for each in jobs)  # of its previous lease
    why, how_often = reasons.most_common(1)[0]
    state, rate = enum_name(client_pb2.JobState, job.state), sum(each.rate_steps_per_s for each in jobs)
    nodes = ", ".join(dict.fromkeys(node for each in jobs for node in each.node_ids))
    types = ", ".join(dict.fromkeys(each.gpu_type for each in jobs if each.gpu_type))
    return (
        numbers([each.job for each in jobs]),
        printable(job.name if is_one else f"{_prefix([each.name for each in jobs])}*"),
        printable(job.owner),
        state if is_one else f"{state} x{len(jobs)}",
        gpus_cell(job) if is_one else f"{len(jobs)}x{gpus_cell(job)}",
        printable(f"{types} {nodes}{_beside(jobs)}".strip() or DASH),
        "?" if any(each.total_open for each in jobs) else count(sum(each.steps_total for each in jobs)),
        done(jobs),
        compact(rate) if rate > 0 else DASH,
        printable(why if how_often == len(jobs) or not why else f"{why} ({how_often} of {len(jobs)})"),
    )


def gpus_cell(job: client_pb2.Job) -> str:
    """The GPUs of a job's lease, else those that it requests; of several numbers, all of them, too: `2 of 1,2,4`."""
    if not job.sizes:
        return str(job.gpus)
    return f"{job.gpus} of {sizes_text(job.sizes)}" if job.lease >= 0 else sizes_text(job.sizes)


def sizes_text(sizes: Sequence[int]) -> str:
    """Ascending numbers of GPUs: `1,2,4,8`, or `1..8` of all from 1 to 8."""
    is_range = len(sizes) > 2 and sizes[-1] - sizes[0] == len(sizes) - 1
    return f"{sizes[0]}..{sizes[-1]}" if is_range else ",".join(map(str, sizes))


def _beside(jobs: Sequence[client_pb2.Job]) -> str:
    """The jobs that share GPUs with these."""
    others = sorted({other for job in jobs for other in job.co_located_with})
    return f" with {numbers(others)}" if others else ""


def _prefix(names: Sequence[str]) -> str:
    """The beginning that all names have in common."""
    first, last = min(names), max(names)
    return first[: next((i for i, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first))]


def numbers(serials: Sequence[int]) -> str:
    """Ascending numbers as ranges: `3-9,12`."""
    runs: list[list[int]] = []
    for serial in serials:
        if runs and serial == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], serial]
        else:
            runs.append([serial])
    return ",".join("-".join(map(str, run)) for run in runs)


def ended_table(found: Iterable[client_pb2.Job]) -> TableData:
    """One row per job that is over, with its times and GPU-hours."""
    from gavelpy.runtime.wire import client_pb2

    titles = ("job", "name", "owner", "state", "GPUs", "submitted", "waited", "ended", "leases", "GPU-hours", "why")
    rows = [
        (
            str(job.job),
            printable(job.name),
            printable(job.owner),
            enum_name(client_pb2.JobState, job.state),
            gpus_cell(job),
            timestamp(job.submitted_at_s),
            duration(job.started_at_s - job.submitted_at_s) if job.started_at_s else DASH,
            timestamp(job.ended_at_s),
            str(job.restarts + 1 if job.started_at_s else 0),
            f"{job.gpu_s / 3600:,.2f}",
            printable(job.detail),
        )
        for job in found
    ]
    return TableData(titles, frozenset(("job", "GPUs", "waited", "leases", "GPU-hours")), rows)


def priority_table(found: Iterable[client_pb2.Job]) -> TableData:
    """One row per job that is not over, with the figures that order them."""
    from gavelpy.runtime.wire import client_pb2

    titles = ("job", "name", "owner", "state", "GPUs", "class", "weight", "share", "owed", "received", "lag", "urgency",
              "why")  # fmt: skip
    rows = [
        (
            str(job.job),
            printable(job.name),
            printable(job.owner),
            enum_name(client_pb2.JobState, job.state),
            gpus_cell(job),
            printable(job.priority),
            f"{job.weight:g}",
            f"{100 * job.share:.1f} %",
            duration(job.owed_s),
            duration(job.received_s),
            f"{'-' if job.owed_s < job.received_s else ''}{duration(abs(job.owed_s - job.received_s))}",
            compact(job.urgency),
            printable(job.reason),
        )
        for job in found
    ]
    return TableData(titles, frozenset(titles[6:12]) | {"job", "GPUs"}, rows)


def done(jobs: Sequence[client_pb2.Job]) -> str:
    """Progress in percent, or in steps if their number is not known yet; with ~ if it is estimated."""
    steps, total = sum(job.steps_done for job in jobs), sum(job.steps_total for job in jobs)
    figure = f"{count(steps)} steps" if any(job.total_open for job in jobs) else percent(steps, total)
    return f"{'~' if any(job.steps_estimated for job in jobs) else ''}{figure}"
