"""Measure the rate (steps/s) of real jobs on this node, and describe the node (`Machine`) in a throughput table.

A job is started as an agent starts it: the same environment, a lease directory, one process per GPU. Its LeaseIterator
reports the rate, without the first steps and checkpoints. The lease is long; after the measurement it is stopped. There
is no scheduler, agent or shim. Standard library only, so that a node needs only the packages of the job.
"""

from __future__ import annotations

import os
import platform
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory

from gavelpy.errors import GavelError, InvalidInput, RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.agent.gpus import type_of_model

START_S_MAX = 300.0  # imports, data, compilation: until the first rate is reported
_POLL_S = 0.1
_GRACE_S = 30.0  # for the checkpoint after the measurement
_STEPS = 10**12  # more than any job does meanwhile
_SHOWN_MAX = 300


class NotMeasured(GavelError):
    """A job reported no rate: it failed, ended too early or does not use LeaseIterator."""


@dataclass(frozen=True)
class ProfiledJob:
    """A job to measure; `job_type` and `gpus` are its row in a throughput table."""

    job_type: str
    command: str
    gpus: int = 1
    processes: int = 1  # one per GPU, or one for all
    working_directory: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("job_type", "command"):
            if not getattr(self, name).strip():
                raise InvalidInput(f"{name} must be a text, got {getattr(self, name)!r}")
        if not 1 <= self.gpus <= 64:
            raise InvalidInput(f"gpus must be a whole number in [1, 64] to be measured on one node, got {self.gpus}")
        if self.processes not in (1, self.gpus):
            raise InvalidInput(f"processes must be 1 or one per GPU ({self.gpus}), got {self.processes}")


@dataclass(frozen=True)
class Measurement:
    """The rate of one job on one GPU type."""

    job: ProfiledJob
    gpu_type: str
    rate_steps_per_s: float  # of the whole job
    steps: float  # including the first ones


@dataclass(frozen=True)
class Bench:
    """GPU type and durations of a measurement."""

    gpu_type: str  # the column in the table
    measure_s: float = 20.0
    start_s_max: float = START_S_MAX
    on_cpu: bool = False  # hides the GPUs from the job

    def __post_init__(self) -> None:
        for name in ("measure_s", "start_s_max"):
            if not 0 < getattr(self, name) <= 24 * 3600:
                raise InvalidInput(f"{name} must be a number in (0, 86400], got {getattr(self, name)!r}")


def measure(job: ProfiledJob, bench: Bench) -> Measurement:
    """The rate of one job alone on the first GPUs of this node; raises NotMeasured."""
    with TemporaryDirectory(prefix="gavel-profile-") as folder, _running(job, bench, Path(folder)) as run:
        run.wait(lambda: run.rate_steps_per_s > 0, bench.start_s_max)
        if run.rate_steps_per_s <= 0:
            ended = run.all_over
            raise NotMeasured(
                f"{job.job_type} ended before its rate was known: give it more steps"
                if ended
                else f"{job.job_type} reported no rate within {bench.start_s_max:g} s; does it use LeaseIterator?"
            )
        run.wait(lambda: False, bench.measure_s)
        return Measurement(job, bench.gpu_type, run.rate_steps_per_s, run.steps_done)


@contextmanager
def _running(job: ProfiledJob, bench: Bench, folder: Path) -> Iterator[_Run]:
    """The job's processes under a lease; all are killed at the end."""
    until_clock_s = lease_files.clock_s() + bench.start_s_max + bench.measure_s + _GRACE_S
    lease_files.write_lease(folder, lease_files.LeaseTerms(1, until_clock_s))
    run = _Run(job, folder, [])
    try:
        for environment in _environments(job, bench, folder):
            run.processes.append(_start(job, environment, run.errors))
        yield run
        lease_files.write_lease(folder, lease_files.LeaseTerms(2, until_clock_s, stop=True))
        run.wait(lambda: run.all_over, _GRACE_S)
    finally:
        for process in run.processes:
            _kill(process)


