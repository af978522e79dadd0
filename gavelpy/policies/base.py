"""What a policy is: its protocol, the properties that it may guarantee, the registry by name, and shared helpers.

Built-in and plug-in policies register in the entry point group `gavelpy.policies`; others are named by their file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation, Certificate
from gavelpy.model.arrays import Floats, row_sums
from gavelpy.model.explanation import Goal
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.policy_file import class_in_file, is_in_file, split_name
from gavelpy.solve.solver import Solver


class Policy(Protocol):
    """A formula with its hyper-parameters: a frozen dataclass, registered in the entry point group `gavelpy.policies`.

    `allocate` is pure: the same problem gives the same bytes, with or without a warm `solver`. Jobs that cannot run get
    no share. `gavelpy.policies.contract` has the checks that every policy must pass.

    A policy that takes the round length, the cost of a preemption and the lag for which jobs are preempted into account
    has the method `over_rounds(round_s, turn_s, move_lag_s) -> Policy`, which `planned_over_rounds` calls.

    Five more declarations are optional, so they are not part of the protocol; `goal_of`, `guarantees_of`, `uses_of`,
    `needs_of` and `varies_with_time` read them:

        optimises: ClassVar[Goal]                     goal for which shadow prices are expressed; a rule has none
        guarantees: ClassVar[frozenset[Guarantee]]    properties that it guarantees (`guarantee_checks`)
        uses: frozenset[ProblemInput]                 inputs on which the shares can depend; default: not known
        needs: frozenset[ProblemInput]                requests of a job (deadline_s, entity, completion_value) without
                                                      which it is refused; default none
        time_varying: ClassVar[bool]                  whether shares depend on age, attained service, deadlines, steps
                                                      done or steps remaining; default True
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one sentence on what it optimises
    fills_leftover: ClassVar[bool]  # whether leftover GPUs may go to jobs with a share of zero

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:
        """Shares of time for every configuration of `problem`."""
        ...  # a protocol's body


class Guarantee(StrEnum):
    """A property of allocations for new jobs that run alone, with equal weight, gang size and entity.

    For other jobs a property may or may not hold: weights exist to make jobs unequal. r_j(x) is the rate of job j under
    shares x, x_j the shares of job j; only jobs that can run count. `gavelpy.policies.guarantee_checks` tests them.
    """

    SHARING_INCENTIVE = "sharing_incentive"
    """r_j(x) >= r_j(x_isolated): no job prefers an n-th of every GPU type for itself.

    x_isolated is that of the policy `isolated`: W_t / (n g_j), limited by the job's time. DRF (NSDI '11), section 3.
    """

    PARETO_EFFICIENT = "pareto_efficient"
    """No other shares raise the rate of one job without lowering that of another."""

    ENVY_FREE = "envy_free"
    """r_j(x_j) >= r_j(x_k) for all j, k: no job prefers the shares of another. Varian (1974)."""

    STRATEGY_PROOF = "strategy_proof"
    """No job gets a higher rate by declaring false rates. DRF (NSDI '11), section 3."""

    @property
    def in_words(self) -> str:
        """The name in a sentence."""
        match self:
            case Guarantee.SHARING_INCENTIVE:
                return "sharing incentive"
            case Guarantee.PARETO_EFFICIENT:
                return "Pareto efficient"
            case Guarantee.ENVY_FREE:
                return "envy-free"
            case Guarantee.STRATEGY_PROOF:
                return "strategy-proof"


