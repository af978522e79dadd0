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

_GENERATED: Final = 300  # jobs, without a trace and --generate
_QUESTION: Final = "Question"

SeedsOption = Annotated[
    int,
    typer.Option(
        "--seeds",
        metavar="N",
        parser=o.whole(1, 1000),
        rich_help_panel=_QUESTION,
        help="Number of seeds, from --seed on. Each draws its jobs: anew, or from the trace's jobs.",
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
        echo_json(_capacity_json(found, trials.simulated))
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