@dataclass(frozen=True)
class _Run:
    job: ProfiledJob
    folder: Path  # its lease directory
    processes: list[subprocess.Popen[bytes]]  # by rank

    @property
    def errors(self) -> Path:
        """stderr of all processes."""
        return self.folder / "errors"

    def wait(self, done: Callable[[], bool], timeout_s: float) -> None:
        """Waits until `done`, the end of all processes, or the timeout; raises NotMeasured if a process fails."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s and not self.all_over:
            self._check_failure()
            if done():
                return
            time.sleep(_POLL_S)
        self._check_failure()

    @property
    def all_over(self) -> bool:
        return all(process.poll() is not None for process in self.processes)

    @property
    def rate_steps_per_s(self) -> float:
        """Rate of the slowest process, 0 while one has none: all processes take each step together."""
        return min(progress.rate_steps_per_s for progress in self._progress())

    @property
    def steps_done(self) -> float:
        return min(progress.steps_done for progress in self._progress())

    def _progress(self) -> list[lease_files.Progress]:
        try:
            reports = [lease_files.read_progress(self.folder, rank) for rank in range(self.job.processes)]
        except RemoteViolation as error:
            raise NotMeasured(f"{self.job.job_type} wrote a progress file that cannot be read: {error}") from error
        return [progress or lease_files.Progress() for progress in reports]

    def _check_failure(self) -> None:
        codes = [process.poll() for process in self.processes]
        failed = next((code for code in codes if code), None)
        if failed is not None:
            lines = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = lines[-1][:_SHOWN_MAX] if lines else "no output on stderr"
            raise NotMeasured(f"{self.job.job_type} failed with exit code {failed}: {last}")


def _environments(job: ProfiledJob, bench: Bench, folder: Path) -> list[dict[str, str]]:
    """One per process: the variables that an agent sets, added to this process's environment."""
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GAVEL_")}
    python = str(Path(sys.executable).parent)
    search = [python, *filter(None, [inherited.get("PATH", os.defpath)])]
    gang = {
        **inherited,
        "PATH": os.pathsep.join(search),  # `python` in a command is this interpreter
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "" if bench.on_cpu else _devices(job.gpus, inherited),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": str(job.processes),
        "LOCAL_WORLD_SIZE": str(job.processes),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "GAVEL_JOB_ID": "0",
        "GAVEL_JOB_NAME": "profile",
        "GAVEL_LEASE": "0",
        "GAVEL_GPU_TYPE": bench.gpu_type,
        "GAVEL_RESTART_COUNT": "0",
        "GAVEL_STEPS_TOTAL": str(_STEPS),
        "GAVEL_STEPS_DONE": "0",
        lease_files.LEASE_DIRECTORY_VARIABLE: str(folder),
        lease_files.CHECKPOINT_DIRECTORY_VARIABLE: str(checkpoints),
        **job.environment,
    }
    return [{**gang, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(job.processes)]


def _devices(gpus: int, environment: Mapping[str, str]) -> str:
    """The first GPUs that this process can use."""
    allowed = environment.get("CUDA_VISIBLE_DEVICES")
    names = [str(index) for index in range(gpus)] if allowed is None else [n for n in allowed.split(",") if n][:gpus]
    if len(names) < gpus:
        raise InvalidInput(f"gpus must be at most the {len(names)} in CUDA_VISIBLE_DEVICES={allowed!r}, got {gpus}")
    return ",".join(names)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _start(job: ProfiledJob, environment: Mapping[str, str], errors: Path) -> subprocess.Popen[bytes]:
    words = _words(job.command)
    try:
        with errors.open("ab") as stderr:
            return subprocess.Popen(
                words,
                cwd=job.working_directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
    except OSError as error:
        raise NotMeasured(f"{job.job_type} could not be started: {error}") from error


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError as error:
        raise InvalidInput(f"command must be words as for a shell, got {command!r} ({error})") from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills the process and its descendants in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_QUERY = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
_QUERY_S_MAX = 30.0


@dataclass(frozen=True)
class Machine:
    """The node of a measurement: its GPU type, and its hardware for users."""

    gpu_type: str
    hardware: str
    driver: str = ""

    def source(self, what: str, measure_s: float, now: datetime | None = None) -> str:
        """The text of the column `source`: job, hardware, versions, date."""
        day = (now or datetime.now(UTC)).date().isoformat()
        driver = [f"driver {self.driver}"] if self.driver else []
        known = [self.hardware, *driver, f"Python {platform.python_version()}", *_versions("torch", "gavelpy")]
        return f"gavel profile on {day}: {what}; {', '.join(known)}; {measure_s:g} s after the first steps"


def here(*, on_cpu: bool = False, gpu_type: str = "") -> Machine:
    """This node. Raises InvalidInput if the GPU type is neither given nor detected."""
    if on_cpu:
        return Machine(gpu_type or "cpu", _processor())
    products, driver = _local_gpus()
    found = sorted({type_of_model(product) for product in products})
    if not gpu_type and len(found) != 1:
        detected = ", ".join(found) or "no GPU known to nvidia-smi"
        raise InvalidInput(f"gpu_type must be given unless there is exactly one GPU type, found {detected}")
    return Machine(gpu_type or found[0], ", ".join(dict.fromkeys(products)) or _processor(), driver)


def _local_gpus() -> tuple[tuple[str, ...], str]:
    """Product names of the GPUs, in the driver's order, and the driver's version; empty without GPUs."""
    try:
        result = subprocess.run(_QUERY, capture_output=True, text=True, timeout=_QUERY_S_MAX, check=True)
    except (OSError, subprocess.SubprocessError):  # no driver here, or one that does not answer: no GPU to measure on
        return (), ""
    rows = [line.rpartition(",") for line in result.stdout.splitlines() if line.strip()]
    return tuple(name.strip() for name, _, _ in rows), rows[0][2].strip() if rows else ""


def _processor() -> str:
    """Model name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line for line in lines if line.startswith("model name")), "")
    return named.partition(":")[2].strip() or platform.machine()


def _versions(*packages: str) -> list[str]:
    found: list[str] = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found
