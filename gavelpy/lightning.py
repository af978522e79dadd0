"""Lightning: a callback that saves, stops and resumes a Trainer with the leases of its job, without losing a step.

    trainer = Trainer(max_epochs=10, callbacks=[LeaseCallback()], **job_devices())
    trainer.fit(model, ResumableLoader(dataset, 64, seed=1), ckpt_path=resume_from())

`trainer.fit` returns only when the training is complete. At the end of a lease, the callback saves the trainer's own
checkpoint, with the position of the loader and the random states, and the process exits with code 0. A step is an
optimizer step (`trainer.global_step`): the callback stops between two of them, not between accumulated batches.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from gavelpy.errors import InvalidInput
from gavelpy.runtime.iterator.checkpoints import batch_of
from gavelpy.runtime.iterator.lease_loop import LeaseLoop
from gavelpy.runtime.iterator.lease_watch import read_context
from gavelpy.torch import ResumableSampler, load_random_state, save_random_state

CHECKPOINT: Final = "lightning.ckpt"


def resume_from(checkpoint_directory: Path | str | None = None) -> Path | None:
    """The Lightning checkpoint to pass as `ckpt_path`; None = start from scratch.

    `checkpoint_directory`: that of LeaseCallback; it counts outside a lease only.
    """
    context = read_context(os.environ)
    given = Path(checkpoint_directory) if checkpoint_directory else None
    found = context.checkpoint_to_resume(context.checkpoint_directory or given)
    return found / CHECKPOINT if found else None


def job_devices() -> dict[str, int]:
    """The options `devices` and `num_nodes` of Trainer for the GPUs of this lease."""
    names = {"devices": "LOCAL_WORLD_SIZE", "num_nodes": "GROUP_WORLD_SIZE"}
    return {option: int(os.environ.get(variable, "1")) for option, variable in names.items()}


class LeaseCallback(Callback):  # type: ignore[misc]  # Lightning is not installed where types are checked
    """Saves and stops `Trainer.fit` with the leases of the job; see the module.

    The loader must have `state_dict` and `load_state_dict`, as ResumableLoader and torchdata's StatefulDataLoader
    have, because Lightning starts other loaders from the beginning of the epoch again; `repeats_batches` accepts that.
    `checkpoint_directory` is for runs outside a lease. `checkpoint_every_s` defaults to that of the job.
    """

    def __init__(
        self,
        *,
        checkpoint_every_s: float | None = None,
        checkpoint_directory: Path | str | None = None,
        repeats_batches: bool = False,
    ) -> None:
        self._every_s = checkpoint_every_s
        self._directory = checkpoint_directory
        self._repeats_batches = repeats_batches
        self._trainer: Trainer | None = None
        self._loop: LeaseLoop | None = None

    @property
    def steps_saved(self) -> int:
        """Optimizer steps in the newest complete checkpoint that this rank has written or resumed from."""
        return self._loop.steps_saved if self._loop else 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Makes this the last callback, so that its checkpoints contain what the others do at the same step."""
        trainer.callbacks = [*(other for other in trainer.callbacks if other is not self), self]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins to count steps; raises InvalidInput if the trainer cannot continue where the checkpoint ends."""
        if self._loop is not None:
            raise InvalidInput("callbacks must have a new LeaseCallback for each Trainer.fit, got one that was used")
        self._check_loaders(trainer)
        self._trainer = trainer
        context = read_context(os.environ)
        can_save = trainer.world_size == 1 or context.lease_directory is not None
        self._loop = loop = LeaseLoop(
            self._save if can_save else None,
            load=load_random_state,  # Lightning restores the rest
            steps_total=_steps_total(trainer, context.steps_total),
            save_on="all" if can_save else "first",
            checkpoint_directory=self._directory if can_save else None,
            checkpoint_every_s=self._every_s,
            batch=_batch_of(trainer),
        )
        if loop.steps_done != trainer.global_step:
            loop.close()
            raise InvalidInput(
                f"trainer.global_step must be {loop.steps_done}, that of the checkpoint to resume from, got "
                f"{trainer.global_step}: pass ckpt_path=gavelpy.lightning.resume_from() to Trainer.fit"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: object, batch: object, batch_idx: int
    ) -> None:
        """Counts optimizer steps; saves if it is time or if the lease ends."""
        loop = self._loop
        assert loop is not None, "Lightning calls on_train_start first"
        if trainer.received_sigterm:
            loop.terminate()
        count = trainer.global_step - loop.steps_done
        if count > 0 and not loop.should_stop():
            loop.step_done(count)
        trainer.should_stop = trainer.should_stop or loop.finished

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Ends the process with code 0 if the lease has ended, after a validation that followed the last step."""
        if self._loop is not None and self._loop.should_stop() and not self._loop.finished:
            raise SystemExit(0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reports that the training is complete."""
        if self._loop is not None:
            self._loop.finish(saves=False)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Ends the background thread."""
        if self._loop is not None:
            self._loop.close()

    def _save(self, directory: Path) -> None:
        assert self._trainer is not None, "set before the loop"
        self._trainer.save_checkpoint(directory / CHECKPOINT)
        save_random_state(directory)

    def _check_loaders(self, trainer: Trainer) -> None:
        for loader in CombinedLoader(trainer.train_dataloader, "max_size").flattened:
            if not self._repeats_batches and not _is_stateful(loader):
                raise InvalidInput(
                    "train_dataloaders must have state_dict() and load_state_dict() to resume within an epoch, such as "
                    f"gavelpy.torch.ResumableLoader, got {type(loader).__name__}; "
                    "LeaseCallback(repeats_batches=True) starts the epoch's batches again instead"
                )
            sampler = getattr(loader, "sampler", None)
            ranks = (trainer.global_rank, trainer.world_size)
            if isinstance(sampler, ResumableSampler) and (sampler.rank, sampler.num_replicas) != ranks:
                raise InvalidInput(
                    f"rank and world of ResumableLoader must be {ranks[0]} and {ranks[1]}, those of the trainer, "
                    f"got {sampler.rank} and {sampler.num_replicas}"
                )


def _steps_total(trainer: Trainer, submitted: int) -> int | None:
    """The submitted steps or those of the trainer, whichever are less; None = unknown."""
    own = trainer.estimated_stepping_batches if trainer.lightning_module.automatic_optimization else trainer.max_steps
    known = [int(steps) for steps in (submitted, own) if 0 < steps < math.inf]
    return min(known, default=None)


def _batch_of(trainer: Trainer) -> int:
    """Samples of an optimizer step over all ranks; 0 = a loader does not count them."""
    batches = [batch_of(loader) for loader in CombinedLoader(trainer.train_dataloader, "max_size").flattened]
    return sum(batches) * trainer.accumulate_grad_batches if all(batches) else 0


def _is_stateful(loader: object) -> bool:
    return callable(getattr(loader, "state_dict", None)) and callable(getattr(loader, "load_state_dict", None))
