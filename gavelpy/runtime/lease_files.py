"""The lease directory: how a node's agent, the shim of a lease and the job tell each other what is so.

    leases/00000042/             one directory a (lease, node), on the node's own disk
        launch.json              agent, once: what to run and how
        lease.json               agent, at every change: until when, and whether to stop
        shim.json                shim: who it is and what it started
        progress.<local rank>.json   job: steps done and saved (the iterator, or the agent for users of its JobService)
        end.json                 shim, last of all: how it ended (the agent writes it where the shim has vanished)
        log/rank-<rank>.out      captured lines (shim/log_files.py); full files become .out.1, .out.2, ..., oldest first

Every file is written whole under a temporary name and renamed, so a reader sees the old or the new one. Nothing is
synced to disk: the directory matters for one boot only, and `boot_id` tells another boot apart. Times are seconds of
CLOCK_BOOTTIME of this machine (`clock_s`), which neither a changed date nor a suspended machine bends. Keys that a
reader does not know are ignored, so that a newer writer does no harm. Standard library only: the shim loads this.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from gavelpy.errors import RemoteViolation

LEASES_DIRECTORY: Final = "leases"  # below the state directory of an agent
LAUNCH_FILE: Final = "launch.json"
LEASE_FILE: Final = "lease.json"
SHIM_FILE: Final = "shim.json"
END_FILE: Final = "end.json"
LOG_DIRECTORY: Final = "log"
FILE_BYTES_MAX: Final = 4 << 20
PROCESS_MAX: Final = 1 << 22  # Linux gives no process a higher number
STEPS_MAX: Final = 1e15  # what a job may say that it has done

# Names in the environment of a job.
LEASE_DIRECTORY_VARIABLE: Final = "GAVEL_LEASE_DIR"
CHECKPOINT_DIRECTORY_VARIABLE: Final = "GAVEL_CHECKPOINT_DIR"
RESUME_DIRECTORY_VARIABLE: Final = "GAVEL_RESUME_DIR"

_PROGRESS = re.compile(r"progress\.(\d{1,6})\.json")
_STEP = re.compile(r"step-(\d{12})")
_LEASE = re.compile(r"lease-(\d{8,19})")


class ShimPhase(StrEnum):
    """Where the shim stands."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class LeaseOutcome(StrEnum):
    """How the node's part of a lease ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True)
class Launch:
    """What the shim starts: one process for each entry of `rank_environments`, which add to `environment`."""

    lease: int
    job: int
    argv: tuple[str, ...]  # run without a shell; argv[0] is looked up in the PATH of `environment`
    working_directory: str
    environment: Mapping[str, str]  # complete: nothing is inherited from the agent
    rank_environments: tuple[Mapping[str, str], ...]  # one a local rank, in their order
    first_rank: int = 0  # of this node among all ranks of the job; names the log files
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    finish_grace_s: float = 0.0  # after its last step a job that is to stop has so long to exit by itself
    warning_s: float = 0.0  # before the end of the lease the warning signal is sent; 0 = none
    warning_signal: int = 0
    speed_factor: float = 1.0  # in (0, 1]: share of the time that the processes run, once they have started
    steps_done: float = 0.0  # of the job when the lease began
    steps_total: float = 0.0  # 0 = not known
    rate_steps_per_s: float = 0.0  # expected; progress by time where the script reports none. 0 = a second is a step
    silent_start_s: float = 60.0  # a job that has reported nothing for so long does not report: progress is by time
    log_bytes_max: int = 16 << 20  # of one log file, after which it is rotated
    log_files_max: int = 4  # full files kept beside the one written to
    cgroup: str = ""  # directory of the control group that holds the job; empty = none

    @property
    def local_ranks(self) -> int:
        """How many processes this node runs."""
        return len(self.rank_environments)


@dataclass(frozen=True)
class LeaseTerms:
    """What the agent orders; it rises by versions, and the newest file counts."""

    version: int
    until_clock_s: float
    stop: bool = False  # checkpoint and end now, in good order
    kill: bool = False  # end at once; nothing the job does counts
    steps_max: float = 0.0  # of the job since its submission; the lease ends there, too. 0 = no limit
    steps_saved: float = 0.0  # of the checkpoint that the scheduler has on record


@dataclass(frozen=True)
class ShimState:
    """Who the shim of a lease is, and what it has started."""

    process: int  # also the session of all it starts
    process_start_ticks: int  # since boot: tells a reused process id apart
    boot_id: str
    phase: ShimPhase
    group: int = 0  # process group of the job; 0 = nothing started yet
    job_processes: tuple[int, ...] = ()  # by local rank
    started_clock_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """What one local rank says of itself."""

    steps_done: float = 0.0  # of the job since its submission
    steps_saved: float = 0.0  # of these, in a whole checkpoint
    rate_steps_per_s: float = 0.0  # measured lately; 0 = not measured
    finished: bool = False  # the job has done all its work
    stopped: bool = False  # this rank has stopped in good order and is about to exit
    saves_at_end: bool = False  # it writes a checkpoint when its lease ends, so that it may be preempted
    stop_proposal: float = -1.0  # of a gang: the step at which this rank would stop; -1 = none


@dataclass(frozen=True)
class End:
    """How a lease ended on this node, once none of its processes is left."""

    outcome: LeaseOutcome
    exit_code: int = 0  # of the process that decided the outcome; -n = killed by signal n
    steps_done: float = 0.0
    steps_saved: float = 0.0
    detail: str = ""  # one sentence for people
    at_clock_s: float = 0.0


Record = TypeVar("Record", Launch, LeaseTerms, ShimState, Progress, End)


def clock_s() -> float:
    """Seconds since this machine booted, suspended time included: the clock of leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lease_directory(leases: Path, lease: int) -> Path:
    """Where a lease lives below the agent's directory of leases."""
    return leases / f"{lease:08d}"


