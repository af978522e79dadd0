"""Events to bytes and back: MessagePack, arrays as raw little-endian bytes, a version in every record.

A record is `[version, name of the event, now_s, fields in order]`. Reading checks every field: a wrong type or an
unknown event raises JournalCorrupt.

Formats grow at their ends only. A record of an older version may lack the last fields of its event, and any field of a
job or of settings that has a default: a missing field means what the older version meant. A record has the lowest
version that can express it (the constants below), so a journal without new features is readable by older versions.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, replace
from typing import Any

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalTooNew
from gavelpy.mechanism.events import (
    AgentRejoined,
    AllocationFailed,
    AllocationSolved,
    CheckpointSaved,
    ConfigChanged,
    DirectorySeen,
    Event,
    FailureClass,
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
    NodeDraining,
    NodeJoined,
    NodeLost,
    NodeUnhealthy,
    NodeUnreachable,
    Outcome,
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
from gavelpy.mechanism.named_round import is_named
from gavelpy.mechanism.settings import MechanismSettings, settings_of, settings_values
from gavelpy.mechanism.teams import limits_resources
from gavelpy.model.job import JobSpec

VERSION = 2
PACKED = 3  # co-located pairs
GUARDED = 4  # settings: lease protection, and back-off of failing jobs
FORGIVING = 5  # settings: free retries of starts that nodes lost, and patience for slow starts
NAMED = 5  # the state id of a node's agent, and unhealthy nodes
SAVING = 6  # settings: longer leases of unsaved jobs; declared checkpoints; forced drains
LATE = 6  # settings: late ends and finishing jobs; reports of last steps
FORGOTTEN = 6  # a lost node that an operator has removed
AGEING = 6  # settings: the longest time between allocations
UNRUNNABLE = 6  # the end of a lease with a command that cannot run
SEEN = 6  # the checkpoint directory that a node uses
WARNED = 6  # an allocation with a warning
ORDERED = 7  # holds and begins of jobs; jobs that announce their steps
CLASSED = 7  # the class of a failed lease; settings: how many failures of the system a job may have
RANKED = 8  # priority classes: of jobs, and in the settings
PLACED = 8  # the nodes that a job may use
FEATURED = 8  # what the agent of a node lacks
BOOKED = 9  # reservations for users, and jobs that run within one
LAGGING = 10  # settings: the lag for which a running job is preempted
LIMITED = 11  # settings: limits of a user, GPU memory of types; of a job: the GPU memory that it needs
TEAMED = 11  # settings: teams; of an allocation: marginal values, memory, refused jobs
ARCHIVED = 11  # jobs that have left for the archive
RESOURCED = 12  # CPU cores and memory of nodes, and those that jobs need
SIZED = 12  # jobs with several sizes: of a job, of an allocation, of estimated rates
QUOTED = 12  # settings: quotas and guaranteed GPUs of teams
PEERED = 13  # of an unreachable node: what other agents found
VALUED = 13  # jobs that state what their end is worth
CHOSEN = 13  # an allocation that names the configurations of the next round
MEASURED = 13  # the GPU memory that jobs use; settings: whether it counts as declared
PRICED = 14  # an allocation in which other resources than GPUs, or quotas of teams, are worth something
LOCATED = 15  # the rack, zone and region of a node; settings: placement and consolidation
PLANNED = 15  # jobs with a plan for each number of GPUs
TIMED = 15  # what stops and starts cost jobs, as measured
MOVED = 16  # settings: whether jobs move to make places for gangs; CPU cores and memory of teams
NEWEST = 16
OLDEST = 1  # that can be read
_LATER = {  # newest version of an event, if above VERSION
    "AllocationSolved": PRICED,
    "ThroughputEstimated": SIZED,
    "JobSubmitted": PLANNED,
    "JobsArchived": ARCHIVED,
    "JobsHeld": ORDERED,
    "ReservationAdded": BOOKED,
    "ReservationRemoved": ORDERED,
    "JobsReleased": ORDERED,
    "JobsRequeued": ORDERED,
    "PriorityChanged": RANKED,
    "ConfigChanged": MOVED,
    "GpuMemoryMeasured": MEASURED,
    "NodeJoined": LOCATED,
    "TurnMeasured": TIMED,
    "NodeHindered": NAMED,
    "NodeDraining": SAVING,
    "NodeLost": FORGOTTEN,
    "NodeSilent": PEERED,
    "SavingDeclared": SAVING,
    "LeaseEnded": CLASSED,
    "DirectorySeen": SEEN,
    "LastStepReported": LATE,
    "TotalAnnounced": ORDERED,
}
_LAST_FIELDS: dict[str, dict[int, int]] = {  # number of last fields that each later version added to an event
    "AllocationSolved": {PACKED: 3, WARNED: 1, TEAMED: 5, SIZED: 1, CHOSEN: 1, PRICED: 2},
    "ThroughputEstimated": {SIZED: 1},
    "NodeJoined": {NAMED: 1, FEATURED: 2, RESOURCED: 2, LOCATED: 3},
    "NodeDraining": {SAVING: 1},
    "NodeLost": {FORGOTTEN: 1},
    "NodeSilent": {PEERED: 2},
    "LeaseEnded": {CLASSED: 1},
    "ReservationAdded": {BOOKED: 1},
}
# The name of each event in journals, which never changes, and its class today. Fields are written by position.
EVENT_NAMES: dict[str, type[Event]] = {
    "NodeJoined": NodeJoined,
    "NodeLost": NodeLost,
    "NodeSilent": NodeUnreachable,
    "NodeDraining": NodeDraining,
    "NodeHindered": NodeUnhealthy,
    "DirectorySeen": DirectorySeen,
    "JobSubmitted": JobSubmitted,
    "JobCancelled": JobCancelled,
    "JobsHeld": JobsHeld,
    "JobsReleased": JobsReleased,
    "JobsRequeued": JobsRequeued,
    "PriceChanged": PriceChanged,
    "ConfigChanged": ConfigChanged,
    "PolicyChanged": PolicyChanged,
    "NumbersSkipped": IdsReserved,
    "ReservationAdded": ReservationAdded,
    "ReservationRemoved": ReservationRemoved,
    "JobNoted": JobAnnotated,
    "LeaseStarted": LeaseStarted,
    "LeaseEnded": LeaseEnded,
    "ProgressReported": ProgressReported,
    "CheckpointSaved": CheckpointSaved,
    "SavingDeclared": SavingDeclared,
    "LastStepReported": LastStepReported,
    "TotalAnnounced": TotalAnnounced,
    "AllocationSolved": AllocationSolved,
    "AllocationFailed": AllocationFailed,
    "ThroughputEstimated": ThroughputEstimated,
    "WakeupDue": WakeupDue,
    "SchedulerRestarted": SchedulerRestarted,
    "AgentRejoined": AgentRejoined,
    "PriorityChanged": PriorityChanged,
    "JobsArchived": JobsArchived,
    "GpuMemoryMeasured": GpuMemoryMeasured,
    "TurnMeasured": TurnMeasured,
}
_NAMES = {kind: name for name, kind in EVENT_NAMES.items()}
_FIELDS = {name: [(field.name, str(field.type)) for field in fields(kind)] for name, kind in EVENT_NAMES.items()}
_FIELDS_MIN = {
    name: sum(field.default is MISSING is field.default_factory for field in fields(kind))
    for name, kind in EVENT_NAMES.items()
}
_LATER_SETTINGS = {"packing": PACKED, "lease_min_s": GUARDED, "retry_s": GUARDED, "retry_max_s": GUARDED,
                   "losses_free": FORGIVING, "start_max_s": FORGIVING, "keep_unsaved": SAVING,
                   "late_ends": LATE, "loss_nodes_max": LATE, "finish_grace_s": LATE,
                   "solve_at_least_every_s": AGEING, "system_failures_max": CLASSED,
                   "priorities": RANKED, "move_lag_s": LAGGING, "teams": TEAMED,
                   "jobs_running_a_user_max": LIMITED, "gpus_a_user_max": LIMITED, "gpu_types": LIMITED,
                   "packing_measured": MEASURED, "placement": LOCATED, "consolidate_s": LOCATED,
                   "defragment": MOVED}  # fmt: skip
_LATER_OF_JOBS = {  # a job without them needs no version
    "time_s": ORDERED,
    "stall_s": ORDERED,
    "gpu_types": ORDERED,
    "nodes": PLACED,
    "exclude": PLACED,
    "reservation": BOOKED,
    "gpu_memory_gib": LIMITED,
    "cpus_per_gpu": RESOURCED,
    "memory_gib_per_gpu": RESOURCED,
    "sizes": SIZED,
    "rates_by_size": SIZED,
    "completion_value": VALUED,
    "plans": PLANNED,
    "hold": ORDERED,
    "begin_at_s": ORDERED,
    "begin_s": ORDERED,
    "no_preempt": ORDERED,
    "after_ok": ORDERED,
    "after_any": ORDERED,
    "array_size": ORDERED,
    "priority": RANKED,
    "open_ended": ORDERED,
}
_DTYPES = {1: np.dtype("<f8"), 2: np.dtype("<i8")}
_DTYPE_CODE = {"f": 1, "i": 2}
_VALUES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "bytes": (bytes,),
    "NodeId": (str,),
    "Ints": (np.ndarray,),
    "Floats": (np.ndarray,),
}


def journal_name(event: Event) -> str:
    """The event's name in journals."""
    return _NAMES[type(event)]


