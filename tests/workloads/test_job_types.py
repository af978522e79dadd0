"""The job families' figures are plausible, and the roofline ranks measured rates with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gavelpy.errors import InvalidInput
from gavelpy.estimator.roofline import Roofline
from gavelpy.model.cluster import Precision, StepCost
from gavelpy.traces.reader import read_throughputs
from gavelpy.traces.workloads import gpu_specs, job_types, workloads_directory

JOBS, GPUS = job_types(), gpu_specs()
GPT = {"GPT-124M": 124e6, "GPT-350M": 354e6, "GPT-774M": 774e6, "GPT-1.5B": 1558e6, "GPT-7B": 6700e6}
TEXT = (workloads_directory() / "job_types.toml").read_text(encoding="utf-8")


def test_families_of_the_measured_table_and_of_today_are_there() -> None:
    assert JOBS.keys() >= {"ResNet-18", "ResNet-50", "Transformer", "LM", "Recommendation", "CycleGAN", "A3C"}
    assert JOBS.keys() >= {*GPT, "ViT-B/16", "ViT-L/16", "Diffusion-latent", "DLRM-small", "DLRM-large"}


@pytest.mark.parametrize(("name", "parameters"), GPT.items(), ids=GPT)
def test_language_models_take_six_operations_a_parameter_and_token_and_some_for_attention(
    name: str, parameters: float
) -> None:
    ratio = JOBS[name].gflop_per_sample * 1e9 / (6.0 * parameters * 1024.0)

    assert 1.0 < ratio < 1.25


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_a_batch_of_one_fits_somewhere(job: StepCost) -> None:
    assert job.memory_needed_gb(1.0) < max(gpu.memory_gb for gpu in GPUS.values())


def test_half_precision_is_never_slower_than_single() -> None:
    assert [name for name, gpu in GPUS.items() if gpu.tflops(Precision.HALF) < gpu.tflops(Precision.SINGLE)] == []


def test_the_largest_language_model_fits_large_gpus_only() -> None:
    fits = Roofline(JOBS, GPUS).fits([("GPT-7B (batch size 1)", 1)], ["v100", "a100", "h200", "b200", "mi300x"])

    assert fits.tolist() == [[0.0, 0.0, 1.0, 1.0, 1.0]]


@pytest.mark.reference
def test_the_roofline_ranks_and_predicts_the_measured_table_as_the_readme_says(reference_directory: Path) -> None:
    from scipy.stats import spearmanr  # here, so that only the process of this test loads it

    table = read_throughputs(reference_directory / "data" / "gavel" / "simulation_throughputs.json")

    found = np.exp(Roofline(JOBS, GPUS).calibrated(table).log_rate(table.keys, table.gpu_types))

    ran = table.rate_steps_per_s > 0
    error = np.abs(found[ran] / table.rate_steps_per_s[ran] - 1.0)
    assert spearmanr(found[ran], table.rate_steps_per_s[ran]).statistic > 0.89
    assert np.median(error) < 0.40


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('precision = "single"', 'precision = "double"', "ResNet-18.precision must be one of single, half"),
        ("gflop_per_sample = 3.3", "gflop_per_sample = -3.3", "ResNet-18.gflop_per_sample must be a number > 0"),
        ("gflop_per_sample = 3.3", "gflop_per_sample = true", "ResNet-18.gflop_per_sample must be a number > 0"),
        ("gflop_per_sample = 3.3", "flops = 3.3", "ResNet-18 must be a table with exactly the keys"),
        ('sample = "an image of 32 x 32"', "sample = 3", "ResNet-18.sample must be a non-empty string"),
        ('["ResNet-18"]', '["ResNet-18"', "text must be TOML"),
    ],
)
def test_bad_figures_are_refused_by_name(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    file = tmp_path / "job_types.toml"
    file.write_text(TEXT.replace(old, new, 1))

    with pytest.raises(InvalidInput, match=complaint):
        job_types(file)


def test_single_precision_runs_on_tensor_cores_where_they_take_it() -> None:
    assert (GPUS["v100"].single_tflops, GPUS["a100"].single_tflops) == (15.7, 156.0)
