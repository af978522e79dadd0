"""Groups of options of commands that simulate, and what each group makes: a trace, a cluster, settings.

A command names the groups that it takes as parameters, and `takes_choices` adds their fields to its signature, where
typer finds them. So an option of all these commands is two lines: its type in `simulation_options`, and its field here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, get_type_hints

from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as o
from gavelpy.cli.options import SeedOption, ThroughputsOption
from gavelpy.cli.output import notify
from gavelpy.cli.trace_choices import FormatChoices
from gavelpy.errors import InvalidInput

_CLUSTER_FILES = (".csv", ".toml")

if TYPE_CHECKING:
    from gavelpy.cli.scheduler_config import SchedulerFile
    from gavelpy.model.cluster import Cluster
    from gavelpy.model.job import Trace
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.policies.base import PolicyRun
    from gavelpy.simulator.conditions.job_costs import JobCosts
    from gavelpy.simulator.conditions.spec import Conditions
    from gavelpy.simulator.estimation import Learning
    from gavelpy.simulator.settings import SimulationSettings


def takes_choices(command: Callable[..., Any]) -> Callable[..., Any]:  # Any: what the command returns
    """The command with the options of its groups: of its parameters that are dataclasses."""
    signature = inspect.signature(command, eval_str=True)
    kinds: dict[str, Any] = {name: one.annotation for name, one in signature.parameters.items()}  # Any: types
    groups: dict[str, Any] = {name: kind for name, kind in kinds.items() if is_dataclass(kind)}

    @wraps(command)
    def called(**values: Any) -> Any:  # Any: of options
        made = {name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        return command(**made, **values)

    expanded = [
        one
        for parameter in signature.parameters.values()
        for one in (_options(parameter.annotation) if parameter.name in groups else [parameter])
    ]
    called.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]  # inspect's
    called.__annotations__ = {one.name: one.annotation for one in expanded}
    return called


def _options(group: Any) -> list[inspect.Parameter]:  # Any: a dataclass
    kinds = get_type_hints(group, include_extras=True)
    keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
    defaults = {one.name: required if one.default is MISSING else one.default for one in fields(group)}
    return [
        inspect.Parameter(name, keyword, default=default, annotation=kinds[name]) for name, default in defaults.items()
    ]


def given(values: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of several types
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class TraceChoices(FormatChoices):
    """A trace file, or the number of jobs to generate."""

    trace: o.OptionalTraceArgument = None
    generate: o.GenerateOption = None
    node_events: o.NodeEventsOption = None

    def read(self, new: p.GeneratorChoices, table: ThroughputTable, seed: int) -> Trace:
        """The trace, with node events; jobs without rates of their own get those of `table`."""
        trace = self._jobs(new, table, seed)
        if not self.node_events:
            return trace
        from gavelpy.traces.node_events import hashes_of, read_node_events

        changes = read_node_events(self.node_events)
        provenance = {**trace.provenance, "node_events": hashes_of(self.node_events)}
        return replace(trace, node_changes=changes, provenance=provenance)

    def _jobs(self, new: p.GeneratorChoices, table: ThroughputTable, seed: int) -> Trace:
        if (self.trace is None) == (self.generate is None):
            raise InvalidInput(
                "simulate takes either a TRACE or --generate N, got " + ("neither" if self.trace is None else "both")
            )
        if self.generate is None:
            assert self.trace is not None
            for name in new.given().keys() - {"reference_gpu_type"}:
                raise InvalidInput(f"--{name.replace('_', '-')} needs --generate N, got the trace {str(self.trace)!r}")
            found = self.read_file(self.trace, table, seed, new.reference_gpu_type)
            p.warn_of_trace(found)
            return _warned_of_unknown(found)
        for name, value in given(vars(self)).items():
            if name not in ("trace", "generate", "node_events"):
                option = name.removesuffix("_format").replace("_", "-")
                raise InvalidInput(f"--{option} needs a TRACE, got {value!r} with --generate")
        import numpy as np

        from gavelpy.traces.generator import generate

        return _warned_of_unknown(generate(new.options(self.generate), table, np.random.default_rng(seed)))


def _warned_of_unknown(trace: Trace) -> Trace:
    unknown = sorted({(job.job_type, job.gpus) for job in trace.jobs if not job.rates_steps_per_s})
    if unknown:
        count = sum(not job.rates_steps_per_s for job in trace.jobs)
        name, gpus = unknown[0]
        notify(
            f"warning: {count:,} of {len(trace):,} jobs have no throughputs and cannot run, such as {name!r} on {gpus} "
            "GPUs; --throughputs FILE gives them"
        )
    return trace


@dataclass(frozen=True)
class ClusterChoices:
    """The nodes and their prices."""

    cluster: o.ClusterOption = "v100:36,p100:36,k80:36"
    gpus_per_node: o.GpusPerNodeOption = 4
    prices: o.PricesOption = None
    node_resources: o.NodeResourcesOption = None

    @property
    def is_file(self) -> bool:
        """Whether the cluster is a file."""
        return self.cluster.endswith(_CLUSTER_FILES)

    def build(self, usual: Mapping[str, float], trace: Trace) -> Cluster:
        """The cluster. Prices that are not given are the `usual` ones, or list prices."""
        from gavelpy.model.cluster import Cluster

        text = self.cluster
        if self.is_file:
            from gavelpy.traces.cluster_file import read_cluster

            return self._priced(read_cluster(text), usual)
        if text in (OF_TRACE, OF_EVENTS):
            return self._priced(_nodes_of(trace, text), usual)
        if any(len(part) > 100 for part in text.split(",")):  # int() refuses numbers of thousands of digits
            raise InvalidInput(f"--cluster must look like v100:36,k80:12, got {text[:60]!r}...")
        bare = Cluster.parse(text, gpus_per_node=self.gpus_per_node)
        usd_per_gpu_h = list_prices(bare.gpu_types) | {name: usual[name] for name in bare.gpu_types if name in usual}
        usd_per_gpu_h |= p.prices(self.prices) if self.prices is not None else {}
        for gpu_type in usd_per_gpu_h:
            if gpu_type not in bare.gpu_types:
                raise InvalidInput(
                    f"--prices must name types of the cluster ({', '.join(bare.gpu_types)}), got {gpu_type!r}"
                )
        amounts = p.node_resources(self.node_resources) if self.node_resources is not None else ({}, {})
        priced = Cluster.parse(text, gpus_per_node=self.gpus_per_node, price_usd_per_gpu_h=usd_per_gpu_h)
        return priced.with_amounts(*amounts)

    def _priced(self, cluster: Cluster, usual: Mapping[str, float]) -> Cluster:
        """The cluster with prices: those of the command line replace its own, and these list prices."""
        given = p.prices(self.prices) if self.prices is not None else {}
        for gpu_type in given:
            if gpu_type not in cluster.gpu_types:
                known = ", ".join(cluster.gpu_types)
                raise InvalidInput(f"--prices must name types of the cluster ({known}), got {gpu_type!r}")
        usual = {name: usual[name] for name in cluster.gpu_types if name in usual}
        usd = list_prices(cluster.gpu_types) | usual | dict(cluster.price_usd_per_gpu_h) | given
        amounts = p.node_resources(self.node_resources) if self.node_resources is not None else ({}, {})
        return replace(cluster, price_usd_per_gpu_h=usd).with_amounts(*amounts)


OF_TRACE, OF_EVENTS = "trace", "none"  # --cluster: the nodes of the trace; only those of --node-events


def _nodes_of(trace: Trace, text: str) -> Cluster:
    """The nodes of the trace, or none, with the GPU types of nodes that join later."""
    from gavelpy.model.cluster import Cluster

    nodes = trace.nodes if text == OF_TRACE else ()
    if text == OF_TRACE and not nodes:
        raise InvalidInput(f"--cluster trace needs a trace with nodes, got {trace.name!r} without")
    if not nodes and not trace.node_changes:
        raise InvalidInput("--cluster none needs --node-events FILE, got none")
    types = dict.fromkeys(node.gpu_type for node in (*nodes, *(change.node for change in trace.node_changes)))
    return Cluster(tuple(nodes), tuple(types))


def list_prices(gpu_types: Sequence[str]) -> dict[str, float]:
    """List prices in USD per GPU-hour of the types in the catalogue."""
    from gavelpy.traces.workloads import catalogue

    known = catalogue()
    return {name: known[name].price_usd_per_gpu_h for name in gpu_types if name in known}


@dataclass(frozen=True)
class RunChoices:
    """Policies, rates, seed and what is measured."""

    throughputs: ThroughputsOption = None
    policy: o.PoliciesOption = None
    blind: o.BlindOption = False
    seed: SeedOption = 0
    window: o.WindowOption = None
    fairness: o.FairnessOption = False
    ideal: o.IdealOption = False

    def policies(self, file: SchedulerFile | None) -> Sequence[PolicyRun]:
        """The runs: those that are given, the scheduler's, or the default policy."""
        if self.policy is None and file is not None:
            return [file.run(blind=self.blind)]
        return p.runs(self.policy or "max_min_fairness", blind=self.blind)


