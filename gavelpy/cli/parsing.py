"""Parsers of option values, and warnings about implausible rates; errors name the option, value and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gavelpy.cli import options as o
from gavelpy.cli.output import notify
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.estimator.kinds import Key
    from gavelpy.mechanism.teams import Team
    from gavelpy.model.job import Trace
    from gavelpy.model.problem import AllocationProblem
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.policies.base import PolicyRun
    from gavelpy.traces.generator import GeneratorOptions


@dataclass(frozen=True)
class GeneratorChoices:
    """The options of a trace to generate, as given on the command line."""

    rate_per_h: o.RateOption = None
    mean_interarrival_s: o.InterarrivalOption = None
    multi_gpu: o.MultiGpuOption = False
    gpu_mix: o.GpuMixOption = None
    weights: o.WeightsOption = None
    deadlines: o.DeadlinesOption = None
    reference_gpu_type: o.ReferenceTypeOption = None

    def given(self) -> dict[str, float | bool | str]:
        """The options that were given."""
        return {name: value for name, value in vars(self).items() if value is not None and value is not False}

    def options(self, jobs: int) -> GeneratorOptions:
        """The generator's options; defaults are those of Gavel."""
        from gavelpy.traces.generator import GAVEL_GPU_MIX, GeneratorOptions

        if self.rate_per_h is not None and self.mean_interarrival_s is not None:
            raise InvalidInput(
                "--rate-per-h and --mean-interarrival-s exclude each other, "
                f"got {self.rate_per_h:g} and {self.mean_interarrival_s:g}"
            )
        return GeneratorOptions(
            jobs=jobs,
            mean_interarrival_s=self.mean_interarrival_s,
            rate_jobs_per_h=self.rate_per_h,
            multi_gpu=self.multi_gpu or self.gpu_mix is not None,
            gpu_mix=gangs(self.gpu_mix) if self.gpu_mix is not None else dict(GAVEL_GPU_MIX),
            weights=mix("--weights", self.weights) if self.weights is not None else {1.0: 1.0},
            deadlines=mix("--deadlines", self.deadlines) if self.deadlines is not None else {},
            reference_gpu_type=self.reference_gpu_type or "v100",
        )


def mix(option: str, text: str) -> dict[float, float]:
    """`1:0.8,5:0.2` as {1.0: 0.8, 5.0: 0.2}."""
    found: dict[float, float] = {}
    for part in text.split(","):
        value, _, probability = part.partition(":")
        try:
            key, weight = float(value), float(probability)
        except ValueError:
            raise InvalidInput(f"{option} must look like 1:0.8,5:0.2 (value:probability), got {part!r}") from None
        if key in found:
            raise InvalidInput(f"{option} must name each value once, got {value!r} twice in {text!r}")
        found[key] = weight
    return found


def gangs(text: str) -> dict[int, float]:
    """`1:0.7,4:0.3` as {1: 0.7, 4: 0.3}."""
    found = mix("--gpu-mix", text)
    for gpus in found:
        if not gpus.is_integer() or not 1 <= gpus <= o.GPUS_MAX:
            raise InvalidInput(f"--gpu-mix must hold whole numbers of GPUs in [1, {o.GPUS_MAX}], got {gpus!r}")
    return {int(gpus): probability for gpus, probability in found.items()}


def prices(text: str) -> dict[str, float]:
    """`v100:2.48,k80:0.45` as {"v100": 2.48, "k80": 0.45}."""
    found: dict[str, float] = {}
    for part in text.split(","):
        gpu_type, _, price = part.strip().partition(":")
        if gpu_type in found:
            raise InvalidInput(f"--prices must name each GPU type once, got {gpu_type!r} twice in {text!r}")
        try:
            found[gpu_type] = float(price)
        except ValueError:
            raise InvalidInput(f"--prices must look like v100:2.48,k80:0.45, got {part.strip()!r}") from None
    return found


def node_resources(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """`v100:32:256,k80:16:64` as ({"v100": 32.0, "k80": 16.0}, {"v100": 256.0, "k80": 64.0})."""
    cpus: dict[str, float] = {}
    gib: dict[str, float] = {}
    for part in text.split(","):
        gpu_type, *amounts = part.strip().split(":")
        if gpu_type in cpus:
            raise InvalidInput(f"--node-resources must name each GPU type once, got {gpu_type!r} twice in {text!r}")
        try:
            cpus[gpu_type], gib[gpu_type] = map(float, amounts)
        except ValueError:
            raise InvalidInput(f"--node-resources must look like v100:32:256, got {part.strip()!r}") from None
    return cpus, gib


def runs(text: str, *, blind: bool) -> list[PolicyRun]:
    """The runs of `fifo,max_min_fairness@blind`; `blind` makes all of them blind."""
    from gavelpy.policies.base import PolicyRun

    chosen: list[PolicyRun] = []
    for name in text.split(","):
        named = PolicyRun.parse(name.strip())
        run = PolicyRun(named.policy, blind or named.blind)
        if run in chosen:
            raise InvalidInput(f"--policy must name each run once, got {run.label!r} twice in {text!r}")
        chosen.append(run)
    return chosen


def teams(path: Path | None) -> tuple[Team, ...] | None:
    """The teams of a file; None without a file."""
    if path is None:
        return None
    from gavelpy.runtime.daemon.config import read_teams

    return read_teams(path)


def window(text: str) -> tuple[int, int]:
    """`A:B`: jobs A to B-1 in order of arrival."""
    first, _, last = text.partition(":")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 12 for part in (first, last)):
        raise InvalidInput(f"--window must look like 0:300 (jobs 0 to 299 in order of arrival), got {text[:60]!r}")
    if int(first) >= int(last):
        raise InvalidInput(f"--window A:B must have A < B, got {text!r}")
    return int(first), int(last)


