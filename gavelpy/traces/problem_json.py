"""The problem file of `gavel allocate` in JSON: jobs that compete for GPUs, and the cluster (see docs/traces.md)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import VALUE_MAX, Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import GPUS_MAX
from gavelpy.model.loss_reports import ALLOWED, Reports, are_reports
from gavelpy.model.problem import AllocationProblem, Entity, EntityPolicy
from gavelpy.model.team_limits import TeamLimits
from gavelpy.traces.fields import JsonText, parse_json, read_text
from gavelpy.traces.problem_resources import SizeEntry, limits_of_entities, with_resources, with_sizes


class JobEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One job; `None` stands for JSON's null."""

    id: str
    rates_steps_per_s: dict[str, Any]  # numbers; the reader checks them, so that errors name the GPU type
    gpus: int = 1
    weight: float = 1.0
    steps_remaining: float = 1.0
    steps_total: float | None = None  # None = steps_remaining
    age_s: float = 0.0
    deadline_s: float | None = None  # from now
    entity: str | None = None
    isolated_s: float = 0.0
    attained_gpu_s: float = 0.0
    restart_s: float = 0.0
    gpu_type_held: str | None = None
    gpus_held: float = 0.0
    job_type: str = ""
    owner: str = ""
    app: str = ""
    completion_value: str = ""
    losses: list[tuple[float, float]] = []  # step and value of each report
    demand: dict[str, Any] = {}  # of resources next to GPUs; checked in problem_resources.py
    demand_per_gpu: dict[str, Any] = {}
    sizes: list[SizeEntry] = []


class PairEntry(msgspec.Struct, forbid_unknown_fields=True):
    """Two jobs that may share their GPUs."""

    jobs: tuple[str, str]
    rates_steps_per_s: dict[str, Any]  # [first, second]; the reader checks them


class EntityEntry(msgspec.Struct, forbid_unknown_fields=True):
    """A team."""

    id: str
    weight: float = 1.0
    policy: Literal["fairness", "fifo"] = "fairness"
    parent: str | None = None
    quota: dict[str, Any] = {}  # by GPU type; the reader checks them
    guaranteed: dict[str, Any] = {}


class ProblemFile(msgspec.Struct, forbid_unknown_fields=True):
    """The whole file."""

    cluster: dict[str, Any]  # whole numbers; Cluster.of checks them, so that errors name the GPU type
    jobs: list[JobEntry]
    prices_usd_per_gpu_h: dict[str, Any] = {}
    resources: dict[str, Any] = {}  # amounts by GPU type, of each; checked in problem_resources.py
    pairs: list[PairEntry] = []
    entities: list[EntityEntry] = []


# The type of the entries of each list of the file; "" = the file itself.
ENTRIES: dict[str | int, type[msgspec.Struct]] = {
    "": ProblemFile,
    "jobs": JobEntry,
    "sizes": SizeEntry,
    "pairs": PairEntry,
    "entities": EntityEntry,
}


# Field of a job → what is allowed, and the test of it.
NUMBERS: Mapping[str, tuple[str, Callable[[float], bool]]] = {
    "weight": (f"> 0 and at most {VALUE_MAX:g}", lambda x: 0 < x <= VALUE_MAX),
    "steps_remaining": (f"> 0 and at most {VALUE_MAX:g}", lambda x: 0 < x <= VALUE_MAX),
    "steps_total": (f"> 0 and at most {VALUE_MAX:g}", lambda x: 0 < x <= VALUE_MAX),
    "age_s": ("finite and >= 0", lambda x: 0 <= x < math.inf),
    "isolated_s": ("finite and >= 0", lambda x: 0 <= x < math.inf),
    "attained_gpu_s": ("finite and >= 0", lambda x: 0 <= x < math.inf),
    "restart_s": ("finite and >= 0", lambda x: 0 <= x < math.inf),
    "gpus_held": ("finite and >= 0", lambda x: 0 <= x < math.inf),
    "deadline_s": ("a number of seconds from now, or null for none", lambda x: not math.isnan(x)),
}
DEFAULTS = {"weight": 1.0, "steps_remaining": 1.0, "deadline_s": math.inf}  # of others 0; steps_total = steps_remaining
ErrorOf = Callable[[int, Sequence[str | int], str, object], InvalidInput]  # job row, field, what is allowed, value
_RATE = f"a number in [0, {VALUE_MAX:g}]"
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def read_problem(path: str | Path) -> AllocationProblem:
    """The problem in `path`; rows keep the order of the file, which is the order of arrival.

    Raises InvalidInput if its teams have limits: see `read_limited_problem`.
    """
    return parse_problem(read_text(path), str(path))


def read_limited_problem(path: str | Path) -> tuple[AllocationProblem, TeamLimits | None]:
    """The problem in `path`, and the limits of its teams; None without any. `allocate_within` has a policy's answer."""
    return parse_limited_problem(read_text(path), str(path))


def parse_problem(text: str, file: str = "") -> AllocationProblem:
    """The problem in `text`, of which no team has limits; `file` is for messages."""
    problem, limits = parse_limited_problem(text, file)
    if limits is not None:
        raise InvalidInput("entities must have no quota and nothing guaranteed here: read_limited_problem has both")
    return problem


