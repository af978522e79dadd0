"""Sia's workloads (Subramanya et al., SOSP '23): which job arrives when, with rates and steps from Sia's profiles.

A workload has name, time (s), application, num_replicas and batch_size, as the rigid baselines of the paper run it. The
profiles must be in a directory `profiles` next to the workload's directory, or to the workload:

- steps: the last iteration of `APPLICATION-validation-BATCH.csv`.
- rates on t4 (aws), rtx2080ti (rtx), a100 (dgx-ext) and rtx6000 (quad): 1 / step time. The step time is that of
  `APPLICATION-placements-CLUSTER.csv` on the fewest nodes with num_replicas GPUs, interpolated in local_bsz =
  batch_size / num_replicas. A local batch above the largest profiled one is accumulated: all parts but one cost the
  step time without sync_time. Without such a placement it is interpolated in num_replicas from `scalability`.

A GPU type without a profile of the application has no rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.model.job import GPUS_MAX, JobId, JobSpec, Trace
from gavelpy.traces.durations import Row, cells_of
from gavelpy.traces.fields import Place, csv_table
from gavelpy.traces.formats import ReadOptions
from gavelpy.traces.source import Head, TraceFile

_COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
_SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
VALIDATION = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
ITERATIONS = VALIDATION[:2]
_DIVISORS = {"local_bsz", "step_time"}
_NAME_MAX = 100  # characters of an application, which is part of the names of files
CLUSTERS: Mapping[str, str] = {"t4": "aws", "rtx2080ti": "rtx", "a100": "dgx-ext", "rtx6000": "quad"}


class SiaReader:
    """Reads a workload and the profiles next to it."""

    name: ClassVar[str] = "sia"
    title: ClassVar[str] = "Sia (SOSP '23): a workload CSV, with the directory `profiles` next to it"

    def matches(self, head: Head) -> bool:
        """Whether the header is that of a workload."""
        return set(_COLUMNS) <= head.columns

    def read(self, path: Path, options: ReadOptions) -> Trace:  # noqa: ARG002  # nothing is drawn
        """The trace."""
        source = TraceFile(path)
        profiles = SiaProfiles(path)
        found: list[tuple[float, JobSpec]] = []
        for place, cell in cells_of(csv_table(source.lines(), source.file), _COLUMNS):
            found.append((place.number("time", cell["time"]), _job(cell, place, profiles)))
        if not found:
            raise Place(source.file).error("file", "a workload with a job", "no job")
        found.sort(key=lambda one: one[0])
        arrival_s = np.array([at_s for at_s, _ in found])
        provenance = {
            "format": self.name,
            "file": path.name,
            "sha256": source.sha256(),
            "starts_at_s": float(arrival_s[0]),
            "profiles": profiles.hashes,
        }
        jobs = tuple(job for _, job in found)
        return Trace(jobs, arrival_s - arrival_s[0], path.name.partition(".")[0], provenance=provenance)


def _job(cell: Row, place: Place, profiles: SiaProfiles) -> JobSpec:
    application = cell["application"]
    gpus = place.whole("num_replicas", cell["num_replicas"], 1, GPUS_MAX)
    batch = place.whole("batch_size", cell["batch_size"], 1)
    if not application.replace("_", "").isalnum() or len(application) > _NAME_MAX:
        raise place.error("application", "the name of a profiled application", application)
    try:
        return JobSpec(
            JobId(cell["name"]),
            profiles.steps(application, batch),
            gpus=gpus,
            job_type=f"{application} (batch size {batch})",
            rates_steps_per_s=profiles.rates(application, gpus, batch),
        )
    except InvalidInput as error:
        raise error if error.file else error.located(place.file, place.line) from error
    except FileNotFoundError as error:
        allowed = f"one with a profile {Path(str(error.filename)).name}"
        raise place.error("application, batch_size", allowed, f"{application}, {batch}") from error


class SiaProfiles:
    """The profiles next to one workload; each file is read once."""

    def __init__(self, workload: Path) -> None:
        places = [folder / "profiles" for folder in (workload.parent, workload.parent.parent)]
        found = [place for place in places if place.is_dir()]
        if not found:
            raise Place(str(workload)).error("profiles", "a directory next to the workload's", "none")
        self.directory = found[0]
        self.hashes: dict[str, str] = {}
        self.steps = cache(self._steps)
        self.rates = cache(self._rates)
        self.table = cache(self._read)
        self._placements = cache(self._on_fewest_nodes)

    def _steps(self, application: str, batch: int) -> float:
        return float(self.table(f"{application}-validation-{batch}.csv", VALIDATION, ITERATIONS)["iteration"][-1])

    def _rates(self, application: str, gpus: int, batch: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for gpu_type, cluster in CLUSTERS.items():
            try:
                found[gpu_type] = 1.0 / self.step_s(application, cluster, gpus, batch)
            except FileNotFoundError:
                continue
        if not found:
            raise FileNotFoundError(2, "", f"{application}-placements-*.csv")
        return found

    def step_s(self, application: str, cluster: str, gpus: int, batch: int) -> float:
        """Seconds of a step on the fewest nodes of a profiled cluster. Raises FileNotFoundError without a profile."""
        table = self.table(f"{application}-placements-{cluster}.csv", _PLACEMENTS)
        on_fewest = self._placements(application, cluster)
        if gpus in on_fewest:
            return _interpolated(table, table["placement"] == on_fewest[gpus], batch / gpus)
        table = self.table(f"{application}-scalability-{cluster}.csv", _SCALABILITY)
        sizes = np.unique(table["num_replicas"])
        times = []
        for size in sizes.tolist():
            mine = table["num_replicas"] == size
            mine &= table["num_nodes"] == table["num_nodes"][mine].min()
            times.append(_interpolated(table, mine, batch / gpus))
        return float(np.interp(gpus, sizes, times))

    def _on_fewest_nodes(self, application: str, cluster: str) -> dict[int, float]:
        """The profiled placement on the fewest nodes, such as 44, by its number of GPUs; ties: the first as a text."""
        table = self.table(f"{application}-placements-{cluster}.csv", _PLACEMENTS)
        texts = sorted({str(int(one)) for one in table["placement"].tolist()}, key=lambda text: (len(text), text))
        return {sum(map(int, text)): float(text) for text in reversed(texts)}

    def _read(self, name: str, columns: tuple[str, ...], wanted: tuple[str, ...] = ()) -> dict[str, Floats]:
        """The wanted columns (all by default) of a profile with these columns."""
        if not (self.directory / name).is_file():
            raise FileNotFoundError(2, "", name)
        source = TraceFile(self.directory / name)
        rows = [
            [place.number(column, cell[column], positive=column in _DIVISORS) for column in wanted or columns]
            for place, cell in cells_of(csv_table(source.lines(), source.file), columns)
        ]
        if not rows:
            raise Place(source.file).error("file", "a profile with a row", "no row")
        self.hashes[name] = source.sha256()
        return dict(zip(wanted or columns, np.array(rows).T, strict=True))


def _interpolated(table: Mapping[str, Floats], rows: np.ndarray, local_bsz: float) -> float:
    """Step time at this local batch size, accumulated in parts that were profiled."""
    order = np.argsort(table["local_bsz"][rows], kind="stable")
    sizes, step_s, sync_s = (table[name][rows][order] for name in ("local_bsz", "step_time", "sync_time"))
    parts = max(math.ceil(local_bsz / float(sizes[-1])), 1)
    step, sync = (float(np.interp(local_bsz / parts, sizes, values)) for values in (step_s, sync_s))
    return step + (parts - 1) * (step - sync)