@dataclass(frozen=True)
class LearningChoices:
    """What the scheduler knows of the rates."""

    estimate: o.EstimateOption = False
    claims_off: o.ClaimsOffOption = None
    profile_gpu_s: o.ProfileGpuSOption = None

    def build(self, profile_gpu_s: float) -> Learning | None:
        """How the scheduler learns the rates; None if it has them. `profile_gpu_s` is the default."""
        for name, value in (("--claims-off", self.claims_off), ("--profile-gpu-s", self.profile_gpu_s)):
            if not self.estimate and value is not None:
                raise InvalidInput(f"{name} needs --estimate, got {name} {value:g} without")
        if not self.estimate:
            return None
        from gavelpy.simulator.estimation import Learning

        return Learning(self.claims_off or 0.0, profile_gpu_s if self.profile_gpu_s is None else self.profile_gpu_s)


@dataclass(frozen=True)
class CostChoices:
    """What starts and stops cost, by the names of `Costs`."""

    checkpoint_s: o.CheckpointOption = None
    restart_s: o.RestartOption = None
    migration_s: o.MigrationOption = None


@dataclass(frozen=True)
class ConditionChoices:
    """What else costs time: a file, and options in its place."""

    conditions: o.ConditionsOption = None
    checkpoint_every_s: o.CheckpointEveryOption = None
    node_mtbf_h: o.NodeMtbfOption = None
    costs_from: o.CostsFromOption = None

    def build(self) -> Conditions:
        """The conditions of the file with those of the options."""
        from gavelpy.simulator.conditions.causes import Checkpoints
        from gavelpy.simulator.conditions.spec import Conditions, read_conditions

        found = Conditions() if self.conditions is None else read_conditions(self.conditions)
        if self.costs_from is not None:
            found = replace(found, costs=_costs_in(self.costs_from))
        if self.checkpoint_every_s is not None:
            found = replace(found, checkpoints=Checkpoints(self.checkpoint_every_s))
        if self.node_mtbf_h is not None:
            found = replace(found, nodes=replace(found.nodes, mtbf_h=self.node_mtbf_h))
        return found


