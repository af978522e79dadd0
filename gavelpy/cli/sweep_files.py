"""Search files of `gavel submit --sweep`: a command with placeholders, parameters, and when losing jobs end.

name = "tune"
metric = "loss"                 # that the program reports (gavelpy.report_metric)
direction = "min"
schedule = "successive_halving" # or none, hyperband
eta = 3
steps_min = 100                 # of the first comparison
jobs = 9                        # random samples; without it, the grid of all values
seed = 7
rung_wait_max_s = 7200          # longest wait of a job for the others that it is compared with; without it, no limit

[parameters]
lr = { log_uniform = [1e-4, 1e-1] }
width = [64, 128, 256]

[job]                           # fields as of a job file
command = "python train.py --lr {lr} --width {width}"
steps_total = 900
"""

from __future__ import annotations

import itertools
import math
import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from gavelpy.cli.job_files import JobTemplate, described, toml_of
from gavelpy.errors import InvalidInput
from gavelpy.model.apps import JOBS_MAX, LOSS, METRIC_ALLOWED, AppRole, Direction, HalvingSchedule, is_metric
from gavelpy.model.halving import Bracket, hyperband, successive_halving

_FIELDS = (
    "name", "metric", "direction", "schedule", "eta", "steps_min", "jobs", "seed", "rung_wait_max_s", "parameters",
    "job",
)  # fmt: skip
_DRAWS = ("uniform", "log_uniform", "int_uniform")
Choice = TypeVar("Choice", bound=StrEnum)
Value = str | int | float
Draw = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class SweepFile:
    """A hyper-parameter search as in its file."""

    name: str
    metric: str
    direction: Direction
    schedule: HalvingSchedule
    eta: float
    steps_min: float
    jobs: int  # 0 = the grid, or what the schedule needs
    seed: int
    rung_wait_max_s: float  # 0 = no limit
    parameters: Mapping[str, Sequence[Value] | Draw]
    job: JobTemplate


def read_sweep_file(path: Path) -> list[JobTemplate]:
    """The jobs of a search, each with its parameters and its role. Raises InvalidInput, which names file and field."""
    document = toml_of(path)
    for name in document:
        if name not in _FIELDS:
            raise InvalidInput(f"unknown field {name!r}; the fields are {', '.join(_FIELDS)}", file=str(path))
    try:
        return jobs_of(_sweep(path, document))
    except InvalidInput as error:
        raise error if error.file else error.located(str(path)) from None


def jobs_of(sweep: SweepFile) -> list[JobTemplate]:
    """The jobs of a search. The same search gives the same jobs: samples depend on the seed only."""
    brackets = _brackets(sweep)
    count = sum(bracket.jobs for bracket in brackets)
    found: list[JobTemplate] = []
    values = iter(_values(sweep, count))
    for number, bracket in zip(range(len(brackets) - 1, -1, -1), brackets, strict=True):
        for _ in range(bracket.jobs):
            role = AppRole(
                sweep.name, len(found), count, sweep.metric, sweep.direction, sweep.schedule, number, bracket.rungs,
                sweep.rung_wait_max_s,
            )  # fmt: skip
            found.append(_filled(sweep.job, next(values), role))
    return found


def _brackets(sweep: SweepFile) -> list[Bracket]:
    """The jobs that are compared with each other, and where."""
    steps_total = sweep.job.steps_total
    if sweep.schedule is HalvingSchedule.HYPERBAND:
        brackets = hyperband(sweep.steps_min, steps_total, sweep.eta)
        needed = sum(bracket.jobs for bracket in brackets)
        if sweep.jobs not in (0, needed):
            raise InvalidInput(f"jobs must be left out or {needed}, which HyperBand needs, got {sweep.jobs}")
        return brackets
    jobs = sweep.jobs or math.prod(len(values) for values in sweep.parameters.values())
    if not 1 <= jobs <= JOBS_MAX:
        raise InvalidInput(f"jobs must be in [1, {JOBS_MAX}], got {jobs}")
    if sweep.schedule is HalvingSchedule.NONE:
        return [Bracket(jobs, ())]
    return [successive_halving(jobs, sweep.steps_min, steps_total, sweep.eta)]


def _values(sweep: SweepFile, count: int) -> Iterator[dict[str, Value]]:
    """The parameters of each job: the grid, or random samples of which lists are the choices."""
    names = list(sweep.parameters)
    if not sweep.jobs and sweep.schedule is not HalvingSchedule.HYPERBAND:
        lists = [values for values in sweep.parameters.values() if isinstance(values, Sequence)]
        yield from (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*lists))
        return
    rng = random.Random(sweep.seed)
    for _ in range(count):
        yield {name: _drawn(rng, sweep.parameters[name]) for name in names}


