"""Writes the state of a core as plain values and arrays, and restores it exactly; also copies a core in memory.

A restored core handles all later events as the original would. Derived values are recomputed. Snapshots of older
versions are readable; fields that they lack get the value for unknown.
"""

from __future__ import annotations

import copy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from gavelpy.errors import JournalCorrupt, JournalTooNew
from gavelpy.mechanism import eligibility, failures, non_preemptible, priority_classes, turn_costs
from gavelpy.mechanism.app_table import label
from gavelpy.mechanism.claims import CLAIM_FLOAT_COLUMNS, CLAIM_INT_COLUMNS, ClaimTable
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.gpus import NO_PLACE, RETIRED, GpuPool
from gavelpy.mechanism.jobs import FLOAT_COLUMNS, INT_COLUMNS, WIDE_COLUMNS, JobTable
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.mechanism.named_round import is_named
from gavelpy.mechanism.node_resources import needs_of, strained
from gavelpy.mechanism.original_gavel import DEFICIT
from gavelpy.mechanism.requests import AllocationRequest
from gavelpy.mechanism.settings import has_placement, settings_of, settings_values
from gavelpy.mechanism.sizes import JobSizes
from gavelpy.mechanism.snapshot_versions import upgraded
from gavelpy.mechanism.teams import limits_resources
from gavelpy.mechanism.waiting import Apart, Move
from gavelpy.mechanism.windows import Window
from gavelpy.model.apps import RUNG_WAIT, AppRole
from gavelpy.model.arrays import Ints
from gavelpy.model.completion_value import CompletionValue
from gavelpy.model.job import JobId, JobSpec, NodeId
from gavelpy.model.restored_jobs import restored_specs

VERSION = 10
ARCHIVED = 11  # of a core that jobs have left
SIZED = 12  # of a core with jobs of several sizes
NAMED = 13  # of a core with a round that the policy names, or that knows the GPU memory that jobs use
LOCATED = 14  # of a core with nodes of which the rack, zone or region is known, or with settings of placement
TIMED = 14  # of a core that knows what stops and starts cost jobs, or with jobs that have plans
MOVED = 15  # of a core in which jobs make places for gangs, or made them, or with CPU cores and memory of teams
METERED = 16  # of a core that knows metrics of jobs, or with apps of which jobs end early
ORDERLY = 16  # of a core with a policy that serves jobs in order of submission, or in which jobs move within rounds
WAITED = 17  # of a core with apps that limit how long jobs wait at rungs
NEWEST = 17
OLDEST = 1  # version that can still be read
_CORE = ("now_s", "settled_s", "incarnation", "round", "round_began_s", "round_end_s", "attention_s", "awaiting",
         "retry_due_s", "woken_s", "window_due_s")  # fmt: skip
_QUESTION = ("stale", "epoch", "open_epoch", "asked_s", "failures", "retry_s", "again_at_s", "memory", "refused")
_GPU_COLUMNS = ("type_of", "node_of", "job", "number", "present", "beside")
_TURN_COLUMNS = ("restart_s", "save_s")
_JOB_FIELDS = tuple(field.name for field in fields(JobSpec))


