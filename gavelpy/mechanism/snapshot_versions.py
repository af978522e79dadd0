"""Snapshots of older versions as those of newer ones, step by step; what they lack gets the value for unknown."""

from __future__ import annotations

from typing import Any

import numpy as np

from gavelpy.mechanism.claims import CLAIM_FLOAT_COLUMNS, CLAIM_INT_COLUMNS
from gavelpy.mechanism.gpus import CLUSTERS, GpuPool
from gavelpy.mechanism.lifecycle import Resumes
from gavelpy.mechanism.windows import OUTSIDE, Window, due_s

_SHARED = -2  # up to version 5: location of a checkpoint in the directory that nodes share


def upgraded(state: dict[str, Any], version: int) -> dict[str, Any]:
    """A snapshot of this version as one of version 10 or later."""
    state = _from_version_1(state) if version == 1 else state
    state = _from_version_2(state) if version <= 2 else state
    state = _from_version_3(state) if version <= 3 else state
    state = _from_version_4(state) if version <= 4 else state
    state = _from_version_5(state) if version <= 5 else state
    state = _from_version_6(state) if version <= 6 else state
    state = _from_version_7(state) if version <= 7 else state
    return _from_version_8(state) if version <= 8 else state


def _from_version_1(state: dict[str, Any]) -> dict[str, Any]:
    """Version 1 as version 2. The GPUs of stopping leases and the leases of checkpoints are unknown."""
    jobs, gpus, count = state["jobs"], state["gpus"], len(state["specs"])
    node_of = np.array(gpus["node_of"], dtype=np.int64)
    nodes, first = np.unique(node_of, return_index=True)
    end_s = max(state["core"]["now_s"], *(s for s in (state["core"]["round_end_s"],) if s < np.inf), 0.0)
    unknown = np.full(count, -1, dtype=np.int64)
    return state | {
        "asked_rates": np.zeros(0, dtype=np.int64),
        "nodes": {
            "ids": [node for node, _ in state["nodes"]],
            "states": [value for _, value in state["nodes"]],
            "silent": [False] * len(state["nodes"]),
            "sees": [True] * len(state["nodes"]),
            "types": np.array(gpus["type_of"])[first].tolist(),
        },
        "gpus": gpus
        | {
            "number": np.arange(len(node_of)) - first[np.searchsorted(nodes, node_of)],
            "present": np.ones(len(node_of), dtype=np.int64),
        },
        "specs": [list(spec.values()) for spec in state["specs"]],
        "spec_fields": list(state["specs"][0]) if count else [],
        "jobs": jobs
        | {
            "stopping_first": unknown,
            "saved_lease": unknown,
            "saved_on": np.where(np.array(jobs["steps_saved"]) > 0, _SHARED, -1),
            "until_s": np.where(np.array(jobs["lease"]) >= 0, end_s, 0.0),
            "stopping_until_s": np.where(np.array(jobs["stopping"]) >= 0, end_s, 0.0),
        },
        "stopping_gangs": {},
    }


def _from_version_2(state: dict[str, Any]) -> dict[str, Any]:
    """Version 2 as version 3: no jobs are co-located."""
    none = {name: np.zeros(0, dtype=np.int64) for name in CLAIM_INT_COLUMNS}
    return state | {
        "gpus": state["gpus"] | {"beside": np.full(len(state["gpus"]["job"]), -1)},
        "jobs": state["jobs"] | {"partner": np.full(len(state["specs"]), -1)},
        "pairs": none | {name: np.zeros(0) for name in CLAIM_FLOAT_COLUMNS},
    }


def _from_version_3(state: dict[str, Any]) -> dict[str, Any]:
    """Version 3 as version 4: no pauses or reservations. The start of a lease is taken from its booked time."""
    jobs, core, count = state["jobs"], state["core"], len(state["specs"])
    since_s = np.array(jobs["since_s"])
    return state | {
        "core": core | {"retry_due_s": np.inf},
        "jobs": jobs
        | {
            "misses": np.zeros(count, dtype=np.int64),
            "avoid": np.full(count, -1),
            "held_type": np.full(count, -1),
            "began_s": np.where(since_s >= 0, since_s, core["now_s"]) * (np.array(jobs["lease"]) >= 0),
            "retry_at_s": np.zeros(count),
        },
    }


