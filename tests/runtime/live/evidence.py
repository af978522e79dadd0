"""The records of witness jobs: each process writes, line by line, where it ran, what it resumed and what it saved.

The verdict depends on these lines only, not on any report of the scheduler.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

SILENT_S = 1.5  # a witness that writes nothing for this long was frozen


@dataclass(frozen=True)
class Line:
    """One observation, at a time of CLOCK_BOOTTIME."""

    at_s: float
    kind: str  # began, ran, saved, stopped, finished
    job: int
    lease: int
    rank: int
    node: str
    gpus: tuple[str, ...]
    steps: int


@dataclass(frozen=True)
class Stay:
    """An uninterrupted run of one process of a job."""

    job: int
    lease: int
    rank: int
    node: str
    gpus: tuple[str, ...]
    first_s: float
    last_s: float


def read(directory: Path) -> list[Line]:
    """Every complete line of every witness, in order of time."""
    lines = []
    for path in sorted(directory.glob("*.evidence")):
        whole, _, _torn = path.read_text().rpartition("\n")
        lines += [_line(text) for text in whole.splitlines()]
    return sorted(lines, key=lambda line: line.at_s)


def _line(text: str) -> Line:
    at_s, kind, job, lease, rank, node, gpus, steps = text.split(" ")
    return Line(float(at_s), kind, int(job), int(lease), int(rank), node, tuple(gpus.split(",")), int(steps))


def stays(lines: list[Line]) -> list[Stay]:
    """The times during which each process ran; a frozen process has a stay before and a stay after."""
    by_process: defaultdict[tuple[int, int, int], list[Line]] = defaultdict(list)
    for line in lines:
        by_process[line.job, line.lease, line.rank].append(line)
    found = []
    for seen in by_process.values():
        cuts = [0, *(k for k in range(1, len(seen)) if seen[k].at_s - seen[k - 1].at_s > SILENT_S), len(seen)]
        for begin, end in itertools.pairwise(cuts):
            first = seen[begin]
            found.append(
                Stay(first.job, first.lease, first.rank, first.node, first.gpus, first.at_s, seen[end - 1].at_s)
            )
    return sorted(found, key=lambda stay: stay.first_s)


def double_gpus(found: list[Stay]) -> list[str]:
    """Complaints about GPUs that two leases used at the same time."""
    return [
        f"GPU {gpu} of {node}: lease {early.lease} until {early.last_s:.3f}, lease {late.lease} from {late.first_s:.3f}"
        for (node, gpu), users in _by_gpu(found).items()
        for early, late in _overlaps(users)
    ]


def shared_gpus(found: list[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs of stays of different jobs on the same GPU at the same time."""
    pairs = []
    for users in _by_gpu(found).values():
        pairs += [(early, late) for early, late in _overlaps(users) if early.job != late.job]
    return pairs


def crowded_gpus(found: list[Stay]) -> list[str]:
    """Complaints about GPUs that three leases used at the same time."""
    complaints = []
    for (node, gpu), users in _by_gpu(found).items():
        for stay in users:
            others = {one.lease for one in users if one.first_s <= stay.first_s < one.last_s} - {stay.lease}
            if len(others) > 1:
                complaints.append(f"GPU {gpu} of {node}: leases {sorted(others)} and {stay.lease}")
    return complaints


def _by_gpu(found: list[Stay]) -> dict[tuple[str, str], list[Stay]]:
    by_gpu: defaultdict[tuple[str, str], list[Stay]] = defaultdict(list)
    for stay in found:
        for gpu in stay.gpus:
            by_gpu[stay.node, gpu].append(stay)
    return by_gpu


def double_jobs(found: list[Stay]) -> list[str]:
    """Complaints about jobs that ran under two leases at the same time."""
    by_job: defaultdict[int, list[Stay]] = defaultdict(list)
    for stay in found:
        by_job[stay.job].append(stay)
    return [
        f"job {job}: lease {early.lease} until {early.last_s:.3f}, lease {late.lease} from {late.first_s:.3f}"
        for job, ran in by_job.items()
        for early, late in _overlaps(ran)
    ]


def _overlaps(users: list[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs of overlapping stays of different leases; `users` are in order of their start."""
    found = []
    running: list[Stay] = []
    for stay in users:
        running = [other for other in running if other.last_s > stay.first_s]
        found += [(other, stay) for other in running if other.lease != stay.lease]
        running.append(stay)
    return found


def lost_steps(lines: list[Line]) -> list[str]:
    """Complaints about jobs that resumed before their last checkpoint; one counts as soon as it is complete.

    Ranks of a gang begin at different times: one may save while another of the same lease has not begun.
    """
    saved: defaultdict[int, dict[tuple[int, int], int]] = defaultdict(dict)  # by lease and rank
    found = []
    for line in lines:
        own = saved[line.job]
        if line.kind == "saved":
            own[line.lease, line.rank] = max(own.get((line.lease, line.rank), 0), line.steps)
        elif line.kind == "began":
            counted = [steps for (lease, rank), steps in own.items() if lease != line.lease or rank == line.rank]
            if line.steps < (most := max(counted, default=0)):
                found.append(f"job {line.job} under lease {line.lease} began at {line.steps}, saved was {most}")
    return found


def saved_twice(lines: list[Line]) -> list[str]:
    """Complaints about checkpoints of one lease and step that were written more than once."""
    seen: set[tuple[int, int, int, int]] = set()
    found = []
    for line in lines:
        if line.kind == "saved":
            name = (line.job, line.lease, line.rank, line.steps)
            if name in seen:
                found.append(f"job {line.job}, lease {line.lease}, step {line.steps}")
            seen.add(name)
    return found
