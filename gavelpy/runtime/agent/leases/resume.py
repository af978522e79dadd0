"""Choose the checkpoint that a lease resumes from, and check what else its start needs of storage.

The checkpoint directory and a job's working directory can be on shared storage that hangs: the agent calls `prepare` in
a `StorageWorkers` process. If the job runs as its owner, everything below the job's own checkpoint directory is done
with the owner's rights. Standard library only.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import Account, OwnerRefused, account_fields, acting_as, find_account
from gavelpy.runtime.checkpoint_directory import identify
from gavelpy.runtime.whole_files import read_text_whole

CHOICE_FILE: Final = "RESUME"
_SCRATCH = "scratch"
_CHOICE = re.compile(r"lease-\d{8,19}/step-\d{12}")


@dataclass(frozen=True)
class ResumeTarget:
    """What the scheduler has on record about the job's checkpoints."""

    resume_lease: int  # lease of the checkpoint on record; -1 = none
    resume_steps: float  # its steps
    steps_done: float  # steps that count as done
    is_gang_of_nodes: bool  # several nodes must agree on the checkpoint


@dataclass(frozen=True)
class Resume:
    """Where a lease resumes; no directory = from scratch, or by the job's own means."""

    directory: Path | None
    steps_done: float


class CheckpointMissing(RemoteViolation):
    """The checkpoint that a lease should resume from does not exist."""


class ForeignCheckpoints(RemoteViolation):
    """The directory for a new lease's checkpoints contains some already."""


class CheckpointNotVisible(RemoteViolation):
    """The checkpoint that a gang resumes from is not visible on this node."""


class CheckpointsOfOthers(RemoteViolation):
    """The job's checkpoint directory is not its owner's."""


def prepare(
    root: str, is_new: bool, directory: str, working_directory: str, job: int, lease: int, target: list[float],
    owner: list[Any],  # JSON
) -> dict[str, Any]:  # fmt: skip  # JSON
    """Checks owner and working directory, finds the checkpoint and makes the lease's own directory.

    Returns `resume`, `steps_done` and, if the job runs as its owner, `account`; or, if the lease cannot start,
    `refused` (the node runs no job of the owner), `failed` (a problem of the job) or `lost` (of the node) with the
    reason. `directory`: the id that the checkpoint directory must have; empty = any. `target`: the fields of
    ResumeTarget. `owner`: the arguments of `find_account`; empty = the job runs as the agent.
    """
    resume_lease, resume_steps, steps_done, is_gang = target
    try:
        account = find_account(*owner) if owner else None
        account = account if os.geteuid() == 0 else None  # else it is the agent's own
        with acting_as(account):
            if not os.path.isdir(working_directory):  # noqa: PTH112 a Path would turn "" into "."
                why = "is not a directory" if os.path.exists(working_directory) else "does not exist"  # noqa: PTH110
                seen_by = "" if account is None else f" for {account.name!r}"
                return {"failed": f"the working directory {working_directory!r} {why}{seen_by}"}
        found = identify(Path(root), is_new=is_new)
        if directory and found != directory:
            return {"lost": f"the checkpoint directory ({root!r}) is {found}; the scheduler expects {directory}"}
        if account is not None:
            make_directory_of_job(Path(root), job, account)
        with acting_as(account):
            resume = find_resume(
                Path(root), job, lease, ResumeTarget(int(resume_lease), resume_steps, steps_done, bool(is_gang))
            )
    except OwnerRefused as refused:
        return {"refused": str(refused)}
    except (CheckpointMissing, ForeignCheckpoints, CheckpointsOfOthers) as error:
        return {"failed": str(error)}
    except CheckpointNotVisible as error:
        return {"lost": str(error)}
    except RemoteViolation as error:
        return {"lost": f"the checkpoint directory ({root!r}) {error}"}
    except OSError as error:
        return {"lost": f"cannot use the checkpoint directory: {error}"}
    return {
        "resume": str(resume.directory or ""),
        "steps_done": resume.steps_done,
        "account": account_fields(account) if account is not None else None,
    }


