"""The lease directory: files by which the agent, the shim and the job of a lease communicate.

    leases/00000042/             one directory a (lease, node), on the node's own disk, for the agent's account only
        launch.json              agent, once: what to run and how
        lease.json               agent, at every change: the end of the lease, and whether to stop
        shim.json                shim: its process and what it started
        progress.<local rank>.json   job: steps done and saved (the iterator, or the agent for users of its JobService)
        end.json                 shim, last: how the lease ended (the agent writes it if the shim did not)
        log/rank-<rank>.out      captured lines (shim/log_files.py); full files become .out.1, .out.2, ..., oldest first
        metrics.<local rank>.json    job: the last value of each metric (metric_files.py)
    jobs/00000042/               if the job runs as its owner, for that account only: progress.*.json, metrics.*.json,
                                 and copies of lease.json and launch.json (without the environment) for LeaseIterator

Every file is written under a temporary name and renamed, so a reader sees the old or the new one. Files are not synced
to disk: they matter for one boot only, which `boot_id` identifies. Times are seconds of CLOCK_BOOTTIME (`clock_s`),
which changes of the date and suspends do not affect. Readers ignore unknown keys of newer writers. Standard library
only: the shim loads this.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.accounts import Identity
from gavelpy.runtime.whole_files import read_bounded, read_record, write_record

LEASES_DIRECTORY: Final = "leases"  # below the state directory of an agent
JOBS_DIRECTORY: Final = "jobs"
LAUNCH_FILE: Final = "launch.json"
LEASE_FILE: Final = "lease.json"
SHIM_FILE: Final = "shim.json"
END_FILE: Final = "end.json"
LOG_DIRECTORY: Final = "log"
PROCESS_MAX: Final = 1 << 22  # the largest process id on Linux
STEPS_MAX: Final = 1e15  # the most steps that a job can report

# Names in the environment of a job.
LEASE_DIRECTORY_VARIABLE: Final = "GAVEL_LEASE_DIR"
CHECKPOINT_DIRECTORY_VARIABLE: Final = "GAVEL_CHECKPOINT_DIR"
RESUME_DIRECTORY_VARIABLE: Final = "GAVEL_RESUME_DIR"

_PROGRESS = re.compile(r"progress\.(\d{1,6})\.json")
_STEP = re.compile(r"step-(\d{12})")
_LEASE = re.compile(r"lease-(\d{8,19})")


class ShimPhase(StrEnum):
    """Phase of a shim."""

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
    """What the shim starts: one process for each entry of `rank_environments`, added to `environment`."""

    lease: int
    job: int
    argv: tuple[str, ...]  # run without a shell; argv[0] is found in the PATH of `environment`
    working_directory: str
    environment: Mapping[str, str]  # complete: nothing is inherited from the agent
    rank_environments: tuple[Mapping[str, str], ...]  # by local rank
    first_rank: int = 0  # of this node among all ranks of the job; names the log files
    grace_s: float = 10.0  # between SIGTERM and SIGKILL
    stall_s: float = 0.0  # longest time without progress; 0 = no limit
    finish_grace_s: float = 0.0  # time to exit after the last step, before a stop takes effect
    warning_s: float = 0.0  # time of the warning signal before the end of the lease; 0 = none
    warning_signal: int = 0
    speed_factor: float = 1.0  # in (0, 1]: share of the time in which the processes run
    steps_done: float = 0.0  # of the job when the lease began
    steps_total: float = 0.0  # 0 = unknown
    rate_steps_per_s: float = 0.0  # expected, to estimate progress if the script reports none; 0 = one step per second
    silent_start_s: float = 60.0  # without a report by then, progress is estimated from time
    log_bytes_max: int = 16 << 20  # of one log file, after which it is rotated
    log_files_max: int = 4  # full files kept
    cgroup: str = ""  # directory of the job's control group; empty = none
    limit_groups: tuple[str, ...] = ()  # control groups of version 1's controllers, which the job joins, too
    limits: Mapping[str, str] = field(default_factory=dict)  # contents by file of these groups
    terminal_away_s: float = 0.0  # > 0: rank 0 has a terminal, and ends when no client is attached for so long
    software: Mapping[str, str] = field(default_factory=dict)  # to prepare before the ranks start: shim/preparation.py
    secrets: Mapping[str, str] = field(default_factory=dict)  # names by variable; the values are in no file of a lease
    secrets_file: str = ""  # which the job's account can read
    uid: int = -1  # of the account that the processes become; -1 = none, they stay the agent's
    gid: int = -1
    groups: tuple[int, ...] = ()
    job_directory: str = ""  # with an account: the directory below jobs/
    private_tmp: bool = False  # the job has /tmp and /var/tmp of its own
    hide_processes: bool = False  # the job sees processes of its account only

    @property
    def local_ranks(self) -> int:
        """Number of processes on this node."""
        return len(self.rank_environments)

    @property
    def identity(self) -> Identity | None:
        """Of the account that the processes become; None = they stay the agent's."""
        return Identity(self.uid, self.gid, self.groups, self.hides_ranks) if self.uid >= 0 else None

    @property
    def hides_ranks(self) -> bool:
        """Whether the ranks are processes that podman starts: signals to the client do not reach them."""
        return self.software.get("tool") == "podman"

    def directory_of_job(self, directory: Path) -> Path:
        """Where the job reads its lease and writes its progress; `directory`: of the lease."""
        return Path(self.job_directory) if self.job_directory else directory


