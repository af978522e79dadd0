"""Converts a fitted model to JSON and back. Step costs and GPU specs are separate data and not included."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.completion import EstimatorModel
from gavelpy.estimator.hyperparameters import IsolatedScales, Likeness, as_likeness
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.latent import PairScales
from gavelpy.estimator.pairs import PairModel
from gavelpy.estimator.roofline import Calibration, Roofline
from gavelpy.estimator.stacking import METHODS, SITUATIONS, Mixture

FORMAT = "gavelpy estimator 1"
_FIGURE_MIN, _FIGURE_MAX = 1e-12, 1e6
_SCALES_SINCE = ("level", "few")  # added later
_STORED_AS = {"all_jobs": "everybody"}  # fields with another name in files
_Scales = TypeVar("_Scales", IsolatedScales, PairScales, Calibration)


def to_json(model: EstimatorModel) -> dict[str, Any]:  # Any: JSON values
    """The model as a JSON object."""
    return {
        "format": FORMAT,
        "isolated": asdict(model.isolated.scales),
        "pairs": {_STORED_AS.get(name, name): scale for name, scale in asdict(model.pairs.scales).items()},
        "roofline": asdict(model.isolated.roofline.calibration),
        "likeness": asdict(model.isolated.likeness),
        "anchors": list(model.isolated.anchors),
        "mixture": asdict(model.isolated.mixture),
    }


def from_json(value: object, roofline: Roofline) -> EstimatorModel:
    """The stored model with the step costs and specs of `roofline`; raises InvalidInput naming the wrong field."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise InvalidInput(
            f"format must be {FORMAT!r}, got {value.get('format') if isinstance(value, Mapping) else value!r}"
        )
    isolated = _scales("isolated", value.get("isolated"), IsolatedScales)
    pairs = _scales("pairs", value.get("pairs"), PairScales)
    calibration = _scales("roofline", value.get("roofline"), Calibration)
    known = replace(roofline, calibration=calibration)
    likeness, anchors = _likeness(value.get("likeness")), _names("anchors", value.get("anchors", []))
    kept = tuple(name for name in anchors if name in known.gpus)
    alone = IsolatedModel(isolated, known, likeness, kept, _mixture(value.get("mixture")))
    return EstimatorModel(alone, PairModel(pairs))


def _likeness(value: object) -> Likeness:
    """The stored likeness; older files have none."""
    if value is None:
        return Likeness()
    if not isinstance(value, Mapping) or set(value) != {"gpu_types", "values"}:
        raise InvalidInput(f"likeness must be an object with exactly the keys gpu_types, values, got {value!r}")
    names, rows = _names("likeness.gpu_types", value["gpu_types"]), value["values"]
    try:
        figures = np.array(rows, dtype=np.float64).reshape(len(names), len(names))
    except (TypeError, ValueError):
        raise InvalidInput(f"likeness.values must be {len(names)} x {len(names)} numbers, got {rows!r}") from None
    is_sound = np.isfinite(figures).all() and (np.abs(figures) <= _FIGURE_MAX).all() and (figures == figures.T).all()
    if not is_sound or (np.linalg.eigvalsh(figures) < -1e-9 * max(np.abs(figures).max(initial=0.0), 1.0)).any():
        raise InvalidInput(f"likeness.values must be a covariance, got {rows!r}")
    return as_likeness(names, figures)


def _mixture(value: object) -> Mixture:
    """The stored mixture; older files have none."""
    if value is None:
        return Mixture()
    if not isinstance(value, Mapping) or set(value) != {"weights", "widths"}:
        raise InvalidInput(f"mixture must be an object with exactly the keys weights, widths, got {value!r}")
    shape = len(SITUATIONS), len(METHODS)
    try:
        weights = np.array(value["weights"], dtype=np.float64).reshape(shape)
        widths = np.array(value["widths"], dtype=np.float64).reshape(shape[0])
    except (TypeError, ValueError):
        raise InvalidInput(f"mixture must have {shape} weights and {shape[0]} widths, got {value!r}") from None
    is_sound = (weights >= 0).all() and np.allclose(weights.sum(axis=1), 1.0)
    if not is_sound or not ((widths >= _FIGURE_MIN) & (widths <= _FIGURE_MAX)).all():
        raise InvalidInput(f"mixture must have weights >= 0 with sums of 1 and widths > 0, got {value!r}")
    return Mixture(tuple(tuple(row) for row in weights.tolist()), tuple(widths.tolist()))


def _names(field: str, value: object) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    if not is_list or len(set(cast(list[str], value))) != len(cast(list[str], value)):
        raise InvalidInput(f"{field} must be a list of different names, got {value!r}")
    return tuple(cast(list[str], value))


def _scales(name: str, value: object, kind: type[_Scales]) -> _Scales:
    wanted = [_STORED_AS.get(field.name, field.name) for field in fields(kind)]
    if isinstance(value, Mapping) and kind is IsolatedScales:
        value = {name: getattr(IsolatedScales, name) for name in _SCALES_SINCE} | dict(value)  # older files
    if not isinstance(value, Mapping) or set(value) != set(wanted):
        raise InvalidInput(f"{name} must be an object with exactly the keys {', '.join(wanted)}, got {value!r}")
    for key in wanted:
        figure = value[key]
        is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
        if not is_number or not (math.isfinite(figure) and _FIGURE_MIN <= figure <= _FIGURE_MAX):
            raise InvalidInput(f"{name}.{key} must be in [{_FIGURE_MIN:g}, {_FIGURE_MAX:g}], got {figure!r}")
    return kind(*(float(value[key]) for key in wanted))
