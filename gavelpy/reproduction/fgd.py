"""Alibaba's openb under strategies that place tasks on parts of GPUs: the course of each run, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve, Scale
from gavelpy.simulator.fragmentation import PlacementStudy, StudyStrategy, inflated, study

if TYPE_CHECKING:
    from gavelpy.model.fractional import FractionalNodes, FractionalTasks

PUBLISHED: Mapping[str, float] = {"random": 0.8747, "best_fit": 0.9308, "fgd": 0.9539}
"""Share of GPUs allocated on `openb_pod_list_default` at a load of 1.3, mean of ten seeds, by the authors' program.

Source: experiments/analysis/expected_results in github.com/hkust-adsl/kubernetes-scheduler-simulator.
"""
PUBLISHED_LOAD = 1.3


def courses_of(
    cluster: FractionalNodes, tasks: FractionalTasks, load: float, seeds: Sequence[int]
) -> dict[str, list[PlacementStudy]]:
    """The runs of each strategy, one for each seed. Strategies see the same tasks in the same order."""
    found: dict[str, list[PlacementStudy]] = {strategy.value: [] for strategy in StudyStrategy}
    for seed in seeds:
        arrivals = inflated(tasks, cluster.capacity_milli, load, np.random.default_rng([seed, 0]))
        for strategy in StudyStrategy:
            found[strategy.value].append(study(cluster, tasks, arrivals, strategy, np.random.default_rng([seed, 1])))
    return found


def allocated_rows(courses: Mapping[str, Sequence[PlacementStudy]], load: float) -> list[dict[str, Any]]:
    """Each strategy's share of GPUs allocated over its runs, mean, least and most, next to the published value.

    There is none at another load than that of the source, or for first fit.
    """
    found = {name: np.array([course.allocated for course in runs]) for name, runs in courses.items()}
    return [
        {
            "strategy": name,
            "published": PUBLISHED.get(name) if load == PUBLISHED_LOAD else None,
            "allocated": float(shares.mean()),
            "least": float(shares.min()),
            "most": float(shares.max()),
        }
        for name, shares in found.items()
    ]


def over_demand(courses: Mapping[str, PlacementStudy]) -> Figure:
    """Share of GPUs allocated over the GPUs that tasks so far need: one run of each strategy."""
    curves = tuple(
        PlotCurve(name, run.arrived_milli / run.capacity_milli, run.allocated_milli / run.capacity_milli, colour)
        for (name, run), colour in zip(courses.items(), POLICY_COLOURS, strict=False)
    )
    axes = Axis("GPUs needed so far / GPUs"), Axis("GPUs allocated", Scale.PERCENT)
    return Figure("allocated", "Share of GPUs allocated as tasks arrive", *axes, curves)