class ProblemInput(StrEnum):
    """An input of a problem that some policies use and others do not; all use rates, GPUs and the order of arrival.

    The contract's check `unused_inputs` changes each input that a policy does not declare. Sizes (several numbers of
    GPUs of one job) and other resources than GPUs must be refused instead: `refuse_unused`.
    """

    WEIGHT = "weight"
    ENTITY = "entity"
    DEADLINE = "deadline_s"
    PRICE = "price_usd_per_gpu_h"
    PAIRS = "pairs"
    SIZES = "sizes"
    RESOURCES = "resources"
    STEPS_REMAINING = "steps_remaining"
    STEPS_TOTAL = "steps_total"
    AGE = "age_s"
    ISOLATED = "isolated_s"
    ATTAINED = "attained_gpu_s"
    GPU_TYPE_HELD = "gpu_type_held"
    GPUS_HELD = "gpus_held"
    JOB_TYPE = "job_type"
    OWNER = "owner"
    RESTART = "restart_s"
    COMPLETION_VALUE = "completion_value"
    LOSSES = "losses"
    APP = "app"

    @property
    def in_words(self) -> str:
        """The name in a sentence."""
        return _IN_WORDS[self]

    def is_given(self, problem: AllocationProblem) -> bool:
        """Whether the problem has it: its values are not those that mean nothing."""
        match self:
            case ProblemInput.WEIGHT:
                return bool((problem.weight != 1).any())
            case ProblemInput.ENTITY:
                return bool((problem.entity >= 0).any())
            case ProblemInput.DEADLINE:
                return bool(np.isfinite(problem.deadline_s).any())
            case ProblemInput.PRICE:
                return bool((problem.price_usd_per_gpu_h != 0).any())
            case ProblemInput.PAIRS:
                return bool((problem.member_count > 1).any())
            case ProblemInput.SIZES:
                return problem.has_sizes
            case ProblemInput.RESOURCES:
                return len(problem.resources) > 1
            case ProblemInput.STEPS_REMAINING | ProblemInput.STEPS_TOTAL:
                return bool((getattr(problem, self) != 1).any())
            case ProblemInput.GPU_TYPE_HELD | ProblemInput.JOB_TYPE | ProblemInput.OWNER | ProblemInput.APP:
                return bool((getattr(problem, self) >= 0).any())
            case _:
                return bool((getattr(problem, self) != 0).any())


_IN_WORDS = {
    ProblemInput.WEIGHT: "weights",
    ProblemInput.ENTITY: "entities",
    ProblemInput.DEADLINE: "deadlines",
    ProblemInput.PRICE: "prices",
    ProblemInput.PAIRS: "pairs",
    ProblemInput.SIZES: "sizes",
    ProblemInput.RESOURCES: "other resources",
    ProblemInput.STEPS_REMAINING: "steps remaining",
    ProblemInput.STEPS_TOTAL: "total steps",
    ProblemInput.AGE: "ages",
    ProblemInput.ISOLATED: "isolated times",
    ProblemInput.ATTAINED: "attained service",
    ProblemInput.GPU_TYPE_HELD: "GPU types held",
    ProblemInput.GPUS_HELD: "GPUs held",
    ProblemInput.JOB_TYPE: "job types",
    ProblemInput.OWNER: "owners",
    ProblemInput.RESTART: "restart times",
    ProblemInput.COMPLETION_VALUE: "values of completion",
    ProblemInput.LOSSES: "reported losses",
    ProblemInput.APP: "apps",
}
# What users request. The others are the state of jobs, which a scheduler always has.
REQUESTS = (
    ProblemInput.WEIGHT, ProblemInput.ENTITY, ProblemInput.DEADLINE, ProblemInput.PRICE, ProblemInput.PAIRS,
    ProblemInput.SIZES, ProblemInput.RESOURCES, ProblemInput.COMPLETION_VALUE,
)  # fmt: skip
# A policy that does not count these refuses a problem that has them: its shares would be wrong, not only worse.
COUNTED = (ProblemInput.SIZES, ProblemInput.RESOURCES)


def uses_of(policy: Policy) -> frozenset[ProblemInput] | None:
    """The inputs on which the policy's shares can depend; None = it does not declare them."""
    uses: frozenset[ProblemInput] | None = getattr(policy, "uses", None)
    return uses


