"""`gavel capacity` and `gavel plan`: questions that many simulations answer, with intervals over seeds."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import Output, TableData, compact, echo_json, notify, show_table
from gavelpy.errors import InvalidInput
from gavelpy.sweeps.cells import Scalar
from gavelpy.sweeps.command import SEEDS_MIN, JobsOption
from gavelpy.sweeps.trials import takes_cell_options

if TYPE_CHECKING:
    from gavelpy.statistics import MeanInterval
    from gavelpy.sweeps.capacity import Capacity, LoadPoint
    from gavelpy.sweeps.plan import MixResult, Purchase, Shop
    from gavelpy.sweeps.trials import Trials

_GENERATED: Final = 300  # jobs, without a trace and --generate
_QUESTION: Final = "Question"

SeedsOption = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        parser=o.whole(1, 1000),
        rich_help_panel=_QUESTION,
        help="Number of seeds, from --seed on. Each generates its jobs, or draws them from the trace's jobs.",
    ),
]
TargetOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="'METRIC<=X'",
        rich_help_panel=_QUESTION,
        help="Metric of the output of gavel simulate and its limit; times also in _min, _h or _d: average_jct_h<=10, "
        "p90_jct_h<=24, deadline_misses<=3, jobs_unfinished<=0.",
    ),
]
RatesOption = Annotated[
    str | None,
    typer.Option(
        "--rates",
        metavar="LOW:HIGH",
        rich_help_panel=_QUESTION,
        help="Range of loads, in jobs per hour. Default: found by doubling and halving.",
    ),
]
ToleranceOption = Annotated[
    float,
    typer.Option(
        "--tolerance",
        metavar="X",
        parser=o.number(0.001, 1.0),
        rich_help_panel=_QUESTION,
        help="Relative distance between the met and the missed load at which the search ends.",
    ),
]


@takes_cell_options("rate_per_h", "mean_interarrival_s", "fairness")
def capacity(
    options: Mapping[str, Scalar],
    *,
    target: TargetOption,
    rates: RatesOption = None,
    seeds: SeedsOption = 5,
    tolerance: ToleranceOption = 0.05,
    jobs: JobsOption = 0,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Find the highest load (jobs per hour) that a cluster sustains for a target.

    Simulates several loads with the same seeds. Jobs are generated, or those of a TRACE with scaled times of arrival.

    \b
    Examples:
      gavel capacity --cluster v100:8,k80:8 --policy las --target 'average_jct_h<=10'
      gavel capacity trace.csv --cluster v100:8 --target 'p90_jct_h<=24' --rates 1:20 --seeds 10
    """
    from gavelpy.sweeps.capacity import capacity as search
    from gavelpy.sweeps.trials import Target, Trials

    goal = Target.parse(target)
    with _telling() as tell:
        trials = Trials(with_jobs(options), seeds, jobs=jobs, tell=tell)
        found = search(options, goal, rates=_range(rates), tolerance=tolerance, trials=trials)
    if output is Output.JSON:
        echo_json(_capacity_json(found, trials.simulated) | {"parameters": trials.parameters})
        return
    show_table(
        TableData(
            ("jobs/h", goal.metric.name, "target"),
            frozenset({"jobs/h", goal.metric.name}),
            [_load_row(one) for one in found.points],
        )
    )
    for sentence in capacity_sentences(found):
        typer.echo(sentence)
    notify(f"{trials.simulated} simulations; {meaning(seeds)}")