def snapshot(core: SchedulerCore) -> dict[str, Any]:
    """Plain values, lists, dicts and copies of arrays."""
    jobs, pool, question = core.jobs, core.pool, core.question
    n = jobs.count
    return {
        "version": _version(core),
        "settings": settings_values(core.settings),
        "core": {name: getattr(core, name) for name in _CORE},
        "type_order": core.type_order.copy(),
        "unmeasured": list(core.throughput.wanted),
        "asked_rates": core.throughput.asked.copy(),
        "next_lease": core.leases.next_lease,
        "question": _question(question),
        "asked_jobs": question.asked_jobs.copy(),
        "nodes": {
            "ids": list(pool.node_ids),
            "states": [int(state) for state in pool.node_state],
            "silent": list(pool.node_unreachable),
            "peers": [list(peers) for peers in pool.node_peers],
            "forced": list(pool.node_forced),
            "hindrance": list(pool.node_unhealthy),
            "reserved": list(pool.node_reserved),
            "lacks": [list(lacks) for lacks in pool.node_lacks],
            "agents": list(pool.node_agent),
            "amounts": [list(amounts) for amounts in pool.node_amounts],
            "parts": list(pool.node_part),
            **({"places": [list(place) for place in pool.node_place]} if _has_places(pool) else {}),
            "directories": list(pool.node_directory),
            "types": list(pool.node_type),
        },
        "windows": [
            [w.name, list(w.node_ids), w.begin_s, w.end_s, w.reason, list(w.users)] for w in core.windows.values()
        ],
        "directories": list(pool.directories),
        "scattered": pool.is_scattered,
        "gpu_types": list(pool.gpu_types),
        "prices": list(pool.price_usd_per_gpu_h),
        "gpus": {name: getattr(pool, name).astype(np.int64) for name in _GPU_COLUMNS},
        "specs": [[getattr(spec, name) for name in _JOB_FIELDS] for spec in jobs.specs],
        "spec_fields": list(_JOB_FIELDS),
        "jobs": {name: getattr(jobs, name)[:n].copy() for name in _job_columns(jobs)}
        | {DEFICIT: jobs.rule_columns.get(DEFICIT, np.zeros_like(jobs.owed_s))[:n].copy()},
        "pairs": {name: getattr(jobs.claims, name).copy() for name in (*CLAIM_INT_COLUMNS, *CLAIM_FLOAT_COLUMNS)},
        "entities": list(jobs.entities),
        "booked": {str(row): name for row, name in jobs.booked.items()},
        "gangs": {str(row): gpus.copy() for row, gpus in jobs.gang_gpus.items()},
        "stopping_gangs": {str(row): gpus.copy() for row, gpus in jobs.stopping_gangs.items()},
        "loss_nodes": {str(row): list(nodes) for row, nodes in jobs.loss_nodes.items()},
        "lost_leases": {
            str(row): {str(lease): gpus.copy() for lease, gpus in lost.items()}
            for row, lost in jobs.lost_leases.items()
        },
        **({} if jobs.ids.is_plain else {"serials": jobs.ids.serials.copy(), "next_job": jobs.ids.next_serial}),
        **({"next_round": question.next_round.copy()} if is_named(question.next_round) else {}),
        **({"sizes": {str(row): own.rate.copy() for row, own in jobs.sizes.items()}} if jobs.sizes else {}),
        **({"apps": apps} if (apps := jobs.apps.state()) else {}),
        **({"apart": {str(row): list(one) for row, one in jobs.apart.items()}} if jobs.apart else {}),
        **({"moved": {str(row): list(one) for row, one in jobs.moved.items()}} if jobs.moved else {}),
        **({"relax_s": jobs.relax_s} if jobs.relax_s < np.inf else {}),
        **({"measured_gib": {str(row): gib for row, gib in jobs.measured_gib.items()}} if jobs.measured_gib else {}),
    }


def _question(question: AllocationRequest) -> dict[str, Any]:
    stopped = {"has_stopped": True} if question.has_stopped else {}
    return {name: getattr(question, name) for name in _QUESTION} | stopped


def _version(core: SchedulerCore) -> int:
    """The lowest version that can express it."""
    if any(RUNG_WAIT in spec.app for spec in core.jobs.specs if spec.app):
        return WAITED
    if core.jobs.apps.state():
        return METERED
    if core.settings.in_order or core.settings.move_within_round:
        return ORDERLY
    if core.settings.defragment or core.jobs.moved or limits_resources(core.settings.teams):
        return MOVED
    if turn_costs.is_any(core.jobs, slice(core.jobs.count)) or any(spec.plans for spec in core.jobs.specs):
        return TIMED
    if _has_places(core.pool) or core.jobs.apart or has_placement(core.settings):
        return LOCATED
    if is_named(core.question.next_round) or core.jobs.measured_gib:
        return NAMED
    return SIZED if core.jobs.sizes else VERSION if core.jobs.ids.is_plain else ARCHIVED


def _has_places(pool: GpuPool) -> bool:
    return any(place != NO_PLACE for place in pool.node_place)


def _job_columns(jobs: JobTable) -> list[str]:
    """Columns of jobs in a snapshot."""
    names = (*INT_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS)
    is_timed = turn_costs.is_any(jobs, slice(jobs.count))
    return [name for name in names if is_timed or name not in _TURN_COLUMNS]


def restore(state: dict[str, Any]) -> SchedulerCore:
    """The core of a snapshot. Raises JournalTooNew if its version is, JournalCorrupt if it is not whole."""
    version = state.get("version")
    if type(version) is not int or version < OLDEST:
        raise JournalCorrupt(f"snapshot version must be in [{OLDEST}, {NEWEST}], got {version!r}")
    if version > NEWEST:
        raise JournalTooNew(f"snapshot version must be at most {NEWEST}, got {version}: a newer gavelpy has written it")
    try:
        return _restored(upgraded(state, version))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"snapshot is not whole: {error!r}") from None


