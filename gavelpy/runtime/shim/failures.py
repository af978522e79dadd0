"""Classify the failure of a job by exit code, the last lines of its output and the kernel's memory killer.

A class is named only on evidence, and the evidence is a line that users can find in the log:

    user             the command or the program is wrong, so another attempt fails in the same way
    out-of-memory    of the GPU or of the node
    system           storage, driver or GPU broke
    communication    a peer of a gang is gone: a consequence of a failure elsewhere, if that is known
    time-limit       the running time that the owner of the job allowed is over
    stalled          no progress for as long as the owner allowed
    ""               anything else

The shim has the output in memory, so no file is read. Only the last traceback counts, or the last lines without one: a
program may log an error that it handles. The ranks of a gang fail together, and the first to exit need not be the
cause; so the rank with the strongest evidence decides. Standard library only: the shim loads this.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from gavelpy.runtime.lease_files import End, Launch, LeaseOutcome, Progress, clock_s

TAIL_BYTES: Final = 16 << 10  # of each stream
EVIDENCE_CHARACTERS_MAX: Final = 200
LOOK_EVERY_S: Final = 1.0
LINES: Final = 30  # of output without a traceback
_VMSTAT = Path("/proc/vmstat")
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
UNRUNNABLE: Final = (126, 127)  # of a shell and of the shim
_TRACEBACK = "Traceback (most recent call last)"
_WRAPPER = r"ChildFailedError|CalledProcessError"  # torchrun and the like: the child's error is above
_RANK = r"^\[?rank\d+\]?: ?"  # torch writes it before each line
_EXCEPTION = r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout)\b|^(?:[a-z_]\w*\.)+[A-Z]\w*: "


class FailureKind(StrEnum):
    """Class of a failure; the values are those of `End.failure`."""

    UNKNOWN = ""
    USER = "user"
    OUT_OF_MEMORY = "out-of-memory"
    SYSTEM = "system"
    COMMUNICATION = "communication"
    REFUSED = "refused"  # by the agent, before the shim starts: the node does not run such a job
    TIME_LIMIT = "time-limit"
    STALLED = "stalled"


# By class, in the order in which they are tried on single lines. Compiled at the first failure: starts must be quick.
_PATTERNS: Final[Mapping[FailureKind, str]] = {
    FailureKind.OUT_OF_MEMORY: (
        r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory"
        r"|RESOURCE_EXHAUSTED: Out of memory|^MemoryError\b|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc"
        r"|CUBLAS_STATUS_ALLOC_FAILED|DataLoader worker .*killed by signal: (?:Killed|Bus error)"
    ),
    FailureKind.SYSTEM: (
        r"\[Errno (?:5|28|107|116|121)\]|Input/output error|Stale (?:NFS )?file handle|No space left on device"
        r"|Transport endpoint is not connected|uncorrectable ECC|[Uu]ncorrectable NVLink|\bXid\b.*\d|GPU is lost"
        r"|fallen off the bus|no CUDA-capable device|CUDA-capable device\(s\) is/are busy|No CUDA GPUs are available"
        r"|CUDA error: (?:system not yet initialized|unknown error|hardware stack error)"
        r"|invalid internal status, try resetting the pause process"  # podman: another job's end took its namespace
        r"|Driver/library version mismatch|(?:libcuda|libnvidia-ml)\.so\S* cannot open"
    ),
    FailureKind.USER: (
        r"^(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError)\b"
        r"|: can't open file .*\[Errno 2\]|^\S+: No module named \S+$|: Error while finding module specification"
        r"|: error: (?:unrecognized arguments|argument |the following arguments are required|invalid choice)"
        r"|[Ss]yntax error(?: near|:)|\(catatonit:\d+\): failed to exec pid1: (?:No such file|Permission denied)"
    ),
    FailureKind.COMMUNICATION: (
        r"nccl(?:System|Remote|Internal|Unhandled)Error|NCCL (?:error|timeout|communicator was aborted)|Watchdog caught"
        r"|ProcessGroupNCCL|Connection (?:reset|closed) by (?:remote )?peer|DistNetworkError|DistStoreError"
        r"|ConnectionResetError|ConnectionRefusedError|BrokenPipeError|Broken pipe"
    ),
}
_STRONGEST_FIRST: Final = (
    FailureKind.USER,
    FailureKind.OUT_OF_MEMORY,
    FailureKind.SYSTEM,
    FailureKind.UNKNOWN,
    FailureKind.COMMUNICATION,
)


@dataclass(frozen=True)
class Failure:
    """Class of a failure, and a line of evidence; empty = none."""

    kind: FailureKind = FailureKind.UNKNOWN
    evidence: str = ""


class OutputTails:
    """The last bytes of the streams of a job's ranks, by the descriptors from which they are read."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, bool]] = {}
        self._tails: dict[tuple[int, bool], bytes] = {}

    def follow(self, end: int, rank: int, *, is_error_stream: bool) -> None:
        """Takes output read from a descriptor as that of a local rank."""
        self._of[end] = rank, is_error_stream

    def add(self, end: int, content: bytes) -> None:
        """Adds output that was read."""
        key = self._of[end]
        self._tails[key] = (self._tails.get(key, b"") + content)[-TAIL_BYTES:]

    def text(self, rank: int) -> str:
        """The end of a local rank's output: stdout, then stderr, where errors are expected."""
        streams = (self._tails.get((rank, is_error), b"") for is_error in (False, True))
        return "\n".join(stream.decode(errors="replace") for stream in streams)


