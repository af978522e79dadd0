"""What a job runs with on this node: its environment, and the launch that the shim executes.

The environment of a job is a few variables of the node, the job's own, and those of gavel and torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from gavelpy.runtime import lease_files
from gavelpy.runtime.accounts import NO_ACCOUNT, Account, environment_of
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.containment import Containment, JobNeeds
from gavelpy.runtime.agent.leases.images import ImageRules
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.snapshots import CODE_DIRECTORY, archive_file
from gavelpy.runtime.snapshots import DIRECTORY as SNAPSHOTS
from gavelpy.runtime.user_secrets import secrets_file

RESERVED_PREFIX: Final = "GAVEL_"
TERMINAL_AWAY_S: Final = 60.0  # an interactive job ends when no client is attached for so long
_FROM_NODE: Final = ("PATH", "LANG")
_FROM_ACCOUNT: Final = ("HOME", "TMPDIR", "VIRTUAL_ENV")  # the agent's, unless the job runs as its owner
_BASE: Final = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}


class MpsVariables(Protocol):
    """NVIDIA's Multi-Process Service on this node, which may end at any time."""

    def variables(self, assignment: NodeAssignment) -> dict[str, str]:
        """The variables with which the programs of a lease use it."""
        ...


@dataclass(frozen=True)
class NodeEnvironment:
    """The part that is the same for all jobs of a node."""

    node_id: str
    gpus: Gpus
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
    images: ImageRules = field(default_factory=ImageRules)
    mps: MpsVariables | None = None  # of jobs that share GPUs; None = they are sliced in time


def node_environment_of(
    config: NodeConfig,
    gpus: Gpus,
    containment: Containment,
    images: ImageRules,
    job_service: str,
    mps: MpsVariables | None = None,
) -> NodeEnvironment:
    """The environment that this node's jobs share."""
    return NodeEnvironment(
        node_id=config.node_id,
        gpus=gpus,
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
        images=images,
        mps=mps,
    )


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
        limit_groups=node.containment.limit_groups_of(lease.lease, len(assignment.gpus), _needs(assignment)),
        limits=node.containment.limits_of(lease.lease, len(assignment.gpus), _needs(assignment)),
        terminal_away_s=TERMINAL_AWAY_S if assignment.interactive else 0.0,
        software=software_of(assignment, lease, node),
        secrets=assignment.secrets,
        secrets_file=str(secrets_file(_home(lease, node))) if assignment.secrets else "",
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
    if "image" in found:
        devices = [node.gpus.devices[gpu] for gpu in assignment.gpus]
        found |= node.images.fields(
            devices, _home(lease, node), lease_files.job_checkpoints(node.checkpoint_root, lease.job)
        )
    return found


def _home(lease: LeaseContext, node: NodeEnvironment) -> str:
    return lease.account.home if lease.account else node.node_environment.get("HOME", "/")


def code_directory(lease: LeaseContext) -> Path:
    """Where the snapshot of a lease is unpacked."""
    return lease.directory_of_job / CODE_DIRECTORY


def job_environment(assignment: NodeAssignment, lease: LeaseContext, node: NodeEnvironment) -> dict[str, str]:
    """The environment of a job without the rank's part: gavel's variables override the job's, and those the node's."""
    names = _FROM_NODE if lease.account else (*_FROM_NODE, *_FROM_ACCOUNT)
    inherited = {name: node.node_environment[name] for name in names if node.node_environment.get(name)}
    inherited |= environment_of(lease.account) if lease.account else {}
    own = {name: value for name, value in assignment.environment.items() if not name.startswith(RESERVED_PREFIX)}
    if assignment.software.image:  # it has a PATH and the like of its own
        activated = {"PYTHONUNBUFFERED": "1", **_threads(assignment), **own}
    else:
        activated = assignment.software.activate({**_BASE, **inherited, **_threads(assignment), **own})
    shared = node.mps.variables(assignment) if node.mps is not None else {}
    return {**activated, **shared, **_torch(assignment, lease, node), **_gavel(assignment, lease, node)}


def _needs(assignment: NodeAssignment) -> JobNeeds:
    return JobNeeds(assignment.cpus_per_gpu, assignment.memory_gib_per_gpu)


def _threads(assignment: NodeAssignment) -> dict[str, str]:
    """How many CPU cores each rank has, if the job declares any; numerical libraries then start as many threads."""
    if not assignment.cpus_per_gpu:
        return {}
    cpus = assignment.cpus_per_gpu * len(assignment.gpus) / assignment.local_ranks
    return {"OMP_NUM_THREADS": str(max(int(cpus), 1)), "GAVEL_CPUS": f"{cpus:g}"}


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
        **node.gpus.variables(_visible_devices(assignment, node)),
    }


def _visible_devices(assignment: NodeAssignment, node: NodeEnvironment) -> list[str]:
    devices = [node.gpus.devices[gpu] for gpu in assignment.gpus]
    return node.images.visible(devices) if assignment.software.image else devices


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
        "GAVEL_GPU_TYPE": node.gpus.gpu_type,
        "GAVEL_RESTART_COUNT": str(assignment.restart_count),
        "GAVEL_STEPS_TOTAL": f"{assignment.steps_total:.17g}",
        "GAVEL_STEPS_DONE": f"{lease.steps_done:.17g}",
        "GAVEL_CHECKPOINT_EVERY_S": f"{assignment.checkpoint_every_s:.17g}",
        "GAVEL_MTBF_S": f"{assignment.mtbf_s:.17g}",
        "GAVEL_JOB_SERVICE": node.job_service,
        "GAVEL_JOB_TOKEN": lease.job_token,
        "GAVEL_SPEED_FACTOR": f"{node.speed_factor:.17g}",
    }
    if lease.resume_directory is not None:
        variables[lease_files.RESUME_DIRECTORY_VARIABLE] = str(lease.resume_directory)
    if assignment.sizes:
        variables["GAVEL_GPU_SIZES"] = ",".join(map(str, sorted(assignment.sizes)))
    if assignment.plan:
        variables["GAVEL_PLAN"] = assignment.plan
    if assignment.software.snapshot:
        variables["GAVEL_SNAPSHOT"] = assignment.software.snapshot
    return variables
