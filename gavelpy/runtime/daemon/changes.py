"""Changes that a caller makes, with the checks that depend on who it is; each returns when the change is durable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import grpc

from gavelpy.mechanism.eligibility import Hold
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.queries.fields import require, text
from gavelpy.runtime.security.identity import Caller, Refusal

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.scheduler import Scheduler

_ROUND_S_MIN, _ROUND_S_MAX = 1.0, 86_400.0
_PARAMETERS_CHARACTERS_MAX = 10_000


async def hold(scheduler: Scheduler, caller: Caller, jobs: Sequence[int]) -> None:
    """Holds jobs; those of other owners are held by an admin."""
    specs = scheduler.core.jobs.by_serial.specs
    others = [job for job in jobs if specs[job].owner != caller.name] if not caller.is_sole else []
    await scheduler.hold(jobs, by_admin=others)


async def release(scheduler: Scheduler, caller: Caller, jobs: Sequence[int]) -> None:
    """Releases jobs. Raises Refusal if a user releases a job that an admin holds."""
    known = scheduler.core.jobs.by_serial
    held = [job for job in jobs if known.hold[job] == Hold.ADMIN]
    if held and not caller.is_admin:
        where = f"job {held[0]} ({name_of(known.specs[held[0]].id)})"
        raise Refusal(
            grpc.StatusCode.PERMISSION_DENIED, f"{where} is held by an admin, and only an admin can release it"
        )
    await scheduler.release(jobs, by_admin=caller.is_admin)


def check_policy(policy: str, parameters: str) -> None:
    """Raises InvalidInput for texts that cannot be the name of a policy and its parameters."""
    text("policy", policy)
    text("policy_parameters", parameters, characters_max=_PARAMETERS_CHARACTERS_MAX)


async def set_policy(scheduler: Scheduler, policy: str, parameters: str, round_s: float) -> None:
    """Changes policy, parameters (JSON) or round length; empty or 0 = unchanged. Raises InvalidInput."""
    check_policy(policy, parameters)
    if round_s:
        allowed = f"in [{_ROUND_S_MIN:g}, {_ROUND_S_MAX:g}], or 0 = as it is"
        require(_ROUND_S_MIN <= round_s <= _ROUND_S_MAX, "round_s", allowed, round_s)
    await scheduler.set_policy(policy, parameters, round_s)