def parse_limited_problem(text: str, file: str = "") -> tuple[AllocationProblem, TeamLimits | None]:
    """As `read_limited_problem`, of `text`; `file` is for messages."""
    document = parse_json(text, file)
    content = _typed(document)
    try:
        problem = _problem(document, content)
        return problem, limits_of_entities(document, content.entities, problem)
    except InvalidInput as error:
        if error.file:
            raise
        raise error.located(file) from error


def _problem(document: JsonText, content: ProblemFile) -> AllocationProblem:
    cluster = _cluster(document, content)
    entities = _entities(document, content)

    def error_of(row: int, field: Sequence[str | int], allowed: str, value: object) -> InvalidInput:
        return document.error(("jobs", row, *field), allowed, value)

    jobs = content.jobs
    columns = JobColumns(
        ids=[job.id for job in jobs],
        gpus=[job.gpus for job in jobs],
        entities=[job.entity or "" for job in jobs],
        rates_steps_per_s=[job.rates_steps_per_s for job in jobs],
        numbers={name: [_number(job, name) for job in jobs] for name in NUMBERS},
        job_types=[job.job_type for job in jobs],
        owners=[job.owner for job in jobs],
        apps=[job.app for job in jobs],
        types_held=[job.gpu_type_held or "" for job in jobs],
        completion_values=[job.completion_value for job in jobs],
        losses=[job.losses for job in jobs],
    )
    problem = build_problem(columns, cluster, entities, error_of)
    problem = with_sizes(document, jobs, with_resources(document, content.resources, jobs, problem))
    return _with_pairs(document, content, problem) if content.pairs else problem


@dataclass(frozen=True)
class JobColumns:
    """Unchecked fields of J jobs."""

    ids: Sequence[str]
    gpus: Sequence[int]
    entities: Sequence[str]  # "" = none
    rates_steps_per_s: Sequence[Mapping[str, Any]]  # by GPU type; values come from a file
    numbers: Mapping[str, Sequence[float]]  # by field of NUMBERS
    job_types: Sequence[str] = ()  # "" = none; empty = none of all jobs; the same below
    owners: Sequence[str] = ()
    apps: Sequence[str] = ()
    types_held: Sequence[str] = ()
    completion_values: Sequence[str] = ()
    losses: Sequence[Reports] = ()


def build_problem(
    columns: JobColumns, cluster: Cluster, entities: Sequence[Entity], error_of: ErrorOf
) -> AllocationProblem:
    """The checked problem. Without `entities`, each entity that a job names has weight 1."""
    rows: dict[str, int] = {}
    for i, job_id in enumerate(columns.ids):
        if not job_id or "," in job_id or any(c.isspace() and c != " " for c in job_id):
            raise error_of(i, ("id",), "a non-empty name without commas, tabs or line breaks", job_id)
        if rows.setdefault(job_id, i) != i:
            raise error_of(i, ("id",), f"unique (jobs[{rows[job_id]}] has the same)", job_id)
    for i, gpus in enumerate(columns.gpus):
        if not 1 <= gpus <= GPUS_MAX:
            raise error_of(i, ("gpus",), f"a whole number in [1, {GPUS_MAX}]", gpus)
    for name, (allowed, is_allowed) in NUMBERS.items():
        for i, value in enumerate(columns.numbers[name]):
            if not is_allowed(value):
                raise error_of(i, (name,), allowed, value)
    for i, reports in enumerate(columns.losses):
        if not are_reports(reports):
            raise error_of(i, ("losses",), ALLOWED, [list(report) for report in reports])
    known = list(entities) or [Entity(name) for name in dict.fromkeys(filter(None, columns.entities))]
    entity_row = {"": -1} | {entity.id: i for i, entity in enumerate(known)}
    for i, name in enumerate(columns.entities):
        if name not in entity_row:
            raise error_of(i, ("entity",), f"one of {', '.join(e.id for e in known)}", name)
    column = {"": -1} | {gpu_type: i for i, gpu_type in enumerate(cluster.gpu_types)}
    for i, name in enumerate(columns.types_held):
        if name not in column:
            raise error_of(i, ("gpu_type_held",), f"one of {', '.join(cluster.gpu_types)}", name)
    numbers: dict[str, Any] = {name: np.array(values, dtype=np.float64) for name, values in columns.numbers.items()}
    return AllocationProblem.of(
        columns.ids,
        cluster.gpu_types,
        cluster.gpu_counts,
        _rates(columns, cluster, error_of),
        gpus=np.array(columns.gpus, dtype=np.float64),
        price_usd_per_gpu_h=cluster.prices,
        entity=np.array([entity_row[name] for name in columns.entities], dtype=np.int64),
        entities=known,
        gpu_type_held=[column[name] for name in columns.types_held] if columns.types_held else -1,
        job_type=columns.job_types,
        owner=columns.owners,
        app=columns.apps,
        completion_value=columns.completion_values,
        losses=columns.losses,
        **numbers,
    )


