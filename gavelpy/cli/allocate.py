"""`gavel allocate`: computes the allocation of one problem file, with its certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json, notify, printable
from gavelpy.cli.parsing import warn_of_problem
from gavelpy.cli.simulation_options import TeamsOption
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.mechanism.teams import Team
    from gavelpy.model.allocation import Allocation, Certificate
    from gavelpy.model.explanation import Goal
    from gavelpy.model.problem import AllocationProblem
    from gavelpy.model.team_limits import TeamLimits


def allocate(
    problem: o.ProblemArgument,
    policy: o.PolicyOption,
    blind: o.BlindAllocateOption = False,
    blind_view: o.BlindViewOption = "mean",
    whole_gangs: o.WholeGangsOption = False,
    teams: TeamsOption = None,
    explain: o.ExplainOption = False,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Compute a policy's allocation for a problem file, with a proof of its quality.

    \b
    Examples:
      gavel allocate problem.json --policy max_min_fairness --explain
      gavel allocate problem.json --policy min_makespan --blind -o json
      gavel allocate problem.json --policy hierarchical --teams teams.toml
    """
    from gavelpy.model.explanation import explanation
    from gavelpy.model.problem import BlindView
    from gavelpy.policies.base import goal_of, policy_from
    from gavelpy.policies.refusals import not_used
    from gavelpy.policies.team_rows import allocate_within
    from gavelpy.traces.problem_json import read_limited_problem

    chosen = p.runs(policy, blind=blind)
    if len(chosen) != 1:
        raise InvalidInput(f"--policy must name one policy, got {policy!r}")
    run = chosen[0]
    tree = p.teams(teams)
    given, limits = read_limited_problem(problem)
    if tree is not None:
        if limits is not None:
            raise InvalidInput("--teams must not be given with a problem file in which entities have quotas")
        given = _with_teams(given, tree)
    warn_of_problem(given, problem)
    deliverable = given.with_whole_gangs() if whole_gangs else given
    visible = deliverable.blind_to_type(BlindView(blind_view)) if run.blind else deliverable
    chosen_policy = policy_from(run.policy)
    if tree:
        limits = limits_of_problem(visible, tree)
    elif limits is not None:
        limits = limits.usable_by(visible)
    answer = allocate_within(chosen_policy, visible, limits)
    own, given = len(given.resources), _with_resources(given, answer.problem)
    answer = answer.evaluated_on(given)
    stuck = reasons(given)
    explained = explanation(answer) if explain else None
    _warn(answer)
    unused = [each for each in not_used(chosen_policy, given) if each != "entity" or len(given.resources) == own]
    if unused:
        notify(f"note: {run.policy} does not use {', '.join(each.in_words for each in unused)}: they change nothing")
    if output is Output.JSON:
        document: dict[str, Any] = answer.to_json(run.policy)
        document["gain_of_one_more_gpu"] = _gains(answer, goal_of(chosen_policy))
        extra: dict[str, Any] = {"explanation": explained.to_json()} if explained else {}
        extra |= {"not_used": unused} if unused else {}
        echo_json(document | ({"reasons": stuck} if stuck else {}) | extra)
    else:
        why = [explained.text(job) for job in range(given.job_count)] if explained else []
        _show(answer, stuck, why)
        _show_marginal_values(answer, goal_of(chosen_policy), blind=run.blind)


def _with_teams(problem: AllocationProblem, teams: tuple[Team, ...]) -> AllocationProblem:
    """The problem with these teams as its entities; each job's entity must be one of them."""
    from gavelpy.mechanism.teams import entities_of

    names = tuple(entity.id for entity in problem.entities)
    entities, row = entities_of(names, teams)
    rows = row[problem.entity]
    for job, place in zip(problem.job_ids, rows.tolist(), strict=True):
        if not 0 <= place < len(teams):
            known, got = ", ".join(team.name for team in teams), entities[place].id if place >= 0 else "none"
            raise InvalidInput(f"entity of job {job!r} must be a team, one of {known}, got {got!r}")
    return replace(problem, entity=rows, entities=entities[: len(teams)])


def limits_of_problem(problem: AllocationProblem, teams: tuple[Team, ...]) -> TeamLimits | None:
    """Quotas and guaranteed GPUs of these teams, as far as the problem's jobs can use them; None without any."""
    from gavelpy.mechanism.teams import any_limits, limits_of

    if not any_limits(teams):
        return None
    limits = replace(limits_of((), teams, problem.gpu_types), team=problem.entity)
    return limits.needing(problem).usable_by(problem)


def _with_resources(problem: AllocationProblem, other: AllocationProblem) -> AllocationProblem:
    """The problem with the resources of another one of the same configurations: the rows of teams."""
    if problem.resources == other.resources:
        return problem
    return replace(problem, resources=other.resources, capacity=other.capacity, demand=other.demand)


