"""Hugging Face's Trainer under leases: submit it, and preemptions cost no step.

    gavel submit --steps 60 -- python examples/frameworks/transformers_training.py

The model is tiny and made here, so nothing is downloaded.
"""

from __future__ import annotations

import sys
import tempfile
import time
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from gavelpy.transformers import LeaseTrainerCallback, resume_from

EPOCHS, ITEMS, BATCH = 3, 80, 4


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Random token ids."""

    def __init__(self) -> None:
        self._tokens = torch.randint(0, 50, (ITEMS, 8), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._tokens[index], "labels": self._tokens[index]}


class PrintLoss(TrainerCallback):
    """Prints the loss of each step, and pauses."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Trainer's logging; other entries are metrics of the whole run."""
        if "loss" in logs:
            self.losses.append(logs["loss"])
            if state.is_world_process_zero:
                print(f"step {state.global_step} loss {logs['loss']:.9f}", flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Makes the example last."""
        time.sleep(self.pause_s)


def trainer(pause_s: float, gavel: LeaseTrainerCallback, **options: Any) -> Trainer:
    """A trainer of a tiny language model."""
    set_seed(4)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), num_train_epochs=EPOCHS, logging_steps=1,
        report_to=[], disable_tqdm=True, use_cpu=not torch.cuda.is_available(),
        **{"save_strategy": "no", "per_device_train_batch_size": BATCH} | options,
    )  # fmt: skip
    return Trainer(
        model, arguments, train_dataset=Sentences(), eval_dataset=Sentences(), callbacks=[PrintLoss(pause_s), gavel]
    )


def main(pause_s: float) -> None:
    """Trains to the end, or until the lease ends."""
    training = trainer(pause_s, LeaseTrainerCallback())
    training.train(resume_from_checkpoint=resume_from())
    if training.is_world_process_zero():
        print("complete", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
