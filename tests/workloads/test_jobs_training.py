"""The training jobs learn, and a run that was stopped and resumed ends as an uninterrupted one."""

from __future__ import annotations

import importlib
import shlex
from pathlib import Path

import pytest

from gavelpy.cli.job_files import read_job_file
from tests.workloads.conftest import CLASSES, Train
from tests.workloads.leases import JOBS, lines, play_lease, run_script

# Sizes with fast steps and eight steps per epoch, so that runs stop within their second epoch.
TINY = {
    "image_classification": ("--images=32", "--batch-size=4", "--width=4", "--image-size=8"),
    "language_model": ("--texts=32", "--batch-size=4", "--width=8", "--length=6", "--layers=2"),
    "translation": ("--sentences=32", "--batch-size=4", "--width=8", "--length=5"),
    "recommender": ("--people=32", "--batch-size=4", "--width=4", "--things=32", "--choices=6"),
    "gan": ("--images=32", "--batch-size=4", "--width=4", "--image-size=8", "--latent=4"),
    "actor_critic": ("--batch-size=4", "--width=8", "--unroll=6"),
}
STEPS, FIRST_STOP, SECOND_STOP = 24, 11, 17

every_job = pytest.mark.parametrize("job", CLASSES)


@every_job
def test_stopped_and_resumed_run_ends_as_an_uninterrupted_one(job: str, train: Train, tmp_path: Path) -> None:
    arguments = (job, *TINY[job], f"--steps={STEPS}", "--seed=3")
    leases = [play_lease(tmp_path, 1, steps_max=FIRST_STOP), play_lease(tmp_path, 2, steps_max=SECOND_STOP)]

    whole = train(*arguments)
    first = train(*arguments, environment=leases[0].environment())
    second = train(*arguments, environment=leases[1].environment())
    last = train(*arguments, environment=play_lease(tmp_path, 3).environment())

    assert [line["steps"] for line in (first, second, last, whole)] == [FIRST_STOP, SECOND_STOP, STEPS, STEPS]
    assert [line["finished"] for line in (first, second, last, whole)] == [False, False, True, True]
    assert last["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert {**last, "rate_steps_per_s": 0} == {**whole, "rate_steps_per_s": 0}


@every_job
def test_same_seed_trains_the_same_and_another_does_not(job: str, train: Train) -> None:
    arguments = (job, *TINY[job], "--steps=6")

    losses = [train(*arguments, f"--seed={seed}")["loss"] for seed in (1, 1, 2)]

    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


# How far a figure must have decreased, as a fraction of its value after one step; far beyond chance.
@pytest.mark.parametrize(
    ("job", "figure", "steps", "share"),
    [
        ("image_classification", "loss", 60, 0.5),
        ("language_model", "loss", 150, 0.5),
        pytest.param("translation", "loss", 120, 0.9, marks=pytest.mark.slow),
        ("recommender", "loss", 150, 0.85),
        pytest.param("gan", "distance", 250, 0.4, marks=pytest.mark.slow),
    ],
)
def test_job_learns(job: str, figure: str, steps: int, share: float, train: Train) -> None:
    before = train(job, "--steps=1")[figure]
    after = train(job, f"--steps={steps}")[figure]

    assert after < share * before


def test_actor_critic_learns_to_keep_the_pole_up(train: Train) -> None:
    before = train("actor_critic", "--steps=10")["episode_steps"]
    after = train("actor_critic", "--steps=200")["episode_steps"]

    assert after > 3 * before


def test_finished_job_that_is_started_again_says_the_same(train: Train, tmp_path: Path) -> None:
    arguments = ("recommender", *TINY["recommender"], "--steps=5")

    first = train(*arguments, environment=play_lease(tmp_path, 1).environment())
    again = train(*arguments, environment=play_lease(tmp_path, 2).environment())

    assert again["loss"] == first["loss"]
    assert again["steps"] == 5


def test_job_keeps_and_finds_checkpoints_outside_a_lease(train: Train, tmp_path: Path) -> None:
    arguments = ("recommender", *TINY["recommender"], f"--checkpoints={tmp_path}")

    train(*arguments, "--steps=5")
    resumed = train(*arguments, "--steps=9")

    assert resumed["loss"] == train("recommender", *TINY["recommender"], "--steps=9")["loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000000000005", "step-000000000009"]


@every_job
def test_no_part_of_a_job_has_random_numbers_that_checkpoints_miss(job: str, train: Train) -> None:
    """On a GPU the dropout of nn.LSTM and its kin is cuDNN's, with a state of its own."""
    import torch

    from gavelpy.torch import Ranks

    train(job, *TINY[job], "--steps=1")  # puts the jobs on the path
    trained = getattr(importlib.import_module(job), CLASSES[job])
    sizes = trained.small | {name: 2 for name in trained.small if name == "layers"}
    choices = importlib.import_module("choices").Choices(1, 0, "cpu", 1, False, sizes, "")

    networks = trained(choices, Ranks(0, 0, 1, torch.device("cpu"))).networks.values()

    recurrent = [part for network in networks for part in network.modules() if isinstance(part, torch.nn.RNNBase)]
    assert [part.dropout for part in recurrent] == [0.0] * (2 if job == "language_model" else 0)


def test_deterministic_job_makes_torch_refuse_what_is_not(train: Train) -> None:
    import torch

    line = train("gan", *TINY["gan"], "--steps=2", "--deterministic")

    assert torch.are_deterministic_algorithms_enabled()
    assert line["loss"] == train("gan", *TINY["gan"], "--steps=2")["loss"]


def test_job_runs_as_a_script_from_any_directory(tmp_path: Path) -> None:
    done = run_script("recommender.py", "--steps=3", "--people=64", environment={"GAVEL_STEPS_TOTAL": "9"})

    line = lines(done)[-1]
    assert (line["job_type"], line["steps"], line["finished"]) == ("Autoencoder small", 3, True)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["small", "full"])
def test_job_files_describe_the_six_jobs(name: str, train: Train) -> None:
    told = read_job_file(JOBS / f"{name}.toml")

    scripts = [shlex.split(job.command)[1].removesuffix(".py") for job in told]
    types = [getattr(importlib.import_module(script), CLASSES[script]).job_type for script in scripts]
    assert sorted(scripts) == sorted(CLASSES)
    assert [job.job_type.removesuffix(" small") for job in told] == types
    assert {job.job_type.endswith(" small") for job in told} == {name == "small"}
    assert {"--full" in job.command for job in told} == {name == "full"}
    assert {job.working_directory for job in told} == {str(JOBS)}


@pytest.mark.slow
@every_job
def test_script_of_full_size_runs(job: str) -> None:
    arguments = (f"{job}.py", "--full", "--steps=1", "--batch-size=4", "--threads=2", "--device=cpu")

    line = lines(run_script(*arguments, environment={}))[-1]

    assert line["steps"] == 1
    assert not line["job_type"].endswith("small")


def test_script_refuses_sizes_that_are_none(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        train("gan", "--width=0")

    assert leaving.value.code == 2
    assert "must be in [1, 1000000000], got 0" in capsys.readouterr().err