def encode(event: Event, now_s: float) -> bytes:
    """One record."""
    version, name = VERSION, journal_name(event)
    values = [getattr(event, field) for field, _ in _FIELDS[name]]
    match event:
        case AllocationSolved():
            version = WARNED if event.warning else PACKED if len(event.pair_share) else VERSION
            if len(event.marginal_value) or event.again_s < math.inf or event.memory or event.refused_why:
                version = TEAMED
            version = CHOSEN if is_named(event.next_round) else SIZED if len(event.sizes) else version
            version = PRICED if event.resources else version
        case ThroughputEstimated() if len(event.sizes):
            version = SIZED
        case JobSubmitted():
            later = [version for field, version in _LATER_OF_JOBS.items() if getattr(event.spec, field)]
            version = max([VERSION, *later])
        case ReservationAdded() if event.users:
            version = BOOKED
        case JobsHeld() | JobsReleased() | JobsRequeued() | ReservationAdded() | ReservationRemoved():
            version = ORDERED
        case TotalAnnounced():
            version = ORDERED
        case PriorityChanged():
            version = RANKED
        case JobsArchived():
            version = ARCHIVED
        case GpuMemoryMeasured():
            version = MEASURED
        case NodeJoined() if event.rack or event.zone or event.region:
            version = LOCATED
        case TurnMeasured():
            version = TIMED
        case NodeJoined() if event.cpus or event.memory_gib:
            version = RESOURCED
        case NodeJoined() if event.state_id or event.lacks:
            version = FEATURED if event.lacks else NAMED
        case NodeUnhealthy():
            version = NAMED
        case NodeLost() if event.is_forgotten:
            version = FORGOTTEN
        case NodeUnreachable() if event.alive_to or event.dead_to:
            version = PEERED
        case NodeDraining() if event.force:
            version = SAVING
        case SavingDeclared():
            version = SAVING
        case LeaseEnded() if event.failure or event.outcome is Outcome.UNRUNNABLE:
            version = CLASSED if event.failure else UNRUNNABLE
        case DirectorySeen():
            version = SEEN
        case LastStepReported():
            version = LATE
        case ConfigChanged():
            version, settings = _settings(event.settings)
            values = [settings]
        case _:
            pass
    return _ENCODER.encode([version, name, now_s, values[: len(values) - _missing(name, version)]])


