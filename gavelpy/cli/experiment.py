"""An experiment: the complete input of simulations of one trace, checked before the work starts, and their runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavelpy.cli.output import notify
from gavelpy.cli.progress import interruptible, shown_progress

if TYPE_CHECKING:
    from gavelpy.mechanism.settings import MechanismSettings
    from gavelpy.model.cluster import Cluster
    from gavelpy.model.job import Trace
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.policies.base import PolicyRun
    from gavelpy.simulator.estimation import Learning
    from gavelpy.simulator.metrics import SimulationResult
    from gavelpy.simulator.settings import SimulationSettings


@dataclass(frozen=True)
class Experiment:
    """The complete input of a simulation, checked before the work starts."""

    trace: Trace
    cluster: Cluster
    runs: Sequence[PolicyRun]
    settings: SimulationSettings
    seed: int = 0
    window: tuple[int, int] | None = None
    journal: Path | None = None
    throughputs: ThroughputTable | None = None  # true rates of co-located jobs, if jobs may share GPUs
    learning: Learning | None = None  # how the scheduler learns rates, if they are hidden from it
    options: Mapping[str, Any] = field(default_factory=dict)  # from the command line, for the record

    @property
    def fairness(self) -> bool:
        """Whether `isolated` is simulated in addition, for finish-time fairness."""
        return bool(self.options.get("fairness"))

    @property
    def title(self) -> str:
        """One line: the trace, its jobs and the cluster."""
        gpus = zip(self.cluster.gpu_counts.tolist(), self.cluster.gpu_types, strict=True)
        return f"{self.trace.name}: {len(self.trace):,} jobs on {', '.join(f'{n} {gpu_type}' for n, gpu_type in gpus)}"

    @property
    def parameters(self) -> dict[str, Any]:  # Any: JSON values
        """All parameters, so that the simulation can be repeated."""
        from gavelpy import __version__

        mechanism = self.settings.mechanism
        return {
            "trace": self.trace.name,
            "jobs": len(self.trace),
            **({"trace_provenance": dict(self.trace.provenance)} if self.trace.provenance else {}),
            "cluster": dict(zip(self.cluster.gpu_types, self.cluster.gpu_counts.tolist(), strict=True)),
            **_amounts(self.cluster),
            "prices_usd_per_gpu_h": dict(zip(self.cluster.gpu_types, self.cluster.prices.tolist(), strict=True)),
            "policies": [run.label for run in self.runs],
            "window": list(self.window) if self.window is not None else None,
            **self.options,
            "round_s": mechanism.round_s,
            "solve_interval_s": mechanism.solve_interval_s,
            "solve_at_least_every_s": mechanism.solve_at_least_every_s,
            "lease_min_s": mechanism.lease_min_s,
            "start_max_s": mechanism.start_max_s,
            "move_lag_s": mechanism.move_lag_s,
            "retry_s": mechanism.retry_s,
            "retry_max_s": mechanism.retry_max_s,
            **_placement(mechanism),
            **({"teams": [asdict(team) for team in mechanism.teams]} if mechanism.teams else {}),
            **self._by_policy("move_lag_s"),
            **self._by_policy("solve_interval_s"),
            **asdict(self.settings.costs),
            **({"conditions": conditions.to_json()} if (conditions := self.settings.conditions).causes else {}),
            "version": __version__,
        }

    def _by_policy(self, name: str) -> dict[str, dict[str, float]]:
        """A setting of the runs for which it differs from the mechanism's, by label, if there are any."""
        from gavelpy.policies.base import policy_from

        by_label = {run.label: self.settings.for_policy(policy_from(run.policy)) for run in self.runs}
        values = {label: getattr(settings.mechanism, name) for label, settings in by_label.items()}
        others = {label: value for label, value in values.items() if value != getattr(self.settings.mechanism, name)}
        return {f"{name}_by_policy": others} if others else {}


def _placement(mechanism: MechanismSettings) -> dict[str, Any]:  # Any: JSON values
    """The settings of placement and of moves that are not the defaults."""
    names = ("placement", "consolidate_s", "defragment", "move_within_round")
    default = type(mechanism)()
    return {name: value for name in names if (value := getattr(mechanism, name)) != getattr(default, name)}


def _amounts(cluster: Cluster) -> dict[str, dict[str, list[float]]]:
    """CPU cores and memory of a node of each type, for the record; empty if none are stated."""
    found = {node.gpu_type: [node.cpus, node.memory_gib] for node in cluster.nodes if node.cpus or node.memory_gib}
    return {"node_resources": found} if found else {}


def run(experiment: Experiment, *, quiet: bool = False) -> dict[str, SimulationResult]:
    """The results by label. Shows progress, with `quiet` only on a terminal.

    After Ctrl-C, the run in progress is `partial`, and later ones are missing.
    """
    if experiment.settings.little_work:
        notify(f"warning: {experiment.settings.little_work}")
    with shown_progress(quiet=quiet) as progress, interruptible() as stop:
        return results_of(experiment, progress=progress, stop=stop)


def results_of(experiment: Experiment, **shown: Any) -> dict[str, SimulationResult]:  # Any: as of `compare`
    """The results by label; `shown`: progress and stop."""
    from gavelpy.simulator.compare import compare

    return compare(
        experiment.trace,
        experiment.cluster,
        experiment.runs,
        settings=experiment.settings,
        seed=experiment.seed,
        window=experiment.window,
        journal_directory=experiment.journal,
        throughputs=experiment.throughputs,
        learning=experiment.learning,
        fairness=experiment.fairness,
        ideal=bool(experiment.options.get("ideal")),
        **shown,
    )
