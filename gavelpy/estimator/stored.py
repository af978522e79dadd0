"""A fitted model as JSON and back. Figures of jobs and GPUs are data of their own and are not in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

from gavelpy.errors import InvalidInput
from gavelpy.estimator.completion import EstimatorModel
from gavelpy.estimator.isolated import IsolatedModel, IsolatedScales
from gavelpy.estimator.pairs import PairModel, PairScales
from gavelpy.estimator.roofline import Calibration, Roofline

FORMAT = "gavelpy estimator 1"
_FIGURE_MIN, _FIGURE_MAX = 1e-12, 1e6
_Scales = TypeVar("_Scales", IsolatedScales, PairScales, Calibration)


def to_json(model: EstimatorModel) -> dict[str, Any]:  # Any: whatever JSON can say
    """The object to keep."""
    return {
        "format": FORMAT,
        "isolated": asdict(model.isolated.scales),
        "pairs": asdict(model.pairs.scales),
        "roofline": asdict(model.isolated.roofline.calibration),
    }


def from_json(value: object, roofline: Roofline) -> EstimatorModel:
    """The model that was kept, over these figures; raises InvalidInput naming what is wrong."""
    if not isinstance(value, Mapping) or value.get("format") != FORMAT:
        raise InvalidInput(
            f"format must be {FORMAT!r}, got {value.get('format') if isinstance(value, Mapping) else value!r}"
        )
    isolated = _scales("isolated", value.get("isolated"), IsolatedScales)
    pairs = _scales("pairs", value.get("pairs"), PairScales)
    calibration = _scales("roofline", value.get("roofline"), Calibration)
    return EstimatorModel(IsolatedModel(isolated, replace(roofline, calibration=calibration)), PairModel(pairs))


def _scales(name: str, value: object, kind: type[_Scales]) -> _Scales:
    wanted = [field.name for field in fields(kind)]
    if not isinstance(value, Mapping) or set(value) != set(wanted):
        raise InvalidInput(f"{name} must be an object with exactly the keys {', '.join(wanted)}, got {value!r}")
    for key in wanted:
        figure = value[key]
        is_number = isinstance(figure, int | float) and not isinstance(figure, bool)
        if not is_number or not (math.isfinite(figure) and _FIGURE_MIN <= figure <= _FIGURE_MAX):
            raise InvalidInput(f"{name}.{key} must be in [{_FIGURE_MIN:g}, {_FIGURE_MAX:g}], got {figure!r}")
    return kind(**{key: float(value[key]) for key in wanted})