def decode(record: bytes) -> tuple[float, Event]:
    """(now_s, event) of one record; raises JournalCorrupt, and JournalTooNew for one of a newer version."""
    try:
        raw = _DECODER.decode(record)
    except (msgspec.DecodeError, ValueError) as error:
        raise JournalCorrupt(f"record is not MessagePack: {error}") from None
    if not (isinstance(raw, list) and len(raw) == 4 and isinstance(raw[1], str) and isinstance(raw[3], list)):
        raise JournalCorrupt("record must be [version, event, now_s, fields]")
    version, name, now_s, values = raw
    if type(version) is not int or version < OLDEST:
        raise JournalCorrupt(f"version must be in [{OLDEST}, {NEWEST}], got {version!r}")
    if version > NEWEST:
        raise JournalTooNew(f"version must be at most {NEWEST}, got {version}: a newer gavelpy has written it")
    kind, known = EVENT_NAMES.get(name), _FIELDS.get(name, [])
    if version > (newest := _LATER.get(name, VERSION)):
        raise JournalCorrupt(f"version must be at most {newest} of {name!r}, got {version!r}")
    known = known[: len(known) - _missing(name, version)]
    count_min = _FIELDS_MIN.get(name, 0) if version < VERSION else len(known)
    if kind is None or not isinstance(now_s, int | float) or not count_min <= len(values) <= len(known):
        raise JournalCorrupt(f"event must be one of {', '.join(EVENT_NAMES)} with its fields, got {name!r}")
    arguments = {
        field: _value(f"{name}.{field}", annotation, value)
        for (field, annotation), value in zip(known, values, strict=False)
    }
    event: Event = kind(**arguments)
    return float(now_s), event


