"""Throughput tables: unknown differs from zero, and each rate has a provenance."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.throughput import Provenance, ThroughputTable

NAN = float("nan")


def make_table(**fields: Any) -> ThroughputTable:
    """Two job types on two GPU types; ResNet on 2 GPUs is unknown on the K80, A3C does not fit there."""
    given = {
        "keys": (("resnet", 1), ("resnet", 2), ("a3c", 1)),
        "gpu_types": ("v100", "k80"),
        "rate_steps_per_s": [[4.0, 1.0], [7.0, NAN], [2.0, 0.0]],
        "provenance": [[0, 1], [2, 3], [3, 0]],
        "source": ("here", "there", "nowhere"),
    }
    return ThroughputTable(**(given | fields))


@pytest.mark.parametrize(
    ("job_type", "gpus", "rates"),
    [
        ("resnet", 1, {"v100": 4.0, "k80": 1.0}),
        ("resnet", 2, {"v100": 7.0}),
        ("a3c", 1, {"v100": 2.0, "k80": 0.0}),
        ("a3c", 2, {}),
        ("gpt", 1, {}),
    ],
)
def test_unknown_rates_are_left_out_and_zeros_are_kept(job_type: str, gpus: int, rates: dict[str, float]) -> None:
    assert make_table().rates(job_type, gpus) == rates


def test_membership_is_by_row() -> None:
    table = make_table()

    assert ("resnet", 2) in table
    assert ("a3c", 2) not in table


def test_job_types_are_named_once_in_table_order() -> None:
    assert make_table().job_types() == ("resnet", "a3c")
    assert make_table().job_types(2) == ("resnet",)


def test_frame_holds_what_is_known_with_its_provenance() -> None:
    frame = make_table().to_frame()

    assert frame.columns.tolist() == ["job_type", "gpus", "gpu_type", "rate_steps_per_s", "provenance", "source"]
    assert frame.to_numpy().tolist()[2:] == [
        ["resnet", 2, "v100", 7.0, "estimated", "there"],
        ["a3c", 1, "v100", 2.0, "prior", "nowhere"],
        ["a3c", 1, "k80", 0.0, "measured", "nowhere"],
    ]


def test_provenance_is_ordered_best_first() -> None:
    assert sorted(Provenance) == [
        Provenance.MEASURED,
        Provenance.PUBLISHED,
        Provenance.ESTIMATED,
        Provenance.PRIOR,
    ]


def test_a_table_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make_table().rate_steps_per_s[0, 0] = 9.0


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"rate_steps_per_s": [[4.0, -1.0], [7.0, NAN], [2.0, 0.0]]}, "rate_steps_per_s[0][1] must be finite and >= 0"),
        ({"rate_steps_per_s": [[4.0, 1.0], [np.inf, NAN], [2.0, 0.0]]}, "rate_steps_per_s[1][0] must be finite"),
        ({"rate_steps_per_s": [[4.0, 1.0]]}, "rate_steps_per_s must have shape (3, 2), got (1, 2)"),
        ({"rate_steps_per_s": [[4.0, 1.0], [2.0], [3.0]]}, "rate_steps_per_s must be numbers in rows of one length"),
        ({"provenance": [[0, 1], [2, 9], [3, 0]]}, "provenance[1][1] must be in [0, 4), got 9"),
        ({"provenance": [[0, 1], [2, 0.5], [3, 0]]}, "provenance[1][1] must be a whole number, got 0.5"),
        ({"source": ("here",)}, "one source each, got 3 keys, 1 sources"),
        ({"keys": (("a3c", 1), ("resnet", 2), ("a3c", 1))}, "keys must be unique"),
        (
            {"pair_rows": [[0, 3]], "pair_rate_steps_per_s": [[[1, 1], [1, 1]]]},
            "pair_rows[0][1] must be in [0, 3), got 3",
        ),
        (
            {"pair_rows": [[0, 2]], "pair_rate_steps_per_s": [[[1, 1], [1, -1]]]},
            "pair_rate_steps_per_s[0][1][1] must be",
        ),
    ],
)
def test_bad_table_is_refused_by_field_and_place(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        make_table(**fields)


def test_pairs_keep_their_rates() -> None:
    table = make_table(pair_rows=[[0, 2]], pair_rate_steps_per_s=[[[3.0, 0.5], [1.0, 0.0]]])

    assert table.pair_rate_steps_per_s.shape == (1, 2, 2)