def _rates(columns: JobColumns, cluster: Cluster, error_of: ErrorOf) -> Floats:
    """Rates of each job on each type of the cluster, (J, T); 0 where a job names none."""
    column = {gpu_type: i for i, gpu_type in enumerate(cluster.gpu_types)}
    rates: Floats = np.zeros((len(columns.ids), len(column)))
    for i, by_type in enumerate(columns.rates_steps_per_s):
        for gpu_type, rate in by_type.items():
            path = ("rates_steps_per_s", gpu_type)
            if gpu_type not in column:
                raise error_of(i, path, f"of a GPU type of the cluster ({', '.join(column)})", gpu_type)
            if not _is_rate(rate):
                raise error_of(i, path, _RATE, rate)
            rates[i, column[gpu_type]] = rate
    return rates


def _typed(document: JsonText) -> ProblemFile:
    """The document as typed entries; complaints of the decoder get the line and the value."""
    try:
        return msgspec.convert(document.value, ProblemFile)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        path = [name or int(index) for name, index in _PATH_STEP.findall(place.rstrip("`").removeprefix("$"))]
        if unknown := _UNKNOWN_FIELD.fullmatch(message):
            entry = next((step for step in reversed(path) if step in ENTRIES), "")
            known = ", ".join(ENTRIES[entry].__struct_fields__)
            raise document.error(path, f"an object with no fields but {known}", unknown[1]) from error
        value = document.at(path)
        found = list(value) if value and isinstance(value, dict) else value
        raise document.error(path, f"as in the problem format ({message})", found) from error


def _cluster(document: JsonText, content: ProblemFile) -> Cluster:
    for gpu_type in content.prices_usd_per_gpu_h:
        if gpu_type not in content.cluster:
            known = ", ".join(content.cluster)
            raise document.error(
                ("prices_usd_per_gpu_h", gpu_type), f"of a GPU type of the cluster ({known})", gpu_type
            )
    for gpu_type, price in content.prices_usd_per_gpu_h.items():
        if not _is_rate(price):
            raise document.error(("prices_usd_per_gpu_h", gpu_type), _RATE, price)
    try:
        return Cluster.of(content.cluster, price_usd_per_gpu_h=content.prices_usd_per_gpu_h)
    except InvalidInput as error:
        raise error.located(document.file, document.place(("cluster",)).line) from error


def _entities(document: JsonText, content: ProblemFile) -> list[Entity]:
    entities: list[Entity] = []
    for i, entry in enumerate(content.entities):
        if not entry.id or entry.id in (entity.id for entity in entities):
            raise document.error(("entities", i, "id"), "a unique non-empty name", entry.id)
        if not 0 < entry.weight < math.inf:
            raise document.error(("entities", i, "weight"), "finite and > 0", entry.weight)
        entities.append(Entity(entry.id, entry.weight, EntityPolicy(entry.policy), entry.parent or ""))
    parent = {entity.id: entity.parent for entity in entities}
    for i, entity in enumerate(entities):
        above, seen = entity.parent, {entity.id}
        while above:
            if above not in parent or above in seen:
                allowed = f"one of {', '.join(parent)} that is not within it"
                raise document.error(("entities", i, "parent"), allowed, entity.parent)
            seen.add(above)
            above = parent[above]
    return entities


def _with_pairs(document: JsonText, content: ProblemFile, problem: AllocationProblem) -> AllocationProblem:
    row: dict[str, int] = {job_id: i for i, job_id in enumerate(problem.job_ids)}
    types = {gpu_type: i for i, gpu_type in enumerate(problem.gpu_types)}
    rates: Floats = np.zeros((len(content.pairs), 2, len(types)))
    rows: list[tuple[int, int]] = []
    seen: set[frozenset[int]] = set()
    for i, pair in enumerate(content.pairs):
        path = ("pairs", i, "jobs")
        for name in pair.jobs:
            if name not in row:
                raise document.error(path, "ids of jobs in the file", name)
        first, second = row[pair.jobs[0]], row[pair.jobs[1]]
        gpus = problem.gpus_asked
        if first == second or gpus[first] != gpus[second]:
            allowed = f"two jobs with the same number of GPUs (here {gpus[first]:g} and {gpus[second]:g})"
            raise document.error(path, allowed, list(pair.jobs))
        if frozenset((first, second)) in seen:
            raise document.error(path, "given once", list(pair.jobs))
        seen.add(frozenset((first, second)))
        rows.append((first, second))
        for gpu_type, both in pair.rates_steps_per_s.items():
            at = ("pairs", i, "rates_steps_per_s", gpu_type)
            if gpu_type not in types:
                raise document.error(at, f"of a GPU type of the cluster ({', '.join(types)})", gpu_type)
            if not isinstance(both, list) or len(both) != 2 or not all(map(_is_rate, both)):
                raise document.error(at, f"[first, second], each {_RATE}", both)
            rates[i, :, types[gpu_type]] = both
    return problem.with_pairs(rows, rates)


def _number(job: JobEntry, name: str) -> float:
    value = getattr(job, name)
    if value is not None:
        return float(value)
    return math.inf if name == "deadline_s" else job.steps_remaining


def _is_rate(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= VALUE_MAX
