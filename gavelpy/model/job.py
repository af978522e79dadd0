"""Jobs as submitted, their ids, and traces: jobs with arrival times, and their statistics."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NewType

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.apps import AppRole
from gavelpy.model.arrays import VALUE_MAX, Floats, floats, index_of, require
from gavelpy.model.completion_value import CompletionValue
from gavelpy.model.job_phases import Phases, check_phases_of
from gavelpy.model.job_sizes import RatesBySize, checked_plans, checked_rates, checked_sizes
from gavelpy.model.metric_curve import MetricCurve
from gavelpy.model.notify import NO_NOTIFICATIONS, Notify
from gavelpy.model.slots import changed, set_values, values_of
from gavelpy.model.software import OF_NODE, Software

if TYPE_CHECKING:
    from gavelpy.model.cluster import ClusterNode
    from gavelpy.model.cluster_changes import ClusterChange

# A serial is a row number that is never reused; an id is a name given by a user.
JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)

GPUS_MAX = 1_000_000
ASSUMED_S = 3_600.0  # length of a job whose number of steps is not known
SIGNAL_MAX = 64
AFTER_MAX = 1_000  # jobs that a job comes after
NODES_MAX = 1_000  # nodes that a job chooses or excludes
AMOUNT_MAX = 1e6  # CPU cores or GiB of a job for each GPU, or of a node
_NOT_IN_IDS = re.compile(r",|[^\S ]")  # commas, and white space other than blanks
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class JobKind(StrEnum):
    """Kind of job: ends with its work (batch), ended by its user (interactive), without end (service)."""

    BATCH = "batch"
    INTERACTIVE = "interactive"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)  # with slots, a job takes a third of the memory
class JobSpec:
    """One job as submitted. Raises InvalidInput, which names field, value and what is allowed."""

    __getstate__, __setstate__ = values_of, set_values

    id: JobId
    steps_total: float
    gpus: int = 1  # that it requests, all of one type
    weight: float = 1.0
    job_type: str = ""  # key in a throughput table
    rates_steps_per_s: Mapping[str, float] = field(default_factory=dict)  # of the whole job; 0 = cannot run there
    deadline_s: float = math.inf  # from submission
    entity: str = ""
    kind: JobKind = JobKind.BATCH
    command: str = ""
    working_directory: str = ""
    owner: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # added to the runtime's variables
    one_process_a_node: bool = False  # default: one per GPU
    checkpoint_every_s: float = 0.0  # 0 = only at the end of a lease
    warning_s: float = 0.0  # the job receives warning_signal this long before a lease ends; 0 = never
    warning_signal: int = 0
    preemptible: bool = False  # may be preempted before its first checkpoint
    software: Software = OF_NODE
    notify: Notify = NO_NOTIFICATIONS
    no_preempt: bool = False  # once started it is not preempted
    after_ok: tuple[int, ...] = ()  # serials of jobs that must finish before it; -n = the n-th job before this one
    after_any: tuple[int, ...] = ()  # of jobs that must be over, in whatever way
    array_size: int = 0  # number of jobs of its array, which have consecutive serials; 0 = in none
    array_position: int = 0  # from 0
    array_limit: int = 0  # how many jobs of the array compete for GPUs at once; 0 = all
    hold: bool = False  # gets no lease until it is released
    begin_at_s: float = 0.0  # Unix time before which it gets no lease, as its owner chose it; 0 = none
    begin_s: float = 0.0  # the same, counted from submission; `submitted` computes it
    time_s: float = 0.0  # longest running time, over all leases; 0 = no limit
    stall_s: float = 0.0  # ended after this running time without progress; 0 = never
    gpu_types: tuple[str, ...] = ()  # it runs on no other types; empty = on all
    priority: str = ""  # its priority class; empty = the default, normal
    secrets: Mapping[str, str] = field(default_factory=dict)  # names of the owner's secrets, by variable
    open_ended: bool = False  # steps_total is assumed: the program announces its own, or ends without
    nodes: tuple[str, ...] = ()  # it runs on no other nodes; empty = on all
    exclude: tuple[str, ...] = ()  # nodes on which it does not run
    gpu_memory_gib: float = 0.0  # that it needs of each GPU; 0 = not known, and it shares GPUs with no other job
    reservation: str = ""  # it runs within this reservation only, on its nodes; empty = outside of all
    cpus_per_gpu: float = 0.0  # CPU cores that it needs with each GPU, on the same node; 0 = none are counted for it
    memory_gib_per_gpu: float = 0.0  # memory of the node, likewise
    sizes: tuple[int, ...] = ()  # all numbers of GPUs on which it can run, ascending; empty = on `gpus` only
    rates_by_size: RatesBySize = field(default_factory=dict)  # of the sizes other than `gpus`; without: estimated
    plans: Mapping[int, str] = field(default_factory=dict)  # what its program receives, by number of GPUs held
    completion_value: str = ""  # what its end is worth by its time (model.completion_value); empty = not stated
    app: str = ""  # its role in an app (model.apps); empty = in none

    def __post_init__(self) -> None:
        self._check_id()
        _whole(self.id, "gpus", self.gpus, 1, GPUS_MAX)
        _positive(self.id, "steps_total", self.steps_total)
        if not isinstance(self.open_ended, bool):
            raise InvalidInput(f"open_ended of job {self.id!r} must be true or false, got {self.open_ended!r}")
        _positive(self.id, "weight", self.weight)
        if not self.deadline_s > 0:  # infinite = none
            raise InvalidInput(f"deadline_s of job {self.id!r} must be > 0, got {self.deadline_s!r}")
        self._check_rates()
        if self.completion_value:
            CompletionValue.parse(self.completion_value)
        if self.app:
            AppRole.parse(self.app)
        if self.kind is JobKind.SERVICE:
            raise InvalidInput(f"kind of job {self.id!r} must be 'batch' or 'interactive', got {self.kind!r}")
        if self.kind is JobKind.INTERACTIVE and not self.one_process_a_node:
            raise InvalidInput(
                f"one_process_a_node of job {self.id!r} must be true, because it is interactive, got "
                f"{self.one_process_a_node!r}"
            )
        if self.sizes and self.kind is JobKind.INTERACTIVE:
            raise InvalidInput(f"sizes of job {self.id!r} must be one, because it is interactive, got {self.sizes!r}")
        self._check_owner()
        self._check_how_it_runs()

    def rates_on(self, gpus: int) -> Mapping[str, float]:
        """Its owner's rates on this many GPUs, by GPU type; empty = none."""
        return self.rates_steps_per_s if gpus == self.gpus else self.rates_by_size.get(gpus, {})

    def _check_id(self) -> None:
        if not self.id or _NOT_IN_IDS.search(self.id):
            raise InvalidInput(f"id must be a non-empty name without commas, tabs or line breaks, got {self.id!r}")

    def _check_rates(self) -> None:
        rates = checked_rates("rates_steps_per_s", self.id, self.rates_steps_per_s)
        sizes, by_size = checked_sizes(self.id, self.gpus, tuple(self.sizes), self.rates_by_size)
        object.__setattr__(self, "rates_steps_per_s", rates)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "rates_by_size", by_size)
        object.__setattr__(self, "plans", checked_plans(self.id, self.gpus, sizes, self.plans))

    def _check_owner(self) -> None:
        if not self.owner.isprintable():
            raise InvalidInput(f"owner of job {self.id!r} must be without control characters, got {self.owner!r}")

    def _check_how_it_runs(self) -> None:
        object.__setattr__(self, "environment", dict(self.environment))
        for name, value in self.environment.items():
            if not _VARIABLE.fullmatch(name):
                raise InvalidInput(
                    f"environment of job {self.id!r}: a name is letters, digits and '_', no digit first, got {name!r}"
                )
            if not isinstance(value, str) or "\0" in value:
                raise InvalidInput(
                    f"environment[{name!r}] of job {self.id!r} must be a string without NUL, got {value!r}"
                )
        if not isinstance(self.one_process_a_node, bool):
            raise InvalidInput(
                f"one_process_a_node of job {self.id!r} must be true or false, got {self.one_process_a_node!r}"
            )
        if not self.priority.isprintable():
            raise InvalidInput(f"priority of job {self.id!r} must be the name of a class, got {self.priority!r}")
        if not isinstance(self.preemptible, bool):
            raise InvalidInput(f"preemptible of job {self.id!r} must be true or false, got {self.preemptible!r}")
        self._check_order()
        for name in ("begin_at_s", "begin_s", "time_s", "stall_s", "gpu_memory_gib"):
            _not_negative(self.id, name, getattr(self, name))
        for name in ("cpus_per_gpu", "memory_gib_per_gpu"):
            if not 0 <= (amount := getattr(self, name)) <= AMOUNT_MAX:
                raise InvalidInput(f"{name} of job {self.id!r} must be in [0, {AMOUNT_MAX:g}], got {amount!r}")
        object.__setattr__(self, "gpu_types", tuple(self.gpu_types))
        if not all(isinstance(name, str) and name for name in self.gpu_types):
            raise InvalidInput(f"gpu_types of job {self.id!r} must be names of GPU types, got {self.gpu_types!r}")
        self._check_nodes()
        if not isinstance(self.reservation, str) or not self.reservation.isprintable():
            raise InvalidInput(f"reservation of job {self.id!r} must be the name of one, got {self.reservation!r}")
        _not_negative(self.id, "checkpoint_every_s", self.checkpoint_every_s)
        _not_negative(self.id, "warning_s", self.warning_s)
        _whole(self.id, "warning_signal", self.warning_signal, 0, SIGNAL_MAX)  # 0 = none

    def may_run_on(self, gpu_type: str) -> bool:
        """Whether its owner allows this GPU type."""
        return not self.gpu_types or gpu_type in self.gpu_types

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the job needs of the agents on its nodes."""
        if (
            (self.software is OF_NODE or self.software == OF_NODE)
            and not (self.secrets or self.stall_s or self.time_s or self.gpu_memory_gib)
            and not (self.cpus_per_gpu or self.memory_gib_per_gpu or self.plans or self.app)
            and self.kind is JobKind.BATCH
        ):
            return ()  # most jobs
        return tuple(name for name, is_needed in FEATURES.items() if is_needed(self))

    @property
    def is_limited(self) -> bool:
        """Whether its owner chose the nodes that it may use."""
        return bool(self.nodes or self.exclude)

    def may_use(self, node_id: str) -> bool:
        """Whether its owner allows this node."""
        return (not self.nodes or node_id in self.nodes) and node_id not in self.exclude

    def _check_nodes(self) -> None:
        for name in ("nodes", "exclude"):
            value = tuple(getattr(self, name))
            object.__setattr__(self, name, value)
            if not all(isinstance(node, str) and node and node.isprintable() for node in value):
                raise InvalidInput(f"{name} of job {self.id!r} must be names of nodes, got {value!r}")
            if len(value) > NODES_MAX or len(set(value)) < len(value):
                allowed = f"at most {NODES_MAX} nodes, each once"
                raise InvalidInput(f"{name} of job {self.id!r} must have {allowed}, got {', '.join(value)[:60]!r}")
        if self.nodes and not set(self.nodes) - set(self.exclude):
            raise InvalidInput(f"exclude of job {self.id!r} must leave one of its nodes, got {', '.join(self.exclude)}")

    def _check_order(self) -> None:
        if not isinstance(self.hold, bool):
            raise InvalidInput(f"hold of job {self.id!r} must be true or false, got {self.hold!r}")
        if not isinstance(self.no_preempt, bool):
            raise InvalidInput(f"no_preempt of job {self.id!r} must be true or false, got {self.no_preempt!r}")
        if self.no_preempt and self.preemptible:
            raise InvalidInput(f"no_preempt and preemptible of job {self.id!r} exclude each other, got true for both")
        for name in ("after_ok", "after_any"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
            if (count := len(getattr(self, name))) > AFTER_MAX:
                raise InvalidInput(f"{name} of job {self.id!r} must have at most {AFTER_MAX} jobs, got {count}")
        if not (0 <= self.array_position < max(self.array_size, 1) and self.array_limit >= 0 and self.array_size >= 0):
            raise InvalidInput(
                f"array_position of job {self.id!r} must be in [0, array_size), got {self.array_position} of "
                f"{self.array_size} with limit {self.array_limit}"
            )
        if self.array_limit and not self.array_size:
            raise InvalidInput(f"array_limit of job {self.id!r} must be 0 outside an array, got {self.array_limit}")

    def renamed(self, id: JobId, owner: str) -> JobSpec:
        """The same job with another id and owner. Only these two are validated again."""
        return self._renamed(id, owner)

    def ordered(self, after_ok: Sequence[int], after_any: Sequence[int], array_position: int) -> JobSpec:
        """The same job after these jobs, and at this place of its array."""
        spec = changed(self, after_ok=tuple(after_ok), after_any=tuple(after_any), array_position=array_position)
        spec._check_order()
        return spec

    def submitted(self, id: JobId, owner: str, serial: int, unix_s: float) -> JobSpec:
        """The same job with its id in the core and its owner, if it is submitted at `unix_s` with this serial.

        Times and other jobs that it names relative to itself become absolute.
        """
        ok, ended = (tuple(k if k >= 0 else serial + k for k in of) for of in (self.after_ok, self.after_any))
        begin_s = max(self.begin_at_s - unix_s, 0.0) if self.begin_at_s else self.begin_s
        return self._renamed(id, owner, after_ok=ok, after_any=ended, begin_s=begin_s)

    def _renamed(self, id: JobId, owner: str, **others: Any) -> JobSpec:  # Any: values of other fields
        spec = changed(self, id=id, owner=owner, **others)
        spec._check_id()
        spec._check_owner()
        return spec

    def limited(self, time_s: float, stall_s: float) -> JobSpec:
        """The same job with these limits. Only they are validated again."""
        if (time_s, stall_s) == (self.time_s, self.stall_s):
            return self
        _not_negative(self.id, "time_s", time_s)
        _not_negative(self.id, "stall_s", stall_s)
        return changed(self, time_s=time_s, stall_s=stall_s)

    def with_rates(self, rates_steps_per_s: Mapping[str, float]) -> JobSpec:
        """The same job with these rates. Only they are validated again."""
        spec = changed(self, rates_steps_per_s=rates_steps_per_s)
        spec._check_rates()
        return spec


# What a job can need of the agents on its nodes, by option. An agent announces those that it has.
FEATURES: Mapping[str, Callable[[JobSpec], object]] = {
    "co_located": lambda spec: spec.gpu_memory_gib,
    "conda": lambda spec: spec.software.conda,
    "cpus-per-gpu": lambda spec: spec.cpus_per_gpu,
    "image": lambda spec: spec.software.image,
    "memory-per-gpu": lambda spec: spec.memory_gib_per_gpu,
    "metrics": lambda spec: spec.app,
    "plan": lambda spec: spec.plans,
    "pty": lambda spec: spec.kind is JobKind.INTERACTIVE,
    "secret": lambda spec: spec.secrets,
    "snapshot": lambda spec: spec.software.snapshot,
    "stall": lambda spec: spec.stall_s,
    "time": lambda spec: spec.time_s,
    "venv": lambda spec: spec.software.venv,
}


def lost_spec(serial: int) -> JobSpec:
    """Placeholder for a job with a lost description."""
    return JobSpec(JobId(f"job-{serial}"), 1.0)


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs in order of arrival; with nodes, if the trace states them."""

    jobs: tuple[JobSpec, ...]
    arrival_s: Floats  # (J,) non-decreasing
    name: str = ""
    cancelled_s: Floats = field(default_factory=lambda: np.zeros(0))  # (J,) time when its user cancels it; inf = never
    nodes: tuple[ClusterNode, ...] = ()  # of the cluster on which the jobs ran
    node_changes: tuple[ClusterChange, ...] = ()  # nodes that join, drain or are lost, in order of time
    provenance: Mapping[str, Any] = field(default_factory=dict)  # source, rule and seed, as JSON values
    phases: Mapping[JobId, Phases] = field(default_factory=dict)  # of jobs whose rates are means over their phases
    curves: Mapping[JobId, MetricCurve] = field(default_factory=dict)  # of jobs that report a metric

    def __post_init__(self) -> None:
        J = len(self.jobs)
        object.__setattr__(self, "arrival_s", floats("arrival_s", self.arrival_s, (J,)))
        cancelled_s = self.cancelled_s if len(self.cancelled_s) else np.full(J, math.inf)
        object.__setattr__(self, "cancelled_s", floats("cancelled_s", cancelled_s, (J,)))
        index_of((job.id for job in self.jobs), "job ids")
        check_phases_of(self.jobs, self.phases)
        require("arrival_s", self.arrival_s, np.isfinite(self.arrival_s) & (self.arrival_s >= 0), "finite and >= 0")
        if (np.diff(self.arrival_s) < 0).any():
            row = int(np.argmax(np.diff(self.arrival_s) < 0)) + 1
            raise InvalidInput(
                f"arrival_s must not decrease, got {self.arrival_s[row]} after {self.arrival_s[row - 1]} (row {row})"
            )
        require("cancelled_s", self.cancelled_s, self.cancelled_s >= self.arrival_s, "at or after the job's arrival")

    def __len__(self) -> int:
        return len(self.jobs)