def _drawn(rng: random.Random, values: Sequence[Value] | Draw) -> Value:
    if isinstance(values, Sequence):
        return values[rng.randrange(len(values))]
    ((kind, (low, high)),) = values.items()
    if kind == "int_uniform":
        return rng.randint(int(low), int(high))
    if kind == "log_uniform":
        return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.6g}")
    return float(f"{rng.uniform(low, high):.6g}")


def _filled(job: JobTemplate, values: Mapping[str, Value], role: AppRole) -> JobTemplate:
    def filled(text: str, shown: Callable[[str], str] = str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", shown(str(value)))
        return text

    return replace(
        job,
        name=f"{role.name}-{role.at}",
        command=filled(job.command, shlex.quote),
        environment={name: filled(text) for name, text in job.environment.items()},
        app=role.text,
    )


def _sweep(path: Path, document: Mapping[str, Any]) -> SweepFile:  # Any: TOML values
    table = document.get("job")
    if not isinstance(table, dict):
        raise InvalidInput("file must have a table [job], got none")
    job = described(path, "job", table)
    if job.array or job.name:
        raise InvalidInput(f"job must have no {'array' if job.array else 'name'}, got {job.array or job.name!r}")
    schedule = _one_of(HalvingSchedule, "schedule", document.get("schedule", HalvingSchedule.SUCCESSIVE_HALVING.value))
    if not job.steps_total:
        raise InvalidInput("job.steps_total must be given: the largest number of steps of a job")
    parameters = _parameters(document.get("parameters"), f"{job.command} {' '.join(job.environment.values())}")
    sweep = SweepFile(
        name=_text("name", document.get("name", "")),
        metric=_text("metric", document.get("metric", LOSS)),
        direction=_one_of(Direction, "direction", document.get("direction", Direction.MIN.value)),
        schedule=schedule,
        eta=_number("eta", document.get("eta", 3)),
        steps_min=_number("steps_min", document.get("steps_min", 1)),
        jobs=int(_number("jobs", document.get("jobs", 0))),
        seed=int(_number("seed", document.get("seed", 0))),
        rung_wait_max_s=_number("rung_wait_max_s", document.get("rung_wait_max_s", 0)),
        parameters=parameters,
        job=job,
    )
    if not is_metric(sweep.metric):
        raise InvalidInput(f"metric must be {METRIC_ALLOWED}, got {sweep.metric!r}")
    is_random = sweep.jobs > 0 or schedule is HalvingSchedule.HYPERBAND
    drawn = [name for name, values in parameters.items() if not isinstance(values, Sequence)]
    if drawn and not is_random:
        raise InvalidInput(f"jobs must be given, the number of random samples, because parameters.{drawn[0]} is drawn")
    return sweep


def _parameters(given: Any, texts: str) -> dict[str, Sequence[Value] | Draw]:  # Any: a TOML value
    if not isinstance(given, dict) or not given:
        raise InvalidInput("file must have a table [parameters] with at least one parameter, got none")
    for name, values in given.items():
        if f"{{{name}}}" not in texts:
            raise InvalidInput(f"job.command or job.environment must contain {{{name}}}, a parameter, got {texts!r}")
        if isinstance(values, list) and values and all(isinstance(value, str | int | float) for value in values):
            continue
        allowed = "a list of values, or one of {uniform,log_uniform,int_uniform} = [low, high]"
        if not isinstance(values, dict) or len(values) != 1 or next(iter(values)) not in _DRAWS:
            raise InvalidInput(f"parameters.{name} must be {allowed}, got {values!r}")
        ((kind, span),) = values.items()
        is_pair = isinstance(span, list) and len(span) == 2 and all(isinstance(end, int | float) for end in span)
        if not is_pair or not span[0] < span[1] or (kind == "log_uniform" and span[0] <= 0):
            positive = ", both > 0" * (kind == "log_uniform")
            raise InvalidInput(f"parameters.{name}.{kind} must be [low, high], low < high{positive}, got {span!r}")
    return given


def _one_of(kind: type[Choice], field: str, value: object) -> Choice:
    if value not in list(kind):
        raise InvalidInput(f"{field} must be one of {', '.join(kind)}, got {value!r}")
    return kind(str(value))


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidInput(f"{field} must be given as a string, got {value!r}")
    return value


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise InvalidInput(f"{field} must be a number of 0 or more, got {value!r}")
    return float(value)
