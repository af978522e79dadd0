"""Array types, and the validation of array fields."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput
from gavelpy.model.limits import VALUE_MAX as VALUE_MAX

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


PAIRWISE = 8  # numbers in a row from which numpy adds in another order than one after the other


def row_sums(table: Floats) -> Floats:
    """`table.sum(axis=1)` to the last bit, in a third of the time where a table has many rows and few columns."""
    return table.sum(axis=1) if table.shape[1] >= PAIRWISE else reduce(np.add, table.T, np.zeros(len(table)))


def dot(one: Floats, other: Floats) -> float:
    """Σ one x other in one thread. For more than 10,000 numbers BLAS wakes others, which then spin for milliseconds."""
    return float(np.einsum("k,k->", one, other))


def floats(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """`values` as a read-only float64 array of exactly `shape`; raises InvalidInput naming the field otherwise."""
    array = np.array(_numbers(name, values), dtype=np.float64)
    if array.size == 0 == math.prod(shape):  # [] is a table without rows
        array = array.reshape(shape)
    _check_and_freeze(name, array, shape)
    return array


def ints(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Ints:
    """`values` as a read-only int64 array of exactly `shape`; raises InvalidInput naming the field otherwise."""
    given = _numbers(name, values)
    if given.dtype.kind == "f":
        require(name, given, np.isfinite(given) & (np.floor(given) == given), "a whole number")
    array = np.array(given, dtype=np.int64)
    _check_and_freeze(name, array, shape)
    return array


def spread(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Numbers of any type in `shape`; one number is broadcast. Raises InvalidInput naming the field otherwise."""
    given = _numbers(name, values)
    if given.shape != shape and given.ndim:
        raise InvalidInput(f"{name} must have shape {shape} or be one number, got shape {given.shape}")
    return np.broadcast_to(given, shape)


def aligned(name: str, values: Any, *labels: Sequence[Any]) -> Any:  # Any: what numpy takes, or a pandas object
    """`values` with rows (and columns) in the order of `labels`, if they are a pandas object that has labels.

    An index of whole numbers that are not the labels, such as that of a new frame, counts as positions. Raises
    InvalidInput naming the field if other labels differ from `labels`: positions would give values to others.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(values, (pandas.Series, pandas.DataFrame)):
        return values
    for axis, (wanted, own) in enumerate(zip(labels, values.axes, strict=False)):
        order = own.get_indexer(list(wanted)) if own.is_unique else [-1]
        if len(own) == len(wanted) and min(order, default=0) >= 0:
            values = values.take(order, axis=axis)
        elif own.dtype.kind not in "iu":
            kind = ("row", "column")[axis]
            raise InvalidInput(
                f"{name} must have one {kind} for each of {_shown(wanted)}, got {_shown(own)}; for values by position, "
                "give its `.to_numpy()`"
            )
    return values


def _shown(labels: Iterable[Any]) -> str:
    names = [repr(label) for label in labels]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def require(name: str, values: npt.NDArray[Any], ok: Bools, allowed: str) -> None:
    """Raises InvalidInput naming the first entry of `values` where `ok` is false."""
    if ok.all():
        return
    index = tuple(int(i) for i in np.argwhere(~ok)[0])
    place = "".join(f"[{i}]" for i in index)
    raise InvalidInput(f"{name}{place} must be {allowed}, got {values[index].item()!r}")


def index_of(labels: Iterable[str], name: str) -> dict[str, int]:
    """Row of each label; raises InvalidInput if a label occurs twice."""
    rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        if label in rows:
            raise InvalidInput(f"{name} must be unique, got {label!r} twice (rows {rows[label]} and {row})")
        rows[label] = row
    return rows


def _numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        given = np.asarray(values)
    except ValueError:  # rows of several lengths
        raise InvalidInput(f"{name} must be numbers in rows of one length, got {values!r}") from None
    if given.dtype.kind not in "fiub" and given.size:
        raise InvalidInput(f"{name} must be numbers, got {values!r}")
    return given


def _check_and_freeze(name: str, array: Floats | Ints, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}")
    array.setflags(write=False)
