"""What the environment variables of a job contain: its lease, rank and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.lease_files import (
    CHECKPOINT_DIRECTORY_VARIABLE,
    LEASE_DIRECTORY_VARIABLE,
    RESUME_DIRECTORY_VARIABLE,
    read_launch,
)


@dataclass(frozen=True)
class JobContext:
    """The environment of a process of a job. Outside a lease `lease_directory` is None."""

    lease_directory: Path | None = None
    checkpoint_directory: Path | None = None
    resume_directory: Path | None = None
    rank: int = 0
    local_rank: int = 0
    world: int = 1
    steps_total: int = 0  # 0 = not given
    checkpoint_every_s: float = 0.0  # 0 = only at the end of a lease
    grace_s: float = 0.0  # after the end of the lease


def read_context(environment: Mapping[str, str]) -> JobContext:
    """Reads the environment; raises InvalidInput, which names the wrong variable."""
    lease = _path(environment, LEASE_DIRECTORY_VARIABLE)
    launch = read_launch(lease) if lease else None
    world = _whole(environment, "WORLD_SIZE", 1, 1)
    done = _number(environment, "GAVEL_STEPS_DONE") if lease else 0.0
    if done > 0 and not environment.get(RESUME_DIRECTORY_VARIABLE):
        raise InvalidInput(
            f"GAVEL_STEPS_DONE must be 0 without {RESUME_DIRECTORY_VARIABLE}, got {done:g}: these steps were "
            "estimated from time, as the script had reported none, and there is no checkpoint to resume from"
        )
    return JobContext(
        lease_directory=lease,
        checkpoint_directory=_path(environment, CHECKPOINT_DIRECTORY_VARIABLE),
        resume_directory=_path(environment, RESUME_DIRECTORY_VARIABLE),
        rank=_whole(environment, "RANK", 0, 0, world - 1),
        local_rank=_whole(environment, "LOCAL_RANK", 0, 0),
        world=world,
        steps_total=math.ceil(_number(environment, "GAVEL_STEPS_TOTAL")),
        checkpoint_every_s=_number(environment, "GAVEL_CHECKPOINT_EVERY_S"),
        grace_s=launch.grace_s if launch else 0.0,
    )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    text = environment.get(name, "")
    return Path(text) if text else None


def _whole(environment: Mapping[str, str], name: str, default: int, least: int, most: int = 1 << 31) -> int:
    text = environment.get(name, "") or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise InvalidInput(f"{name} must be a whole number in [{least}, {most}], got {text!r}")
    return int(text)


def _number(environment: Mapping[str, str], name: str) -> float:
    text = environment.get(name, "") or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{name} must be a number, 0 or more, got {text!r}")
    return value