def _from_version_4(state: dict[str, Any]) -> dict[str, Any]:
    """Version 4 as version 5: no starts were lost with their nodes, all leases have progress, all nodes are healthy."""
    count = len(state["specs"])
    return state | {
        "nodes": state["nodes"] | {"hindrance": [""] * len(state["nodes"]["ids"])},
        "jobs": state["jobs"]
        | {
            "losses": np.zeros(count, dtype=np.int64),
            "slow_lease": np.full(count, -1),
            "worked_s": np.array(state["jobs"]["began_s"]),
        },
    }


def _from_version_5(state: dict[str, Any]) -> dict[str, Any]:
    """Version 5 as version 6: no forced drains, no declarations that programs save, no lost leases that may still end.

    A node uses the cluster's directory, or a directory of its own without an id.
    """
    nodes, jobs = state["nodes"], state["jobs"]
    pool = GpuPool()
    own = [
        CLUSTERS if sees else pool.own_directory(node) for node, sees in zip(nodes["ids"], nodes["sees"], strict=True)
    ]
    of_node = np.array([*own, CLUSTERS, -1], dtype=np.int64)  # by row of a node, or _SHARED, or none
    of_gpu = np.append(of_node[np.array(state["gpus"]["node_of"], dtype=np.int64)], -1)  # by row of a GPU, or none
    bound = {
        "saved_in": of_node[np.array(jobs["saved_on"], dtype=np.int64)],
        "lease_in": of_gpu[np.array(jobs["gpu_first"], dtype=np.int64)],
        "stopping_in": of_gpu[np.array(jobs["stopping_first"], dtype=np.int64)],
    }
    return state | {
        "core": state["core"] | {"woken_s": state["core"]["now_s"]},
        "nodes": nodes | {"directories": own, "forced": [False] * len(own)},
        "loss_nodes": {},
        "lost_leases": {},
        "directories": pool.directories,
        "scattered": any((column > CLUSTERS).any() for column in bound.values()),
        "jobs": jobs
        | bound
        | {
            "resumes": np.full(len(state["specs"]), int(Resumes.UNKNOWN)),
            "done_lease": np.full(len(state["specs"]), -1),
            "done_at_s": np.zeros(len(state["specs"])),
        },
    }


def _from_version_6(state: dict[str, Any]) -> dict[str, Any]:
    """Version 6 as version 7: no job is held, all may begin, and no failure has a class or step."""
    jobs, count = state["jobs"], len(state["specs"])
    zeros = np.zeros(count, dtype=np.int64)
    return state | {
        "windows": [],
        "nodes": state["nodes"] | {"reserved": [""] * len(state["nodes"]["ids"])},
        "jobs": jobs
        | {
            "hold": np.full(count, -1),
            "begin_at_s": np.array(jobs["submitted_s"]),
            "unmet": zeros,
            "array": np.full(count, -1),
            "array_limit": zeros,
            "failure": np.full(count, -1),
            "system_failures": zeros,
            "memory_failures": zeros,
            "failed_at": np.zeros(count),
        },
    }


def _from_version_7(state: dict[str, Any]) -> dict[str, Any]:
    """Version 7 as version 8: no job lost its GPUs to a higher priority class."""
    return state | {"jobs": state["jobs"] | {"taken_by": np.full(len(state["specs"]), -1)}}


def _from_version_8(state: dict[str, Any]) -> dict[str, Any]:
    """Version 8 as version 10: no reservations for users."""
    windows = [[*row, []] for row in state["windows"]]
    known = {row[0]: Window(row[0], tuple(row[1]), row[2], row[3]) for row in windows}
    return state | {
        "core": state["core"] | {"window_due_s": due_s(known, state["core"]["woken_s"])},
        "windows": windows,
        "nodes": state["nodes"] | {"parts": [OUTSIDE] * len(state["nodes"]["ids"])},
        "booked": {},
        "jobs": state["jobs"] | {"part": np.full(len(state["specs"]), OUTSIDE)},
    }
