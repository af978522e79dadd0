"""`gavel allocate`: one problem, one certified answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json, notify, printable
from gavelpy.cli.rates import warn_of_problem
from gavelpy.errors import InvalidInput
from gavelpy.model.explanation import explanation, why_stuck
from gavelpy.model.marginal_value import marginal_value_sentences, relative_gain
from gavelpy.model.problem import BlindView

if TYPE_CHECKING:
    from gavelpy.model.allocation import Allocation, Certificate
    from gavelpy.model.marginal_value import Goal
    from gavelpy.model.problem import AllocationProblem


def allocate(
    problem: o.ProblemArgument,
    policy: o.PolicyOption,
    blind: o.BlindAllocateOption = False,
    blind_view: o.BlindViewOption = BlindView.MEAN,
    whole_gangs: o.WholeGangsOption = False,
    explain: o.ExplainOption = False,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Divide a cluster's time among jobs, and prove the answer.

    \b
    Examples:
      gavel allocate problem.json --policy max_min_fairness --explain
      gavel allocate problem.json --policy min_makespan --blind -o json
    """
    from gavelpy.policies.base import goal_of
    from gavelpy.policies.registry import policy_from
    from gavelpy.traces.problem_json import read_problem

    chosen = p.runs(policy, blind=blind)
    if len(chosen) != 1:
        raise InvalidInput(f"--policy must name one policy, got {policy!r}")
    run = chosen[0]
    asked = read_problem(problem)
    warn_of_problem(asked, problem)
    deliverable = asked.with_whole_gangs() if whole_gangs else asked
    seen = deliverable.blind_to_type(blind_view) if run.blind else deliverable
    formula = policy_from(run.policy)
    answer = formula.allocate(seen).evaluated_on(asked)
    stuck = reasons(asked)
    holds = explanation(answer) if explain else None
    _warn(answer)
    if output is Output.JSON:
        document: dict[str, Any] = answer.to_json(run.policy)  # the documented answer
        document["gain_of_one_more_gpu"] = _gains(answer, goal_of(formula))
        told = {"explanation": holds.to_json()} if holds else {}
        echo_json(document | ({"reasons": stuck} if stuck else {}) | told)
    else:
        why = [holds.text(job) for job in range(asked.job_count)] if holds else []
        _show(answer, stuck, why)
        _tell_worth(answer, goal_of(formula), believed=run.blind)


def reasons(problem: AllocationProblem) -> dict[str, str]:
    """Why no scheduler can run a job, for each job that can run nowhere or asks for more GPUs than any type has."""
    rows = (~problem.can_run | problem.is_oversized).nonzero()[0].tolist()
    return {problem.job_ids[row]: why_stuck(problem, row) for row in rows}


def _gains(answer: Allocation, goal: Goal) -> dict[str, float | None]:
    """Relative gain by type; null where nothing is optimised, or something would come from nothing."""
    gains = relative_gain(answer, goal).tolist()
    types = answer.problem.gpu_types
    return {name: gain if math.isfinite(gain) else None for name, gain in zip(types, gains, strict=True)}


def _warn(answer: Allocation) -> None:
    """Shares that only exist on paper are said to be so, and answers that are not fully proved."""
    if answer.certificate.warning:
        notify(f"warning: the allocation is {answer.certificate.warning}")
    problem = answer.problem
    held = problem.is_oversized & (answer.job_share.sum(axis=1) > 0)
    if held.any():
        names = ", ".join(problem.job_ids[row] for row in held.nonzero()[0].tolist()[:5])
        more = f" and {held.sum() - 5} more" if held.sum() > 5 else ""
        notify(
            f"note: no scheduler can deliver the share of {names}{more}: too few GPUs of one type (see --whole-gangs)"
        )


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
    for members, share in zip(problem.configuration_members(), answer.share, strict=True):
        ids = [problem.job_ids[job] for job in members]
        alone = len(members) == 1
        if not alone and not (share > 0).any():
            continue
        speed = f"{rates[members[0]]:,.4g}" if alone else ""
        reason = (why[members[0]] if why else stuck.get(ids[0], "")) if alone else ""
        table.add_row(
            printable(" with ".join(ids)),
            *(f"{100 * x:.1f} %" if x > 0 else "·" for x in share),
            speed,
            *([printable(reason)] if why or stuck else []),
        )
    console().print(table)


def _tell_worth(answer: Allocation, goal: Goal, *, believed: bool) -> None:
    """What one more GPU of each type is worth, and the certificate."""
    out = console()
    sentences = marginal_value_sentences(answer, goal)
    if not sentences:
        out.print("Prices: none, nothing is optimised.")
    else:
        priced = zip(answer.problem.gpu_types, answer.shadow_prices.tolist(), strict=True)
        told = ", ".join(f"{gpu_type} {price:.4g}" for gpu_type, price in priced)
        out.print(printable(f"Prices (objective gained by one more GPU): {told}."))
        believes = "By what the blind policy believes, " if believed else ""
        for sentence in sentences:
            whole = believes + sentence
            out.print(printable(f"{whole[0].upper()}{whole[1:]}."))
    out.print(_in_words(answer.certificate))


def _in_words(certificate: Certificate) -> str:
    c = certificate
    took = f"{1000 * c.solve_s:.1f} ms"
    if c.path == "rule":
        return f"A rule, which claims no optimum; largest violation of a constraint {c.violation:.1g}; {took}."
    return (
        f"Objective {c.objective:.6g}, proven within {c.gap:.1g} of the best possible ({c.bound:.6g}); "
        f"largest violation of a constraint {c.violation:.1g}; path {c.path}; {took}."
    )
