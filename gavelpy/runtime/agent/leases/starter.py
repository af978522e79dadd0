"""Start leases with the environment of their jobs, and count the checkpoints of those that have ended.

The environment of a job is a few variables of the node, the job's own, and those of gavel and torch.distributed. Calls
to storage, which can hang, run in worker processes; the shim is started from the agent's loop. With OwnerRules each job
runs as its owner; the account is looked up at each start, so that changes apply to the next lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import NO_ACCOUNT, Account, account_of, environment_of
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.containment import Containment
from gavelpy.runtime.agent.leases.directory import LeaseDirectory
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.agent.leases.resume import prepare
from gavelpy.runtime.checkpoint_directory import whole_steps
from gavelpy.runtime.lease_files import Launch, LeaseOutcome, clock_s
from gavelpy.runtime.shim.failures import FailureKind
from gavelpy.runtime.snapshots import CODE_DIRECTORY, archive_file
from gavelpy.runtime.snapshots import DIRECTORY as SNAPSHOTS
from gavelpy.runtime.storage import StorageSilent, StorageWorkers

RESERVED_PREFIX: Final = "GAVEL_"
TERMINAL_AWAY_S: Final = 60.0  # an interactive job ends when no client is attached for so long
_FROM_NODE: Final = ("PATH", "LANG")
_FROM_ACCOUNT: Final = ("HOME", "TMPDIR", "VIRTUAL_ENV")  # the agent's, unless the job runs as its owner
_BASE: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True)
class NodeEnvironment:
    """The part that is the same for all jobs of a node."""

    node_id: str
    gpu_type: str
    devices: tuple[str, ...]  # what CUDA_VISIBLE_DEVICES calls GPU 0, 1, ... of this node
    node_environment: Mapping[str, str]
    checkpoint_root: Path
    job_service: str  # address of the agent's JobService
    speed_factor: float = 1.0
    log_bytes_max: int = 16 << 20
    log_files_max: int = 4
    silent_start_s: float = 60.0
    containment: Containment = field(default_factory=Containment)
    private_tmp: bool = False
    hide_processes: bool = False


def node_environment_of(config: NodeConfig, gpus: Gpus, containment: Containment, job_service: str) -> NodeEnvironment:
    """The environment that this node's jobs share."""
    return NodeEnvironment(
        node_id=config.node_id,
        gpu_type=gpus.gpu_type,
        devices=gpus.devices,
        node_environment=dict(os.environ),
        checkpoint_root=config.checkpoints,
        job_service=job_service,
        speed_factor=config.speed_factor,
        log_bytes_max=config.log_bytes_max,
        log_files_max=config.log_files_max,
        silent_start_s=config.silent_start_s,
        containment=containment,
        private_tmp=config.private_tmp,
        hide_processes=config.mounts_proc,
    )


@dataclass(frozen=True)
class OwnerRules:
    """Which owners' jobs a node runs, as their accounts."""

    node_id: str
    accounts: Mapping[str, str]  # by owner, where the names differ
    allow_root: bool
    only_uid: int  # the agent is not root and runs jobs of this account only; NO_ACCOUNT = it is root

    def arguments(self, owner: str) -> tuple[str, str, str, bool, int]:
        """The arguments of `find_account` for an owner."""
        return owner, self.accounts.get(owner, owner), self.node_id, self.allow_root, self.only_uid


def owner_rules_of(config: NodeConfig) -> OwnerRules | None:
    """The rules of a node; None if its jobs run as the agent."""
    if not config.runs_as_owner:
        return None
    only_uid = NO_ACCOUNT if os.geteuid() == 0 else os.geteuid()
    return OwnerRules(config.node_id, config.users, config.allow_root, only_uid)


@dataclass(frozen=True)
class LeaseContext:
    """The part that depends on the lease."""

    lease: int
    job: int
    directory: Path
    job_token: str
    resume_directory: Path | None
    steps_done: float  # of the checkpoint it resumes from
    account: Account | None = None  # that the job runs as; None = the agent's

    @property
    def directory_of_job(self) -> Path:
        """Where the job reads its lease: with an account, a directory that only this account can enter."""
        if self.account is None:
            return self.directory
        return self.directory.parent.with_name(lease_files.JOBS_DIRECTORY) / self.directory.name


