"""Lightning's callback with the real Trainer: interrupted and resumed runs equal uninterrupted ones, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

lightning = pytest.importorskip("lightning.pytorch")

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from examples.frameworks.lightning_training import BATCH, EPOCHS, ITEMS, Regression, items  # noqa: E402
from gavelpy import InvalidInput  # noqa: E402
from gavelpy.lightning import CHECKPOINT, LeaseCallback, job_devices, resume_from  # noqa: E402
from gavelpy.torch import ResumableLoader  # noqa: E402
from tests.frameworks.jobs import run_gang  # noqa: E402
from tests.runtime.iterator.conftest import Held  # noqa: E402

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of Lightning and of other loaders
BATCHES = EPOCHS * ITEMS // BATCH
RANK = "tests.frameworks.lightning_rank"


class Watched(Regression):
    """Records when it validates, and changes its learning rate with epochs."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.validated: list[int] = []

    def validation_step(self, batch: object, _: int) -> None:
        """Called for the first batch only."""
        self.validated.append(self.trainer.global_step)

    def configure_optimizers(self) -> Any:
        """A schedule is state, too."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def fit(callback: LeaseCallback | None, loader: Any = None, path: Path | None = None, **options: Any) -> Watched:
    """Trains; the end of a lease ends it as in a job."""
    lightning.seed_everything(3)
    model = Watched()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, callbacks=[callback] if callback else [], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", limit_val_batches=1, **options,
    )  # fmt: skip
    trainer.fit(model, loader or ResumableLoader(items(), BATCH, seed=5), DataLoader(items(), BATCH), ckpt_path=path)
    return model


def fit_in_lease(**options: Any) -> tuple[Watched | None, LeaseCallback]:
    """The model; None if the lease ended the process."""
    callback = LeaseCallback()
    try:
        return fit(callback, path=resume_from(), **options), callback
    except SystemExit as end:
        return (None, callback) if end.code == 0 else pytest.fail(f"exit code {end.code}")


@pytest.mark.parametrize("stop_at", [1, 7, ITEMS // BATCH, ITEMS // BATCH + 1, BATCHES - 1])
def test_interrupted_run_equals_an_uninterrupted_one(held: Held, stop_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Watched] = []
    monkeypatch.setattr(Watched, "on_fit_start", lambda self: runs.append(self))
    whole = fit(None)

    held.order(steps_max=float(stop_at))
    first, stopped = fit_in_lease()
    reported = held.progress()
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))
    held.order(steps_max=0.0)
    second, _ = fit_in_lease()

    assert first is None
    assert (reported.stopped, reported.steps_done, reported.steps_saved) == (True, stop_at, stop_at)
    assert reported.steps_total == BATCHES
    assert stopped.steps_saved == stop_at
    assert second is not None
    assert held.progress().finished
    assert runs[1].losses + runs[2].losses == whole.losses
    assert len(whole.losses) == BATCHES
    assert [*runs[1].validated, *runs[2].validated] == whole.validated


@pytest.mark.parametrize("stop_at", [1, 5, 7, 13])
def test_accumulated_batches_are_one_step(held: Held, stop_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Watched] = []
    monkeypatch.setattr(Watched, "on_fit_start", lambda self: runs.append(self))
    whole = fit(None, accumulate_grad_batches=3)

    held.order(steps_max=float(stop_at))
    fit_in_lease(accumulate_grad_batches=3)
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / f"step-{stop_at:012d}"))
    held.order(steps_max=0.0)
    fit_in_lease(accumulate_grad_batches=3)

    assert runs[1].losses + runs[2].losses == whole.losses
    assert held.progress().steps_done == EPOCHS * 7  # 20 batches are 6 steps of 3 and one of 2


def test_periodic_checkpoints_do_not_change_the_run(held: Held) -> None:
    whole = fit(None)

    saving = fit(LeaseCallback(checkpoint_every_s=1e-6))

    assert saving.losses == whole.losses
    assert len([path for path in held.checkpoints.glob("step-*") if (path / CHECKPOINT).exists()]) > 1


def test_total_of_the_submission_ends_the_training(held: Held) -> None:
    held.environment(GAVEL_STEPS_TOTAL="8")

    model, callback = fit_in_lease()

    assert model is not None
    assert (len(model.losses), callback.steps_saved, held.progress().finished) == (8, 8, True)


def test_outside_a_lease_it_saves_into_the_given_directory(outside: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fit(LeaseCallback(checkpoint_directory=tmp_path))

    assert resume_from(tmp_path) == tmp_path / f"step-{BATCHES:012d}" / CHECKPOINT
    assert job_devices() == {"devices": 1, "num_nodes": 1}


def test_loader_that_cannot_resume_is_refused(held: Held) -> None:
    loader = DataLoader(items(), BATCH)

    with pytest.raises(InvalidInput, match=r"train_dataloaders must have state_dict.* got DataLoader"):
        fit(LeaseCallback(), loader)
    assert len(fit(LeaseCallback(repeats_batches=True), loader).losses) == BATCHES


def test_trainer_that_does_not_resume_is_refused(held: Held) -> None:
    held.order(steps_max=4.0)
    fit_in_lease()
    held.environment(GAVEL_RESUME_DIR=str(held.checkpoints / "step-000000000004"))

    with pytest.raises(InvalidInput, match=r"trainer.global_step must be 4, .* pass ckpt_path"):
        fit(LeaseCallback())


def test_callback_serves_one_fit(held: Held) -> None:
    callback = LeaseCallback()
    fit(callback)

    with pytest.raises(InvalidInput, match=r"a new LeaseCallback for each Trainer.fit"):
        fit(callback)


def test_loader_of_other_ranks_is_refused(held: Held) -> None:
    with pytest.raises(InvalidInput, match="must be 0 and 1, those of the trainer, got 0 and 2"):
        fit(LeaseCallback(), ResumableLoader(items(), BATCH, world=2))


def test_ranks_of_a_gang_stop_at_one_step_and_resume(tmp_path: Path) -> None:
    runs = [run_gang(RANK, tmp_path, name, stop_at) for name, stop_at in (("whole", 0), ("first", 11), ("second", 0))]

    whole, first, second = runs
    assert [a + b for a, b in zip(first, second, strict=True)] == whole
    assert [len(losses) for losses in first] == [11, 11]
    assert whole[0] != whole[1]


@pytest.mark.parametrize("ranks", [1, 4])
def test_gang_of_two_resumes_on_another_number_of_ranks(tmp_path: Path, ranks: int) -> None:
    first = run_gang(RANK, tmp_path, "first", 11)
    second = run_gang(RANK, tmp_path, "second", 0, ranks)

    assert [len(losses) for losses in first] == [11] * 2
    assert [len(losses) for losses in second] == [EPOCHS * ITEMS // (2 * BATCH) - 11] * ranks
