"""Hugging Face Trainer: a callback that saves, stops and resumes with the leases of its job, without losing a step.

    trainer = Trainer(model, arguments, train_dataset=dataset, callbacks=[LeaseTrainerCallback()])
    trainer.train(resume_from_checkpoint=resume_from())

`trainer.train` returns only when the training is complete. At the end of a lease, the trainer writes one of its own
checkpoints into the lease's checkpoint directory, and the process exits with code 0. A step is an optimizer step
(`state.global_step`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gavelpy.errors import InvalidInput
from gavelpy.runtime.iterator.lease_loop import LeaseLoop
from gavelpy.runtime.iterator.lease_watch import read_context

_FOLDER: Final = "checkpoint-*"  # as Trainer names its checkpoints


def resume_from(checkpoint_directory: Path | str | None = None) -> str | None:
    """The Trainer's checkpoint to pass as `resume_from_checkpoint`; None = start from scratch.

    `checkpoint_directory`: that of LeaseTrainerCallback; it counts outside a lease only.
    """
    context = read_context(os.environ)
    given = Path(checkpoint_directory) if checkpoint_directory else None
    found = context.checkpoint_to_resume(context.checkpoint_directory or given)
    if found is None:
        return None
    folders = sorted(found.glob(_FOLDER))
    if len(folders) != 1:
        raise InvalidInput(f"{found} must contain one checkpoint of Trainer, got {len(folders)}")
    return str(folders[0])


class LeaseTrainerCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not installed where types are checked
    """Saves and stops `Trainer.train` with the leases of the job; see the module.

    Checkpoints of the lease are additional to those of `save_strategy`, which go to `output_dir` as usual.
    `checkpoint_directory` is for runs outside a lease. `checkpoint_every_s` defaults to that of the job.
    """

    def __init__(
        self, *, checkpoint_every_s: float | None = None, checkpoint_directory: Path | str | None = None
    ) -> None:
        self._every_s = checkpoint_every_s
        self._directory = checkpoint_directory
        self._loop: LeaseLoop | None = None
        self._output_dir: str | None = None  # of the trainer, while it writes a checkpoint of the lease
        self._copies = False

    @property
    def steps_saved(self) -> int:
        """Optimizer steps in the newest complete checkpoint that this rank has written or resumed from."""
        return self._loop.steps_saved if self._loop else 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Begins to count steps; raises InvalidInput if the trainer has not resumed where the checkpoint ends."""
        if self._loop is not None:
            raise InvalidInput(
                "callbacks must have a new LeaseTrainerCallback for each Trainer.train, got one that was used"
            )
        if args.save_only_model:
            raise InvalidInput("save_only_model must be False, or a resumed run would start its optimizer again")
        if args.ignore_data_skip:
            raise InvalidInput("ignore_data_skip must be False, or a resumed run would repeat batches")
        context = read_context(os.environ)
        can_save = args.world_size == 1 or context.lease_directory is not None
        self._loop = loop = LeaseLoop(
            _written_by_trainer if can_save else None,
            steps_total=min(context.steps_total or state.max_steps, state.max_steps),
            save_on="all" if can_save else "first",
            checkpoint_directory=self._directory if can_save else None,
            checkpoint_every_s=self._every_s,
            is_deferred=True,
            batch=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        )
        if loop.steps_done != state.global_step:
            loop.close()
            raise InvalidInput(
                f"global_step must be {loop.steps_done}, that of the checkpoint to resume from, got "
                f"{state.global_step}: pass resume_from_checkpoint=gavelpy.transformers.resume_from() to Trainer.train"
            )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Ends the process with code 0 if the lease has ended, after an evaluation that followed the last step.

        Postpones a checkpoint that the trainer has not written (save_strategy="best" decides last).
        """
        if self._loop is not None and self._loop.should_stop() and not self._loop.finished:
            raise SystemExit(0)
        if self._output_dir is not None and self._loop is not None:
            args.output_dir, self._output_dir = self._output_dir, None
            self._loop.postpone()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Counts the step, and makes the trainer save into the lease's directory if it is time."""
        loop = self._loop
        assert loop is not None, "Trainer calls on_train_begin first"
        count = state.global_step - loop.steps_done
        if count <= 0 or loop.should_stop():
            return
        loop.step_done(count)
        if not loop.is_due:
            return
        if not loop.has_unsaved_steps:
            self._carry_out(loop, control)
            return
        self._copies, control.should_save = control.should_save, True
        self._output_dir, args.output_dir = args.output_dir, str(loop.writing_directory())

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Completes a checkpoint of the lease."""
        loop = self._loop
        if self._output_dir is None or loop is None:
            return
        written, args.output_dir = Path(args.output_dir), self._output_dir
        self._output_dir = None
        if self._copies and state.is_world_process_zero:  # save_strategy saves at this step, too
            for folder in written.glob(_FOLDER):
                shutil.copytree(folder, Path(args.output_dir) / folder.name, dirs_exist_ok=True)
        self._carry_out(loop, control)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object) -> None:
        """Reports that the training is complete."""
        if self._loop is not None and not self._loop.should_stop():
            self._loop.finish(saves=False)
            self._loop.carry_out()

    def _carry_out(self, loop: LeaseLoop, control: TrainerControl) -> None:
        loop.carry_out()
        control.should_training_stop = control.should_training_stop or loop.finished


def _written_by_trainer(directory: Path) -> None:
    """Trainer has written its files into this directory."""
    assert any(directory.glob(_FOLDER)), f"Trainer has written no checkpoint into {directory}"