def _restored(state: dict[str, Any]) -> SchedulerCore:
    count = len(state["specs"])  # up to version 10 of snapshots, all as submitted, and of one size
    unknown = dict.fromkeys(("sized_s", *_TURN_COLUMNS), np.zeros(count))
    state = state | {"jobs": {"total_by": np.full(count, -1)} | unknown | state["jobs"]}
    core = SchedulerCore(settings_of(state["settings"]))
    _restore_pool(core.pool, state)
    core.jobs = core.leases.jobs = _restored_jobs(state, len(core.pool.gpu_types))
    core.leases.in_force, core.pool.strained = len(core.jobs.leased), strained(core.jobs, core.pool)
    for name in _CORE:
        setattr(core, name, state["core"][name])
    core.type_order = np.array(state["type_order"], dtype=np.int64)
    core.throughput.wanted = list(state["unmeasured"])
    core.throughput.asked = np.array(state["asked_rates"], dtype=np.int64)
    core.leases.next_lease = state["next_lease"]
    core.windows = {
        row[0]: Window(row[0], tuple(row[1]), row[2], row[3], row[4], tuple(row[5])) for row in state["windows"]
    }
    core.question = AllocationRequest()
    vars(core.question).update(state["question"])
    core.question.asked_jobs = np.array(state["asked_jobs"], dtype=np.int64)
    core.question.next_round = np.array(state.get("next_round", ()), dtype=np.int64)
    priority_classes.rank_jobs(core.jobs, core.settings)
    core.exempt = non_preemptible.exempt(core.leases, core.settings, core.woken_s)
    core.kept = priority_classes.kept_counts(core.jobs, core.pool, core.settings, core.exempt.open_gpus)
    return core


def _restore_pool(pool: GpuPool, state: dict[str, Any]) -> None:
    pool.gpu_types = tuple(state["gpu_types"])
    pool.price_usd_per_gpu_h = list(state["prices"])
    nodes = state["nodes"]
    pool.node_ids = [NodeId(node) for node in nodes["ids"]]
    pool.node_row = {node: row for row, node in enumerate(pool.node_ids) if node != RETIRED}
    pool.node_state = [NodeState(value) for value in nodes["states"]]
    pool.node_unreachable = list(nodes["silent"])
    pool.node_peers = [(alive, dead) for alive, dead in nodes.get("peers", [(0, 0)] * len(pool.node_unreachable))]
    pool.node_forced = list(nodes["forced"])
    pool.node_unhealthy = list(nodes["hindrance"])
    pool.node_reserved = [str(why) for why in nodes["reserved"]]
    pool.node_lacks = [tuple(lacks) for lacks in nodes.get("lacks", [()] * len(pool.node_ids))]
    pool.node_agent = list(nodes.get("agents", [""] * len(pool.node_ids)))
    pool.any_lacking = any(pool.node_lacks)
    pool.node_amounts = [(cpus, gib) for cpus, gib in nodes.get("amounts", [(0, 0)] * len(pool.node_ids))]
    pool.any_amounts = any(any(amounts) for amounts in pool.node_amounts)
    places = nodes.get("places", [NO_PLACE] * len(pool.node_ids))
    pool.node_place = [(rack, zone, region) for rack, zone, region in places]
    pool.node_part = [int(part) for part in nodes["parts"]]
    pool.node_directory = [int(directory) for directory in nodes["directories"]]
    pool.directories = [str(name) for name in state["directories"]]
    pool.is_scattered = bool(state["scattered"])
    pool.node_type = list(nodes["types"])
    for name in _GPU_COLUMNS:
        setattr(pool, name, np.array(state["gpus"][name], dtype=np.int64))
    pool.present = pool.present.astype(np.bool_)
    pool.relate()


