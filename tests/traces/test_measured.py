"""Measured rates are inserted into a throughput table."""

import pytest

from gavelpy.cli.rate_profiles import MeasuredRate, with_measured
from gavelpy.errors import InvalidInput
from gavelpy.model.throughput import Provenance
from gavelpy.traces.csv_format import parse_csv_throughputs

PUBLISHED = """job_type,gpus,gpu_type,rate_steps_per_s,provenance,source
a,1,v100,5.5,published,"a paper, 2019"
a,1,k80,0.5,published,another paper
b,2,v100,7,measured,us
"""
PAIRED = """job_type,gpus,gpu_type,rate_steps_per_s,pair_job_type,pair_rate_steps_per_s
a,1,v100,5.5,,
b,1,v100,4,,
a,1,v100,3,b,2
"""


def make_rate(job_type: str = "a", gpus: int = 1, gpu_type: str = "v100", rate: float = 6.25) -> MeasuredRate:
    return MeasuredRate(job_type, gpus, gpu_type, rate, "a bench, today")


def test_new_table_is_one_that_can_be_read() -> None:
    table = parse_csv_throughputs(with_measured("", [make_rate(), make_rate("b", 2)]))

    assert table.keys == (("a", 1), ("b", 2))
    assert table.rates("a", 1) == {"v100": 6.25}
    assert table.source == ("a bench, today", "a bench, today")
    assert table.provenance.tolist() == [[Provenance.MEASURED], [Provenance.MEASURED]]


def test_rate_takes_the_place_of_an_older_one_and_leaves_the_others() -> None:
    lines = with_measured(PUBLISHED, [make_rate()]).splitlines()

    assert lines[1] == 'a,1,v100,6.25,measured,"a bench, today"'
    assert lines[0:1] + lines[2:] == PUBLISHED.splitlines()[0:1] + PUBLISHED.splitlines()[2:]


def test_rate_of_another_type_is_a_new_row() -> None:
    lines = with_measured(PUBLISHED, [make_rate(gpu_type="h200")]).splitlines()

    assert lines[:4] == PUBLISHED.splitlines()
    assert lines[4:] == ['a,1,h200,6.25,measured,"a bench, today"']


def test_rates_of_pairs_stay() -> None:
    table = parse_csv_throughputs(with_measured(PAIRED, [make_rate()]))

    assert table.rates("a", 1) == {"v100": 6.25}
    assert table.pair_rate_steps_per_s.tolist() == [[[3.0], [2.0]]]


def test_rate_has_five_digits() -> None:
    assert make_rate(rate=1234.5678).cells["rate_steps_per_s"] == "1234.6"


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf")])
def test_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate_steps_per_s"):
        make_rate(rate=rate)


def test_text_that_is_no_table_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"rates\.csv:1: header"):
        with_measured("x,y\n1,2\n", [make_rate()], "rates.csv")