def _missing(name: str, version: int) -> int:
    """Number of last fields of an event that records of this version lack."""
    return sum(count for later, count in _LAST_FIELDS.get(name, {}).items() if later > version)


def encode_state(state: dict[str, Any]) -> bytes:
    """A snapshot (plain values, lists, dicts, arrays) as bytes; the same state gives the same bytes."""
    return _ENCODER.encode(state)


def decode_state(data: bytes) -> dict[str, Any]:
    """A snapshot from its bytes; raises JournalCorrupt."""
    try:
        state = _DECODER.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise JournalCorrupt(f"snapshot is not MessagePack: {error}") from None
    if not isinstance(state, dict):
        raise JournalCorrupt("snapshot must be a map")
    return state


def _settings(settings: MechanismSettings) -> tuple[int, dict[str, Any]]:
    """The version of a record of these settings, and their fields without those of later versions."""
    values = settings_values(settings)
    newer = [
        _LATER_SETTINGS[f.name] for f in fields(settings) if f.name in _LATER_SETTINGS and values[f.name] != f.default
    ]
    quoted = MOVED if limits_resources(settings.teams) else QUOTED if settings.limits_teams else VERSION
    version = max([quoted, *newer])
    return version, {name: value for name, value in values.items() if _LATER_SETTINGS.get(name, VERSION) <= version}


def _value(name: str, annotation: str, value: Any) -> Any:
    try:
        match annotation:
            case "JobSpec":
                return replace(
                    msgspec.convert(value, JobSpec)
                )  # a new one: msgspec leaves out fields that were missing
            case "MechanismSettings":
                return settings_of(value)
            case "Outcome":
                return Outcome(value)
            case "tuple[str, ...]":
                return tuple(msgspec.convert(value, list[str]))
            case "FailureClass":
                return FailureClass(value)
    except (msgspec.ValidationError, InvalidInput, ValueError) as error:
        raise JournalCorrupt(f"{name}: {error}") from None
    if not isinstance(value, _VALUES[annotation]) or (isinstance(value, bool) and annotation != "bool"):
        raise JournalCorrupt(f"{name} must be {annotation}, got {value!r}")
    if isinstance(value, np.ndarray) and value.dtype.kind != ("i" if annotation == "Ints" else "f"):
        raise JournalCorrupt(f"{name} must be {annotation}, got an array of {value.dtype}")
    return value


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"cannot journal a {type(value).__name__}")
    code = _DTYPE_CODE[value.dtype.kind]
    shape = np.array([value.ndim, *value.shape], dtype="<i8").tobytes()
    return msgspec.msgpack.Ext(code, shape + np.ascontiguousarray(value, dtype=_DTYPES[code]).tobytes())


def _decode_array(code: int, data: memoryview) -> Any:
    if code not in _DTYPES or len(data) < 8:
        raise ValueError(f"unknown array code {code}")
    ndim = int(np.frombuffer(data[:8], dtype="<i8")[0])
    if not 1 <= ndim <= 2 or len(data) < 8 * (1 + ndim):
        raise ValueError(f"arrays have 1 or 2 axes, got {ndim}")
    shape = tuple(np.frombuffer(data[8 : 8 * (1 + ndim)], dtype="<i8").tolist())
    array = np.frombuffer(data[8 * (1 + ndim) :], dtype=_DTYPES[code])
    if min(shape) < 0 or array.size != int(np.prod(shape)):
        raise ValueError(f"array of {array.size} values cannot have shape {shape}")
    return array.reshape(shape)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode_array)
_DECODER = msgspec.msgpack.Decoder(ext_hook=_decode_array)