def needs_of(policy: Policy) -> frozenset[ProblemInput]:
    """The requests that each job must state with this policy."""
    needs: frozenset[ProblemInput] = getattr(policy, "needs", frozenset())
    return needs


def goal_of(policy: Policy | type[Policy]) -> Goal:
    """The goal that the policy declares, or "the objective"."""
    goal: Goal = getattr(policy, "optimises", Goal())
    return goal


def guarantees_of(policy: Policy | type[Policy]) -> frozenset[Guarantee]:
    """The guarantees that the policy declares."""
    guarantees: frozenset[Guarantee] = getattr(policy, "guarantees", frozenset())
    return guarantees


def varies_with_time(policy: Policy | type[Policy]) -> bool:
    """Whether the shares change while the same jobs run, so that the allocation must be recomputed after some time."""
    varies: bool = getattr(policy, "time_varying", True)
    return varies


def is_queue(policy: Policy) -> bool:
    """Whether the policy declares that it serves jobs in row order, and none after one that too few GPUs are left for.

    So without co-location and other resources, the shares of a problem's first jobs do not depend on later ones.
    """
    declared: bool = getattr(policy, "in_order", False)
    return declared


def uses_deadlines(policy: Policy) -> bool:
    """Whether the policy declares that its shares depend on deadlines, so that they must be delivered promptly."""
    return ProblemInput.DEADLINE in (uses_of(policy) or ())


def planned_over_rounds(policy: Policy, round_s: float, turn_s: float, move_lag_s: float) -> Policy:
    """The policy adapted to how shares are delivered.

    That is in rounds of `round_s`, with a stop and a start that cost a job `turn_s`, to jobs that lag by `move_lag_s`.
    """
    adapt = getattr(policy, "over_rounds", None)
    planned: Policy = policy if adapt is None else adapt(round_s, turn_s, move_lag_s)
    return planned


def equal_share_rate(problem: AllocationProblem) -> Floats:
    """Rate of each job alone, its time split over the types like the GPUs, (J,): Σ_t rate_t W_t / Σ_t W_t.

    On the GPUs that it requested, also if it can run on other numbers of them. 1 instead of 0, so that it can be a
    divisor. Gavel (OSDI '20), section 4.1, calls it X_equal; it does not depend on other jobs.
    """
    total = problem.gpu_counts.sum()
    counts = problem.gpu_counts / (total if total > 0 else 1.0)
    rates: Floats = np.einsum("jt,t->j", problem.rate_as_requested_steps_per_s, counts)
    return rates if rates.min(initial=1.0) > 0 else np.where(rates > 0, rates, 1.0)


def ruled(problem: AllocationProblem, share: Floats, objective: float) -> Allocation:
    """The allocation of a heuristic: its certificate proves feasibility only."""
    used, amount = problem.used(share), problem.row_capacity
    time = row_sums(share)
    if not problem.runs_alone:
        of_configuration, time = time, np.zeros(problem.job_count)
        np.add.at(time, problem.member_job, of_configuration[problem.member_configuration])
    over = ((used - amount) / np.where(amount > 0, amount, 1.0)).max(initial=0.0)
    violation = max(0.0, float(over), float((time - 1.0).max(initial=0.0)))
    certificate = Certificate(objective, objective, gap=0.0, violation=violation, path="rule", solve_s=0.0)
    return Allocation.of_known(problem, share, np.full(len(problem.gpu_types), np.nan), certificate)


_FLAGS: dict[object, bool] = {False: False, "false": False, True: True, "true": True}  # 0 == False, 1.0 == True


def flag(name: str, value: object) -> bool:
    """A Boolean parameter; raises InvalidInput if `value` is neither true nor false.

    >>> flag("deadlines", 1.0), flag("deadlines", "false")
    (True, False)
    """
    if not isinstance(value, bool | int | float | str) or value not in _FLAGS:
        raise InvalidInput(f"{name} must be true (1) or false (0), got {value!r}")
    return _FLAGS[value]


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gavelpy.policies"
BLIND_SUFFIX = "@blind"


