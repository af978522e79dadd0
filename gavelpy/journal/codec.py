"""Events to bytes and back: MessagePack, arrays as raw little-endian bytes, a version in every record.

A record is `[version, name of the event, now_s, fields in order]`. Reading checks every field: a wrong type or an
unknown event raises JournalCorrupt.

Formats grow at their ends only. A record of an older version may lack the last fields of its event, and any field of a
job or of settings that has a default: a missing field means what the older version meant. A record has the lowest
version that can express it (journal/versions.py), so a journal without new features is readable by older versions.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, replace
from typing import Any

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput, JournalCorrupt, JournalTooNew
from gavelpy.journal import versions as v
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
    MetricsReported,
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
from gavelpy.model.apps import RUNG_WAIT
from gavelpy.model.job import JobSpec

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
    "MetricsReported": MetricsReported,
}
_NAMES = {kind: name for name, kind in EVENT_NAMES.items()}
_FIELDS = {name: [(field.name, str(field.type)) for field in fields(kind)] for name, kind in EVENT_NAMES.items()}
_FIELDS_MIN = {
    name: sum(field.default is MISSING is field.default_factory for field in fields(kind))
    for name, kind in EVENT_NAMES.items()
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
    version, name = v.VERSION, journal_name(event)
    values = [getattr(event, field) for field, _ in _FIELDS[name]]
    match event:
        case AllocationSolved():
            version = v.WARNED if event.warning else v.PACKED if len(event.pair_share) else v.VERSION
            if len(event.marginal_value) or event.again_s < math.inf or event.memory or event.refused_why:
                version = v.TEAMED
            version = v.CHOSEN if is_named(event.next_round) else v.SIZED if len(event.sizes) else version
            version = v.PRICED if event.resources else version
        case ThroughputEstimated() if len(event.sizes):
            version = v.SIZED
        case JobSubmitted():
            later = [version for field, version in v.LATER_OF_JOBS.items() if getattr(event.spec, field)]
            version = max([v.VERSION, *later, v.WAITED if RUNG_WAIT in event.spec.app else v.VERSION])
        case ReservationAdded() if event.users:
            version = v.BOOKED
        case JobsHeld() | JobsReleased() | JobsRequeued() | ReservationAdded() | ReservationRemoved():
            version = v.ORDERED
        case TotalAnnounced():
            version = v.ORDERED
        case PriorityChanged():
            version = v.RANKED
        case JobsArchived():
            version = v.ARCHIVED
        case MetricsReported():
            version = v.METERED
        case GpuMemoryMeasured():
            version = v.MEASURED
        case NodeJoined() if event.rack or event.zone or event.region:
            version = v.LOCATED
        case TurnMeasured():
            version = v.TIMED
        case NodeJoined() if event.cpus or event.memory_gib:
            version = v.RESOURCED
        case NodeJoined() if event.state_id or event.lacks:
            version = v.FEATURED if event.lacks else v.NAMED
        case NodeUnhealthy():
            version = v.NAMED
        case NodeLost() if event.is_forgotten:
            version = v.FORGOTTEN
        case NodeUnreachable() if event.alive_to or event.dead_to:
            version = v.PEERED
        case NodeDraining() if event.force:
            version = v.SAVING
        case SavingDeclared():
            version = v.SAVING
        case LeaseEnded() if event.failure or event.outcome is Outcome.UNRUNNABLE:
            version = v.CLASSED if event.failure else v.UNRUNNABLE
        case DirectorySeen():
            version = v.SEEN
        case LastStepReported():
            version = v.LATE
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
    if type(version) is not int or version < v.OLDEST:
        raise JournalCorrupt(f"version must be in [{v.OLDEST}, {v.NEWEST}], got {version!r}")
    if version > v.NEWEST:
        raise JournalTooNew(f"version must be at most {v.NEWEST}, got {version}: a newer gavelpy has written it")
    kind, known = EVENT_NAMES.get(name), _FIELDS.get(name, [])
    if version > (newest := v.LATER.get(name, v.VERSION)):
        raise JournalCorrupt(f"version must be at most {newest} of {name!r}, got {version!r}")
    known = known[: len(known) - _missing(name, version)]
    count_min = _FIELDS_MIN.get(name, 0) if version < v.VERSION else len(known)
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
    return sum(count for later, count in v.LAST_FIELDS.get(name, {}).items() if later > version)


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
        v.LATER_SETTINGS[f.name] for f in fields(settings) if f.name in v.LATER_SETTINGS and values[f.name] != f.default
    ]
    quoted = v.MOVED if limits_resources(settings.teams) else v.QUOTED if settings.limits_teams else v.VERSION
    version = max([quoted, *newer])
    return version, {name: value for name, value in values.items() if v.LATER_SETTINGS.get(name, v.VERSION) <= version}


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
