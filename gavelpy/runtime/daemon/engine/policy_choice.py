"""The choices of a policy and of estimates, for configuration, journal and engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import PolicyChanged
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import LAST_ALIVE
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.job import JobSpec
from gavelpy.model.problem import BlindView
from gavelpy.policies.base import Policy, ProblemInput, needs_of, planned_over_rounds, policy_named
from gavelpy.policies.policy_file import is_in_file
from gavelpy.policies.refusals import refuse_needs, refuse_sizes
from gavelpy.simulator.conditions.job_costs import Costs

TURN_S = Costs().turn_s  # cost of a start and a stop of a job, for policies that plan with it


@dataclass(frozen=True)
class PolicyChoice:
    """A policy by name with its parameters. Made by `of`, which checks them."""

    name: str
    parameters: str = "{}"  # JSON
    blind: str = ""  # a BlindView; empty = the policy sees GPU types
    throughputs_file: str = ""
    throughputs_version: int = 0  # grows when the file must be read again
    round_s: float = 0.0  # of the mechanism, as the next one; not in the journal; 0 = unknown
    move_lag_s: float = 0.0

    @classmethod
    def of(cls, name: str, parameters: str, blind: str = "", throughputs_file: str = "") -> PolicyChoice:
        """Raises InvalidInput for an unknown policy or unknown parameters."""
        if blind and blind not in list(BlindView):
            raise InvalidInput(f"blind must be one of {', '.join(BlindView)}, or empty, got {blind!r}")
        policy_named(name, **_arguments(parameters))
        return cls(name, json.dumps(_arguments(parameters), sort_keys=True), blind, throughputs_file)

    def changed(self, name: str, parameters: str) -> PolicyChoice:
        """Another policy (with its defaults unless parameters are given), or the same with other parameters.

        Clients name it, so it must not be in a file, which would be executed.
        """
        if is_in_file(name):
            raise InvalidInput(f"a policy in a file must be named in the scheduler's configuration, got {name!r}")
        wanted = parameters or ("{}" if name else self.parameters)
        return self.of(name or self.name, wanted, self.blind).over(self)

    def over(self, other: PolicyChoice) -> PolicyChoice:
        """This policy, with the throughputs file of another choice."""
        return replace(self, throughputs_file=other.throughputs_file, throughputs_version=other.throughputs_version)

    def within(self, settings: MechanismSettings) -> PolicyChoice:
        """This policy, planned with these settings of the mechanism."""
        return replace(self, round_s=settings.round_s, move_lag_s=settings.move_lag_s)

    def after(self, event: PolicyChanged) -> PolicyChoice:
        """The choice after an event."""
        return replace(self, name=event.policy, parameters=event.parameters, blind=event.blind)

    def refuse(self, specs: Sequence[JobSpec]) -> None:
        """Raises InvalidInput if one of these jobs has what the policy does not count, or lacks what it needs.

        The policy may not count sizes, CPU cores or memory.
        """
        if self.needs or any(spec.sizes or spec.cpus_per_gpu or spec.memory_gib_per_gpu for spec in specs):
            refuse_needs(self.policy, specs)
            refuse_sizes(self.policy, specs)

    def refuse_living(self, jobs: JobTable) -> None:
        """The same for all jobs that are not over."""
        if self.needs:
            self.refuse([jobs.specs[row] for row in jobs.active.tolist()])
            return
        several = [row for row in jobs.sizes if jobs.state[row] <= LAST_ALIVE]
        self.refuse([jobs.specs[row] for row in [*jobs.needs, *several]])

    @property
    def needs(self) -> frozenset[ProblemInput]:
        """The requests that each job must state."""
        return needs_of(self.policy) if is_in_file(self.name) else _needs(self.name, self.parameters)

    @property
    def event(self) -> PolicyChanged:
        """The event for the journal."""
        return PolicyChanged(self.name, self.parameters, self.blind)

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters as keyword arguments."""
        return _arguments(self.parameters)

    @property
    def policy(self) -> Policy:
        """The policy, with slack for rounds, starts and lags if it plans with them."""
        policy = policy_named(self.name, **self.arguments)
        return planned_over_rounds(policy, self.round_s, TURN_S, self.move_lag_s) if self.round_s else policy


@dataclass(frozen=True)
class EstimationChoice:
    """Whether and how rates are estimated."""

    is_on: bool = False
    model_file: str = ""  # of `gavel throughput fit`; "" = the shipped model
    profile_gpu_s: float = 0.0  # GPU-seconds of each allocation for measurements
    probe_s: float = 360.0  # duration of one measurement: a round


@cache
def _needs(name: str, parameters: str) -> frozenset[ProblemInput]:
    return needs_of(policy_named(name, **_arguments(parameters)))


def _arguments(parameters: str) -> dict[str, Any]:  # Any: values of a policy's parameters
    try:
        arguments = json.loads(parameters or "{}")
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"policy_parameters must be JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"policy_parameters must be a JSON object, got {parameters[:100]!r}")
    return dict(arguments)