def assumed_steps(rates_steps_per_s: Mapping[str, float]) -> float:
    """Steps to assume for a job of unknown length: ASSUMED_S at its fastest rate, at one step per second if unknown."""
    return ASSUMED_S * (max(rates_steps_per_s.values(), default=0.0) or 1.0)


def _whole(job_id: str, name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidInput(f"{name} of job {job_id!r} must be a whole number in [{low}, {high}], got {value!r}")


def _positive(job_id: str, name: str, value: float) -> None:
    if not 0 < value <= VALUE_MAX:
        raise InvalidInput(f"{name} of job {job_id!r} must be > 0 and at most {VALUE_MAX:g}, got {value!r}")


def _not_negative(job_id: str, name: str, value: float) -> None:
    if not 0 <= value <= VALUE_MAX:
        raise InvalidInput(f"{name} of job {job_id!r} must be in [0, {VALUE_MAX:g}], got {value!r}")


_PERCENTILES = (0, 10, 50, 90, 99, 100)


def statistics_of(trace: Trace) -> dict[str, Any]:
    """Statistics of a trace as JSON values. Run times are on the fastest type for which a job has a rate.

    jobs, span_s (first to last arrival), arrival_rate_jobs_per_h (None if all arrive at once), gpus and job_types
    (number of jobs of each), steps and duration_s (percentiles), load_gpu_h (sum of GPUs x run time), weighted_share
    (fraction of jobs with a weight other than 1), deadline_share, entities, jobs_without_rates.
    """
    J = len(trace)
    span_s = float(trace.arrival_s[-1] - trace.arrival_s[0]) if J else 0.0
    runnable = [job for job in trace.jobs if _fastest_rate(job) > 0]
    durations_s = [job.steps_total / _fastest_rate(job) for job in runnable]
    load_gpu_s = sum(job.gpus * d for job, d in zip(runnable, durations_s, strict=True))
    return {
        "name": trace.name,
        "jobs": J,
        "span_s": span_s,
        "arrival_rate_jobs_per_h": (J - 1) / span_s * 3600.0 if span_s > 0 else None,
        "gpus": dict(sorted(Counter(job.gpus for job in trace.jobs).items())),
        "job_types": dict(Counter(job.job_type for job in trace.jobs).most_common()),
        "steps": _percentiles([job.steps_total for job in trace.jobs]),
        "duration_s": _percentiles(durations_s),
        "load_gpu_h": load_gpu_s / 3600.0,
        "weighted_share": sum(job.weight != 1.0 for job in trace.jobs) / max(J, 1),
        "deadline_share": sum(bool(np.isfinite(job.deadline_s)) for job in trace.jobs) / max(J, 1),
        "entities": len({job.entity for job in trace.jobs if job.entity}),
        "jobs_without_rates": J - len(runnable),
    }


def _fastest_rate(job: JobSpec) -> float:
    return max(job.rates_steps_per_s.values(), default=0.0)


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    """`{"p50": ...}`; empty without values."""
    if not values:
        return {}
    found = np.percentile(np.array(values), _PERCENTILES).tolist()
    return {f"p{p}": value for p, value in zip(_PERCENTILES, found, strict=True)}
