"""Validates an event before the core changes anything.

Events that may come late or twice (reports on leases that are over, answers to old requests) are accepted, and the core
ignores them. Events that cannot be valid (unknown nodes and jobs, times and shares that are not numbers) are refused.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import archiving, named_round, sizes
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    DirectorySeen,
    Event,
    GpuMemoryMeasured,
    IdsReserved,
    JobAnnotated,
    JobCancelled,
    JobsArchived,
    JobsHeld,
    JobsReleased,
    JobsRequeued,
    JobSubmitted,
    LastStepReported,
    LeaseEnded,
    LeaseStarted,
    MetricsReported,
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    PolicyChanged,
    PriceChanged,
    PriorityChanged,
    ProgressReported,
    ReservationAdded,
    ReservationRemoved,
    SavingDeclared,
    SchedulerRestarted,
    ThroughputEstimated,
    TotalAnnounced,
    TurnMeasured,
    WakeupDue,
)
from gavelpy.mechanism.gpu_memory import MEMORY_GIB_MAX
from gavelpy.mechanism.lifecycle import LAST_ALIVE
from gavelpy.mechanism.priority_classes import check_class
from gavelpy.model.allocation import AGAIN_MIN_S
from gavelpy.model.apps import METRIC_ALLOWED, is_metric
from gavelpy.model.arrays import VALUE_MAX, Bools, Floats, Ints
from gavelpy.model.cluster import GPU_COUNT_MAX
from gavelpy.model.job import AMOUNT_MAX, JobSpec, NodeId
from gavelpy.model.places import PLACE_NAMES, check_place_name

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.settings import MechanismSettings

NAMES_SHOWN = 8
NO_SIZES = "with queues by GPU type, or rounds of whole steps, no job may have several sizes"
SKIPPED_MAX = 10_000_000  # jobs; each takes a row
LEASE_MAX = 2**62
DIRECTORY_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


_OF_VIRTUAL_NODES = (ProgressReported, WakeupDue, LeaseStarted, LeaseEnded)


def check_foreign(core: SchedulerCore, event: Event) -> None:
    """As `check`, for a shell that makes its wake-ups and the reports on leases itself, so that they are valid."""
    if not isinstance(event, _OF_VIRTUAL_NODES):
        check(core, event)


def check(core: SchedulerCore, event: Event) -> None:
    """Raises InvalidInput with the field, its value and the allowed values. Never changes the core."""
    match event:
        case WakeupDue():
            _type_order(core, event.type_order)
        case LeaseStarted():
            _jobs(core, event.jobs, event.leases)
            _leases(event.leases)
            _gpus(core, event)
        case SavingDeclared() | LastStepReported() | TotalAnnounced() | GpuMemoryMeasured() | TurnMeasured():
            _jobs(core, event.jobs, event.leases)
            _leases(event.leases)
            _amounts(event)
        case MetricsReported():
            _metrics(core, event)
        case LeaseEnded() | ProgressReported() | CheckpointSaved():
            _jobs(core, event.jobs, event.leases, event.steps_done)
            _leases(event.leases)
            _steps(event.steps_done)
        case AllocationSolved():
            _shares(core, event)
        case JobSubmitted():
            _submitted(core, event.spec)
        case JobCancelled():
            _jobs(core, np.array([event.job]))
        case JobsHeld() | JobsReleased() | JobsRequeued() | PriorityChanged() | JobsArchived():
            _ordered(core, event)
        case NodeJoined():
            _joined(event)
        case ReservationAdded():
            _reservation(core, event)
        case ReservationRemoved():
            _removed(core, event)
        case NodeLost() | NodeUnreachable() | NodeDraining():
            _down(core, event)
        case NodeUnhealthy():
            _node(core, event.node_id)
            if not event.why.isprintable():
                raise InvalidInput(f"why must be without control characters, got {event.why!r}")
        case DirectorySeen():
            _node(core, event.node_id)
            if not DIRECTORY_ID.fullmatch(event.directory):
                allowed = "1 to 128 letters, digits, '.', '_' and '-'"
                raise InvalidInput(f"directory must be {allowed}, got {event.directory!r}")
        case AgentRejoined():
            _node(core, event.node_id)
            _lengths(event.jobs, event.leases, event.steps_done)
            _steps(event.steps_done)
        case IdsReserved():
            _skipped(core, event)
        case PriceChanged():
            _price(core, event)
        case ThroughputEstimated():
            _rates(core, event)
        case SchedulerRestarted():
            if event.incarnation <= core.incarnation:
                raise InvalidInput(f"incarnation must be > {core.incarnation}, got {event.incarnation}")
        case ConfigChanged():
            _settings(core, event.settings)
        case AllocationFailed() | PolicyChanged() | JobAnnotated():
            pass


def _within(name: str, values: Ints, count: int) -> None:
    """All values must be rows of a table with `count` rows."""
    if len(values) and not (values.min() >= 0 and values.max() < count):
        wrong = values[(values < 0) | (values >= count)][0]
        raise InvalidInput(f"{name} must be in [0, {count}), got {wrong}")


def _lengths(*columns: Ints | Floats) -> None:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise InvalidInput(f"columns of one event must be of one length, got {lengths}")


def _jobs(core: SchedulerCore, jobs: Ints, *others: Ints | Floats) -> None:
    _lengths(jobs, *others)
    _within("jobs", jobs, core.jobs.count)


def _all(name: str, values: Floats | Ints, ok: Bools, allowed: str) -> None:
    if not ok.all():
        raise InvalidInput(f"{name} must be {allowed}, got {values[~ok][0]}")


def _leases(leases: Ints) -> None:
    _all("leases", leases, leases >= 0, "0 or more")  # -1 means none in tables, and is invalid in events


def _amounts(event: SavingDeclared | LastStepReported | TotalAnnounced | GpuMemoryMeasured | TurnMeasured) -> None:
    for name in ("restart_s", "save_s") if isinstance(event, TurnMeasured) else ():
        seconds: Floats = getattr(event, name)
        _lengths(event.jobs, seconds)
        _all(name, seconds, (seconds >= 0) & (seconds <= VALUE_MAX), f"in [0, {VALUE_MAX:g}]")
    for name, most in (("steps_total", VALUE_MAX), ("peak_gib", MEMORY_GIB_MAX)):
        if (amounts := getattr(event, name, None)) is not None:
            _lengths(event.jobs, amounts)
            _all(name, amounts, (amounts > 0) & (amounts <= most), f"in (0, {most:g}]")


def _metrics(core: SchedulerCore, event: MetricsReported) -> None:
    _jobs(core, event.jobs, event.leases, event.metric, event.metric_steps, event.values)
    _leases(event.leases)
    _within("metric", event.metric, len(event.names))
    steps, values = event.metric_steps, event.values
    _all("metric_steps", steps, (steps >= 0) & (steps <= VALUE_MAX), f"in [0, {VALUE_MAX:g}]")
    _all("values", values, np.isfinite(values), "finite")
    if wrong := [name for name in event.names if not is_metric(name)]:
        raise InvalidInput(f"names must be {METRIC_ALLOWED}, got {wrong[0][:80]!r}")


def _steps(steps_done: Floats) -> None:
    _all("steps_done", steps_done, ~np.isnan(steps_done), "a number")


def _gpus(core: SchedulerCore, event: LeaseStarted) -> None:
    offsets, count = event.gpu_offsets, len(event.gpus)
    whole = len(offsets) == len(event.jobs) + 1 and offsets[0] == 0 and offsets[-1] == count
    if not whole or (np.diff(offsets) <= 0).any():
        raise InvalidInput(f"gpu_offsets must rise from 0 to {count}, one more than the jobs, got {offsets.tolist()}")
    _within("gpus", event.gpus, len(core.pool.job))


def _type_order(core: SchedulerCore, order: Ints) -> None:
    count = len(core.pool.gpu_types)
    if len(order) and not np.array_equal(np.sort(order), np.arange(count)):
        raise InvalidInput(f"type_order must hold each of 0 to {count - 1} once, or nothing, got {order.tolist()}")


def _shares(core: SchedulerCore, event: AllocationSolved) -> None:
    _jobs(core, event.jobs, event.gpu_type, event.share)
    _within("gpu_type", event.gpu_type, len(core.pool.gpu_types))
    _all("share", event.share, (event.share >= 0) & (event.share <= 1), "in [0, 1]")
    _sizes(core, event)
    if event.pair_jobs.size or len(event.pair_gpu_type) or len(event.pair_share):
        _pairs(core, event)
    if not event.again_s >= AGAIN_MIN_S:
        raise InvalidInput(f"again_s must be at least {AGAIN_MIN_S:g}, got {event.again_s!r}")
    named_round.check(core, event)
    _within("refused_jobs", event.refused_jobs, core.jobs.count)
    if len(event.refused_jobs) != len(event.refused_why):
        got = f"{len(event.refused_why)} for {len(event.refused_jobs)}"
        raise InvalidInput(f"refused_why must be one text for each of refused_jobs, got {got}")
    if len(event.resources) != len(event.resource_value):
        got = f"{len(event.resource_value)} for {len(event.resources)}"
        raise InvalidInput(f"resource_value must be one row for each of resources, got {got}")


def _sizes(core: SchedulerCore, event: AllocationSolved | ThroughputEstimated) -> None:
    if len(event.sizes):
        _lengths(event.jobs, event.sizes)
    for k in sizes.several(core.jobs, event.jobs).tolist():
        row = int(event.jobs[k])
        allowed = core.jobs.sizes[row].gpus
        if len(event.sizes) and event.sizes[k] not in allowed:
            job = core.jobs.specs[row].id
            raise InvalidInput(f"sizes of {job!r} must be of {', '.join(map(str, allowed))}, got {event.sizes[k]}")
        if not len(event.sizes) and isinstance(event, AllocationSolved):
            raise InvalidInput(f"sizes must say on how many GPUs {core.jobs.specs[row].id!r} has shares, got none")


def _pairs(core: SchedulerCore, event: AllocationSolved) -> None:
    members, gpu_type, share = event.pair_jobs, event.pair_gpu_type, event.pair_share
    if members.ndim != 2 or members.shape[1] != 2:
        raise InvalidInput(f"pair_jobs must have shape (P, 2), got {members.shape}")
    _lengths(members[:, 0], gpu_type, share)
    _within("pair_jobs", members.ravel(), core.jobs.count)
    _within("pair_gpu_type", gpu_type, len(core.pool.gpu_types))
    _all("pair_share", share, (share >= 0) & (share <= 1), "in [0, 1]")
    gpus = core.jobs.gpus[members]
    wrong = (members[:, 0] == members[:, 1]) | (gpus[:, 0] != gpus[:, 1]) | core.jobs.smallest[members].any(axis=1)
    if wrong.any():
        raise InvalidInput(
            f"pair_jobs must be two jobs that ask for equally many GPUs, got {members[wrong][0].tolist()} "
            f"with {gpus[wrong][0].tolist()}"
        )
    rows, counts = np.unique(np.column_stack([np.sort(members, axis=1), gpu_type]), axis=0, return_counts=True)
    if (counts > 1).any():
        raise InvalidInput(f"pair_jobs must name a pair once a type, got {rows[counts > 1][0, :2].tolist()} twice")


def _rates(core: SchedulerCore, event: ThroughputEstimated) -> None:
    rates = event.rates_steps_per_s
    _within("jobs", event.jobs, core.jobs.count)
    if rates.ndim != 2 or len(rates) != len(event.jobs) or rates.shape[1] > len(core.pool.gpu_types):
        expected = f"({len(event.jobs)}, {len(core.pool.gpu_types)})"
        raise InvalidInput(f"rates_steps_per_s must have shape {expected} at most, got {rates.shape}")
    _sizes(core, event)
    allowed = f"in [0, {VALUE_MAX:g}] (NaN = unknown)"
    _all("rates_steps_per_s", rates, np.isnan(rates) | ((rates >= 0) & (rates <= VALUE_MAX)), allowed)


def _submitted(core: SchedulerCore, spec: JobSpec) -> None:
    row = core.jobs.serial_of.get(spec.id, -1)
    if row >= 0 and core.jobs.state[row] <= LAST_ALIVE:
        job = core.jobs.ids.serial(row)
        raise InvalidInput(f"id must not be that of a living job, got {spec.id!r} (job {job})")
    if spec.sizes and not core.settings.rules.allows_sizes:
        raise InvalidInput(f"{NO_SIZES}, got {', '.join(map(str, spec.sizes))} for {spec.id!r}")
    after = np.array([*spec.after_ok, *spec.after_any], dtype=np.int64)
    _within("after", after, core.jobs.ids.next_serial)


def _settings(core: SchedulerCore, settings: MechanismSettings) -> None:
    several = [row for row in core.jobs.sizes if core.jobs.state[row] <= LAST_ALIVE]
    if several and not settings.rules.allows_sizes:
        raise InvalidInput(f"{NO_SIZES}, and {core.jobs.specs[several[0]].id!r} has")


_Ordered = JobsHeld | JobsReleased | JobsRequeued | PriorityChanged | JobsArchived


def _ordered(core: SchedulerCore, event: _Ordered) -> None:
    _jobs(core, event.jobs)
    if isinstance(event, JobsArchived):
        _archived(core, event)
    if isinstance(event, PriorityChanged):
        check_class(event.priority, core.settings)


def _archived(core: SchedulerCore, event: JobsArchived) -> None:
    _all("jobs", event.jobs, archiving.can_leave(core, event.jobs), "over and without a lease that may run")
    stays = [node for node in event.nodes if not archiving.can_retire(core, node)]
    if stays or len(set(event.nodes)) < len(event.nodes):
        wrong = ", ".join(stays or event.nodes)
        raise InvalidInput(f"nodes must be lost, without leases and reservations, each once, got {wrong}")
    if not 0 <= event.usage_before_s < math.inf:
        raise InvalidInput(f"usage_before_s must be a time of 0 or later, got {event.usage_before_s!r}")


def _joined(event: NodeJoined) -> None:
    for name, value in (("node_id", event.node_id), ("gpu_type", event.gpu_type)):
        if not value or not value.isprintable():
            raise InvalidInput(f"{name} must be a non-empty name without control characters, got {value!r}")
    if not event.state_id.isprintable():
        raise InvalidInput(f"state_id of {event.node_id!r} must be without control characters, got {event.state_id!r}")
    for text in (*event.lacks, event.agent):
        if not text.isprintable():
            raise InvalidInput(f"lacks of {event.node_id!r} must be without control characters, got {text!r}")
    if not 1 <= event.gpu_count <= GPU_COUNT_MAX:
        raise InvalidInput(f"gpu_count of {event.node_id!r} must be in [1, {GPU_COUNT_MAX}], got {event.gpu_count!r}")
    for name in PLACE_NAMES:
        check_place_name(f"{name} of {event.node_id!r}", getattr(event, name))
    for name, amount in (("cpus", event.cpus), ("memory_gib", event.memory_gib)):
        if not 0 <= amount <= AMOUNT_MAX:
            raise InvalidInput(f"{name} of {event.node_id!r} must be in [0, {AMOUNT_MAX:g}], got {amount!r}")


def _down(core: SchedulerCore, event: NodeLost | NodeUnreachable | NodeDraining) -> None:
    _node(core, event.node_id)
    if isinstance(event, NodeUnreachable) and (event.alive_to < 0 or event.dead_to < 0):
        raise InvalidInput(f"numbers of agents must not be negative, got {event.alive_to} and {event.dead_to}")


def _node(core: SchedulerCore, node_id: NodeId) -> None:
    if node_id not in core.pool.node_row:
        known = core.pool.node_ids[:NAMES_SHOWN]
        more = ", ..." if len(core.pool.node_ids) > NAMES_SHOWN else ""
        raise InvalidInput(f"node_id must be one of {', '.join(known) or '(none has joined)'}{more}, got {node_id!r}")


def _removed(core: SchedulerCore, event: ReservationRemoved) -> None:
    if event.name not in core.windows:
        raise InvalidInput(f"name must be that of a reservation, got {event.name!r}")


def _reservation(core: SchedulerCore, event: ReservationAdded) -> None:
    if not event.name or not (event.name + event.reason).isprintable():
        raise InvalidInput(f"name and reason must be without control characters, got {event.name!r}, {event.reason!r}")
    if not event.node_ids:
        raise InvalidInput(f"node_ids of reservation {event.name!r} must name one or more nodes, got none")
    for node_id in event.node_ids:
        _node(core, NodeId(node_id))
    if not (math.isfinite(event.begin_s) and math.isfinite(event.end_s)) or event.end_s <= max(
        event.begin_s, core.now_s
    ):
        times = f"{event.begin_s:g} to {event.end_s:g} at {core.now_s:g}"
        raise InvalidInput(f"reservation {event.name!r} must end after its begin and after now, got {times}")
    if not all(user and user.isprintable() for user in event.users) or len(set(event.users)) < len(event.users):
        raise InvalidInput(f"users of reservation {event.name!r} must be names, each once, got {list(event.users)!r}")
    for other in core.windows.values() if event.users else ():
        both = other.overlaps(event.begin_s, event.end_s, event.node_ids) if other.users else []
        if both and other.name != event.name:
            taken = f"{', '.join(both[:NAMES_SHOWN])} {'is' if len(both) == 1 else 'are'} in {other.name!r}"
            raise InvalidInput(f"reservation {event.name!r} must not overlap others for users: {taken} at that time")


def _skipped(core: SchedulerCore, event: IdsReserved) -> None:
    jobs_max = core.jobs.ids.next_serial + SKIPPED_MAX
    if not 0 <= event.jobs <= jobs_max:
        raise InvalidInput(f"jobs must be in [0, {jobs_max}], got {event.jobs}")
    if not 0 <= event.leases <= LEASE_MAX:
        raise InvalidInput(f"leases must be in [0, {LEASE_MAX}], got {event.leases}")


def _price(core: SchedulerCore, event: PriceChanged) -> None:
    if event.gpu_type not in core.pool.gpu_types:
        known = ", ".join(core.pool.gpu_types) or "(none)"
        raise InvalidInput(f"gpu_type must be one of {known}, got {event.gpu_type!r}")
    if not (event.price_usd_per_gpu_h >= 0 and math.isfinite(event.price_usd_per_gpu_h)):
        price = f"price_usd_per_gpu_h of {event.gpu_type!r}"
        raise InvalidInput(f"{price} must be a finite number >= 0, got {event.price_usd_per_gpu_h!r}")
