"""Which checkpoint a lease resumes from, and what else a lease needs of storage before it can start.

The checkpoint directory and a job's working directory may be on shared storage that hangs: agents call `prepare` in a
`StorageWorkers` process. Standard library only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.checkpoint_directory import identify

CHOICE_FILE: Final = "RESUME"
_SCRATCH = "scratch"
_CHOICE = re.compile(r"lease-\d{8,19}/step-\d{12}")


class Wanted(Protocol):
    """What an assignment says of where its job resumes."""

    @property
    def resume_lease(self) -> int:
        """Lease of the checkpoint on record; -1 = none."""

    @property
    def resume_steps(self) -> float:
        """Its steps."""

    @property
    def steps_done(self) -> float:
        """Steps that count as done."""

    @property
    def is_gang_of_nodes(self) -> bool:
        """Whether several nodes must agree on the checkpoint."""


@dataclass(frozen=True)
class ResumeWanted:
    """The same as plain values."""

    resume_lease: int
    resume_steps: float
    steps_done: float
    is_gang_of_nodes: bool


@dataclass(frozen=True)
class Resume:
    """Where a lease goes on; no directory = from scratch, or by the job's own means."""

    directory: Path | None
    steps_done: float


class CheckpointMissing(RemoteViolation):
    """The checkpoint that a lease should resume from is gone."""


class CheckpointsForeign(RemoteViolation):
    """Where a new lease would write its checkpoints there are some that it did not write."""


class CheckpointUnseen(RemoteViolation):
    """The checkpoint that a gang resumes from is not seen from this node."""


def prepare(
    root: str, is_new: bool, directory: str, working_directory: str, job: int, lease: int, wanted: list[float]
) -> dict[str, str | float]:
    """Looks for the working directory and the checkpoint, and makes the lease's own directory: `resume`, `steps_done`.

    Where the lease cannot start: `failed` says why the job is at fault, `lost` why the node is. `directory` is the id
    that the checkpoint directory must have; empty = any. `wanted` are the fields of ResumeWanted.
    """
    resume_lease, resume_steps, steps_done, is_gang = wanted
    try:
        if not os.path.isdir(working_directory):  # noqa: PTH112 a Path would turn "" into "."
            return {"failed": f"the working directory {working_directory!r} does not exist"}
        found = identify(Path(root), is_new=is_new)
        if directory and found != directory:
            return {
                "lost": f"the checkpoint directory ({root!r}) is {found}, and not {directory} as the scheduler expects"
            }
        resume = resume_of(
            Path(root), job, lease, ResumeWanted(int(resume_lease), resume_steps, steps_done, bool(is_gang))
        )
    except (CheckpointMissing, CheckpointsForeign) as wrong_state:
        return {"failed": str(wrong_state)}
    except CheckpointUnseen as unseen:
        return {"lost": str(unseen)}
    except RemoteViolation as unknown:
        return {"lost": f"the checkpoint directory ({root!r}) {unknown}"}
    except OSError as error:
        return {"lost": f"the checkpoint directory cannot be used: {error}"}
    return {"resume": str(resume.directory or ""), "steps_done": resume.steps_done}


def resume_of(root: Path, job: int, lease: int, assignment: Wanted) -> Resume:
    """What the lease resumes from, and its own checkpoint directory made.

    The newest whole checkpoint of the newest lease that has any, from the lease that the scheduler names on, and with
    at least the steps it has on record: what was finished but never reported is not lost. On several nodes the choice
    is made once, by whoever is first, for all of them. Where the scheduler names no lease but counts steps as done,
    these were counted by time, and the job goes on by its own means. Raises CheckpointMissing or CheckpointUnseen where
    there is no such checkpoint, CheckpointsForeign where the lease's own directory is not new.
    """
    own = lease_files.lease_checkpoints(root, job, lease)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not assignment.is_gang_of_nodes:
        _check_new(own)
        return _newest(root, job, lease, assignment)
    jobs_own = lease_files.job_checkpoints(root, job)
    if not (own / CHOICE_FILE).exists():
        _check_new(own)
        named = _newest(root, job, lease, assignment).directory
        _choose(own, str(named.relative_to(jobs_own)) if named else _SCRATCH)
    chosen = (own / CHOICE_FILE).read_text(encoding="utf-8").strip()
    if chosen == _SCRATCH:
        return Resume(None, assignment.steps_done)
    directory = jobs_own / chosen
    if not _CHOICE.fullmatch(chosen) or not directory.is_dir():
        raise CheckpointUnseen(f"this gang agreed on the checkpoint {chosen[:100]!r}, which is not in {jobs_own}")
    return _resume(directory)


def _newest(root: Path, job: int, lease: int, assignment: Wanted) -> Resume:
    """Later leases go before more steps: what a lease that was given up for lost still writes is not preferred."""
    named = assignment.resume_lease
    if named < 0 and assignment.steps_done > 0:
        return Resume(None, assignment.steps_done)
    jobs_own = lease_files.job_checkpoints(root, job)
    for earlier in reversed(lease_files.leases_of(jobs_own)):
        if named <= earlier < lease:
            folder = lease_files.lease_checkpoints(root, job, earlier)
            newest = lease_files.newest_checkpoint(folder, assignment.resume_steps)
            if newest is not None:
                return _resume(newest)
    if named < 0:
        return Resume(None, 0.0)
    folder = lease_files.lease_checkpoints(root, job, named)
    whole = lease_files.whole_checkpoints(folder)
    found = f"where the newest has {whole[-1]}" if whole else "where there is none"
    raise CheckpointMissing(
        f"no whole checkpoint with {assignment.resume_steps:g} steps or more in {folder}, {found}, nor of a later "
        "lease; the job does not start from scratch where steps count as done"
    )


def _resume(checkpoint: Path) -> Resume:
    steps = lease_files.step_of(checkpoint.name)
    assert steps is not None, f"{checkpoint} is not named as a checkpoint"
    return Resume(checkpoint, float(steps))


def _check_new(own: Path) -> None:
    """Numbers of leases never come again, so what is here is another cluster's."""
    whole = lease_files.whole_checkpoints(own)
    if whole:
        raise CheckpointsForeign(f"{own} holds a checkpoint of {whole[-1]} steps before the lease has begun: another's")


def _choose(own: Path, choice: str) -> None:
    """Makes the choice unless it is made: a link is made whole or not at all, also on shared file systems."""
    temporary = own / f".{CHOICE_FILE}.{os.uname().nodename}-{os.getpid()}"
    temporary.write_text(choice, encoding="utf-8")
    try:
        os.link(temporary, own / CHOICE_FILE)
    except FileExistsError:
        return  # somebody was quicker
    finally:
        temporary.unlink(missing_ok=True)
