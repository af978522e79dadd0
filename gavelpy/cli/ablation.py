"""What conditions cost: GPU-hours by use, and what each cause changes, by simulations without it (`--ablate`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gavelpy.cli.experiment import Experiment, run
from gavelpy.cli.output import DASH, console
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.simulator.metrics import SimulationResult

Ablation = Mapping[str, Mapping[str, "SimulationResult"]]  # by cause that is switched off, then by label
ALL = "(none)"
COMPARED = ("avg_jct_s", "makespan_s", "utilization", "efficiency")


def check_ablation(experiment: Experiment) -> None:
    """Raises InvalidInput if there is nothing to switch off."""
    if not experiment.settings.conditions.causes:
        raise InvalidInput("--ablate needs conditions to switch off, got none: see --conditions and --node-mtbf-h")


def ablated(experiment: Experiment, *, quiet: bool) -> Ablation:
    """The results without each cause. After Ctrl-C, later causes are missing."""
    settings, found = experiment.settings, dict[str, Mapping[str, "SimulationResult"]]()
    for cause in settings.conditions.causes:
        without = replace(settings, conditions=settings.conditions.without(cause))
        results = run(replace(experiment, settings=without, journal=None), quiet=quiet)
        if len(results) < len(experiment.runs) or any(result.partial for result in results.values()):
            break
        found[cause] = results
    return found


def ablation_json(ablation: Ablation) -> dict[str, dict[str, Any]]:  # Any: JSON values
    """The figures by cause and label."""
    return {
        cause: {label: result.metrics.to_json() for label, result in results.items()}
        for cause, results in ablation.items()
    }


def show_ablation(results: Mapping[str, SimulationResult], ablation: Ablation) -> None:
    """Prints, for each policy and cause, the figures without it and their changes."""
    from rich.table import Table

    table = Table(title="Without each cause", box=None, title_justify="left", pad_edge=False)
    for name in ("policy", "without"):
        table.add_column(name)
    for name in ("avg JCT, h", "change", "makespan, h", "change", "utilization, %", "efficiency, %", "unfinished"):
        table.add_column(name, justify="right")
    for label, result in results.items():
        for cause, others in {ALL: results, **ablation}.items():
            table.add_row(label, cause, *_cells(result, others[label]))
    console().print(table)


def show_gpu_hours(results: Mapping[str, SimulationResult]) -> None:
    """Prints where the GPU-hours of each run went; parts that are zero in all runs are left out."""
    from rich.table import Table

    hours = {label: result.metrics.gpu_hours for label, result in results.items()}
    parts = [part for part in next(iter(hours.values())) if any(round(one[part], 1) for one in hours.values())]
    table = Table(title="GPU-hours", box=None, title_justify="left", pad_edge=False)
    table.add_column("policy")
    for part in parts:
        table.add_column(part.replace("_", " "), justify="right")
    for label, by_part in hours.items():
        table.add_row(label, *(_number(by_part[part]) for part in parts))
    console().print(table)


def _cells(result: SimulationResult, other: SimulationResult) -> list[str]:
    jct_s, makespan_s, utilization, efficiency = (getattr(other.metrics, name) for name in COMPARED)
    return [
        _number(jct_s / 3600.0),
        _change(result.metrics.avg_jct_s, jct_s),
        _number(makespan_s / 3600.0),
        _change(result.metrics.makespan_s, makespan_s),
        _number(100.0 * utilization),
        _number(100.0 * efficiency),
        f"{other.metrics.jobs_unfinished:,}",
    ]


def _number(value: float) -> str:
    return f"{value:,.1f}" if math.isfinite(value) else DASH


def _change(before: float, after: float) -> str:
    if not (math.isfinite(before) and math.isfinite(after) and before > 0) or before == after:
        return DASH
    return f"{100.0 * (after / before - 1.0):+.1f} %".replace("-", "−")