@dataclass(frozen=True)
class LeaseTerms:
    """The agent's orders: the end of the lease, stop, kill. A reader ignores older versions."""

    version: int
    until_clock_s: float
    stop: bool = False  # save a checkpoint and exit
    kill: bool = False  # end at once; later results do not count
    steps_max: float = 0.0  # of the job since its submission, at which the lease ends; 0 = no limit
    steps_saved: float = 0.0  # of the checkpoint that the scheduler has on record
    limit_clock_s: float = 0.0  # when the job's time limit is reached; 0 = it has none


@dataclass(frozen=True)
class ShimState:
    """The shim of a lease and the processes it has started."""

    process: int  # also the session id of its processes
    process_start_ticks: int  # since boot: distinguishes reused process ids
    boot_id: str
    phase: ShimPhase
    group: int = 0  # process group of the job; 0 = not started
    job_processes: tuple[int, ...] = ()  # by local rank
    started_clock_s: float = 0.0


@dataclass(frozen=True)
class Progress:
    """Progress of one local rank."""

    steps_done: float = 0.0  # of the job since its submission
    steps_saved: float = 0.0  # in a complete checkpoint
    rate_steps_per_s: float = 0.0  # measured lately; 0 = not measured
    finished: bool = False  # the job has done all its work
    stopped: bool = False  # this rank has stopped gracefully and is about to exit
    saves_at_end: bool = False  # it writes a checkpoint when its lease ends, so the job is preemptible
    steps_total: float = 0.0  # steps of the job in all, as this rank has counted them; 0 = not announced
    gpu_memory_gib: float = 0.0  # the most that this rank has used of a GPU; 0 = not known
    save_error: str = ""  # why its last checkpoint failed; empty = it has not


@dataclass(frozen=True)
class End:
    """How a lease ended on this node, after all its processes."""

    outcome: LeaseOutcome
    exit_code: int = 0  # of the process that decided the outcome; -n = killed by signal n
    steps_done: float = 0.0
    steps_saved: float = 0.0
    detail: str = ""  # a message for users
    at_clock_s: float = 0.0
    failure: str = ""  # its class, as in shim/failures.py


PROGRESS_NUMBERS: Final = ("steps_done", "steps_saved", "rate_steps_per_s", "steps_total", "gpu_memory_gib")
_ENUMS: Final = {"ShimPhase": ShimPhase, "LeaseOutcome": LeaseOutcome}


def clock_s() -> float:
    """Seconds since boot, including suspends: the clock of leases."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def lease_directory(leases: Path, lease: int) -> Path:
    """Directory of a lease below the agent's `leases`, or of its job below `jobs`."""
    return leases / f"{lease:08d}"


def progress_file(local_rank: int) -> str:
    """File name of a local rank's progress."""
    return f"progress.{local_rank}.json"


def log_file(rank: int, *, is_error_stream: bool) -> str:
    """File name, below `log/`, of a rank's newest lines."""
    return f"rank-{rank}.{'err' if is_error_stream else 'out'}"


def read_launch(directory: Path) -> Launch | None:
    """None if there is no such file; RemoteViolation if it is damaged. The same for the other readers."""
    return read_record(directory / LAUNCH_FILE, Launch, _ENUMS)


