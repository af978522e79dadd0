"""Array types and the checks that every dataclass with arrays makes once."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from gavelpy.errors import InvalidInput

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def floats(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """`values` as a read-only float64 array of exactly `shape`; raises InvalidInput naming the field otherwise."""
    array = np.array(values, dtype=np.float64)
    _check_and_freeze(name, array, shape)
    return array


def ints(name: str, values: npt.ArrayLike, shape: tuple[int, ...]) -> Ints:
    """`values` as a read-only int64 array of exactly `shape`; raises InvalidInput naming the field otherwise."""
    array = np.array(values, dtype=np.int64)
    _check_and_freeze(name, array, shape)
    return array


def require(name: str, values: Floats | Ints, ok: Bools, allowed: str) -> None:
    """Raises InvalidInput naming the first entry of `values` where `ok` is false."""
    if ok.all():
        return
    index = tuple(int(i) for i in np.argwhere(~ok)[0])
    place = "".join(f"[{i}]" for i in index)
    raise InvalidInput(f"{name}{place} must be {allowed}, got {values[index]!r}")


def index_of(labels: Iterable[str], name: str) -> dict[str, int]:
    """Row of each label; raises InvalidInput when a label stands twice."""
    rows: dict[str, int] = {}
    for row, label in enumerate(labels):
        if label in rows:
            raise InvalidInput(f"{name} must be unique, got {label!r} twice (rows {rows[label]} and {row})")
        rows[label] = row
    return rows


def _check_and_freeze(name: str, array: Floats | Ints, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise InvalidInput(f"{name} must have shape {shape}, got {array.shape}")
    array.setflags(write=False)
