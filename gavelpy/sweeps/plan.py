"""Which mix of GPU types serves a trace best within a budget: a search by marginal values, verified by simulation.

A mix is a number of nodes of each type, and costs the price of its GPUs per hour. Only full mixes are searched, to
which no node can be added within the budget. The search starts from full mixes of one type and from one with equal
parts of the budget. From the best it moves money from one type to another, first half of the budget, then half as much
each time, down to one node. The simulation of a mix has the marginal value of a GPU of each of its types, the mean over
the policy's allocations: moves towards more value per USD are simulated first, and moves towards types that the mix
lacks. The first move that improves the mean over seeds is taken. The search ends where no move improves it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.model.arrays import Floats
from gavelpy.statistics import MeanInterval, mean_interval, paired_difference
from gavelpy.sweeps.cells import Scalar
from gavelpy.sweeps.trials import NEVER, Metric, Trials

MIXES_MAX: Final = 100_000  # of the exhaustive search
MOVES_MAX: Final = 3  # simulated from one mix, while larger amounts are moved than the smallest
_EPS: Final = 1e-9
Mix = tuple[int, ...]  # nodes of each type


@dataclass(frozen=True)
class Shop:
    """What can be bought."""

    gpu_types: tuple[str, ...]
    prices_usd_per_gpu_h: tuple[float, ...]
    gpus_per_node: int
    budget_usd_per_h: float

    def __post_init__(self) -> None:
        if not self.gpu_types or len(set(self.gpu_types)) != len(self.gpu_types):
            raise InvalidInput(f"--gpu-types must name types, each once, got {', '.join(self.gpu_types) or 'none'}")
        for name, price in zip(self.gpu_types, self.prices_usd_per_gpu_h, strict=True):
            if not price > 0:
                raise InvalidInput(f"--prices must have a price > 0 for {name}, got {price:g}")
        if self.budget_usd_per_h + _EPS < self.node_usd.min():
            raise InvalidInput(
                f"--budget must pay for a node of {self.gpus_per_node} GPUs, {self.node_usd.min():g} USD per hour or "
                f"more, got {self.budget_usd_per_h:g}"
            )

    @property
    def node_usd(self) -> Floats:
        """Price of a node of each type per hour, (T,)."""
        return np.array(self.prices_usd_per_gpu_h) * self.gpus_per_node

    def cost(self, mix: Mix) -> float:
        """USD per hour."""
        return float(np.dot(mix, self.node_usd))

    def options(self, mix: Mix) -> dict[str, Scalar]:
        """The options of cells with this mix."""
        bought = [
            (name, count, price)
            for name, count, price in zip(self.gpu_types, mix, self.prices_usd_per_gpu_h, strict=True)
            if count
        ]
        return {
            "cluster": ",".join(f"{name}:{count * self.gpus_per_node}" for name, count, _ in bought),
            "prices": ",".join(f"{name}:{price!r}" for name, _, price in bought),
            "gpus_per_node": self.gpus_per_node,
        }

    def filled(self, mix: Mix, order: Sequence[int]) -> Mix:
        """The mix with as many nodes as the budget allows, of the types in this order."""
        nodes = list(mix)
        left = self.budget_usd_per_h - self.cost(mix)
        for kind in order:
            more = max(int((left + _EPS) // self.node_usd[kind]), 0)
            nodes[kind] += more
            left -= more * self.node_usd[kind]
        return tuple(nodes)

    def full_mixes(self) -> Iterator[Mix]:
        """All mixes to which no node can be added."""
        *others, last = range(len(self.gpu_types))
        most = [int((self.budget_usd_per_h + _EPS) // usd) for usd in self.node_usd]
        for nodes in itertools.product(*(range(most[kind] + 1) for kind in others)):
            left = self.budget_usd_per_h - self.cost((*nodes, 0))
            if left < -_EPS:
                continue
            mix = (*nodes, int((left + _EPS) // self.node_usd[last]))
            if self.budget_usd_per_h - self.cost(mix) + _EPS < self.node_usd.min():
                yield mix


@dataclass(frozen=True)
class MixResult:
    """A mix that was simulated."""

    mix: Mix
    usd_per_h: float
    values: tuple[float, ...]  # of the target, by seed
    mean: MeanInterval
    value_per_usd: Mapping[str, float]  # marginal value of a GPU per USD, relative to the highest; empty for rules
    step: str  # of the search that simulated it
    is_taken: bool = False  # whether the search moved to it


@dataclass(frozen=True)
class Purchase:
    """The answer: the best mix, and the others by their means."""

    shop: Shop
    metric: Metric
    path: tuple[MixResult, ...]  # in the order of the search
    best: MixResult
    alternatives: tuple[tuple[MixResult, MeanInterval], ...]  # with the paired difference to the best
    simulations: int


def plan(trials: Trials, shop: Shop, metric: Metric, *, alternatives: int = 4) -> Purchase:
    """The best full mix that the search finds; each mix is simulated with every seed of `trials`."""
    search = _Search(trials, shop, metric)
    search.run()
    best = search.best
    others = sorted((one for one in search.found.values() if one.mix != best.mix), key=search.rank)[:alternatives]
    compared = tuple((one, paired_difference(best.values, one.values)) for one in others)
    taken = set(search.taken)
    path = tuple(MixResult(**{**vars(one), "is_taken": one.mix in taken}) for one in search.found.values())
    return Purchase(shop, metric, path, best, compared, trials.simulated)


def exhaustive(trials: Trials, shop: Shop, metric: Metric) -> list[MixResult]:
    """All full mixes, best first: what the search is checked against."""
    mixes = list(itertools.islice(shop.full_mixes(), MIXES_MAX + 1))
    if len(mixes) > MIXES_MAX:
        raise InvalidInput(f"an exhaustive search must have at most {MIXES_MAX:,} mixes; lower the budget")
    search = _Search(trials, shop, metric)
    search.simulate(mixes, "exhaustive")
    return sorted(search.found.values(), key=search.rank)


class _Search:
    """The mixes that were simulated, and the moves from the best of them."""

    def __init__(self, trials: Trials, shop: Shop, metric: Metric) -> None:
        self.trials, self.shop, self.metric = trials, shop, metric
        self.found: dict[Mix, MixResult] = {}
        self.taken: list[Mix] = []

    @property
    def best(self) -> MixResult:
        return min(self.found.values(), key=self.rank)

    def rank(self, one: MixResult) -> tuple[float, float]:
        """Less is better; equal means: the cheaper mix."""
        return -self.metric.column.better * float(np.mean(one.values)), one.usd_per_h

    def run(self) -> None:
        self.simulate(self._starts(), "start")
        if all(abs(np.mean(one.values)) >= NEVER / len(one.values) for one in self.found.values()):
            raise GavelError(
                "no mix runs all measured jobs: a GPU type is missing, or jobs need more GPUs than there are"
            )
        self.taken.append(self.best.mix)
        amount_usd, least_usd = self.shop.budget_usd_per_h / 2, float(self.shop.node_usd.min())
        while True:
            if self._improves(amount_usd, amount_usd <= least_usd):
                continue
            if amount_usd <= least_usd:
                return
            amount_usd = max(amount_usd / 2, least_usd)

    def _starts(self) -> list[Mix]:
        T = len(self.shop.gpu_types)
        none = (0,) * T
        alone = [self.shop.filled(none, [kind, *(other for other in range(T) if other != kind)]) for kind in range(T)]
        part = tuple(int((self.shop.budget_usd_per_h / T + _EPS) // usd) for usd in self.shop.node_usd)
        return [*alone, self.shop.filled(part, np.argsort(self.shop.node_usd).tolist())]

    def _improves(self, amount_usd: float, is_least: bool) -> bool:
        """Simulates moves of this amount from the best mix until one is better."""
        best = self.best
        moves = [mix for mix in self._moves(best, amount_usd) if mix not in self.found]
        for mix in moves if is_least else moves[:MOVES_MAX]:
            step = ", ".join(
                f"{b - a:+d} {n}" for a, b, n in zip(best.mix, mix, self.shop.gpu_types, strict=True) if a != b
            )
            self.simulate([mix], step)
            if self.best.mix == mix:
                self.taken.append(mix)
                return True
        return False

    def _moves(self, best: MixResult, amount_usd: float) -> list[Mix]:
        """Mixes with this amount moved between two types, the most promising first."""
        shop, T = self.shop, len(self.shop.gpu_types)
        worth = [best.value_per_usd.get(name, math.inf) for name in shop.gpu_types]  # unknown: worth a try
        pairs = [(a, b) for a in range(T) for b in range(T) if a != b and best.mix[a]]
        found: dict[Mix, None] = {}
        for a, b in sorted(pairs, key=lambda pair: -_gain(worth[pair[1]], worth[pair[0]])):
            nodes = list(best.mix)
            nodes[a] -= min(nodes[a], max(1, math.ceil(amount_usd / shop.node_usd[a] - _EPS)))
            rest = sorted((kind for kind in range(T) if kind not in (a, b)), key=lambda kind: -_finite(worth[kind]))
            found[shop.filled(tuple(nodes), [b, *rest, a])] = None
        found.pop(best.mix, None)
        return list(found)

    def simulate(self, mixes: Sequence[Mix], step: str) -> None:
        """Simulates mixes that were not yet, with every seed."""
        new = [mix for mix in dict.fromkeys(mixes) if mix not in self.found]
        changes = [{**self.shop.options(mix), **self.metric.options} for mix in new]
        matrix = self.trials.values(self.metric, changes) if new else np.zeros((0, 0))
        for mix, values, row in zip(new, matrix, self.trials.run(changes), strict=True):
            worth = _value_per_usd(row, self.shop)
            known = MeanInterval(math.inf, math.nan, math.nan, 0)
            mean = known if (np.abs(values) >= NEVER).any() else mean_interval(values)
            self.found[mix] = MixResult(mix, self.shop.cost(mix), tuple(values.tolist()), mean, worth, step)


def _value_per_usd(results: Sequence[Mapping[str, object]], shop: Shop) -> dict[str, float]:
    """Mean marginal value over seeds of a GPU of each type of the mix per USD, relative to the highest."""
    found = {}
    for name, price in zip(shop.gpu_types, shop.prices_usd_per_gpu_h, strict=True):
        known = [value for one in results if isinstance(value := one.get(f"marginal_value_{name}"), float)]
        if known:
            found[name] = max(float(np.mean(known)), 0.0) / price
    largest = max(found.values(), default=0.0)
    return {name: value / largest for name, value in found.items()} if largest > 0 else {}


def _gain(to: float, of: float) -> float:
    return 0.0 if math.isinf(to) and math.isinf(of) else to - of


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 1.0
