"""The highest level of a program, and its shares: from classes of jobs to the table of the price engine and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.solve.prices.highest_level import highest
from gavelpy.solve.prices.level_curve import LevelCurve
from gavelpy.solve.prices.table import Table
from gavelpy.solve.program import Program
from gavelpy.solve.solver import Solver


@dataclass(frozen=True, eq=False)
class Height:
    """The highest level of a curve in a program: infinite if all classes reach their limits."""

    level: float
    share: Floats  # (E,)
    worth: Floats  # (K,) marginal value of a class's rate: with the prices it proves that no level is higher
    price: Floats  # (T,) per GPU


def height(
    program: Program, gpu_counts: Floats, curve: LevelCurve, solver: Solver, kind: str, value: Floats | None = None
) -> Height | None:
    """The highest level at which the needs of all classes are feasible on these GPUs, (T,), or None: not found.

    For programs in which every job runs alone; a class counts as one large job. GPUs left of free types go to the
    highest sum of values, if the `value` (K,) of each class at its best rate is given. `kind`: of kept prices.
    """
    at = program.member_class, program.entry_type[program.member_entry]
    whole = np.zeros((len(program.value), len(gpu_counts)))
    whole[at] = program.member_rate
    load = np.zeros(len(program.value))
    load[at[0]] = (program.entry_load[0] * program.problem.gpu_counts[program.entry_type])[program.member_entry]
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
    mix = highest(table, curve, value, solver, kind)
    if mix is None:
        return None
    share = np.zeros(len(program.entry_type))
    share[program.member_entry] = _spread(mix.time, types, whole.shape)[at]
    return Height(mix.level, share, mix.steepness, _spread(mix.price, types, gpu_counts.shape))


def _spread(figures: Floats, types: Ints, shape: tuple[int, ...]) -> Floats:
    spread: Floats = np.zeros(shape)
    spread[..., types] = figures
    return spread
