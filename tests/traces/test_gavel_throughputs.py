"""Gavel's throughput JSON is converted to a table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gavelpy.model.throughput import Provenance
from gavelpy.traces.gavel import parse_gavel_throughputs
from tests.traces.samples import GAVEL_JSON

TEXT = json.dumps(GAVEL_JSON)


def test_rates_alone_become_rows() -> None:
    table = parse_gavel_throughputs(TEXT, "some/rates.json")

    assert table.keys == (("ResNet", 1), ("LSTM", 1))
    assert table.gpu_types == ("k80", "v100")
    np.testing.assert_array_equal(table.rate_steps_per_s, [[0.5, 4.0], [1.0, 0.0]])
    assert (table.provenance == Provenance.MEASURED).all()
    assert table.source == ("rates.json", "rates.json")


def test_zero_stays_zero() -> None:
    assert parse_gavel_throughputs(TEXT).rates("LSTM", 1)["v100"] == 0.0


def test_pairs_become_rows_in_one_order() -> None:
    table = parse_gavel_throughputs(TEXT)

    np.testing.assert_array_equal(table.pair_rows, [[0, 1]])
    np.testing.assert_array_equal(table.pair_rate_steps_per_s, [[[0.25, 2.0], [0.5, 1.5]]])


def test_unconsolidated_types_are_kept_on_request() -> None:
    table = parse_gavel_throughputs(TEXT, keep_unconsolidated=True)

    assert table.rates("ResNet", 1) == {"k80": 0.5, "v100": 4.0, "v100_unconsolidated": 3.0}
    assert table.rates("LSTM", 1) == {"k80": 1.0, "v100": 0.0}  # unknown there, which is not zero


def test_first_of_two_orders_of_a_pair_stands() -> None:
    both = {"A": {"null": 1, "B": [2, 3]}, "B": {"null": 1, "A": [30, 20]}}
    text = json.dumps({"v100": both}).replace('"A"', "\"('A', 1)\"").replace('"B"', "\"('B', 1)\"")

    table = parse_gavel_throughputs(text)

    np.testing.assert_array_equal(table.pair_rate_steps_per_s, [[[2.0], [3.0]]])


@pytest.mark.parametrize("key", ["('LM (batch size 5)', 2)", '("LM (batch size 5)", 2)', "( 'LM (batch size 5)' ,2 )"])
def test_keys_may_be_spelt_as_python_does(key: str) -> None:
    table = parse_gavel_throughputs(json.dumps({"v100": {key: {"null": 1}}}))

    assert table.keys == (("LM (batch size 5)", 2),)
