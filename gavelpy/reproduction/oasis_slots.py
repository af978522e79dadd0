"""OASiS' simulated cluster: jobs of workers and parameter servers in slots of an hour, and what a policy gives them.

A job has E epochs of D chunks of M mini-batches. A worker takes  M (τ + 2 e / b)  for a chunk: τ to compute a
mini-batch, e the size of gradients, b the bandwidth of a worker. n workers need ⌈n b / B⌉ parameter servers of
bandwidth B, and a job has at most D workers. Workers use resources of worker nodes, parameter servers those of other
nodes. Nodes of a kind count together: whether a worker fits on one node is not simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.completion_value import CompletionValue, values_at
from gavelpy.model.problem import AllocationProblem, Size
from gavelpy.policies.base import Policy, varies_with_time
from gavelpy.policies.oasis import Oasis

SLOT_S, SLOTS = 3600.0, 100
WORKER = ("gpus", "cpus", "memory_gib", "gb_per_s")  # resources of a worker; those of a parameter server but GPUs
WORKER_NODE = np.array([8.0, 32.0, 488.0, 10.0])
SERVER_NODE = np.array([36.0, 144.0, 25.0])
ASKED_MAX = 30  # workers that a job requests from policies that do not choose them
NUMBERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)  # of workers between which policies choose
NO_DECAY = 1e-9  # per hour


@dataclass(frozen=True, eq=False)
class SlotJobs:
    """J jobs; times are in slots."""

    arrival: Ints  # (J,) slot
    chunks: Floats  # (J,) E D
    chunk_time: Floats  # (J,) of one worker for a chunk
    most: Ints  # (J,) workers, D
    asked: Ints  # (J,) workers
    workers_per_server: Floats  # (J,) B / b
    worker: Floats  # (J, 4)
    server: Floats  # (J, 3)
    value: Floats  # (J, 4) rows of completion values

    def demand(self, job: int, workers: int) -> Floats:
        """What so many workers of a job use with their parameter servers, (7,)."""
        servers = np.ceil(workers / self.workers_per_server[job] - 1e-9)
        return np.concatenate([workers * self.worker[job], servers * self.server[job]])

    def value_at(self, job: int, end: float) -> float:
        """What it is worth if the job ends at this time."""
        age_s = SLOT_S * (end - float(self.arrival[job]))
        return float(values_at(self.value[[job]], np.array([age_s]))[0])

    def numbers(self, job: int) -> list[int]:
        """The numbers of workers between which policies choose."""
        most = int(self.most[job])
        return [n for n in NUMBERS if n < most] + [most]


def drawn_jobs(count: int, slots: int, seed: int) -> SlotJobs:
    """Random jobs with the ranges of its simulations; each can end by its target with the most workers."""
    rng = np.random.default_rng(seed)
    found = [_drawn_job(rng) for _ in range(count)]
    chunks, chunk_time, most, ratio, worth, target_h, decay, worker, server = map(np.array, zip(*found, strict=True))
    rows = [
        CompletionValue.parse(f"sigmoid:worth={w!r}:time_s={SLOT_S * t!r}:decay_per_s={d / SLOT_S!r}").row
        for w, t, d in zip(worth.tolist(), target_h.tolist(), decay.tolist(), strict=True)
    ]
    arrival = np.sort(rng.integers(0, slots, count))
    asked = np.minimum(rng.integers(1, ASKED_MAX + 1, count), most)
    return SlotJobs(arrival, chunks, chunk_time, most, asked, ratio, worker, server, np.array(rows))


def _drawn_job(rng: np.random.Generator) -> tuple[object, ...]:
    """One job: chunks, time for a chunk, most workers, B / b, worth, target and decay, demands."""
    kind = rng.choice(3, p=[0.10, 0.55, 0.35])
    decay = [NO_DECAY, rng.uniform(0.01, 1.0), rng.uniform(4.0, 6.0)][kind]  # per hour
    worth, target_h = rng.uniform(1.0, 100.0), rng.uniform(1.0, 15.0)
    while True:
        epochs, most, batches = rng.integers(50, 201), rng.integers(5, 101), rng.integers(10, 101)
        batch, gradient_mb = 10.0 ** rng.uniform(-3, -1), rng.uniform(30.0, 575.0)
        worker_gb_per_s, server_gb_per_s = round(rng.uniform(0.1, 5.0), 3), round(rng.uniform(5.0, 20.0), 3)
        transfer = 2 * 8 * gradient_mb / 1000.0 / worker_gb_per_s / SLOT_S
        chunk_time = float(batches * (batch + transfer))
        if np.ceil(epochs * chunk_time) <= target_h:
            break
    worker = [float(rng.integers(1, 5)), float(rng.integers(1, 11)), round(rng.uniform(2.0, 32.0), 3), worker_gb_per_s]
    server = [float(rng.integers(1, 11)), round(rng.uniform(2.0, 32.0), 3), server_gb_per_s]
    ratio = server_gb_per_s / worker_gb_per_s
    return float(epochs * most), chunk_time, int(most), ratio, worth, target_h, decay, worker, server


@dataclass(eq=False)
class SlotState:
    """What a policy sees at the beginning of a slot."""

    jobs: SlotJobs
    capacity: Floats  # (7,)
    now: int
    left: Floats  # (J,) chunks
    workers: Ints  # (J,) in the last slot
    refused: Bools  # (J,) for good; policies set it

    @property
    def present(self) -> Ints:
        """The jobs that have arrived, are not done and not refused, in order of arrival."""
        return np.flatnonzero((self.jobs.arrival <= self.now) & (self.left > 0) & ~self.refused)


class SlotPolicy(Protocol):
    """Chooses the workers of the jobs for a slot."""

    def choose(self, state: SlotState) -> Ints:
        """Workers of each job, (J,)."""


def run_slots(jobs: SlotJobs, nodes: int, slots: int, policy: SlotPolicy) -> Floats:
    """The slot at whose end each job is done, (J,), infinite if none; so many nodes for workers, and for servers."""
    capacity = nodes * np.concatenate([WORKER_NODE, SERVER_NODE])
    count = len(jobs.arrival)
    state = SlotState(jobs, capacity, 0, jobs.chunks.copy(), np.zeros(count, np.int64), np.zeros(count, np.bool_))
    ends = np.full(count, np.inf)
    for state.now in range(slots):
        state.workers = policy.choose(state)
        used = sum((jobs.demand(j, int(state.workers[j])) for j in np.flatnonzero(state.workers).tolist()), np.zeros(7))
        assert (used <= capacity * (1 + 1e-6)).all(), "workers and parameter servers fit"
        state.left = state.left - state.workers / jobs.chunk_time
        state.left[state.left <= 1e-6 * jobs.chunks] = 0.0
        ends[(state.left == 0) & np.isinf(ends)] = state.now + 1
    return ends


@dataclass(eq=False)
class OfPolicy:
    """A policy of this project on problems of one GPU type, in which sizes are numbers of workers.

    One that is not `time_varying` is called when jobs arrive or leave, as the papers do.
    """

    policy: Policy
    slots: int  # of the run
    memory: bytes = b""
    before: tuple[int, ...] = ()

    def choose(self, state: SlotState) -> Ints:
        """The sizes that the policy names."""
        rows = state.present
        if tuple(rows.tolist()) == self.before and not varies_with_time(self.policy):
            return np.where(state.left > 0, state.workers, 0)
        self.before = tuple(rows.tolist())
        chosen = np.zeros(len(state.left), dtype=np.int64)
        if not len(rows):
            return chosen
        problem, of_row = self.problem(state, rows)
        policy = self.policy
        if isinstance(policy, Oasis):
            policy = replace(policy, slot_s=SLOT_S, slots=self.slots - state.now)
        answer = policy.allocate(problem)
        self.memory = answer.memory
        for name in answer.refused:
            state.refused[int(name)] = True
        for row in np.flatnonzero(answer.share[:, 0] > 0.5).tolist():
            chosen[rows[problem.member_job[row]]] = of_row[row]
        return chosen

    def problem(self, state: SlotState, rows: Ints) -> tuple[AllocationProblem, list[int]]:
        """The problem of these jobs, and the workers of each configuration."""
        jobs, ids = state.jobs, [str(j) for j in rows.tolist()]
        names = [*WORKER[1:], *(f"server_{name}" for name in WORKER[1:])]
        first = np.array([jobs.demand(j, 1) for j in rows.tolist()])
        rate = 1.0 / (jobs.chunk_time[rows] * SLOT_S)
        held = np.array([jobs.demand(j, int(state.workers[j]))[0] for j in rows.tolist()])
        problem = AllocationProblem.of(
            ids,
            ["v100"],
            [state.capacity[0]],
            rate[:, None],
            gpus=first[:, 0],
            steps_remaining=state.left[rows],
            steps_total=jobs.chunks[rows],
            age_s=SLOT_S * (state.now - jobs.arrival[rows]),
            gpu_type_held=np.where(held > 0, 0, -1),
            gpus_held=held,
            memory=self.memory,
            resources={name: [amount] for name, amount in zip(names, state.capacity[1:].tolist(), strict=True)},
            demand={name: first[:, r + 1] for r, name in enumerate(names)},
        )
        of_row = [1] * len(rows)
        sizes: dict[str, list[Size]] = {name: [] for name in ids}
        for name, job, one in zip(ids, rows.tolist(), rate.tolist(), strict=True):
            for n in jobs.numbers(job)[1:]:
                amounts = jobs.demand(job, n).tolist()
                others = dict(zip(names, amounts[1:], strict=True))
                sizes[name].append(Size(amounts[0], {"v100": n * one}, demand=others))
                of_row.append(n)
        return replace(problem.with_sizes(sizes), completion_value=jobs.value[rows]), of_row
