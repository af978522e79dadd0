"""Batch sizes that change during training, as phases of jobs, and the mean rates of such jobs."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.model.job import JobId
from gavelpy.model.job_phases import JobPhase, mean_rates
from gavelpy.traces.csv_format import read_csv_trace, write_csv_trace
from gavelpy.traces.gavel import parse_gavel_trace
from gavelpy.traces.reader import read_throughputs, read_trace
from gavelpy.traces.shockwave import batch_sizes, phases_of
from tests.traces.samples import gavel_line, make_table

TABLE = make_table({("LM (batch size 40)", 1): [2.0, 10.0], ("LM (batch size 80)", 1): [1.5, 6.0]})
EPOCH = 1_492  # steps of an epoch of LM in batches of 40


def test_gns_doubles_at_the_stated_epochs() -> None:
    sizes = batch_sizes("ResNet-18 (batch size 16)", "gns", 3_125 * 80, 1)

    assert [sizes.index(size) for size in (16, 32, 64, 128, 256)] == [0, 31, 41, 51, 71]


def test_accordion_takes_the_largest_size_outside_of_critical_epochs() -> None:
    """The first 30 % of 60 epochs, and the first ten of each thirty, keep the first size."""
    sizes = batch_sizes("ResNet-50 (batch size 32)", "accordion", 3_125 * 60, 1)

    assert [epoch for epoch, size in enumerate(sizes) if size == 128] == [*range(19, 30), *range(40, 60)]


@pytest.mark.parametrize("job_type", ["Transformer (batch size 64)", "A3C", "Odd (batch size 4)", "LM"])
@pytest.mark.parametrize("mode", ["accordion", "gns"])
def test_other_models_keep_their_batch_size(job_type: str, mode: str) -> None:
    assert len(set(batch_sizes(job_type, mode, 1e5, 1))) < 2


def test_each_batch_size_is_a_phase() -> None:
    """A step of batches of twice the size counts as two."""
    assert phases_of("LM (batch size 40)", "gns", 13 * EPOCH, 1, TABLE) == (
        JobPhase(0.0, {"k80": 2.0, "v100": 10.0}),
        JobPhase(11.0 * EPOCH, {"k80": 3.0, "v100": 12.0}, 2.0),
    )


def test_mean_rate_gives_the_run_time_of_the_phases() -> None:
    """11 epochs of 1492 steps at 10 steps/s, then two of half as many steps at 6 steps/s."""
    steps = 13 * EPOCH

    rates = mean_rates(phases_of("LM (batch size 40)", "gns", steps, 1, TABLE), steps)

    assert steps / rates["v100"] == pytest.approx(11 * EPOCH / 10 + 2 * (EPOCH / 2) / 6)
    assert steps / rates["k80"] == pytest.approx(11 * EPOCH / 2 + 2 * (EPOCH / 2) / 1.5)


@pytest.mark.parametrize(("mode", "has_rates"), [("static", False), ("gns", True), ("accordion", True)])
def test_trace_has_mean_rates_for_jobs_that_change(mode: str, has_rates: bool) -> None:
    line = gavel_line(
        job_type="LM (batch size 40)", total_steps=str(40 * EPOCH), scale_factor=f"1\t{mode}", SLO="-1\t9"
    )

    trace = parse_gavel_trace(line, throughputs=TABLE)

    assert bool(trace.jobs[0].rates_steps_per_s) is has_rates
    assert list(trace.phases) == [JobId("0")] * has_rates


def test_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidInput, match="mode must be one of static, accordion, gns, got 'elastic'"):
        parse_gavel_trace(gavel_line(scale_factor="1\telastic", SLO="-1\t9"))


@pytest.mark.reference
def test_work_of_the_dynamic_trace_is_that_of_shockwaves_own_simulations(reference_directory: Path) -> None:
    """Utilisation x 32 GPUs x makespan of its simulations is the GPU time of all jobs; without changes 12 % more."""
    table = read_throughputs(reference_directory / "data/shockwave/tacc_throughputs.json")
    trace = read_trace(reference_directory / "data/shockwave/120_jobs_dynamic.trace", throughputs=table)
    with (reference_directory / "reference/shockwave_simulations.csv").open() as file:
        rows = [
            row for row in csv.DictReader(file) if row["set"] == "tacc_32gpus" and row["policy"] == "max_min_fairness"
        ]
    published_s = [float(row["util"]) * 32 * float(row["makespan_s"]) for row in rows if row["mode"] == "sim"]

    work_s = sum(job.gpus * job.steps_total / job.rates_steps_per_s["v100"] for job in trace.jobs)

    assert len(published_s) == 1
    assert work_s == pytest.approx(published_s[0], rel=0.005)


def test_phases_survive_our_csv_and_wrong_ones_name_their_line(tmp_path: Path) -> None:
    steps = str(40 * EPOCH)
    line = gavel_line(job_type="LM (batch size 40)", total_steps=steps, scale_factor="1\tgns", SLO="-1\t9")
    trace, file = parse_gavel_trace(line, throughputs=TABLE), tmp_path / "t.csv"

    write_csv_trace(trace, file)

    assert read_csv_trace(file).phases == trace.phases
    file.write_text(file.read_text().replace("x2.0:", "x2.0:k80=1|"))
    with pytest.raises(InvalidInput, match=r"t.csv:2: phases must name a GPU type once"):
        read_csv_trace(file)