def progress_file(local_rank: int) -> str:
    """Name of the file in which a local rank reports."""
    return f"progress.{local_rank}.json"


def log_file(rank: int, *, is_error_stream: bool) -> str:
    """Name, below `log/`, of the file that holds a rank's newest lines."""
    return f"rank-{rank}.{'err' if is_error_stream else 'out'}"


def read_launch(directory: Path) -> Launch | None:
    """None while there is no such file; RemoteViolation where it is damaged, as for all that follow."""
    return _read(directory / LAUNCH_FILE, Launch)


def read_lease(directory: Path) -> LeaseTerms | None:
    """The orders in force."""
    return _read(directory / LEASE_FILE, LeaseTerms)


def read_shim(directory: Path) -> ShimState | None:
    """The shim's own word."""
    return _bounded(directory / SHIM_FILE, ShimState, PROCESS_MAX, "process", "group")


def read_end(directory: Path) -> End | None:
    """How it ended; None while it has not."""
    return _bounded(directory / END_FILE, End, STEPS_MAX, "steps_done", "steps_saved")


def read_progress(directory: Path, local_rank: int) -> Progress | None:
    """What a local rank last said; None where it has not said anything."""
    path = directory / progress_file(local_rank)
    return _bounded(path, Progress, STEPS_MAX, "steps_done", "steps_saved", "rate_steps_per_s")


def reporting_ranks(directory: Path) -> tuple[int, ...]:
    """Local ranks that have a progress file, whatever is in it."""
    matches = (_PROGRESS.fullmatch(entry) for entry in _entries(directory))
    return tuple(sorted(int(match[1]) for match in matches if match))


def write_launch(directory: Path, launch: Launch) -> None:
    """Whole, or not at all: as all that follow."""
    _write(directory / LAUNCH_FILE, launch)


def write_lease(directory: Path, lease: LeaseTerms) -> None:
    """The agent's orders; the caller raises `version`."""
    _write(directory / LEASE_FILE, lease)


def write_shim(directory: Path, state: ShimState) -> None:
    """The shim's own word."""
    _write(directory / SHIM_FILE, state)


def write_end(directory: Path, end: End) -> None:
    """The last word on a lease."""
    _write(directory / END_FILE, end)


def write_progress(directory: Path, local_rank: int, progress: Progress) -> None:
    """What a local rank says of itself."""
    _write(directory / progress_file(local_rank), progress)


def job_checkpoints(root: Path, job: int) -> Path:
    """Where all leases of a job keep their checkpoints."""
    return root / str(job)


def lease_checkpoints(root: Path, job: int, lease: int) -> Path:
    """Where one lease writes its checkpoints, and no other ever does."""
    return job_checkpoints(root, job) / lease_name(lease)


def leases_of(job_directory: Path) -> tuple[int, ...]:
    """Leases that have a directory among a job's checkpoints, oldest first."""
    found = (lease_of(entry) for entry in _entries(job_directory))
    return tuple(sorted(lease for lease in found if lease is not None))