def launch_of(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> lease_files.Launch:
    """launch.json for an assignment."""
    account = lease.account
    return lease_files.Launch(
        lease=lease.lease,
        job=lease.job,
        argv=assignment.argv,
        working_directory=str(code_directory(lease)) if assignment.software.snapshot else assignment.working_directory,
        environment=job_environment(assignment, lease, node),
        rank_environments=tuple(rank_environment(assignment, rank) for rank in range(assignment.local_ranks)),
        first_rank=assignment.first_rank,
        grace_s=assignment.grace_s,
        finish_grace_s=assignment.finish_grace_s,
        stall_s=assignment.stall_s,
        warning_s=assignment.warning_s,
        warning_signal=assignment.warning_signal,
        speed_factor=node.speed_factor,
        steps_done=lease.steps_done,
        steps_total=assignment.steps_total,
        rate_steps_per_s=assignment.rate_steps_per_s,
        log_bytes_max=node.log_bytes_max,
        log_files_max=node.log_files_max,
        silent_start_s=node.silent_start_s,
        cgroup=node.containment.group_of(lease.lease),
        limit_groups=node.containment.limit_groups_of(lease.lease, len(assignment.gpus)),
        limits=node.containment.limits_of(lease.lease, len(assignment.gpus)),
        terminal_away_s=TERMINAL_AWAY_S if assignment.interactive else 0.0,
        software=software_of(assignment, lease, node),
        uid=account.uid if account else NO_ACCOUNT,
        gid=account.gid if account else NO_ACCOUNT,
        groups=account.groups if account else (),
        job_directory=str(lease.directory_of_job) if account else "",
        private_tmp=node.private_tmp,
        hide_processes=node.hide_processes and account is not None,
    )


def software_of(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> dict[str, str]:
    """What the shim prepares before the ranks start; empty = nothing."""
    found = {name: value for name, value in vars(assignment.software).items() if value}
    if "snapshot" in found:
        found["archive"] = str(archive_file(node.checkpoint_root / SNAPSHOTS, found["snapshot"]))
        found["code"] = str(code_directory(lease))
    return found


def code_directory(lease: LeaseContext) -> Path:
    """Where the snapshot of a lease is unpacked."""
    return lease.directory_of_job / CODE_DIRECTORY


def job_environment(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> dict[str, str]:
    """The environment of a job without the rank's part: gavel's variables override the job's, and those the node's."""
    names = _FROM_NODE if lease.account else (*_FROM_NODE, *_FROM_ACCOUNT)
    inherited = {name: node.node_environment[name] for name in names if node.node_environment.get(name)}
    inherited |= environment_of(lease.account) if lease.account else {}
    own = {name: value for name, value in assignment.environment.items() if not name.startswith(RESERVED_PREFIX)}
    activated = assignment.software.activate({**_BASE, **inherited, **own})
    return {**activated, **_torch(assignment, lease, node), **_gavel(assignment, lease, node)}


def rank_environment(assignment: NodeAssignment, local_rank: int) -> dict[str, str]:
    """The variables of one rank, named as by torchrun."""
    rank = str(assignment.first_rank + local_rank)
    return {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": str(local_rank)}


def _torch(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> dict[str, str]:
    address = (assignment.is_gang_of_nodes and assignment.rendezvous_address) or "127.0.0.1"
    options = {
        "NNODES": assignment.node_count,
        "NODE_RANK": assignment.node_rank,
        "NPROC_PER_NODE": len(assignment.gpus),
        "MASTER_ADDR": address,
        "MASTER_PORT": assignment.rendezvous_port,
    }  # defaults of torchrun's options, if the command is a torchrun of this node
    return {f"PET_{name}": str(value) for name, value in options.items() if assignment.local_ranks == 1} | {
        "MASTER_ADDR": address,
        "MASTER_PORT": str(assignment.rendezvous_port),
        "WORLD_SIZE": str(assignment.world_size),
        "ROLE_WORLD_SIZE": str(assignment.world_size),
        "LOCAL_WORLD_SIZE": str(assignment.local_ranks),
        "GROUP_RANK": str(assignment.node_rank),
        "GROUP_WORLD_SIZE": str(assignment.node_count),
        "TORCHELASTIC_RUN_ID": f"{lease.job}-{lease.lease}",
        "TORCHELASTIC_RESTART_COUNT": "0",  # a new lease does not count for torchrun's --max-restarts
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(node.devices[gpu] for gpu in assignment.gpus),
    }


def _gavel(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> dict[str, str]:
    checkpoints = lease_files.lease_checkpoints(node.checkpoint_root, lease.job, lease.lease)
    variables = {
        lease_files.LEASE_DIRECTORY_VARIABLE: str(lease.directory_of_job),
        lease_files.CHECKPOINT_DIRECTORY_VARIABLE: str(checkpoints),
        "GAVEL_JOB_ID": str(lease.job),
        "GAVEL_JOB_NAME": assignment.job_name,
        "GAVEL_LEASE": str(lease.lease),
        "GAVEL_ROUND": str(assignment.round),
        "GAVEL_NODE_ID": node.node_id,
        "GAVEL_GPU_TYPE": node.gpu_type,
        "GAVEL_RESTART_COUNT": str(assignment.restart_count),
        "GAVEL_STEPS_TOTAL": f"{assignment.steps_total:.17g}",
        "GAVEL_STEPS_DONE": f"{lease.steps_done:.17g}",
        "GAVEL_CHECKPOINT_EVERY_S": f"{assignment.checkpoint_every_s:.17g}",
        "GAVEL_JOB_SERVICE": node.job_service,
        "GAVEL_JOB_TOKEN": lease.job_token,
        "GAVEL_SPEED_FACTOR": f"{node.speed_factor:.17g}",
    }
    if lease.resume_directory is not None:
        variables[lease_files.RESUME_DIRECTORY_VARIABLE] = str(lease.resume_directory)
    if assignment.software.snapshot:
        variables["GAVEL_SNAPSHOT"] = assignment.software.snapshot
    return variables


logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 32
PREPARE_S: Final = 60.0
_CHECK_S = 0.1  # of the terms, while storage does not answer
COUNT_S: Final = 5.0
COUNT_SILENT_S: Final = 0.5  # if the checkpoint directory did not answer the last probe


class LeaseNotStarted(RemoteViolation):
    """A lease cannot be started. The outcome is FAILED for a problem of the job, LOST for one of the node."""

    def __init__(self, outcome: LeaseOutcome, detail: str, failure: FailureKind = FailureKind.UNKNOWN) -> None:
        super().__init__(detail)
        self.outcome, self.failure = outcome, failure


class Starter:
    """Starts leases, and counts the complete checkpoints of those that have ended, in the background.

    Calls `changed` when a lease has started or ended. A count has a time limit: if storage does not answer in time, the
    reported steps count, and the next lease finds the newest checkpoint itself.
    """

    environment: NodeEnvironment  # set before the first start
    owners: OwnerRules | None = None  # None = jobs run as the agent

    def __init__(
        self,
        workers: StorageWorkers,
        changed: Callable[[], None],
        may_make: Callable[[], bool] = lambda: True,
        answers: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_make`: whether a checkpoint directory without an id is new, so that an id can be made.

        `answers`: whether the checkpoint directory answered the last probe.
        """
        self._workers, self._changed = workers, changed
        self._may_make, self._answers = may_make, answers
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, folder: LeaseDirectory) -> None:
        """Starts a lease in the background."""
        self._run(self._start(folder))

    def count(self, folder: LeaseDirectory) -> None:
        """Counts the checkpoints of a lease in the background, then finishes it."""
        self._run(self._count(folder))

    def close(self) -> None:
        """Cancels starts and counts."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, folder: LeaseDirectory) -> None:
        """Prepares and starts; checks the terms again in between."""
        assert folder.assignment is not None, "a lease with an assignment is started"
        names = {"lease": folder.lease, "job": folder.job}
        try:
            launch = await self._prepared(folder)
            _check_orders(folder)
            folder.spawn(launch, clock_s())
            logger.info("lease started", extra={**names, "steps_done": launch.steps_done})
        except LeaseNotStarted as reason:
            folder.conclude(reason.outcome, str(reason), clock_s(), reason.failure)
            logger.warning("lease not started: %s", reason, extra=names)
        except OSError as error:
            folder.conclude(LeaseOutcome.LOST, f"the node could not start it: {error}", clock_s())
            logger.exception("lease not started", extra=names)
        self._changed()

    async def _prepared(self, folder: LeaseDirectory) -> Launch:
        """The launch for the shim; raises LeaseNotStarted, also if the terms change while storage does not answer."""
        assignment, node = folder.assignment, self.environment
        assert assignment is not None, "a lease with an assignment is started"
        if assignment.interactive and assignment.is_gang_of_nodes:
            nodes = assignment.node_count
            raise LeaseNotStarted(
                LeaseOutcome.FAILED, f"an interactive job needs its GPUs on one node, got {nodes} nodes"
            )
        target = [
            float(assignment.resume_lease),
            assignment.resume_steps,
            assignment.steps_done,
            float(assignment.is_gang_of_nodes),
        ]
        call = self._workers.call(
            prepare,
            str(node.checkpoint_root),
            self._may_make(),
            assignment.checkpoint_directory_id,
            "/" if assignment.software.snapshot else assignment.working_directory,
            folder.job,
            folder.lease,
            target,
            list(self.owners.arguments(assignment.owner)) if self.owners is not None else [],
            limit_s=PREPARE_S,
        )
        preparing = asyncio.ensure_future(call)
        try:
            while not preparing.done():
                await asyncio.wait({preparing}, timeout=_CHECK_S)
                _check_orders(folder)
            found = preparing.result()
        except StorageSilent as silent:
            raise LeaseNotStarted(LeaseOutcome.LOST, f"{silent} on node {node.node_id}") from silent
        finally:
            preparing.cancel()
        if "refused" in found:
            raise LeaseNotStarted(LeaseOutcome.FAILED, found["refused"], FailureKind.REFUSED)
        for key, outcome in (("failed", LeaseOutcome.FAILED), ("lost", LeaseOutcome.LOST)):
            if key in found:
                raise LeaseNotStarted(outcome, f"{found[key]} on node {node.node_id}")
        resume = Path(str(found["resume"])) if found["resume"] else None
        token = secrets.token_urlsafe(TOKEN_BYTES)
        account = account_of(found["account"]) if found["account"] else None
        context = LeaseContext(
            folder.lease, folder.job, folder.directory, token, resume, float(found["steps_done"]), account
        )
        return launch_of(assignment, context, node)

    async def _count(self, folder: LeaseDirectory) -> None:
        limit_s = COUNT_S if self._answers() else COUNT_SILENT_S
        steps = 0.0
        try:
            steps = await self._workers.call(
                whole_steps, folder.checkpoint_directory, folder.account_fields, limit_s=limit_s
            )
        except OSError as error:
            logger.warning("cannot read checkpoints: %s", error, extra={"lease": folder.lease, "job": folder.job})
        folder.finish(steps)
        self._changed()


def _check_orders(folder: LeaseDirectory) -> None:
    """Raises LeaseNotStarted if the lease must not start any more."""
    orders = folder.orders
    if orders.kill:
        raise LeaseNotStarted(LeaseOutcome.LOST, "it was killed before it had started")
    if orders.stop or clock_s() >= orders.until_clock_s:
        raise LeaseNotStarted(LeaseOutcome.STOPPED, "its time was over before it had started")