def with_jobs(options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The options, with generated jobs if there is no trace; raises InvalidInput for several policies."""
    policy = str(options.get("policy", ""))
    if "," in policy:
        raise InvalidInput(f"--policy must be one policy here, got {policy!r}")
    return {**({} if "trace" in options or "generate" in options else {"generate": _GENERATED}), **options}


def _range(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        raise InvalidInput(f"--rates must look like 1:20 (jobs per hour), got {text!r}") from None
    return low, high


def capacity_sentences(found: Capacity) -> list[str]:
    """The answer, and what limits it."""
    first, last, target = found.points[0], found.points[-1], found.target
    loads = f"from {first.rate_per_h:.3g} to {last.rate_per_h:.3g} jobs/h"
    if math.isnan(found.highest_met):
        return [f"{target} is met nowhere {loads}: at the lowest load it is {_mean(first.mean)}."]
    if math.isnan(found.lowest_missed):
        return [f"{target} is met everywhere {loads}: at the highest load it is {_mean(last.mean)}."]
    met, missed = f"{found.highest_met:.3g} jobs/h", f"{found.lowest_missed:.3g} jobs/h"
    sentences = [f"The cluster sustains {met} with {target}; at {missed} it is missed."]
    if math.isfinite(found.low):
        is_cut = found.low <= first.rate_per_h or found.high >= last.rate_per_h
        cut = ", cut off at the loads that were simulated" if is_cut else ""
        sentences.append(f"95 % interval over seeds: {found.low:.3g} to {found.high:.3g} jobs/h{cut}.")
    for lower, higher, is_noise in found.exceptions:
        why = "the difference is within noise" if is_noise else "the metric falls with load here, beyond noise"
        sentences.append(f"It is missed at {lower:.3g} and met at {higher:.3g} jobs/h: {why}; the first miss counts.")
    if found.grows and found.longer is not None:
        sentences.append(
            f"With twice as many jobs it is {_mean(found.longer)} at {met}, which misses the target: the queue still "
            "grows at the end of these traces. More jobs (--generate) give a lower load."
        )
    return sentences


def meaning(seeds: int) -> str:
    """What the brackets are."""
    narrow = f", too narrow with {seeds} seeds" if seeds < SEEDS_MIN else ""
    return f"in brackets: the 95 % bootstrap interval of the mean over seeds{narrow}"


def _load_row(point: LoadPoint) -> tuple[str, ...]:
    answer = ("met" if point.is_met else "missed") + ("" if point.is_sure else ", not sure")
    return f"{point.rate_per_h:.3g}", _mean(point.mean), answer


def _mean(one: MeanInterval) -> str:
    if not math.isfinite(one.mean):
        return "unknown: jobs never finish"
    return (
        f"{compact(one.mean)} [{compact(one.low)}, {compact(one.high)}]"
        if math.isfinite(one.low)
        else compact(one.mean)
    )


def _capacity_json(found: Capacity, simulations: int) -> dict[str, Any]:  # Any: JSON values
    points = [
        {
            "rate_per_h": one.rate_per_h,
            "is_met": one.is_met,
            "is_sure": one.is_sure,
            "mean": finite(asdict(one.mean)),
            "values": [_known(v) for v in one.values],
        }
        for one in found.points
    ]
    state = (
        "met_nowhere"
        if math.isnan(found.highest_met)
        else "met_everywhere"
        if math.isnan(found.lowest_missed)
        else "found"
    )
    exceptions = [{"missed_at": a, "met_at": b, "is_noise": noise} for a, b, noise in found.exceptions]
    numbers = finite(
        {"highest_met": found.highest_met, "lowest_missed": found.lowest_missed, "low": found.low, "high": found.high}
    )
    longer = None if found.longer is None else finite(asdict(found.longer))
    return {
        "target": str(found.target),
        "state": state,
        **numbers,
        "points": points,
        "exceptions": exceptions,
        "with_twice_the_jobs": longer,
        "queue_grows": found.grows,
        "simulations": simulations,
    }


def _known(value: float) -> float | None:
    from gavelpy.sweeps.trials import NEVER

    return value if abs(value) < NEVER else None


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values; None for those that are NaN or infinite."""
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


@contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """Shows a line of progress on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


BudgetOption = Annotated[
    float,
    typer.Option(
        "--budget", metavar="USD", parser=o.number(0.001, 1e9), rich_help_panel=_QUESTION, help="USD per hour for GPUs."
    ),
]
GpuTypesOption = Annotated[
    str | None,
    typer.Option(
        "--gpu-types",
        metavar="TYPE,...",
        rich_help_panel=_QUESTION,
        help="Types to choose from. Default: those with a price on which a job of the trace has a rate.",
    ),
]
PlanPricesOption = Annotated[
    str | None,
    typer.Option(
        "--prices", metavar="TYPE:USD,...", rich_help_panel=_QUESTION, help="USD per GPU-hour. Default: list prices."
    ),
]
MetricOption = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="METRIC",
        rich_help_panel=_QUESTION,
        help="Metric of the output of gavel simulate to improve; times also in _min, _h or _d.",
    ),
]


@takes_cell_options("cluster", "prices", "fairness")
def plan(
    options: Mapping[str, Scalar],
    *,
    budget: BudgetOption,
    gpu_types: GpuTypesOption = None,
    prices: PlanPricesOption = None,
    target: MetricOption = "average_jct_h",
    seeds: SeedsOption = 5,
    jobs: JobsOption = 0,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Find the mix of GPU types that serves a trace best within a budget.

    A search guided by the policy's marginal values; every mix on its path is simulated with all seeds.

    \b
    Examples:
      gavel plan trace.csv --budget 40
      gavel plan trace.csv --budget 40 --gpu-types v100,k80 --prices v100:2.5,k80:0.4 --gpus-per-node 1
      gavel plan --generate 200 --rate-per-h 4 --budget 60 --target p90_jct_h
    """
    from gavelpy.sweeps.plan import plan as search
    from gavelpy.sweeps.trials import Metric, Trials

    metric = Metric.parse(target)
    with _telling() as tell, Trials(with_jobs(options), seeds, jobs=jobs, tell=tell) as trials:
        found = search(trials, _shop(trials, budget, gpu_types, prices), metric)
    if output is Output.JSON:
        echo_json(_plan_json(found) | {"parameters": trials.parameters})
        return
    titles = ("step", "mix", "USD/h", metric.name, "marginal value per USD", "")
    show_table(TableData(titles, frozenset({"USD/h"}), [_mix_row(one, found) for one in found.path]))
    for sentence in plan_sentences(found):
        typer.echo(sentence)
    notify(f"{found.simulations} simulations; {meaning(seeds)}")


def _shop(trials: Trials, budget: float, gpu_types: str | None, prices: str | None) -> Shop:
    from gavelpy.cli.parsing import prices as parsed
    from gavelpy.cli.simulation_choices import list_prices
    from gavelpy.sweeps.plan import Shop

    given = parsed(prices) if prices is not None else {}
    rated = {name for job in trials.trace().jobs for name, rate in job.rates_steps_per_s.items() if rate > 0}
    usd = list_prices(sorted({*rated, *given, *(gpu_types or "").split(",")})) | given
    names = [name.strip() for name in gpu_types.split(",")] if gpu_types else [name for name in usd if name in rated]
    gpus_per_node = int(trials.base.get("gpus_per_node", 4))
    return Shop(tuple(names), tuple(usd.get(name, 0.0) for name in names), gpus_per_node, budget)


def plan_sentences(found: Purchase) -> list[str]:
    """The answer and the alternatives, with paired differences."""
    name = found.metric.name
    sentences = [
        f"Best of {len(found.path)} simulated mixes: {_mix_text(found.best, found.shop)} for "
        f"{found.best.usd_per_h:.2f} USD/h, with {name} {_mean(found.best.mean)}."
    ]
    for other, difference in found.alternatives:
        if not math.isfinite(other.mean.mean):
            text = "jobs never finish"
        else:
            sure = "" if difference.excludes_zero else ", within noise" * math.isfinite(difference.low)
            text = f"{name} {_mean(other.mean)}, difference {_mean(difference)}{sure}"
        sentences.append(f"  {_mix_text(other, found.shop)} ({other.usd_per_h:.2f} USD/h): {text}")
    return sentences


def _mix_text(one: MixResult, shop: Shop) -> str:
    return " + ".join(f"{n} {name}" for name, n in _gpus(one, shop).items())


def _gpus(one: MixResult, shop: Shop) -> dict[str, int]:
    """GPUs by type."""
    counts = zip(shop.gpu_types, one.mix, strict=True)
    return {name: count * shop.gpus_per_node for name, count in counts if count}


def _mix_row(one: MixResult, found: Purchase) -> tuple[str, ...]:
    worth = ", ".join(f"{name} {value:.2f}" for name, value in one.value_per_usd.items())
    state = "best" if one.mix == found.best.mix else "better" if one.is_taken else ""
    return one.step, _mix_text(one, found.shop), f"{one.usd_per_h:.2f}", _mean(one.mean), worth, state


def _plan_json(found: Purchase) -> dict[str, Any]:  # Any: JSON values
    def entry(one: MixResult) -> dict[str, Any]:
        return {
            "gpus": _gpus(one, found.shop),
            "usd_per_h": one.usd_per_h,
            "mean": finite(asdict(one.mean)),
            "values": [_known(value) for value in one.values],
            "value_per_usd": dict(one.value_per_usd),
        }

    return {
        "target": found.metric.name,
        "budget_usd_per_h": found.shop.budget_usd_per_h,
        "prices_usd_per_gpu_h": dict(zip(found.shop.gpu_types, found.shop.prices_usd_per_gpu_h, strict=True)),
        "best": entry(found.best),
        "alternatives": [{**entry(one), "difference": finite(asdict(other))} for one, other in found.alternatives],
        "path": [{**entry(one), "step": one.step, "is_taken": one.is_taken} for one in found.path],
        "simulations": found.simulations,
    }
