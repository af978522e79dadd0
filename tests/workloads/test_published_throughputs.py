"""The table of published throughputs is complete, has sources, and follows its scaling rule."""

from __future__ import annotations

import csv
import math
import re

import numpy as np
import pytest

from gavelpy.model.throughput import Provenance
from gavelpy.traces.workloads import catalogue, published_throughputs, workloads_directory

TABLE = published_throughputs()
README = (workloads_directory() / "README.md").read_text(encoding="utf-8")
SCALING = {name: float(c) for name, c in re.findall(r"^\| (\S+) \| [\d.]+ \| (0\.\d+) \|", README, re.MULTILINE)}
ONE_GPU_ONLY = ("CycleGAN", "A3C")
FAMILIES = ("ResNet-50", "ResNet-18", "Transformer", "LSTM", "Recommender", *ONE_GPU_ONLY)
GANGS = [key for key in TABLE.keys if key[1] > 1]


def rows() -> list[dict[str, str]]:
    with (workloads_directory() / "throughputs.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_seven_families_run_on_five_types_of_the_catalogue() -> None:
    assert TABLE.job_types(1) == FAMILIES
    assert TABLE.gpu_types == ("k80", "p100", "v100", "a100", "h100")
    assert set(TABLE.gpu_types) <= set(catalogue())
    assert (TABLE.rate_steps_per_s > 0).all()


def test_families_that_scale_have_gangs_of_two_four_and_eight() -> None:
    gangs = {(name, gpus) for name in FAMILIES if name not in ONE_GPU_ONLY for gpus in (2, 4, 8)}

    assert set(GANGS) == gangs


def test_every_rate_is_marked_published() -> None:
    assert (TABLE.provenance == Provenance.PUBLISHED).all()


def test_every_row_names_a_source_of_a_kind_that_the_readme_explains() -> None:
    kinds = ("NVIDIA DeepLearningExamples", "approximate: ", "derived: ", "assumed: ", "scaled from 1 GPU")

    strangers = [row["source"] for row in rows() if not row["source"].startswith(kinds)]

    assert strangers == []
    assert SCALING.keys() == {name for name, _ in GANGS}


@pytest.mark.parametrize("name", FAMILIES)
def test_newer_types_are_faster(name: str) -> None:
    rates = list(TABLE.rates(name, 1).values())

    assert rates == sorted(rates)


@pytest.mark.parametrize(("name", "gpus"), GANGS)
def test_gangs_follow_the_scaling_rule(name: str, gpus: int) -> None:
    alone, together = (np.array(list(TABLE.rates(name, g).values())) for g in (1, gpus))

    expected = alone * gpus / (1 + SCALING[name] * math.log2(gpus))

    np.testing.assert_allclose(together, expected, rtol=1e-3)  # both sides are rounded to four digits


@pytest.mark.parametrize(("name", "ratio"), [("ResNet-50", 10.0), ("A3C", 2.0)])
def test_v100_over_k80_is_what_gavel_section_1_says(name: str, ratio: float) -> None:
    rates = TABLE.rates(name, 1)

    assert rates["v100"] / rates["k80"] == pytest.approx(ratio, rel=0.15)  # the text rounds to "nearly 10x" and "2x"