class StallWatch:
    """Looks whether a job makes progress: its reported steps rise or, while it reports none, it writes output.

    A job that reports steps does not prove by output that it works: a hung collective operation may log warnings.
    """

    def __init__(self, stall_s: float, now_s: float) -> None:
        self._stall_s = stall_s  # 0 = do not look
        self._progressed_s = self.looked_s = now_s
        self._steps = -1.0  # the sum over ranks; negative = none reported
        self.has_output = False  # since the last look
        self.stalled = ""  # that the job has stalled, for people; empty = it has not

    def look(self, now_s: float, read: Callable[[], list[Progress]], steps_total: float) -> None:
        """Looks at the reports, once a second. A job that has done its last step is not expected to do more."""
        if not self._stall_s or self.stalled or now_s < self.looked_s + LOOK_EVERY_S:
            return
        reports, self.looked_s = read(), now_s
        steps = sum(report.steps_done + report.steps_saved for report in reports) if reports else -1.0
        is_done = bool(reports) and all(
            r.finished or 0 < (r.steps_total or steps_total) <= r.steps_done for r in reports
        )
        if steps != self._steps or is_done or (not reports and self.has_output):
            self._progressed_s, self._steps = now_s, steps
        self.has_output = False
        if now_s < self._progressed_s + self._stall_s:
            return
        if reports:
            step = min(report.steps_done for report in reports)
            self.stalled = f"no progress for {self._stall_s:g} s at step {step:.0f}"
        else:
            self.stalled = f"no output for {self._stall_s:g} s, and no step reported under this lease"


def memory_kills() -> int:
    """Processes that the kernel has killed for lack of memory since boot, on the whole node; 0 if unknown."""
    with suppress(OSError, ValueError):
        for line in _VMSTAT.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def memory_evidence(group_kills: int, node_kills_before: int, limit_gib: float = 0.0) -> str:
    """Evidence that the kernel killed a process for lack of memory; empty = none.

    `group_kills`: in the job's control group, -1 = not counted there. Then the node's count must have risen.
    """
    if group_kills > 0:
        limit = f"; its limit on this node is {limit_gib:g} GiB" if limit_gib else ""
        return f"the kernel killed a process of the job for lack of memory{limit}"
    if group_kills < 0 and memory_kills() > node_kills_before:
        return "the kernel killed processes of the node for lack of memory meanwhile"
    return ""


