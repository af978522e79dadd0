"""The reference traces and throughputs are read completely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.traces.gavel import gavel_text, parse_gavel_trace
from gavelpy.traces.reader import read_throughputs, read_trace

pytestmark = pytest.mark.reference

THROUGHPUTS = "data/gavel/simulation_throughputs.json"
# (jobs of the file, jobs with a type that is not in the table)
TRACES = {
    "gavel/traces/artifact_evaluation.trace": (15, 0),
    "gavel/traces/debug.trace": (14, 0),
    "gavel/traces/gen_single_lam900_seed0.trace": (1202, 0),
    "gavel/traces/gen_small_lam5400_seed0.trace": (124, 0),
    "gavel/traces/max_min_fairness.trace": (96, 0),
    "gavel/traces/medium_test.trace": (20, 0),
    "gavel/traces/minimize_makespan.trace": (100, 0),
    "gavel/traces/msr_ed69ec_first250.trace": (250, 0),
    "gavel/traces/old_7_columns.trace": (200, 41),
    "gavel/traces/small_test.trace": (20, 0),
    "shockwave/120_jobs_dynamic.trace": (120, 0),
}


@pytest.mark.parametrize(("name", "expected"), TRACES.items(), ids=TRACES)
def test_reference_trace_is_read(reference_directory: Path, name: str, expected: tuple[int, int]) -> None:
    table = read_throughputs(reference_directory / THROUGHPUTS)

    trace = read_trace(reference_directory / "data" / name, throughputs=table)

    assert (len(trace), sum(not job.rates_steps_per_s for job in trace.jobs)) == expected


@pytest.mark.parametrize("name", [name for name in TRACES if "old" not in name and "shockwave" not in name])
def test_reference_trace_is_written_with_the_same_cells(reference_directory: Path, name: str) -> None:
    text = (reference_directory / "data" / name).read_text()

    written = gavel_text(parse_gavel_trace(text))

    def cells(lines: str) -> list[tuple[str | float, ...]]:
        rows = [line.split("\t") for line in lines.splitlines()]
        return [(*row[:5], *map(float, row[5:])) for row in rows]

    assert cells(written) == cells(text)


@pytest.mark.parametrize("name", ["gavel/simulation_throughputs.json", "shockwave/tacc_throughputs.json"])
def test_reference_throughputs_are_read(reference_directory: Path, name: str) -> None:
    table = read_throughputs(reference_directory / "data" / name)

    assert len(table.keys) == 83
    assert sorted(table.gpu_types) == ["k80", "p100", "v100"]
    assert not np.isnan(table.rate_steps_per_s).any()
    assert len(table.job_types()) == 26
    # 1,759 ordered pairs of equal gang size on one type, of which 83 are of a job type with itself
    assert len(table.pair_rows) == (1759 - 83) // 2 + 83


def test_only_resnet_50_of_batch_128_does_not_fit_on_a_k80_alone(reference_directory: Path) -> None:
    table = read_throughputs(reference_directory / THROUGHPUTS)

    zero = {table.keys[row] for row in np.argwhere(table.rate_steps_per_s == 0)[:, 0]}

    assert zero == {("ResNet-50 (batch size 128)", gpus) for gpus in (2, 4, 8)}