def writable_file(option: str, path: Path) -> Path:
    """`path`, if a file can be written there; checked before the work starts."""
    existing = next(place for place in (path, *path.absolute().parents) if _exists(option, place))
    if path.is_dir():
        raise InvalidInput(f"{option} must be a file, got the directory {str(path)!r}")
    if existing != path and not existing.is_dir():
        raise InvalidInput(f"{option} must be in a directory, got {str(path)!r} below the file {str(existing)!r}")
    if not os.access(existing, os.W_OK):
        raise InvalidInput(f"{option} must be writable, got {str(path)!r}, and {str(existing)!r} is not writable")
    return path


def target(path: Path | None, deprecated: Path | None) -> Path | None:
    """The file of `--out`, or of `-o`, which meant a file in some commands."""
    if deprecated is not None:
        notify("warning: -o FILE is deprecated and will be removed in the next minor version; use --out FILE")
    chosen = path or deprecated
    return None if chosen is None else writable_file("--out", chosen)


def writable_directory(option: str, path: Path) -> Path:
    """`path`, if it is a directory or can be created as one."""
    if _exists(option, path) and not path.is_dir():
        raise InvalidInput(f"{option} must be a directory, got the file {str(path)!r}")
    if not path.exists():
        writable_file(option, path)
    return path


def table_of(throughputs: Path | None) -> ThroughputTable:
    """The table in that file, or the published one."""
    from gavelpy.traces.reader import read_throughputs
    from gavelpy.traces.workloads import published_throughputs

    return published_throughputs() if throughputs is None else read_throughputs(throughputs)


def _exists(option: str, path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # no permission, a name too long or with a NUL in it
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidInput(f"{option} must be a valid path, got {str(path)[:80]!r} ({reason})") from None
    return True


_NAMED_MAX = 10  # entries of one input that are named one by one


def believed(table: ThroughputTable, file: Path | None, effect: str) -> ThroughputTable:
    """The table without its absurd entries; each is named with its line and with what follows for it."""
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.sanity import believable, located
    from gavelpy.traces.csv_format import throughput_lines
    from gavelpy.traces.workloads import gpu_specs, job_types

    if file is None:
        return table
    found = believable(table, Roofline(job_types(), gpu_specs()))
    for note in located(found.absurd, str(file), throughput_lines(file) if found.absurd else {}):
        notify(f"{note}; {effect}")
    return found.table


def believed_table_of(throughputs: Path | None) -> ThroughputTable:
    """The table in that file without its absurd entries, or the published one."""
    return believed(table_of(throughputs), throughputs, "it is left out")


def warn_of_trace(trace: Trace) -> None:
    """Warns of absurd rates of a trace's jobs; jobs of the same type and GPUs count once."""
    rates: dict[Key, Mapping[str, float]] = {}
    for job in trace.jobs:
        for gpus in job.sizes or (job.gpus,):
            rates.setdefault((job.job_type or f"job {job.id}", gpus), job.rates_on(gpus))
    _warn(trace.name or "trace", rates)


def warn_of_problem(problem: AllocationProblem, file: Path) -> None:
    """Warns of absurd rates of a problem's jobs alone; the answer is to the rates as they are."""
    from gavelpy.model.configurations import THOUSANDTHS

    alone = problem.member_count[problem.member_configuration] == 1
    jobs, values = problem.member_job[alone].tolist(), problem.member_rate_steps_per_s[alone].tolist()
    gpus = (problem.demand[problem.member_configuration[alone], 0] // THOUSANDTHS).tolist()
    rates = {
        (problem.job_ids[job], size): dict(zip(problem.gpu_types, row, strict=True))
        for job, size, row in zip(jobs, gpus, values, strict=True)
    }
    _warn(str(file), rates)


def _warn(where: str, rates: Mapping[Key, Mapping[str, float]]) -> None:
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.sanity import believable
    from gavelpy.traces.workloads import gpu_specs, job_types

    table = _table(rates)
    absurd = believable(table, Roofline(job_types(), gpu_specs())).absurd if table is not None else ()
    for one in absurd[:_NAMED_MAX]:
        notify(f"warning: {where}: {one}; it is used as it is")
    if len(absurd) > _NAMED_MAX:
        notify(f"warning: {where}: {len(absurd) - _NAMED_MAX:,} more rates are not believed")


def _table(rates: Mapping[Key, Mapping[str, float]]) -> ThroughputTable | None:
    """A table of these rates; none without any."""
    import numpy as np

    from gavelpy.model.throughput import ThroughputTable

    types: Sequence[str] = tuple(dict.fromkeys(name for row in rates.values() for name in row))
    if not types:
        return None
    values = np.array([[row.get(name, np.nan) for name in types] for row in rates.values()], dtype=np.float64)
    kinds = np.zeros(values.shape, dtype=np.int64)
    return ThroughputTable(tuple(rates), tuple(types), values, kinds, ("",) * len(rates))
