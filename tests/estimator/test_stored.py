"""A stored model is the same after reading."""

from __future__ import annotations

from typing import Any

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.completion import EstimatorModel
from gavelpy.estimator.hyperparameters import IsolatedScales
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.pairs import PairModel, PairScales
from gavelpy.estimator.roofline import Calibration, Roofline
from gavelpy.estimator.stacking import Mixture
from gavelpy.estimator.stored import from_json, to_json

MODEL = EstimatorModel(
    IsolatedModel(
        IsolatedScales(noise=0.03),
        Roofline(calibration=Calibration(sd=0.4)),
        mixture=Mixture(((0.5, 0.25, 0.25, 0.0),) * 3, (1.1, 0.9, 1.5)),
    ),
    PairModel(PairScales(own=0.2)),
)


def test_a_model_survives_the_way_to_json_and_back() -> None:
    assert from_json(to_json(MODEL), Roofline()) == MODEL


@pytest.mark.parametrize("figure", [0.0, -1.0, 1e9, float("nan"), True, "0.1", None])
def test_a_figure_that_no_model_has_is_refused_by_name(figure: Any) -> None:  # any JSON value
    kept = to_json(MODEL)
    kept["pairs"]["own"] = figure

    with pytest.raises(InvalidInput, match=r"pairs.own must be in \[1e-12, 1e\+06\]"):
        from_json(kept, Roofline())


@pytest.mark.parametrize(
    "change", [{"weights": [[2.0, -1.0, 0.0, 0.0]] * 3}, {"weights": [[1.0]]}, {"widths": [1.0, 0.0, 1.0]}]
)
def test_a_mixture_that_is_none_is_refused(change: dict[str, Any]) -> None:  # any JSON value
    kept = to_json(MODEL)
    kept["mixture"] |= change

    with pytest.raises(InvalidInput, match="mixture must have"):
        from_json(kept, Roofline())


@pytest.mark.parametrize("value", [None, [], 3, {}, {"format": "another"}])
def test_something_else_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput, match="format must be"):
        from_json(value, Roofline())
