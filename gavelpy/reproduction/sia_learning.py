"""Pollux in Sia's simulator: agents that learn, a genetic search, and GPUs of any type; and what each of these changes.

In each round of 60 s the jobs train, then GPUs of virtual nodes of 4 are chosen by the fitness of Pollux. A job that
got GPUs of several types keeps those of one (`sia_pollux.kept_of_one_type`). Rules: siasosp23/artifacts, sia-simulator,
multi_simulator_unaware.py, cluster_unaware.py and pollux_unaware.py. Three of them can be replaced: the genetic search
by the best numbers of GPUs, found by branch and bound, on virtual nodes at random; the goodput that agents learn by one
that is known: the same model, fitted to all profiles of each type, as a mean over types by their GPUs; and the nodes
that a job's GPUs are on by the fewest that have as many.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Floats, Ints
from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.reproduction.sia import JCT, MAKESPAN, NODES, OTHER_START_S, PUBLISHED, SLOWDOWN, START_S, TAIL
from gavelpy.reproduction.sia_agents import LearningJob
from gavelpy.reproduction.sia_applications import Application, Placement
from gavelpy.reproduction.sia_genetic import NODE_GPUS, WAITING, Search
from gavelpy.reproduction.sia_pollux import RESTART_S, drawn, kept_of_one_type
from gavelpy.reproduction.sia_speed_model import fitted
from gavelpy.solve.whole_choices import best_whole_choices
from gavelpy.traces.sia import SiaProfiles

if TYPE_CHECKING:
    from pathlib import Path

ROUND_S, FEW_JOBS = 60.0, 15
TYPES = ("t4", "a100", "rtx2080ti")  # the order of their virtual nodes
_NODES = [(kind, node) for kind in TYPES for node in range(NODES[kind][0]) for _ in range(NODES[kind][1] // NODE_GPUS)]
OF_NODE = np.array([TYPES.index(kind) for kind, _ in _NODES])  # type of each virtual node
GPUS = NODE_GPUS * len(_NODES)
KNOWN_GPUS = 24  # the largest profiles to which known goodput is fitted: the GPUs of a type


@dataclass(frozen=True)
class PolluxRules:
    """How numbers of GPUs are found, whether agents must learn their goodput, and which nodes slow a job down."""

    genetic: bool = True
    learned: bool = True
    spread: bool = True  # over the nodes that its GPUs are on; False: as on the fewest nodes


VARIANTS = {
    "genetic search, learned goodput": PolluxRules(),
    "best numbers, learned goodput": PolluxRules(genetic=False),
    "genetic search, known goodput": PolluxRules(learned=False),
    "best numbers, known goodput": PolluxRules(genetic=False, learned=False),
    "best numbers, known goodput, fewest nodes": PolluxRules(genetic=False, learned=False, spread=False),
}


def learning_jobs(workload: Path, *, learned: bool) -> dict[str, LearningJob]:
    """The jobs of a workload by name, in its order."""
    profiles = SiaProfiles(workload)
    with workload.open(encoding="utf-8", newline="") as file:
        rows = [(row["name"], row["application"], float(row["time"])) for row in csv.DictReader(file)]

    @cache
    def application(name: str) -> dict[str, Application]:
        return {gpu_type: Application(profiles, name, gpu_type) for gpu_type in TYPES}

    @cache
    def known(name: str) -> dict[str, Floats]:
        return {} if learned else {kind: all_profiles(one) for kind, one in application(name).items()}

    weight = {kind: count * gpus / GPUS for kind, (count, gpus) in NODES.items()}
    return {
        name: LearningJob(
            application(of), at_s, START_S.get(of, OTHER_START_S), SLOWDOWN.get(of, 1.0), known(of), weight
        )
        for name, of, at_s in rows
    }


def all_profiles(application: Application) -> Floats:
    """The parameters fitted to all profiles of up to `KNOWN_GPUS` GPUs, (7,)."""
    rows = application.profile[application.profile[:, 1] <= KNOWN_GPUS]
    return fitted({(int(n), int(g), int(m)): (step, sync) for n, g, m, step, sync in rows.tolist()})


def completion_h(jobs: dict[str, LearningJob], rules: PolluxRules, seed: int = 0) -> tuple[Floats, float]:
    """The completion time of each job, (J,), and the makespan, in hours."""
    world = _World(rules, np.random.default_rng(seed))
    now_s = 0.0
    while any(math.isinf(job.finish_s) for job in jobs.values()):
        for job in jobs.values():
            job.step(ROUND_S)
        now_s += ROUND_S
        present = {name: job for name, job in jobs.items() if job.arrival_s <= now_s and math.isinf(job.finish_s)}
        order = sorted(present, key=lambda name: (present[name].attained_gpu_s, present[name].arrival_s))
        if order:
            world.allocate({name: present[name] for name in order}, now_s)
    finish_s = np.array([job.finish_s for job in jobs.values()])
    arrival_s = np.array([job.arrival_s for job in jobs.values()])
    return (finish_s - arrival_s) / 3600.0, float(finish_s.max()) / 3600.0


class _World:
    """What each job holds, and the best states of the last round."""

    def __init__(self, rules: PolluxRules, rng: np.random.Generator) -> None:
        self._rules, self._rng = rules, rng
        self._held: dict[str, Ints] = {}
        self._names: list[str] = []
        self._states = np.zeros((0, 0, len(_NODES)), dtype=np.int64)

    def allocate(self, jobs: dict[str, LearningJob], now_s: float) -> None:
        """Chooses the GPUs of these jobs, in the order of attained service, and moves them."""
        search = self._search(jobs, now_s)
        state = self._genetic(search, list(jobs)) if self._rules.genetic else best_numbers(search, self._rng)
        self._held = {}
        for (name, job), nodes in zip(jobs.items(), state, strict=True):
            kept = kept_of_one_type(nodes, OF_NODE, TYPES) if nodes.any() else nodes
            self._held[name] = kept
            gpu_type, placement = placement_of(kept)
            job.place(gpu_type, placement if self._rules.spread else on_fewest_nodes(gpu_type, sum(placement)))

    def _search(self, jobs: dict[str, LearningJob], now_s: float) -> Search:
        fair = math.ceil(GPUS / len(jobs))
        age_s = now_s - np.array([job.arrival_s for job in jobs.values()])
        restarts = np.array([max(job.starts - 1, 0) for job in jobs.values()])
        return Search(
            np.array([job.speedups(fair) for job in jobs.values()]),
            np.array([self._held.get(name, np.zeros(len(_NODES), dtype=np.int64)) for name in jobs]),
            np.maximum(age_s - restarts * RESTART_S, 0.0) / (age_s + RESTART_S),
            np.array([job.gpus_max() for job in jobs.values()]),
        )

    def _genetic(self, search: Search, names: list[str]) -> Ints:
        start = search.now[None]
        if self._names:
            start = np.zeros((len(self._states), *search.now.shape), dtype=np.int64)
            for row, name in enumerate(names):
                if name in self._names:
                    start[:, row] = self._states[:, self._names.index(name)]
        self._names, self._states = names, search.best(start, self._rng)
        chosen: Ints = self._states[0]
        return chosen


def placement_of(nodes: Ints) -> tuple[str, Placement]:
    """The GPU type, and the GPUs on each node, of these GPUs of virtual nodes; none without GPUs."""
    used = np.flatnonzero(nodes).tolist()
    if not used:
        return "", ()
    of_node: dict[int, int] = {}
    for virtual in used:
        of_node[_NODES[virtual][1]] = of_node.get(_NODES[virtual][1], 0) + int(nodes[virtual])
    return _NODES[used[0]][0], tuple(of_node.values())


def on_fewest_nodes(gpu_type: str, gpus: int) -> Placement:
    """So many GPUs on whole nodes of a type, and the rest on one more."""
    if not gpus:
        return ()
    whole, rest = divmod(gpus, NODES[gpu_type][1])
    return (NODES[gpu_type][1],) * whole + (rest,) * (rest > 0)


def best_numbers(search: Search, rng: np.random.Generator) -> Ints:
    """The state with the best numbers of GPUs, (J, V): jobs that change take the fewest virtual nodes, at random."""
    held, spread = search.now.sum(axis=1), np.count_nonzero(search.now, axis=1)
    choices = np.array([(j, gpus) for j in range(len(held)) for gpus in range(1, int(search.most[j]) + 1)])
    job, gpus = choices.T
    stays = held[job] == gpus
    nodes = np.where(stays, spread[job], -(-gpus // NODE_GPUS))
    speedup = search.speedup[job, nodes, gpus] * np.where(stays, 1.0, search.factor[job])
    value = 1 / WAITING - 1 / (speedup / NODE_GPUS + WAITING)
    best = best_whole_choices(job, value, gpus[:, None].astype(np.float64), np.array([float(GPUS)])).chosen
    state, free, shared = np.zeros_like(search.now), np.full(len(_NODES), NODE_GPUS), np.zeros(len(_NODES), np.bool_)
    for k in best[stays[best]].tolist():
        state[job[k]] = search.now[job[k]]
        free -= state[job[k]]
        shared |= (state[job[k]] > 0) & (spread[job[k]] > 1)
    moved = best[~stays[best]]
    for k in moved[np.lexsort((job[moved], -gpus[moved]))].tolist():
        state[job[k]] = drawn(int(gpus[k]), free, shared, rng)
    return state


def table(size: FigureSize) -> Reproduction:
    """Pollux by all rules, and with each replaced, on a workload or on all of its kind next to it."""
    if size.trace is None:
        raise InvalidInput("workload must be given: a file of Sia's workloads, with `profiles` next to their directory")
    kind = size.trace.name.partition("-")[0]
    paths = sorted(size.trace.parent.glob(f"{kind}-workload-*.csv")) if size.is_full else [size.trace]
    rows = [row for name in VARIANTS for row in _rows(name, paths, kind, size)]
    remarks = () if size.is_full else (f"only the first {FEW_JOBS} jobs; --full has the workloads of the paper",)
    return Reproduction(tuple(rows), (), {"workloads": [path.name for path in paths], "nodes": NODES}, remarks)


def _rows(name: str, paths: list[Path], kind: str, size: FigureSize) -> Iterator[Row]:
    times, makespans = list[Floats](), list[float]()
    for path in paths:
        jobs = learning_jobs(path, learned=VARIANTS[name].learned)
        few = jobs if size.is_full else dict(list(jobs.items())[:FEW_JOBS])
        jct_h, makespan_h = completion_h(few, VARIANTS[name])
        times.append(jct_h)
        makespans.append(makespan_h)
    jct_h = np.sort(np.concatenate(times))
    ours = float(jct_h.mean()), float(jct_h[int(0.99 * len(jct_h))]), float(np.mean(makespans))
    published = PUBLISHED.get(kind, {}).get("pollux", (math.nan,) * 3)
    for quantity, value, mine in zip((JCT, TAIL, MAKESPAN), published, ours, strict=True):
        yield Row(f"{kind}: {len(paths)} workload{'s' * (len(paths) > 1)}", name, quantity, value, mine)


POLLUX = PublishedFigure(
    "pollux",
    "Pollux in Sia's simulator: what its search and its learning change",
    "Subramanya et al., SOSP '23, table 3; rules of the authors' simulator (siasosp23/artifacts)",
    "the table has the mean of eight workloads; times of steps outside of the profiles are the nearest profile's",
    table,
)
