"""The whole state of a core as plain values and arrays, and back, exactly.

A core restored from a snapshot answers every later event as the original would. Derived values are not kept.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from gavelpy.errors import JournalCorrupt
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import FLOAT_COLUMNS, INT_COLUMNS, WIDE_COLUMNS, JobTable
from gavelpy.mechanism.lifecycle import NodeState
from gavelpy.mechanism.questions import AllocationQuestion
from gavelpy.mechanism.settings import MechanismSettings, PriorityRule, QueueRule
from gavelpy.model.ids import JobId, NodeId
from gavelpy.model.job import JobKind, JobSpec

VERSION = 1
_CORE = ("now_s", "settled_s", "incarnation", "round", "round_began_s", "round_end_s", "attention_s", "awaiting")
_QUESTION = ("stale", "epoch", "open_epoch", "asked_s", "failures", "retry_s")
_GPU_COLUMNS = ("type_of", "node_of", "job")


def snapshot(core: SchedulerCore) -> dict[str, Any]:
    """Plain values, lists, dicts and copies of arrays."""
    jobs, pool, question = core.jobs, core.pool, core.question
    n = jobs.count
    return {
        "version": VERSION,
        "settings": asdict(core.settings),
        "core": {name: getattr(core, name) for name in _CORE},
        "type_order": core.type_order.copy(),
        "unmeasured": list(core.unmeasured),
        "next_lease": core.leases.next_lease,
        "question": {name: getattr(question, name) for name in _QUESTION},
        "asked_jobs": question.asked_jobs.copy(),
        "nodes": [[node, int(state)] for node, state in zip(pool.node_ids, pool.node_state, strict=True)],
        "gpu_types": list(pool.gpu_types),
        "prices": list(pool.price_usd_per_gpu_h),
        "gpus": {name: getattr(pool, name).copy() for name in _GPU_COLUMNS},
        "specs": [asdict(spec) for spec in jobs.specs],
        "jobs": {name: getattr(jobs, name)[:n].copy() for name in (*INT_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS)},
        "entities": list(jobs.entities),
        "gangs": {str(row): gpus.copy() for row, gpus in jobs.gang_gpus.items()},
    }


def restore(state: dict[str, Any]) -> SchedulerCore:
    """The core of a snapshot; raises JournalCorrupt when it is of another version or not whole."""
    if state.get("version") != VERSION:
        raise JournalCorrupt(f"snapshot version must be {VERSION}, got {state.get('version')!r}")
    try:
        return _restored(state)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalCorrupt(f"snapshot is not whole: {error!r}") from None


def _restored(state: dict[str, Any]) -> SchedulerCore:
    core = SchedulerCore(_settings(state["settings"]))
    _restore_pool(core.pool, state)
    core.jobs = core.leases.jobs = _restored_jobs(state, len(core.pool.gpu_types))
    core.leases.in_force = len(core.jobs.leased)
    for name in _CORE:
        setattr(core, name, state["core"][name])
    core.type_order = np.array(state["type_order"], dtype=np.int64)
    core.unmeasured = list(state["unmeasured"])
    core.leases.next_lease = state["next_lease"]
    core.question = AllocationQuestion()
    for name in _QUESTION:
        setattr(core.question, name, state["question"][name])
    core.question.asked_jobs = np.array(state["asked_jobs"], dtype=np.int64)
    return core


def _settings(values: dict[str, Any]) -> MechanismSettings:
    kinds = {"priority": PriorityRule(values["priority"]), "queue": QueueRule(values["queue"])}
    return MechanismSettings(**(values | kinds))


def _restore_pool(pool: GpuPool, state: dict[str, Any]) -> None:
    pool.gpu_types = tuple(state["gpu_types"])
    pool.price_usd_per_gpu_h = list(state["prices"])
    pool.node_ids = [NodeId(node) for node, _ in state["nodes"]]
    pool.node_row = {node: row for row, node in enumerate(pool.node_ids)}
    pool.node_state = [NodeState(value) for _, value in state["nodes"]]
    for name in _GPU_COLUMNS:
        setattr(pool, name, np.array(state["gpus"][name], dtype=np.int64))
    up = np.array([value is NodeState.UP for value in pool.node_state], dtype=np.bool_)
    pool.usable = up[pool.node_of]


def _restored_jobs(state: dict[str, Any], type_count: int) -> JobTable:
    jobs = JobTable(type_count)
    jobs.specs = [JobSpec(**(spec | {"kind": JobKind(spec["kind"])})) for spec in state["specs"]]
    jobs.serial_of = {JobId(spec.id): row for row, spec in enumerate(jobs.specs)}
    jobs.count = len(jobs.specs)
    jobs.entities = list(state["entities"])
    jobs.gang_gpus = {int(row): np.array(gpus, dtype=np.int64) for row, gpus in state["gangs"].items()}
    jobs.reserve(jobs.count)
    for name in (*INT_COLUMNS, *FLOAT_COLUMNS, *WIDE_COLUMNS):
        getattr(jobs, name)[: jobs.count] = state["jobs"][name]
    return jobs