def read_lease(directory: Path) -> LeaseTerms | None:
    """The newest terms."""
    return read_record(directory / LEASE_FILE, LeaseTerms, _ENUMS)


def read_start(directory: Path) -> tuple[Launch, LeaseTerms]:
    """What the shim must find when it starts; raises RemoteViolation."""
    launch, lease = read_launch(directory), read_lease(directory)
    if launch is None or lease is None:
        missing = LAUNCH_FILE if launch is None else LEASE_FILE
        raise RemoteViolation(f"{directory / missing} must exist before the shim starts")
    if not launch.argv or not launch.rank_environments:
        raise RemoteViolation(f"{directory / LAUNCH_FILE}: argv and rank_environments must not be empty")
    return launch, lease


def read_shim(directory: Path) -> ShimState | None:
    """The shim's state."""
    return read_bounded(directory / SHIM_FILE, ShimState, _ENUMS, PROCESS_MAX, "process", "group")


def read_end(directory: Path) -> End | None:
    """How the lease ended; None if it has not."""
    return read_bounded(directory / END_FILE, End, _ENUMS, STEPS_MAX, "steps_done", "steps_saved")


def read_progress(directory: Path, local_rank: int) -> Progress | None:
    """The last report of a local rank; None if there is none."""
    path = directory / progress_file(local_rank)
    return read_bounded(path, Progress, _ENUMS, STEPS_MAX, *PROGRESS_NUMBERS)


def reporting_ranks(directory: Path) -> tuple[int, ...]:
    """Local ranks that have a progress file, valid or not."""
    matches = (_PROGRESS.fullmatch(entry) for entry in _entries(directory))
    return tuple(sorted(int(match[1]) for match in matches if match))


def write_launch(directory: Path, launch: Launch) -> None:
    """Writes launch.json by one rename, as the other writers do."""
    write_record(directory / LAUNCH_FILE, launch)


def write_lease(directory: Path, lease: LeaseTerms) -> None:
    """Writes lease.json; the caller increments `version`."""
    write_record(directory / LEASE_FILE, lease)


def write_shim(directory: Path, state: ShimState) -> None:
    """Writes shim.json."""
    write_record(directory / SHIM_FILE, state)


def write_end(directory: Path, end: End) -> None:
    """Writes end.json."""
    write_record(directory / END_FILE, end)


def write_progress(directory: Path, local_rank: int, progress: Progress) -> None:
    """Writes the progress of a local rank."""
    write_record(directory / progress_file(local_rank), progress)


def job_checkpoints(root: Path, job: int) -> Path:
    """Directory of all checkpoints of a job."""
    return root / str(job)


def lease_checkpoints(root: Path, job: int, lease: int) -> Path:
    """Directory into which one lease, and no other, writes its checkpoints."""
    return job_checkpoints(root, job) / lease_name(lease)


def leases_of(job_directory: Path) -> tuple[int, ...]:
    """Leases with a checkpoint directory, oldest first."""
    found = (lease_of(entry) for entry in _entries(job_directory))
    return tuple(sorted(lease for lease in found if lease is not None))


def lease_name(lease: int) -> str:
    """Name of a lease's checkpoint directory."""
    return f"lease-{lease:08d}"


def lease_of(name: str) -> int | None:
    """The lease of a directory with this name; None for other names."""
    match = _LEASE.fullmatch(name)
    return int(match[1]) if match and lease_name(int(match[1])) == name else None


def step_name(steps: int) -> str:
    """Directory name of a complete checkpoint; an incomplete one has another name."""
    return f"step-{steps:012d}"


def step_of(name: str) -> int | None:
    """Steps of a checkpoint with this name; None for other names."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def whole_checkpoints(directory: Path) -> tuple[int, ...]:
    """Steps of the complete checkpoints in a lease's checkpoint directory, oldest first."""
    steps = (step_of(entry) for entry in _entries(directory) if (directory / entry).is_dir())
    return tuple(sorted(step for step in steps if step is not None))


def newest_checkpoint(directory: Path, steps_min: float = 0.0) -> Path | None:
    """The complete checkpoint with the most steps, at least `steps_min`; None if there is none."""
    whole = [step for step in whole_checkpoints(directory) if step >= steps_min]
    return directory / step_name(whole[-1]) if whole else None


def _entries(directory: Path) -> list[str]:
    try:
        return [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
