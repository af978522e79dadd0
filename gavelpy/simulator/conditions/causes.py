"""The causes of lost time: what each section of a file of conditions states. The defaults switch a cause off."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.simulator.conditions.draws import SECONDS_MAX, SIGMA_MAX, Duration, duration

HOURS_MAX = 1e9
HOURS_MIN = 0.01  # between events that are not switched off, so that a run has a bounded number of them per hour
REPAIR = Duration(median_s=3600.0, sigma=1.0)
AWAY = Duration(median_s=1800.0, sigma=1.0)
EARLY = Duration(median_s=300.0, sigma=1.0)
REGRET = Duration(median_s=7200.0, sigma=1.5)


class _Checked:
    """Checks fields by the ends of their names, and turns numbers into durations."""

    def __post_init__(self) -> None:
        for one in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, name = getattr(self, one.name), one.name
            if "Duration" in str(one.type):
                object.__setattr__(self, name, duration(value))
            elif isinstance(value, int | float) and not isinstance(value, bool):
                _in_range(name, value)


def _in_range(name: str, value: float) -> None:
    if name.endswith(("_share", "_repeats")) or name == "share":
        low, high = 0.0, 1.0
    elif name.endswith("_factor"):
        low, high = 0.01, 1.0
    elif name.endswith("_h"):
        low, high = 0.0, HOURS_MAX
    elif "sigma" in name:
        low, high = 0.0, SIGMA_MAX
    else:
        low, high = 0.0, SECONDS_MAX
    if not low <= value <= high or math.isnan(value):
        raise InvalidInput(f"{name} must be in [{low:g}, {high:g}], got {value!r}")
    least = HOURS_MIN if name.endswith("_h") else 1.0 if name == "every_s" else 0.0
    if 0 < value < least:
        raise InvalidInput(f"{name} must be 0 or >= {least:g}, got {value!r}")


@dataclass(frozen=True)
class Checkpoints(_Checked):
    """`[checkpoints]`: when jobs save. Without this, they save when they are stopped only."""

    every_s: float = 0.0  # of work between two checkpoints; 0 = none
    by_failure_rate: bool = False  # the interval of Daly (2006) for each job's failure rate and cost of a checkpoint

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every_s and self.by_failure_rate:
            raise InvalidInput(f"every_s must be 0 with by_failure_rate, got {self.every_s!r}")


@dataclass(frozen=True)
class NodeFailures(_Checked):
    """`[nodes]`: nodes, racks and GPUs fail at random (exponential times), and come back after a repair.

    A failed node or rack loses its jobs. A failed GPU loses the jobs on it, and its node starts no leases until the
    repair.
    """

    mtbf_h: float = 0.0  # mean time between failures of a node that is up; 0 = never
    repair: float | Duration = REPAIR
    gpu_mtbf_h: float = 0.0
    gpu_repair: float | Duration = REPAIR
    rack_mtbf_h: float = 0.0
    rack_repair: float | Duration = REPAIR
    nodes_per_rack: int = 8  # where nodes of the cluster state no rack: so many in a row

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes_per_rack < 1:
            raise InvalidInput(f"nodes_per_rack must be >= 1, got {self.nodes_per_rack!r}")


@dataclass(frozen=True)
class SpotNodes(_Checked):
    """`[spot]`: some nodes are taken away at random, with notice, and come back."""

    share: float = 0.0  # of the nodes of these types
    gpu_types: tuple[str, ...] = ()  # empty = all
    every_h: float = 24.0  # mean time until a node that is up is taken away
    away: float | Duration = AWAY
    notice_s: float = 120.0  # in which its jobs save; 0 = none

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share and not self.every_h:
            raise InvalidInput(f"every_h must be > 0, got {self.every_h!r}")


@dataclass(frozen=True)
class PriceChanges(_Checked):
    """`[prices]`: the price of each GPU type varies around its list price.

    Logarithms follow x' = (1 - reversion_share) x + sigma N(0, 1) at each change.
    """

    every_s: float = 0.0  # 0 = never
    sigma: float = 0.1
    reversion_share: float = 0.1


@dataclass(frozen=True)
class Maintenance(_Checked):
    """`[[maintenance]]`: nodes run no jobs in this time; their jobs are stopped in order when it begins."""

    begin_s: float = 0.0
    length_s: float = 3600.0
    every_s: float = 0.0  # repeated, from begin to begin; 0 = once
    nodes: tuple[str, ...] = ()  # empty = all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length_s < 1 or (self.every_s and self.every_s <= self.length_s):
            raise InvalidInput(f"length_s must be >= 1 and below every_s, got {self.length_s!r} and {self.every_s!r}")


@dataclass(frozen=True)
class JobFailures(_Checked):
    """`[job_failures]`: jobs fail by their own fault early or at a random step, or by the system at any time.

    Source of the classes: Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads
    (ATC '19), section 4.2: most failures are user errors soon after the start.
    """

    early_share: float = 0.0  # of jobs with a user error that ends them soon after their first step
    early: float | Duration = EARLY  # work until then
    late_share: float = 0.0  # of jobs that fail at a step that is uniform over the job
    late_repeats: float = 0.5  # probability that such a job fails there again when it is retried
    system_mtbf_gpu_h: float = 0.0  # mean GPU-hours of work between failures that are not the job's fault; 0 = never

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.early_share + self.late_share > 1:
            raise InvalidInput(f"late_share must be <= 1 - early_share ({self.early_share:g}), got {self.late_share!r}")


@dataclass(frozen=True)
class TrialRuns(_Checked):
    """`[trials]`: each new job first runs on one GPU of a pool, where user errors show: see `trials`."""

    most_s: float = 0.0  # of work; 0 = no trials
    nodes: tuple[str, ...] = ()  # of the pool, each once, all of one GPU type
    gpu_type: str = ""  # or the last nodes of this type,
    gpus: int = 0  # whole, with so many GPUs or more

    def __post_init__(self) -> None:
        super().__post_init__()
        has_number = bool(self.gpu_type and self.gpus >= 1)
        if self.most_s and bool(self.nodes) == has_number:
            got = f"{list(self.nodes)!r}, {self.gpu_type!r} and {self.gpus!r}"
            raise InvalidInput(f"nodes, or gpu_type and gpus, must be given, got {got}")
        if self.nodes and (self.gpu_type or self.gpus or len(set(self.nodes)) < len(self.nodes)):
            raise InvalidInput(f"nodes must be alone and each once, got {list(self.nodes)!r}")


@dataclass(frozen=True)
class Cancellations(_Checked):
    """`[cancellations]`: users cancel jobs."""

    share: float = 0.0  # of jobs
    after: float | Duration = REGRET  # their submission, if they still exist


@dataclass(frozen=True)
class Locality(_Checked):
    """`[locality]`: a gang on several nodes runs slower: at its unconsolidated rate of the table, else by factors."""

    nodes_factor: float = 1.0  # of the rate, where GPUs are on more than one node
    racks_factor: float = 1.0  # in addition, where they are in more than one rack
    by_table: bool = False  # rates of types TYPE_unconsolidated of --throughputs replace nodes_factor where known


@dataclass(frozen=True)
class Interference(_Checked):
    """`[interference]`: jobs that have GPUs of one node slow each other down."""

    node_factor: float = 1.0  # of the rate of a job, while another job has GPUs on one of its nodes


@dataclass(frozen=True)
class RateVariation(_Checked):
    """`[rates]`: rates differ from the stated ones; a lease keeps its rate."""

    noise_sigma: float = 0.0  # of the logarithm, for each lease; the mean factor is 1
    drift_sigma_per_day: float = 0.0  # of the logarithm of a trend of each job, from its first start


@dataclass(frozen=True)
class Stragglers(_Checked):
    """`[stragglers]`: some nodes and some leases are slow; a gang runs at the rate of its slowest node."""

    nodes_share: float = 0.0
    nodes_factor: float = 0.7
    leases_share: float = 0.0
    leases_factor: float = 0.5


@dataclass(frozen=True)
class Latency(_Checked):
    """`[latency]`: allocations arrive later than their requests, and progress is as old as the last heartbeat."""

    solve: float | Duration = 0.0
    solve_per_job_s: float = 0.0  # in addition, for each job of the problem
    heartbeat_s: float = 0.0


def is_on(section: Any) -> bool:  # Any: one of the sections above
    """Whether a section changes anything."""
    return bool(section != type(section)())