def _restored_jobs(state: dict[str, Any], type_count: int) -> JobTable:
    jobs = JobTable(type_count)
    jobs.specs = restored_specs(state["spec_fields"], state["specs"])
    jobs.serial_of = {JobId(spec.id): row for row, spec in enumerate(jobs.specs)}
    jobs.count, jobs.any_refused = len(jobs.specs), any(spec.no_preempt for spec in jobs.specs)
    jobs.ids.next_serial = jobs.count
    if state["version"] >= ARCHIVED and "serials" in state:
        jobs.ids.restore(np.array(state["serials"], dtype=np.int64), int(state["next_job"]))
    jobs.entities = list(state["entities"])
    jobs.gang_gpus = _gangs(state["gangs"])
    jobs.stopping_gangs = _gangs(state["stopping_gangs"])
    jobs.lost_leases = {int(row): _gangs(lost) for row, lost in state["lost_leases"].items()}
    jobs.loss_nodes = {int(row): [int(node) for node in nodes] for row, nodes in state["loss_nodes"].items()}
    jobs.reserve(jobs.count)
    jobs.number_again()
    for name in (*INT_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS):
        getattr(jobs, name)[: jobs.count] = state["jobs"][name]
    jobs.claims = _restored_claims(state["pairs"], jobs)
    for row in np.flatnonzero(jobs.smallest[: jobs.count]).tolist():
        sizes, rate = np.array(jobs.specs[row].sizes, dtype=np.int64), state["sizes"][str(row)]
        jobs.sizes[row] = JobSizes(sizes, np.array(rate, dtype=np.float64))
    jobs.apart = {int(row): Apart(*values) for row, values in state.get("apart", {}).items()}
    jobs.moved = {int(row): Move(*values) for row, values in state.get("moved", {}).items()}
    jobs.apps.restore(state.get("apps", {}))
    serials = jobs.ids.serials.tolist()
    roles = ((row, AppRole.parse(spec.app)) for row, spec in enumerate(jobs.specs) if spec.app)
    jobs.apps.app_of = {row: label(role, serials[row]) for row, role in roles}
    jobs.relax_s = float(state.get("relax_s", np.inf))
    jobs.measured_gib = {int(row): float(gib) for row, gib in state.get("measured_gib", {}).items()}
    jobs.booked = {int(row): str(name) for row, name in state["booked"].items()}
    jobs.limited = {row: None for row in jobs.active.tolist() if jobs.specs[row].is_limited}
    jobs.featured = {row: needed for row in jobs.active.tolist() if (needed := jobs.specs[row].features)}
    jobs.needs = {row: needs for row in jobs.active.tolist() if (needs := needs_of(jobs.specs[row]))}
    for row in jobs.active.tolist():
        if text := jobs.specs[row].completion_value:
            jobs.valued[row] = CompletionValue.parse(text).row
    for row in np.flatnonzero(jobs.unmet[: jobs.count] > 0).tolist():
        for other in eligibility.unmet(jobs, row):
            jobs.dependents.setdefault(other, []).append(row)
    jobs.any_gated = eligibility.any_gated(jobs)
    jobs.any_turn_measured = turn_costs.is_any(jobs, slice(jobs.count))
    jobs.any_timed = any(spec.time_s > 0 for spec in jobs.specs)
    jobs.any_failed = failures.any_failed(jobs)
    jobs.any_held = bool((jobs.held_type[: jobs.count] >= 0).any())
    if np.any(state["jobs"][DEFICIT]):
        jobs.rule_column(DEFICIT)[: jobs.count] = state["jobs"][DEFICIT]
    return jobs


def _restored_claims(state: dict[str, Any], jobs: JobTable) -> ClaimTable:
    """Up to version 10, all claims were of pairs, on the GPUs that their jobs requested."""
    claims = ClaimTable()
    state = {"gpus": jobs.gpus[np.array(state["first"], dtype=np.int64)]} | state
    for name in CLAIM_INT_COLUMNS:
        setattr(claims, name, np.array(state[name], dtype=np.int64))
    for name in CLAIM_FLOAT_COLUMNS:
        setattr(claims, name, np.array(state[name], dtype=np.float64))
    return claims


def _gangs(state: dict[str, Any]) -> dict[int, Ints]:
    return {int(row): np.array(gpus, dtype=np.int64) for row, gpus in state.items()}


_PARTS = "gavelpy.mechanism."


def copied(core: SchedulerCore) -> SchedulerCore:
    """A deep copy of the core that shares immutable values (job specifications, GPUs of a gang)."""
    double = _double(core, {})
    assert isinstance(double, SchedulerCore), "a copy has the type of the original"
    return double


def _double(part: Any, known: dict[int, Any]) -> Any:  # Any: a part of the core
    """A copy with its own arrays, containers and parts; a part that occurs twice is copied once."""
    if id(part) in known:
        return known[id(part)]
    double = known[id(part)] = copy.copy(part)
    for name, value in vars(double).items():
        if isinstance(value, np.ndarray | list | dict | set):
            setattr(double, name, value.copy())
        elif _is_part(value):
            setattr(double, name, _double(value, known))
    return double


def _is_part(value: object) -> bool:
    """Whether it is a mutable object of the mechanism."""
    kind = type(value)
    is_value = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]  # not in the stubs
    return kind.__module__.startswith(_PARTS) and hasattr(value, "__dict__") and not is_value
