"""What the scheduler launches on this node under a lease: checked once, stored as JSON in the lease directory."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.wire import agent_pb2

TEXT_MAX: Final = 1 << 20
RANKS_MAX: Final = 1 << 16
SIGNALS_MAX: Final = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class NodeAssignment:
    """The part of a job that one node runs under one lease."""

    argv: tuple[str, ...]
    working_directory: str
    gpus: tuple[int, ...]  # numbers on this node
    gpu_type: str
    environment: Mapping[str, str] = field(default_factory=dict)
    job_name: str = ""
    owner: str = ""
    one_process_a_node: bool = False
    node_rank: int = 0
    node_count: int = 1
    first_rank: int = 0
    world_size: int = 1
    rendezvous_address: str = ""
    rendezvous_port: int = 0  # 0 = unknown yet
    round: int = 0
    restart_count: int = 0
    steps_total: float = 0.0
    steps_done: float = 0.0
    rate_steps_per_s: float = 0.0
    resume_lease: int = -1
    resume_steps: float = 0.0
    grace_s: float = 0.0
    finish_grace_s: float = 0.0
    warning_s: float = 0.0
    warning_signal: int = 0
    checkpoint_every_s: float = 0.0
    steps_max: float = 0.0
    checkpoint_directory_id: str = ""  # that the scheduler expects on this node; empty = any

    @property
    def local_ranks(self) -> int:
        """Processes on this node."""
        return 1 if self.one_process_a_node else len(self.gpus)

    @property
    def is_first_node(self) -> bool:
        """Whether rank 0, the rendezvous, runs here."""
        return self.node_rank == 0

    @property
    def is_gang_of_nodes(self) -> bool:
        """Whether other nodes run parts of the job."""
        return self.node_count > 1


def assignment_of(launch: agent_pb2.Launch) -> NodeAssignment:
    """The launch, checked; raises RemoteViolation naming the field, its value and what is allowed."""
    _check_numbers(launch)
    _check_texts(launch)
    made = NodeAssignment(
        argv=_argv(launch.command),
        working_directory=launch.working_directory,
        gpus=tuple(launch.gpus),
        gpu_type=launch.gpu_type,
        environment=dict(sorted(launch.environment.items())),
        job_name=launch.job_name,
        owner=launch.owner,
        one_process_a_node=launch.one_process_a_node,
        node_rank=launch.node_rank,
        node_count=launch.node_count,
        first_rank=launch.first_rank,
        world_size=launch.world_size,
        rendezvous_address=launch.rendezvous_address,
        rendezvous_port=launch.rendezvous_port,
        round=launch.round,
        restart_count=launch.restart_count,
        steps_total=launch.steps_total,
        steps_done=launch.steps_done,
        rate_steps_per_s=launch.rate_steps_per_s,
        resume_lease=launch.resume_lease,
        resume_steps=launch.resume_steps,
        grace_s=launch.grace_s,
        finish_grace_s=launch.finish_grace_s,
        warning_s=launch.warning_s,
        warning_signal=launch.warning_signal,
        checkpoint_every_s=launch.checkpoint_every_s,
        steps_max=launch.steps_max,
        checkpoint_directory_id=launch.checkpoint_directory_id,
    )
    if made.first_rank + made.local_ranks > made.world_size:
        raise RemoteViolation(
            f"first_rank + processes on this node must be at most world_size = {made.world_size}, "
            f"got {made.first_rank} + {made.local_ranks}"
        )
    return made


def _check_numbers(launch: agent_pb2.Launch) -> None:
    floats = ("steps_total", "steps_done", "rate_steps_per_s", "resume_steps", "grace_s", "warning_s", "finish_grace_s")
    for name in (*floats, "checkpoint_every_s", "steps_max"):
        value = getattr(launch, name)
        if not math.isfinite(value) or not 0 <= value <= 1e15:
            raise RemoteViolation(f"{name} must be in [0, 1e15], got {value!r}")
    if not launch.gpus or len(set(launch.gpus)) != len(launch.gpus):
        raise RemoteViolation(f"gpus must name one or more GPUs, each once, got {list(launch.gpus)[:20]!r}")
    if not 1 <= launch.node_count <= RANKS_MAX or launch.node_rank >= launch.node_count:
        raise RemoteViolation(f"node_rank must be below node_count, got {launch.node_rank} of {launch.node_count}")
    if not 1 <= launch.world_size <= RANKS_MAX:
        raise RemoteViolation(f"world_size must be in [1, {RANKS_MAX}], got {launch.world_size}")
    if launch.rendezvous_port >= 1 << 16:
        raise RemoteViolation(f"rendezvous_port must be below 65536, got {launch.rendezvous_port}")
    if launch.resume_lease < -1:
        raise RemoteViolation(f"resume_lease must be a lease or -1, got {launch.resume_lease}")
    if not 0 <= launch.warning_signal <= SIGNALS_MAX:
        raise RemoteViolation(f"warning_signal must be in [0, {SIGNALS_MAX}], got {launch.warning_signal}")


def _check_texts(launch: agent_pb2.Launch) -> None:
    names = ("job_name", "owner", "command", "working_directory", "gpu_type", "rendezvous_address")
    for name in (*names, "checkpoint_directory_id"):
        _check_text(name, getattr(launch, name))
    for variable, value in launch.environment.items():
        if not _NAME.fullmatch(variable):
            raise RemoteViolation(f"environment: a name must be letters, digits and '_', got {variable[:80]!r}")
        _check_text(f"environment: {variable}", value)


def _check_text(name: str, value: str) -> None:
    if "\0" in value or len(value) > TEXT_MAX:
        raise RemoteViolation(f"{name} must have at most {TEXT_MAX} characters and no NUL, got {value[:80]!r}")


def _argv(command: str) -> tuple[str, ...]:
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise RemoteViolation(f"command must be quoted as for a shell ({error}), got {command[:200]!r}") from error
    if not argv or not argv[0]:
        raise RemoteViolation(f"command must name a program, got {command[:200]!r}")
    return argv