def _costs_in(journal: str) -> JobCosts:
    """The costs that a journal shows."""
    from gavelpy.journal.recording import read_recording
    from gavelpy.simulator.past.learned import learn
    from gavelpy.simulator.past.observed import observe

    learned = learn(observe(read_recording(journal)).ledger)
    if not (learned.all_costs.start_s or learned.all_costs.moved_s):
        raise InvalidInput(f"--costs-from must have leases with progress, got none in {journal!r}")
    return learned.job_costs()


@dataclass(frozen=True)
class MechanismChoices:
    """The mechanism, by the names of `MechanismSettings`."""

    preset: o.PresetOption = "default"
    scheduler_config: o.SchedulerConfigOption = None
    round_s: o.RoundOption = None
    solve_interval_s: o.SolveIntervalOption = None
    lease_min_s: o.LeaseMinOption = None
    start_max_s: o.StartMaxOption = None
    move_lag_s: o.MoveLagOption = None
    retry_s: o.RetryOption = None
    retry_max_s: o.RetryMaxOption = None
    placement: o.PlacementOption = None
    consolidate_s: o.ConsolidateOption = None
    defragment: o.DefragmentOption = False
    move_within_round: o.MoveWithinRoundOption = False
    packing: o.PackingOption = False
    teams: o.TeamsOption = None

    @cached_property
    def file(self) -> SchedulerFile | None:
        """The scheduler's configuration, if one is given; lists what of it is not simulated."""
        if self.scheduler_config is None:
            return None
        if self.preset != "default":
            raise InvalidInput(f"--preset and --scheduler-config exclude each other, got --preset {self.preset}")
        from gavelpy.cli.scheduler_config import read_scheduler_file

        found = read_scheduler_file(self.scheduler_config)
        if found.not_simulated:
            names = ", ".join(found.not_simulated)
            notify(f"{self.scheduler_config}: of the scheduler only, and not simulated: {names}")
        return found

    def settings(self, costs: CostChoices) -> SimulationSettings:
        """The settings of the preset or of the scheduler's file, with the given ones."""
        from gavelpy.simulator.settings import preset as settings_of

        base, file = settings_of(self.preset), self.file
        names = [one.name for one in fields(self) if one.name not in ("preset", "scheduler_config")]
        chosen = {name: getattr(self, name) for name in names}
        chosen |= {name: chosen[name] or None for name in ("packing", "defragment", "move_within_round")}
        chosen["teams"] = p.teams(self.teams)
        chosen = given(chosen)
        if file is not None:
            base = file.settings(base)
        mechanism = base.mechanism
        if file is not None and "round_s" in chosen:
            mechanism = file.config.with_round(mechanism, chosen["round_s"])
        elif mechanism.lease_min_s and "round_s" in chosen:
            mechanism = mechanism.with_round(chosen["round_s"])
        if "retry_s" in chosen and "retry_max_s" not in chosen:
            chosen["retry_max_s"] = max(mechanism.retry_max_s, chosen["retry_s"])
        return replace(
            base,
            mechanism=replace(mechanism, **chosen),
            costs=replace(base.costs, **given(vars(costs))),
            mechanism_given=base.mechanism_given | frozenset(chosen),
        )
