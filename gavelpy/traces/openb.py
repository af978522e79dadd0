"""Alibaba's GPU cluster trace of 2023 (`openb`): nodes, and pods that need fractions of a GPU, CPU cores and memory.

Nodes: sn, cpu_milli, memory_mib, gpu (how many), model. Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli (of each
GPU), gpu_spec (models that it may use, such as `V100M16|V100M32`; empty = all), qos, pod_phase, creation_time,
deletion_time, scheduled_time (seconds since the start of the trace; empty = never).

Source: github.com/alibaba/clusterdata, cluster-trace-gpu-v2023; used by FGD (Weng et al., ATC '23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.fractional import GPU_MILLI, NODE_GPUS_MAX, FractionalNodes, FractionalTasks
from gavelpy.traces.fields import Place, csv_table, read_text

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
POD_OPTIONAL = ("qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")


@dataclass(frozen=True, eq=False)
class OpenbPods:
    """Pods in the order of the file. Times are (K,) seconds, NaN where the file has none."""

    names: tuple[str, ...]
    tasks: FractionalTasks
    qos: tuple[str, ...]
    phase: tuple[str, ...]
    created_s: Floats
    deleted_s: Floats
    scheduled_s: Floats


def read_openb_nodes(path: str | Path) -> FractionalNodes:
    """The nodes in a node list (`openb_node_list_*.csv`)."""
    table = csv_table(read_text(path), str(path))
    table.require(NODE_COLUMNS, ())
    at = {name: table.header.index(name) for name in NODE_COLUMNS}
    names: list[str] = []
    numbers: list[tuple[int, ...]] = []
    models: dict[str, int] = {}
    for place, cells in table.rows:
        names.append(cells[at["sn"]])
        gpus = place.whole("gpu", cells[at["gpu"]], 0, NODE_GPUS_MAX)
        model = cells[at["model"]].strip()
        if gpus and not model:
            raise place.error("model", "the model of the node's GPUs", model)
        amounts = [place.whole(name, cells[at[name]], 0) for name in ("cpu_milli", "memory_mib")]
        numbers.append((models.setdefault(model, len(models)) if gpus else 0, gpus, *amounts))
    if not models:
        raise Place(str(path)).error("gpu", "above 0 for one node at least", 0)
    columns = np.array(numbers, dtype=np.int64).T
    try:
        return FractionalNodes(tuple(names), tuple(models), *columns)
    except InvalidInput as error:
        raise error.located(str(path)) from error


def read_openb_pods(path: str | Path, models: Sequence[str]) -> OpenbPods:
    """The pods in a pod list (`openb_pod_list_*.csv`), for a cluster with these models of GPUs."""
    table = csv_table(read_text(path), str(path))
    table.require(POD_COLUMNS, POD_OPTIONAL)
    at = {name: i for i, name in enumerate(table.header)}
    texts: list[tuple[str, str, str]] = []
    numbers: list[tuple[int, ...]] = []
    times: list[tuple[float, ...]] = []
    may_use: list[list[bool]] = []
    for place, cells in table.rows:
        row = {name: cells[column].strip() for name, column in at.items()}
        texts.append((row["name"], row.get("qos", ""), row.get("pod_phase", "")))
        gpus = place.whole("num_gpu", row["num_gpu"], 0, NODE_GPUS_MAX)
        milli = place.whole("gpu_milli", row["gpu_milli"], 1 if gpus else 0, GPU_MILLI) if gpus else 0
        if gpus > 1 and milli < GPU_MILLI:
            raise place.error("gpu_milli", "1000 for a pod on several GPUs", milli)
        amounts = [place.whole(name, row[name], 0) for name in ("cpu_milli", "memory_mib")]
        numbers.append((gpus, milli, *amounts))
        wanted = [model for model in row["gpu_spec"].split("|") if model]
        may_use.append([not wanted or model in wanted for model in models])
        times.append(tuple(_time(place, name, row.get(name, "")) for name in POD_OPTIONAL[2:]))
    if not texts:
        raise Place(str(path)).error("file", "a list of pods", "only a header")
    names, qos, phase = zip(*texts, strict=True)
    gpus_of, milli_of, cpu_of, memory_of = np.array(numbers, dtype=np.int64).T
    tasks = FractionalTasks(gpus_of, milli_of, cpu_of, memory_of, np.array(may_use, dtype=np.bool_))
    return OpenbPods(names, tasks, qos, phase, *np.array(times, dtype=np.float64).T)


def _time(place: Place, name: str, text: str) -> float:
    return place.number(name, text) if text else math.nan