def make_directory_of_job(root: Path, job: int, account: Account) -> None:
    """Makes the directory of a job's checkpoints, for its owner only.

    The owner makes it where all may create directories in the root, as is necessary if the storage gives root no rights
    (NFS with root_squash); another user may have been first. Else root makes it and gives it to the owner. An empty
    directory of root was left by a process that died in between. Several nodes may do this at once. Raises
    CheckpointsOfOthers unless it is the owner's.
    """
    directory = lease_files.job_checkpoints(root, job)
    with suppress(FileExistsError):  # it is no directory
        try:
            with acting_as(account):
                directory.mkdir(mode=0o700, exist_ok=True)
        except PermissionError:
            directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not any(directory.iterdir()):
        os.chown(directory, account.uid, account.gid, follow_symlinks=False)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != account.uid:
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no directory, and"
        raise CheckpointsOfOthers(
            f"{directory} must be a directory of {account.name!r} (uid {account.uid}), the owner of the job; it is "
            f"{kind} of uid {found.st_uid}"
        )


def find_resume(root: Path, job: int, lease: int, target: ResumeTarget) -> Resume:
    """What the lease resumes from. Makes the lease's checkpoint directory.

    The newest complete checkpoint of the newest lease that has one, not older than the lease on record and with at
    least its steps: a checkpoint that was written but never reported counts. On several nodes, the first node chooses
    for all. If no lease is on record but steps count as done, they were estimated from time, and the job resumes by its
    own means. Raises CheckpointMissing or CheckpointNotVisible if there is no such checkpoint, ForeignCheckpoints if
    the lease's own directory is not new.
    """
    own = lease_files.lease_checkpoints(root, job, lease)
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not target.is_gang_of_nodes:
        _check_new(own)
        return _newest(root, job, lease, target)
    of_job = lease_files.job_checkpoints(root, job)
    if not (own / CHOICE_FILE).exists():
        _check_new(own)
        newest = _newest(root, job, lease, target).directory
        _choose(own, str(newest.relative_to(of_job)) if newest else _SCRATCH)
    chosen = (read_text_whole(own / CHOICE_FILE) or "").strip()
    if chosen == _SCRATCH:
        return Resume(None, target.steps_done)
    directory = of_job / chosen
    if not _CHOICE.fullmatch(chosen) or not directory.is_dir():
        raise CheckpointNotVisible(f"this gang agreed on the checkpoint {chosen[:100]!r}, which is not in {of_job}")
    return _resume(directory)


def _newest(root: Path, job: int, lease: int, target: ResumeTarget) -> Resume:
    """A later lease comes before more steps: a lease that was declared lost may still write."""
    on_record = target.resume_lease
    if on_record < 0 and target.steps_done > 0:
        return Resume(None, target.steps_done)
    for earlier in reversed(lease_files.leases_of(lease_files.job_checkpoints(root, job))):
        if on_record <= earlier < lease:
            directory = lease_files.lease_checkpoints(root, job, earlier)
            newest = lease_files.newest_checkpoint(directory, target.resume_steps)
            if newest is not None:
                return _resume(newest)
    if on_record < 0:
        return Resume(None, 0.0)
    directory = lease_files.lease_checkpoints(root, job, on_record)
    complete = lease_files.whole_checkpoints(directory)
    found = f"where the newest has {complete[-1]}" if complete else "where there is none"
    raise CheckpointMissing(
        f"no complete checkpoint with {target.resume_steps:g} steps or more in {directory}, {found}, nor of a later "
        "lease; a job with steps done does not start from scratch"
    )


def _resume(checkpoint: Path) -> Resume:
    steps = lease_files.step_of(checkpoint.name)
    assert steps is not None, f"{checkpoint} is not named as a checkpoint"
    return Resume(checkpoint, float(steps))


def _check_new(own: Path) -> None:
    """Lease ids are never reused, so an existing checkpoint belongs to another cluster."""
    complete = lease_files.whole_checkpoints(own)
    if complete:
        raise ForeignCheckpoints(
            f"{own} contains a checkpoint of {complete[-1]} steps before the lease has started: another cluster's"
        )


def _choose(own: Path, choice: str) -> None:
    """Records the choice if there is none: a hard link is made once, also on shared file systems."""
    temporary = own / f".{CHOICE_FILE}.{os.uname().nodename}-{os.getpid()}"
    temporary.write_text(choice, encoding="utf-8")
    try:
        os.link(temporary, own / CHOICE_FILE)
    except FileExistsError:
        return  # another node was first
    finally:
        temporary.unlink(missing_ok=True)