def lease_name(lease: int) -> str:
    """Name of the directory that a lease writes its checkpoints into."""
    return f"lease-{lease:08d}"


def lease_of(name: str) -> int | None:
    """The lease of a directory of this name; None where it is no such name."""
    match = _LEASE.fullmatch(name)
    return int(match[1]) if match and lease_name(int(match[1])) == name else None


def step_name(steps: int) -> str:
    """Name of the directory of a whole checkpoint; one that is being written has another name."""
    return f"step-{steps:012d}"


def step_of(name: str) -> int | None:
    """Steps in a whole checkpoint of this name; None where it is no such name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def whole_checkpoints(directory: Path) -> tuple[int, ...]:
    """Steps of the whole checkpoints in a lease's checkpoint directory, oldest first."""
    steps = (step_of(entry) for entry in _entries(directory) if (directory / entry).is_dir())
    return tuple(sorted(step for step in steps if step is not None))


def newest_checkpoint(directory: Path, steps_min: float = 0.0) -> Path | None:
    """The whole checkpoint with the most steps, and at least so many; None where there is none."""
    whole = [step for step in whole_checkpoints(directory) if step >= steps_min]
    return directory / step_name(whole[-1]) if whole else None


def write_text_whole(path: Path, text: str) -> None:
    """Puts a file in place in one move, over an older one if there is one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, text.encode())
    except OSError as error:  # a write that fails does not know its file
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)
    temporary.replace(path)


def read_text_whole(path: Path) -> str | None:
    """The text of a plain file of at most FILE_BYTES_MAX; None where there is none. Never waits on a pipe or a link."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RemoteViolation(f"{path} cannot be read: {error.strerror}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RemoteViolation(f"{path} must be a plain file")
        content = os.read(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > FILE_BYTES_MAX:
        raise RemoteViolation(f"{path} must have at most {FILE_BYTES_MAX} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise RemoteViolation(f"{path} must be UTF-8: {error}") from error


def _read(path: Path, kind: type[Record]) -> Record | None:
    text = read_text_whole(path)
    if text is None:
        return None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteViolation(f"{path} must be JSON: {error}") from error
    if not isinstance(content, dict):
        raise RemoteViolation(f"{path} must be a JSON object, got {type(content).__name__}")
    return kind(**{item.name: _value(path, item, content) for item in fields(kind) if _is_given(item, content)})


def _bounded(path: Path, kind: type[Record], most: float, *names: str) -> Record | None:
    """The same, with these numbers in [0, most]: a job can write what it likes into its lease's directory."""
    record = _read(path, kind)
    for name in names if record is not None else ():
        if not 0 <= (value := getattr(record, name)) <= most:
            raise RemoteViolation(f"{path}: {name} must be in [0, {most:.12g}], got {value!r}")
    return record


def _is_given(item: Field[Any], content: dict[str, object]) -> bool:
    return item.name in content or item.default is MISSING


def _value(path: Path, item: Field[Any], content: dict[str, object]) -> Any:  # what the annotation of the field says
    value = content.get(item.name)
    accepts, convert = _KINDS[str(item.type)]
    if not accepts(value):
        raise RemoteViolation(f"{path}: {item.name} must be {item.type}, got {str(value)[:100]!r}")
    return convert(value)


def _write(path: Path, record: Launch | LeaseTerms | ShimState | Progress | End) -> None:
    write_text_whole(path, json.dumps(vars(record), allow_nan=False))


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _entries(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


def _is_float(value: object) -> bool:
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_list(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


def _is_texts_by_name(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_text(text) for name, text in value.items())


# By the annotation of a field: what is accepted, and what it becomes.
_KINDS: Final[Mapping[str, tuple[Callable[[object], bool], Callable[[Any], object]]]] = {
    "int": (_is_int, int),
    "float": (_is_float, float),
    "bool": (lambda value: isinstance(value, bool), bool),
    "str": (_is_text, str),
    "tuple[int, ...]": (_is_list(_is_int), tuple),
    "tuple[str, ...]": (_is_list(_is_text), tuple),
    "Mapping[str, str]": (_is_texts_by_name, dict),
    "tuple[Mapping[str, str], ...]": (_is_list(_is_texts_by_name), tuple),
    "ShimPhase": (lambda value: value in list(ShimPhase), ShimPhase),
    "LeaseOutcome": (lambda value: value in list(LeaseOutcome), LeaseOutcome),
}