def policy_named(name: str, **parameters: Any) -> Policy:  # Any: a policy's hyper-parameters are its own
    """The policy with this name, alias or FILE.py:CLASS, and these hyper-parameters.

    Raises InvalidInput, which lists known names.
    """
    policy_class: Any = _own_class(name)  # Any: nothing is known of classes of others
    if policy_class is None:
        known = _entry_points()
        if name in known:
            policy_class = known[name].load()
        elif is_in_file(name):
            policy_class = class_in_file(name)
        else:
            raise InvalidInput(f"policy must be one of {', '.join(sorted(known))}, or FILE.py:CLASS, got {name!r}")
    if is_dataclass(policy_class):
        _check_parameters(name, [field.name for field in fields(policy_class) if field.init], parameters)
    try:
        return cast(Policy, policy_class(**parameters))
    except TypeError as error:
        raise InvalidInput(
            f"parameters of policy {name!r} must be those of {policy_class.__name__}: {error}"
        ) from error


def _check_parameters(name: str, allowed: list[str], given: Mapping[str, object]) -> None:
    unknown = next((parameter for parameter in given if parameter not in allowed), None)
    if unknown is not None:
        offered = f"its parameters are {', '.join(allowed)}" if allowed else "it has none"
        raise InvalidInput(f"policy {name!r} has no parameter {unknown!r}; {offered}")


def policy_from(text: str) -> Policy:
    """The policy of `name` or `name:parameter=value:...`; values that look like numbers are numbers.

    The name may be FILE.py:CLASS.

    >>> policy_from("shortest_job_first:by=total").by
    'total'
    """
    name, colon, settings = text.partition(":")
    if is_in_file(text) and name not in _entry_points():
        name, settings = split_name(text)
        colon = settings and ":"
    parameters: dict[str, float | str] = {}
    for setting in settings.split(":") if colon else ():
        parameter, equals, value = setting.partition("=")
        if not (parameter and equals and value) or parameter in parameters:
            raise InvalidInput(f"policy must look like name:parameter=value, each parameter once, got {text!r}")
        try:
            parameters[parameter] = float(value)
        except ValueError:
            parameters[parameter] = value
    return policy_named(name, **parameters)


@dataclass(frozen=True)
class PolicyRun:
    """A policy (a name, or name:parameter=value), and whether it is blind to GPU types."""

    policy: str
    blind: bool = False

    @classmethod
    def parse(cls, text: str) -> PolicyRun:
        """`name` or `name@blind`; raises InvalidInput when there is no such policy."""
        name = text.removesuffix(BLIND_SUFFIX)
        policy_from(name)
        return cls(name, blind=name != text)

    @property
    def label(self) -> str:
        """Name in results."""
        return self.policy + (BLIND_SUFFIX if self.blind else "")


def registered() -> Mapping[str, type[Policy]]:
    """Registered policy classes by name, sorted, without aliases."""
    classes = [entry.load() for entry in _entry_points().values()]
    return {policy.name: policy for policy in sorted(classes, key=lambda policy: policy.name)}


def aliases() -> Mapping[str, str]:
    """Policy name by alias."""
    names = {alias: entry.load().name for alias, entry in sorted(_entry_points().items())}
    return {alias: name for alias, name in names.items() if alias != name}


@cache
def _own_class(name: str) -> type[Policy] | None:
    """The class of a policy in a module of this package with its name; None for aliases and policies of others."""
    if not name.isidentifier() or find_spec(f"{__package__}.{name}") is None:
        return None
    members = vars(import_module(f"{__package__}.{name}")).values()
    return next((one for one in members if isinstance(one, type) and vars(one).get("name") == name), None)


@cache
def _entry_points() -> Mapping[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes longer to import than any policy

    return {entry.name: entry for entry in entry_points(group=GROUP)}
