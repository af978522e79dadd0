"""Compares policies on one trace; on request, finish-time fairness relative to a run under `isolated`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavelpy.engine import Engine
from gavelpy.errors import InvalidInput
from gavelpy.journal.file import JournalWriter
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import PolicyRun as PolicyRun
from gavelpy.policies.base import planned_over_rounds, policy_from
from gavelpy.policies.team_rows import check_counts_teams
from gavelpy.simulator.job_sizes import as_requested
from gavelpy.simulator.metrics import SimulationResult, with_fairness, with_ideal
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Progress, Simulation, Stop, never
from gavelpy.simulator.trace_events import with_events

if TYPE_CHECKING:
    from gavelpy.simulator.estimation import Estimation, Learning

ISOLATED = "isolated"


def compare(
    trace: Trace,
    cluster: Cluster,
    runs: Sequence[PolicyRun],
    *,
    settings: SimulationSettings | None = None,
    throughputs: ThroughputTable | None = None,
    seed: int = 0,
    window: tuple[int, int] | None = None,
    progress: Progress | None = None,
    stop: Stop = never,
    journal_directory: Path | None = None,
    learning: Learning | None = None,
    fairness: bool = False,
    ideal: bool = False,
) -> dict[str, SimulationResult]:
    """Simulates each run on the same trace; results by label.

    Finish-time fairness compares with a run under `isolated`. Without one among the runs, it is NaN, unless `fairness`
    is set: then `isolated` is simulated in addition, and each result has the CPU time of that, `cpu_fairness_s`. The
    yardstick does not depend on `move_lag_s`: `isolated` delivers its shares in every round; and not on sizes: each job
    has the GPUs that it requested. With
    `learning`, the runs know no rates; the extra run of `isolated` does. Each run writes its journal to
    `journal_directory`/label.journal, if given. Once `stop()` is true, the run in progress ends and is `partial`, and
    later runs are missing. `ideal` adds the figures of each policy's ideal.
    Equal arguments give equal results, except for the run times.
    """
    labels = [run.label for run in runs]
    if len(set(labels)) != len(labels) or not runs:
        raise InvalidInput(f"policies must be named, each once, got {', '.join(labels) or 'none'}")
    settings = settings or SimulationSettings()
    cluster, events = with_events(trace, cluster)
    baseline = PolicyRun(ISOLATED)
    prompt = replace(settings, mechanism=replace(settings.mechanism, move_lag_s=0.0))
    everything = [*runs, baseline] if fairness and baseline not in runs else list(runs)
    for run in everything if settings.mechanism.limits_teams else ():
        check_counts_teams(policy_from(run.policy))
    results: dict[str, SimulationResult] = {}
    for run in everything:
        if results and stop():
            break
        chosen = prompt if run == baseline else settings
        estimation = learning.begin(trace, cluster.gpu_types, seed) if learning is not None and run in runs else None
        simulation = Simulation(
            trace if run in runs else as_requested(trace),
            cluster,
            engine_for(run, chosen, throughputs, estimation, learning.profile_gpu_s if learning is not None else 0.0),
            chosen,
            estimation=estimation,
            seed=seed,
            window=window,
            label=run.label,
            progress=progress,
            stop=stop,
            node_events=events,
        )
        results[run.label] = _journaled(simulation, run, journal_directory if run in runs else None)
    isolated, found = results.get(ISOLATED), {label: results[label] for label in labels if label in results}
    if ideal:
        found = {
            run.label: with_ideal_of(found[run.label], trace, cluster, run, settings, throughputs, stop)
            for run in runs
            if run.label in found
        }
    if isolated is None or isolated.partial:
        return found
    extra_s = 0.0 if ISOLATED in labels else isolated.metrics.cpu_s
    return {label: with_fairness(result, isolated, extra_s) for label, result in found.items()}


def with_ideal_of(
    result: SimulationResult,
    trace: Trace,
    cluster: Cluster,
    run: PolicyRun,
    settings: SimulationSettings,
    throughputs: ThroughputTable | None = None,
    stop: Stop = never,
) -> SimulationResult:
    """The result with the figures of its policy's ideal: see `IdealSimulation`. Without them if either was stopped."""
    from gavelpy.simulator.ideal import IdealSimulation

    engine = engine_for(run, settings, throughputs)
    if result.partial:
        return result
    simulation = IdealSimulation(
        trace, cluster, engine.policy, settings.for_policy(engine.policy), throughputs=throughputs, blind=engine.blind
    )
    finish_s = simulation.run(result.measured, stop)
    return result if stop() else with_ideal(result, trace.arrival_s, finish_s)


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: str,
    *,
    blind: bool = False,
    settings: SimulationSettings | None = None,
    throughputs: ThroughputTable | None = None,
    seed: int = 0,
    window: tuple[int, int] | None = None,
) -> SimulationResult:
    """One policy on one trace; finish-time fairness is NaN, because it needs a second run (see compare)."""
    settings = settings or SimulationSettings()
    run = PolicyRun(policy, blind)
    engine = engine_for(run, settings, throughputs)
    cluster, events = with_events(trace, cluster)
    options: dict[str, Any] = {"seed": seed, "window": window, "label": run.label, "node_events": events}
    return Simulation(trace, cluster, engine, settings, **options).run()


def engine_for(
    run: PolicyRun,
    settings: SimulationSettings,
    throughputs: ThroughputTable | None = None,
    estimation: Estimation | None = None,
    profile_gpu_s: float = 0.0,
) -> Engine:
    """The engine with this run's policy; a probe takes one round."""
    view = settings.blind_view_of(run.policy.partition(":")[0]) if run.blind else None
    estimator = estimation.estimator if estimation is not None else None  # without one nothing is profiled
    policy = policy_from(run.policy)
    if settings.plans_slack:
        mechanism = settings.for_policy(policy).mechanism
        policy = planned_over_rounds(policy, mechanism.round_s, settings.costs.turn_s, mechanism.move_lag_s)
    return Engine(
        policy,
        view,
        throughputs,
        estimator=estimator,
        profile_budget_s=profile_gpu_s,
        profile_probe_s=settings.mechanism.round_s,
    )


def _journaled(simulation: Simulation, run: PolicyRun, directory: Path | None) -> SimulationResult:
    if directory is None:
        return simulation.run()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"journal directory cannot be made: {error.strerror}", file=str(directory)) from None
    name = re.sub(r"[^\w.@=-]", "-", run.label)  # parameters may hold what no file name should
    with JournalWriter(directory / f"{name}.journal") as journal:
        simulation.observers.append(journal.append)
        return simulation.run()
