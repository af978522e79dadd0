"""Pollux's genetic search: GPUs of each virtual node for each job, of the highest fitness (NSGA-II).

A state is (J, V) GPUs by job and virtual node; jobs are in the order of attained service. As in the authors' code
(siasosp23/artifacts, sia-simulator, pollux_unaware.py; pymoo's NSGA2): 100 states and generations, from the best states
of the last round; binary tournaments; crossover at one job; mutation by a return to the present state, by GPUs that are
taken away and by GPUs that are added; and a repair, after which a virtual node has at most one job that is on several,
and no job or node exceeds its limit. The second objective, speed-up over the GPUs of the nodes in use, keeps states
apart; the state with the highest fitness is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints

NODE_GPUS = 4  # of a virtual node
STATES = GENERATIONS = 100
CROSSED, RETURNED, TAKEN = 0.9, 0.1, 0.1  # probabilities: of a pair; of a job, and of each of its nodes
WAITING = 1e-3  # speed-up that is added, over the GPUs of a virtual node
_TRIES = 5  # for states that are not there yet


@dataclass(frozen=True, eq=False)
class Search:
    """What a round chooses from: J jobs and V virtual nodes."""

    speedup: Floats  # (J, N + 1, N + 1) by nodes and GPUs, over an equal part of the cluster; 0 without GPUs
    now: Ints  # (J, V) the present state
    factor: Floats  # (J,) of the speed-up of a job that changes
    most: Ints  # (J,) GPUs

    def values(self, states: Floats | Ints) -> Floats:
        """Fitness and speed-up by GPUs in use of K states, (K, 2); both are better if higher."""
        used = states.sum(axis=2)
        speedup = self.speedup[np.arange(len(self.now)), np.count_nonzero(states, axis=2), used]
        in_use = NODE_GPUS * np.count_nonzero(states.sum(axis=1), axis=1)
        stays = np.abs(states - self.now).sum(axis=2) == 0
        scaled = speedup / NODE_GPUS * np.where(stays, 1.0, self.factor) + WAITING
        return np.column_stack([1.0 / (1.0 / scaled).mean(axis=1), speedup.sum(axis=1) / np.maximum(in_use, 1)])

    def best(self, start: Ints, rng: np.random.Generator) -> Ints:
        """The states that no other one found is better than in both values, the fittest first, (F, J, V)."""
        states = self.repaired(start, rng)
        _, first = np.unique(states.reshape(len(states), -1), axis=0, return_index=True)
        states = states[np.sort(first)]
        values = self.values(states)
        kept, distance = survivors(values, min(STATES, len(states)))
        for _ in range(GENERATIONS - 1):
            states, values, distance = states[kept], values[kept], distance[kept]
            states = np.concatenate([states, self._children(states, values, distance, rng)])
            values = np.concatenate([values, self.values(states[len(values) :])])
            kept, distance = survivors(values, min(STATES, len(states)))
        states, values = states[kept], values[kept]
        front = np.flatnonzero(~_dominates(values).any(axis=0))
        return states[front[np.argsort(-values[front, 0], kind="stable")]]

    def _children(self, states: Ints, values: Floats, distance: Floats, rng: np.random.Generator) -> Ints:
        """Up to `STATES` states that are not there yet."""
        known, found, (J, V) = {one.tobytes() for one in states}, list[Ints](), self.now.shape
        for _ in range(_TRIES):
            pairs = (STATES - len(found) + 1) // 2
            parents = _winners(values, distance, 2 * pairs, rng).reshape(2, pairs)
            swapped = np.arange(J) < rng.integers(J, size=(pairs, 1))
            swapped &= rng.random((pairs, 1)) < CROSSED
            drawn = np.where(swapped[..., None], states[parents[::-1]], states[parents]).reshape(-1, J, V)
            for one in self.repaired(self.mutated(drawn, rng), rng):
                if len(found) < STATES and (key := one.tobytes()) not in known:
                    known.add(key)
                    found.append(one)
            if len(found) == STATES:
                break
        return np.array(found, dtype=np.int64).reshape(-1, J, V)

    def mutated(self, states: Ints, rng: np.random.Generator) -> Ints:
        """Jobs that return to the present state, lose nodes, or get GPUs where some are free."""
        back = rng.random(states.shape[:2]) < RETURNED
        states = np.where(back[..., None], self.now, states)
        losing = np.where(rng.random(states.shape[:2]) < RETURNED, TAKEN, 0.0)
        states[rng.random(states.shape) < losing[..., None]] = 0
        room = (states.sum(axis=1) < NODE_GPUS)[:, None, :]
        any_job, holder = room / len(self.now), (states > 0) & room
        a_holder = holder / np.maximum(holder.sum(axis=1, keepdims=True), 1)
        grows = rng.random(states.shape) < any_job + a_holder - any_job * a_holder
        states[grows] = rng.integers(states[grows], NODE_GPUS + 1)
        return states

    def repaired(self, states: Ints, rng: np.random.Generator) -> Ints:
        """States within all limits: earlier jobs keep what they have."""
        states = states.copy()
        spread = (states > 0) & (np.count_nonzero(states, axis=2) > 1)[..., None]
        states[np.cumsum(spread, axis=1) > 1] = 0
        over = states.sum(axis=2) > self.most
        if over.any():
            rows, limit = states[over], np.broadcast_to(self.most, over.shape)[over]
            order = np.argsort(rng.random(rows.shape), axis=1)
            taken = np.minimum(np.cumsum(np.take_along_axis(rows, order, axis=1), axis=1), limit[:, None])
            np.put_along_axis(rows, order, np.diff(taken, axis=1, prepend=0), axis=1)
            states[over] = rows
        found: Ints = np.diff(np.minimum(np.cumsum(states, axis=1), NODE_GPUS), axis=1, prepend=0)
        return found


def survivors(values: Floats, count: int) -> tuple[Ints, Floats]:
    """The best states by fronts, then by the distance to their neighbours in a front; and all distances, (K,)."""
    dominates = _dominates(values)
    better, left = dominates.sum(axis=0), np.ones(len(values), dtype=np.bool_)
    distance, found, number = np.zeros(len(values)), list[Ints](), 0
    while number < count:
        front = np.flatnonzero(left & (better == 0))
        left[front] = False
        better = better - dominates[front].sum(axis=0)
        distance[front] = _distance(values[front])
        if number + len(front) > count:
            front = front[np.argsort(-distance[front], kind="stable")[: count - number]]
        found.append(front)
        number += len(front)
    return np.concatenate(found), distance


def _dominates(values: Floats) -> Bools:
    """Whether state i is at least as good as j in both values, and better in one, (K, K)."""
    one, other = values.T
    least: Bools = (one[:, None] >= one) & (other[:, None] >= other)
    return least & ~least.T


def _distance(values: Floats) -> Floats:
    """The distance between the neighbours of each state of a front, as parts of the range, summed over both values."""
    found = np.zeros(len(values))
    for column in values.T:
        order = np.argsort(column, kind="stable")
        gaps, reach = np.full(len(values), np.inf), column[order[-1]] - column[order[0]]
        gaps[1:-1] = (column[order[2:]] - column[order[:-2]]) / (reach or 1.0)
        found[order] += gaps
    return found


def _winners(values: Floats, distance: Floats, count: int, rng: np.random.Generator) -> Ints:
    """The winners of `count` tournaments of two: by both values, then by distance."""
    a, b = rng.integers(len(values), size=(2, count))
    worse, better = (values[a] <= values[b]).all(axis=1), (values[a] >= values[b]).all(axis=1)
    loses = np.where(worse != better, worse, distance[a] < distance[b])
    found: Ints = np.where(loses, b, a)
    return found
