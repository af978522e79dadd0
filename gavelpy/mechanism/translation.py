"""The core's border once jobs have left it: serials of events become rows, and rows of commands become serials.

Reports on jobs that have left are outdated and are ignored, as for all jobs that are over. Serials that were
never given are refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.claims import ALONE
from gavelpy.mechanism.commands import Command, EstimateThroughput, KillLease, RoundPlan, SolveAllocation
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationSolved,
    Event,
    JobAnnotated,
    JobCancelled,
    JobsArchived,
    LeaseStarted,
)
from gavelpy.mechanism.identities import GONE, Identities
from gavelpy.mechanism.named_round import COLUMNS, is_named
from gavelpy.model.arrays import Bools, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

Message = TypeVar("Message")
_BY_JOB = (
    "leases",
    "steps_done",
    "steps_total",
    "peak_gib",
    "restart_s",
    "save_s",
    "rates_steps_per_s",
    "gpu_type",
    "share",
    "sizes",
    "metric",
    "metric_steps",
    "values",
)


def handle_serials(core: SchedulerCore, event: Event, now_s: float) -> list[Command]:
    """Applies one event with serials, and returns commands with serials: see `SchedulerCore.handle`."""
    ids = core.jobs.ids
    translated, commands = to_rows(ids, event)
    if translated is None:
        core.now_s, core.unmet_jobs = now_s, []
        return commands
    found = core.handle_rows(translated, now_s)
    core.unmet_jobs = [(ids.serial(row), ids.serial(other)) for row, other in core.unmet_jobs]
    return [*commands, *(_command(ids, command) for command in found)]


def to_rows(ids: Identities, event: Event) -> tuple[Event | None, list[Command]]:
    """The event with rows, None if it is about jobs that have left only; and commands that follow from these.

    Raises InvalidInput.
    """
    if isinstance(event, JobAnnotated):  # the core does not use it
        return event, []
    if isinstance(event, JobCancelled):
        row = int(_rows(ids, "jobs", np.array([event.job]))[0])
        return (replace(event, job=row) if row != GONE else None), []
    serials: Ints | None = getattr(event, "jobs", None)
    if not isinstance(serials, np.ndarray):
        return event, []
    if serials.shape == (1,) and (row := ids.row(serials.item())) != GONE and not isinstance(event, AllocationSolved):
        return _with(event, jobs=np.array([row])), []  # most events
    rows = _rows(ids, "jobs", serials)
    here = rows != GONE
    commands: list[Command] = []
    if isinstance(event, AgentRejoined) and not here.all():
        _check_lengths(event, rows)
        gone = zip(serials[~here].tolist(), event.leases[~here].tolist(), strict=True)
        commands = [KillLease(job, lease) for job, lease in gone]
    if isinstance(event, AllocationSolved):
        event = _of_pairs(ids, event)
    elif not (here.any() or isinstance(event, AgentRejoined | JobsArchived)) and len(here):
        return None, []
    return _among(event, rows, here), commands


def _command(ids: Identities, command: Command) -> Command:
    match command:
        case SolveAllocation() | EstimateThroughput():
            return _with(command, jobs=ids.of_rows(command.jobs))
        case RoundPlan():
            return _with(
                command,
                extend_jobs=ids.of_rows(command.extend_jobs),
                revoke_jobs=ids.of_rows(command.revoke_jobs),
                grant_jobs=ids.of_rows(command.grant_jobs),
            )
        case KillLease():
            return replace(command, job=ids.serial(command.job))
        case _:
            return command


def _with(one: Message, **values: Any) -> Message:  # Any: of each field's type
    """The same event or command with other values of some fields, as by `replace` but in a tenth of the time."""
    found = object.__new__(type(one))
    vars(found).update(vars(one), **values)
    return found


def _rows(ids: Identities, name: str, serials: Ints) -> Ints:
    if len(serials) and not (serials.min() >= 0 and serials.max() < ids.next_serial):
        wrong = serials[(serials < 0) | (serials >= ids.next_serial)][0]
        raise InvalidInput(f"{name} must be in [0, {ids.next_serial}), got {wrong}")
    return ids.rows(serials)


def _check_lengths(event: Any, rows: Ints) -> None:  # Any: an event with jobs
    lengths = [len(rows), *(len(getattr(event, name)) for name in _columns(event))]
    if len(set(lengths)) > 1:
        raise InvalidInput(f"columns of one event must be of one length, got {lengths}")


def _columns(event: Any) -> list[str]:  # Any: an event with jobs
    """The columns of an event that have one value for each job; sizes may be left out."""
    return [name for name in _BY_JOB if hasattr(event, name) and (name != "sizes" or len(event.sizes))]


def _among(event: Any, rows: Ints, here: Bools) -> Event:  # Any: an event with jobs
    """The event with rows, of the jobs that are here."""
    if here.all():
        found: Event = _with(event, jobs=rows)
        return found
    _check_lengths(event, rows)
    changes = {name: getattr(event, name)[here] for name in _columns(event)}
    if isinstance(event, LeaseStarted):
        ends = event.gpu_offsets
        if len(ends) != len(rows) + 1:
            raise InvalidInput(f"gpu_offsets must be one more than the jobs, got {len(ends)} for {len(rows)}")
        parts = [event.gpus[ends[k] : ends[k + 1]] for k in np.flatnonzero(here).tolist()]
        changes["gpus"] = np.concatenate(parts)
        changes["gpu_offsets"] = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    one: Event = replace(event, jobs=rows[here], **changes)
    return one


def _of_pairs(ids: Identities, event: AllocationSolved) -> AllocationSolved:
    """The answer with rows of pairs and refused jobs that are here."""
    members = event.pair_jobs
    if members.ndim == 2 and members.size:
        rows = _rows(ids, "pair_jobs", members.ravel()).reshape(members.shape)
        here = (rows != GONE).all(axis=1)
        if not len(event.pair_gpu_type) == len(event.pair_share) == len(members):
            raise InvalidInput("columns of pairs must be of one length")
        event = replace(
            event, pair_jobs=rows[here], pair_gpu_type=event.pair_gpu_type[here], pair_share=event.pair_share[here]
        )
    if len(event.refused_jobs) and len(event.refused_jobs) == len(event.refused_why):
        rows = _rows(ids, "refused_jobs", event.refused_jobs)
        here = rows != GONE
        why = tuple(text for text, is_here in zip(event.refused_why, here.tolist(), strict=True) if is_here)
        event = replace(event, refused_jobs=rows[here], refused_why=why)
    if is_named(event.next_round) and event.next_round.shape[1] == COLUMNS:
        first, other = event.next_round[:, 0], event.next_round[:, 1]
        is_alone = other == ALONE
        rows, others = (_rows(ids, "jobs of next_round", one) for one in (first, np.where(is_alone, first, other)))
        here = (rows != GONE) & (others != GONE)
        named = np.column_stack([rows, np.where(is_alone, ALONE, others), event.next_round[:, 2:]])
        event = replace(event, next_round=named[here])
    return event
