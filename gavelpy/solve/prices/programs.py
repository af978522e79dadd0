"""Programs as tables of the price engine, for rungs that have one at hand. Every class counts as one large job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.engine import with_the_rest_spent
from gavelpy.solve.prices.rising import Curve, highest
from gavelpy.solve.prices.table import Table
from gavelpy.solve.program import Program
from gavelpy.solve.solver import Solver


@dataclass(frozen=True, eq=False)
class Height:
    """The highest level of a curve in a program: infinite where all reach their best."""

    level: float
    share: Floats  # (E,)
    worth: Floats  # (K,) of a class's rate: with prices, proves that no level is higher
    price: Floats  # (T,) per GPU


def height(
    program: Program, gpu_counts: Floats, curve: Curve, solver: Solver, value: Floats | None = None
) -> Height | None:
    """The highest level at which the needs of all classes can be had on so many GPUs, (T,), or None: not found.

    For programs in which every job runs alone. With the `value` of each class at its best rate, (K,), what free types
    have left is spent on the highest sum of values.
    """
    at = program.member_class, program.entry_type[program.member_entry]
    whole = np.zeros((len(program.value), len(gpu_counts)))
    whole[at] = program.member_rate
    load = np.zeros(len(program.value))
    load[at[0]] = (program.entry_load * program.problem.gpu_counts[program.entry_type])[program.member_entry]
    types = np.flatnonzero((gpu_counts > 0) & (whole > 0).any(axis=0))
    if not len(types):
        return None
    table = Table(
        rate=np.ascontiguousarray(whole[:, types]),
        gpus=load,
        count=np.ones(len(load)),
        gpu_counts=gpu_counts[types],
        gain=np.zeros((0, len(types))),
    )
    mix = highest(table, curve, solver)
    if mix is not None and value is not None:
        mix = with_the_rest_spent(table, value, curve.at(mix.level), mix, solver)
    if mix is None:
        return None
    share = np.zeros(len(program.entry_type))
    share[program.member_entry] = _spread(mix.time, types, whole.shape)[at]
    return Height(mix.level, share, mix.steepness, _spread(mix.price, types, gpu_counts.shape))


def _spread(figures: Floats, types: Ints, shape: tuple[int, ...]) -> Floats:
    spread: Floats = np.zeros(shape)
    spread[..., types] = figures
    return spread