def reasons(problem: AllocationProblem) -> dict[str, str]:
    """Why a job cannot run, for each job that fits no GPU type or needs more GPUs than any type has."""
    from gavelpy.model.explanation import why_stuck

    rows = (~problem.can_run | problem.is_oversized).nonzero()[0].tolist()
    return {problem.job_ids[row]: why_stuck(problem, row) for row in rows}


def _gains(answer: Allocation, goal: Goal) -> dict[str, float | None]:
    """Relative gain by type; null if nothing is optimised or the gain is infinite."""
    from gavelpy.model.explanation import relative_gain

    gains = relative_gain(answer, goal).tolist()
    types = answer.problem.gpu_types
    return {name: gain if math.isfinite(gain) else None for name, gain in zip(types, gains, strict=True)}


def _warn(answer: Allocation) -> None:
    """Warns of answers that are not fully proved, and of shares that no scheduler can deliver."""
    if answer.certificate.warning:
        notify(f"warning: the allocation is {answer.certificate.warning}")
    problem = answer.problem
    held = problem.is_oversized & (answer.job_share.sum(axis=1) > 0)
    if held.any():
        names = ", ".join(problem.job_ids[row] for row in held.nonzero()[0].tolist()[:5])
        more = f" and {held.sum() - 5} more" if held.sum() > 5 else ""
        lack = _too_few(problem)
        notify(f"note: no scheduler can deliver the share of {names}{more}: {lack} of one type (see --whole-gangs)")


def _too_few(problem: AllocationProblem) -> str:
    return "too few GPUs" if len(problem.resources) == 1 else f"too few GPUs or {' or '.join(problem.resources[1:])}"


def _show(answer: Allocation, stuck: dict[str, str], why: Sequence[str]) -> None:
    from rich import box
    from rich.table import Table

    problem = answer.problem
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("job", style="bold")
    for gpu_type in (*problem.gpu_types, "steps/s"):
        table.add_column(printable(gpu_type), justify="right")
    if why or stuck:
        table.add_column("why" if why else "why not")
    rates = answer.rate_steps_per_s
    listed: set[int] = set()
    configurations = [*enumerate(problem.configuration_members())]
    if problem.has_sizes:  # the sizes of a job below each other
        configurations.sort(key=lambda each: (len(each[1]) > 1, each[1] if len(each[1]) == 1 else (), each[0]))
    for row, members in configurations:
        share = answer.share[row]
        ids = [problem.job_ids[job] for job in members]
        alone = len(members) == 1 and members[0] not in listed  # the first size of a job has its rate
        if not alone and not (share > 0).any():
            continue
        listed.update(members[:1] if alone else ())
        speed = f"{rates[members[0]]:,.4g}" if alone else ""
        reason = (why[members[0]] if why else stuck.get(ids[0], "")) if alone else ""
        table.add_row(
            printable(" with ".join(ids) + (_size(problem, row) if problem.has_sizes else "")),
            *(f"{100 * x:.1f} %" if x > 0 else "·" for x in share),
            speed,
            *([printable(reason)] if why or stuck else []),
        )
    console().print(table)


def _size(problem: AllocationProblem, row: int) -> str:
    """The size of a configuration, as in `a on 4 (dp4)`."""
    plan = f" ({problem.plan[row]})" if problem.plan and problem.plan[row] else ""
    return f" on {problem.gpus_occupied[row]:g}{plan}"


def _show_marginal_values(answer: Allocation, goal: Goal, *, blind: bool) -> None:
    """Prints the shadow prices, what they mean for the goal, and the certificate."""
    from gavelpy.model.explanation import marginal_value_sentences

    out = console()
    sentences = marginal_value_sentences(answer, goal)
    if not sentences:
        out.print("Shadow prices: none, as the policy optimises nothing.")
    else:
        for resource, prices in zip(answer.problem.resources, answer.resource_prices.T.tolist(), strict=True):
            priced = zip(answer.problem.gpu_types, prices, strict=True)
            listed = ", ".join(f"{gpu_type} {price:.4g}" for gpu_type, price in priced)
            unit = "GPU" if resource == "gpu" else resource
            out.print(printable(f"Shadow prices (objective gained by one more {unit}): {listed}."))
        prefix = "With the rates that the blind policy assumes, " if blind else ""
        for sentence in sentences:
            whole = prefix + sentence
            out.print(printable(f"{whole[0].upper()}{whole[1:]}."))
    out.print(_in_words(answer.certificate))


def _in_words(certificate: Certificate) -> str:
    c = certificate
    took = f"{1000 * c.solve_s:.1f} ms"
    if c.path == "rule":
        return f"A heuristic without an optimum; largest violation of a constraint {c.violation:.1g}; {took}."
    return (
        f"Objective {c.objective:.6g}, proven within {c.gap:.1g} of the best possible ({c.bound:.6g}); "
        f"largest violation of a constraint {c.violation:.1g}; path {c.path}; {took}."
    )