def not_started(launch: Launch, outcome: LeaseOutcome, detail: str, code: int) -> End:
    """How a lease ended whose ranks were not started."""
    is_unrunnable = outcome is LeaseOutcome.FAILED and code in UNRUNNABLE
    failure = FailureKind.USER if is_unrunnable else FailureKind.UNKNOWN
    return End(outcome, code, launch.steps_done, launch.steps_done, detail, clock_s(), failure.value)


def explained(end: End, tails: OutputTails, codes: Mapping[int, int], first_failure: int, killed_here: str) -> End:
    """The end of a lease with class and evidence, if its job failed.

    `codes` by local rank; `first_failure`: the local rank that failed first; `killed_here`: evidence that the kernel
    ran out of memory meanwhile, empty = none.
    """
    if end.outcome is not LeaseOutcome.FAILED or first_failure < 0:
        return end
    found = []
    for rank in sorted(codes, key=lambda rank: rank != first_failure):
        by_output = failure_by_output(tails.text(rank))
        failed_itself = rank == first_failure or codes[rank] not in (0, *_KILLED)
        if failed_itself or by_output.kind is not FailureKind.UNKNOWN:
            found.append(by_output)
    by_code = failure_by_code(codes[first_failure], killed_here)
    found = [by_code, *found] if by_code != Failure() else found
    failure = min(found, key=lambda each: (_STRONGEST_FIRST.index(each.kind), not each.evidence))
    is_new = failure.evidence and failure.evidence not in end.detail
    detail = f"{end.detail}: {failure.evidence}" if is_new else end.detail
    return replace(end, failure=failure.kind.value, detail=detail)


def failure_by_code(code: int, killed_here: str) -> Failure:
    """The failure that an exit code proves. `killed_here` as in `explained`."""
    if code in UNRUNNABLE:
        return Failure(FailureKind.USER)
    if code in _KILLED:
        if killed_here:
            return Failure(FailureKind.OUT_OF_MEMORY, killed_here)
        return Failure(FailureKind.UNKNOWN, "not by gavelpy; the node may have run out of memory")
    return Failure()


def failure_by_output(text: str) -> Failure:
    """The failure that the end of a rank's output proves; an unknown one has the last exception as evidence."""
    lines = _final_lines(text)
    for kind, pattern in _PATTERNS.items():
        for line in reversed(lines):
            if re.search(pattern, line) and (kind is not FailureKind.USER or _is_last_error(line, lines)):
                return Failure(kind, _shown(line))
    exceptions = [line for line in lines if re.match(_EXCEPTION, line)]
    return Failure(FailureKind.UNKNOWN, _shown(exceptions[-1])) if exceptions else Failure()


def _is_last_error(line: str, lines: list[str]) -> bool:
    """Whether no other exception follows: programs catch import errors and continue without an optional module."""
    following = lines[len(lines) - lines[::-1].index(line) :]
    return not any(re.match(_EXCEPTION, each) for each in following)


def _final_lines(text: str) -> list[str]:
    """The lines of the last traceback, without those of a launcher, and what follows it; else the last lines."""
    blocks = text.split(_TRACEBACK)
    while len(blocks) > 2 and re.search(_WRAPPER, blocks[-1]):
        blocks.pop()
    lines = [line.strip() for line in blocks[-1].splitlines()]
    lines = [re.sub(_RANK, "", line) for line in lines if line]
    return lines if len(blocks) > 1 else lines[-LINES:]


def _shown(line: str) -> str:
    printable = "".join(character if character.isprintable() else " " for character in line)
    is_long = len(printable) > EVIDENCE_CHARACTERS_MAX
    return f"{printable[: EVIDENCE_CHARACTERS_MAX - 3]}..." if is_long else printable
