"""The callback for Hugging Face's Trainer, with the real Trainer: an interrupted run equals an uninterrupted one."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from examples.frameworks.transformers_training import BATCH, EPOCHS, ITEMS, trainer
from gavelpy import InvalidInput
from gavelpy.transformers import LeaseTrainerCallback, resume_from
from tests.frameworks.jobs import run_gang
from tests.runtime.iterator.conftest import Held

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of transformers
BATCHES = EPOCHS * ITEMS // BATCH


def train(callback: LeaseTrainerCallback, path: str | None = None, **options: Any) -> tuple[list[float], bool, Any]:
    """The losses, whether the training is complete, and the trainer."""
    training = trainer(0.0, callback, **options)
    recorder = next(each for each in training.callback_handler.callbacks if hasattr(each, "losses"))
    try:
        training.train(resume_from_checkpoint=path)
    except SystemExit as end:
        return (recorder.losses, False, training) if end.code == 0 else pytest.fail(f"exit code {end.code}")
    return recorder.losses, True, training


def whole_run(held: Held, **options: Any) -> list[float]:
    """A run outside a lease."""
    held.monkeypatch.delenv("GAVEL_LEASE_DIR")
    held.monkeypatch.delenv("GAVEL_CHECKPOINT_DIR")
    losses, _, _ = train(LeaseTrainerCallback(), **options)
    held.environment(GAVEL_LEASE_DIR=str(held.directory), GAVEL_CHECKPOINT_DIR=str(held.checkpoints))
    return losses


@pytest.mark.parametrize("stop_at", [1, 7, ITEMS // BATCH, ITEMS // BATCH + 1, BATCHES - 1])
def test_interrupted_run_equals_an_uninterrupted_one(held: Held, stop_at: int) -> None:
    whole = whole_run(held)

    held.order(steps_max=float(stop_at))
    first, first_complete, _ = train(LeaseTrainerCallback())
    reported = held.progress()
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))
    held.order(steps_max=0.0)
    second, second_complete, training = train(LeaseTrainerCallback(), resume_from())

    assert (len(first), first_complete, second_complete) == (stop_at, False, True)
    assert (reported.stopped, reported.steps_done, reported.steps_saved) == (True, stop_at, stop_at)
    assert first + second == whole
    assert len(whole) == BATCHES
    assert held.progress().finished
    logged = [entry["step"] for entry in training.state.log_history if "loss" in entry]
    assert logged == list(range(1, BATCHES + 1))


@pytest.mark.parametrize("stop_at", [4, 7, 15])
def test_accumulated_batches_are_one_step(held: Held, stop_at: int) -> None:
    whole = whole_run(held, gradient_accumulation_steps=3)

    held.order(steps_max=float(stop_at))
    first, _, _ = train(LeaseTrainerCallback(), gradient_accumulation_steps=3)
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))
    held.order(steps_max=0.0)
    second, _, _ = train(LeaseTrainerCallback(), resume_from(), gradient_accumulation_steps=3)

    assert (len(first), first + second) == (stop_at, whole)


def test_evaluation_after_the_last_step_of_an_epoch_is_not_lost(held: Held) -> None:
    stop_at = ITEMS // BATCH
    held.order(steps_max=float(stop_at))

    _, complete, training = train(LeaseTrainerCallback(), eval_strategy="epoch")

    evaluated = [entry["step"] for entry in training.state.log_history if "eval_loss" in entry]
    assert (complete, evaluated) == (False, [stop_at])


def test_checkpoints_of_the_user_are_written_as_usual(held: Held) -> None:
    held.order(steps_max=10.0)

    _, _, training = train(LeaseTrainerCallback(), save_strategy="steps", save_steps=5)

    assert names_in(training.args.output_dir) == ["checkpoint-10", "checkpoint-5"]
    assert [path.name for path in held.checkpoints.glob("step-*")] == ["step-000000000010"]


def test_checkpoint_that_the_trainer_decides_against_is_written_at_the_next_step(held: Held) -> None:
    held.order(steps_max=10.0)
    best: dict[str, Any] = {"save_strategy": "best", "metric_for_best_model": "eval_loss", "greater_is_better": True}

    losses, complete, training = train(LeaseTrainerCallback(), eval_strategy="steps", eval_steps=5, **best)

    assert (len(losses), complete) == (11, False)
    assert [path.name for path in held.checkpoints.iterdir() if path.name.startswith("step-")] == ["step-000000000011"]
    assert names_in(training.args.output_dir) == ["checkpoint-5"]


def names_in(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


def test_periodic_checkpoints_do_not_change_the_run(held: Held) -> None:
    whole = whole_run(held)

    losses, _, _ = train(LeaseTrainerCallback(checkpoint_every_s=1e-6))

    assert losses == whole
    assert len([*held.checkpoints.glob("step-*/checkpoint-*/trainer_state.json")]) > 1
    assert [*held.checkpoints.glob(".writing*")] == []


def test_total_of_the_submission_ends_the_training(held: Held) -> None:
    held.environment(GAVEL_STEPS_TOTAL="8")

    losses, complete, _ = train(LeaseTrainerCallback())

    assert (len(losses), complete, held.progress().finished, held.progress().steps_saved) == (8, True, True, 8)


def test_trainer_that_does_not_resume_is_refused(held: Held) -> None:
    held.order(steps_max=4.0)
    train(LeaseTrainerCallback())
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / "step-000000000004"))

    with pytest.raises(InvalidInput, match=r"global_step must be 4, .* pass resume_from_checkpoint"):
        train(LeaseTrainerCallback())


@pytest.mark.parametrize("option", ["save_only_model", "ignore_data_skip"])
def test_options_that_lose_state_are_refused(held: Held, option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} must be False"):
        train(LeaseTrainerCallback(), **{option: True})


def test_callback_serves_one_training(held: Held) -> None:
    callback = LeaseTrainerCallback()
    train(callback)

    with pytest.raises(InvalidInput, match=r"a new LeaseTrainerCallback for each Trainer.train"):
        train(callback)


def test_damaged_checkpoint_is_refused(held: Held) -> None:
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints))

    with pytest.raises(InvalidInput, match="must contain one checkpoint of Trainer, got 0"):
        resume_from()


def test_steps_have_the_same_items_on_any_numbers_of_ranks(tmp_path: Path) -> None:
    whole, resized = tmp_path / "whole", tmp_path / "resized"
    whole.mkdir()
    resized.mkdir()
    rank = "tests.frameworks.transformers_rank"

    parts = [run_gang(rank, resized, name, stop_at, ranks) for name, stop_at, ranks in (("a", 13, 2), ("b", 0, 4))]

    [alone] = run_gang(rank, whole, "whole", 0, 1)
    steps = [sorted(chain.from_iterable(step)) for part in parts for step in zip(*part, strict=True)]
    assert steps == [sorted(step) for step in alone]
    assert len(steps) == EPOCHS * ITEMS // 8
