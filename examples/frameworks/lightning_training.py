"""Lightning under leases: submit it, and preemptions cost no step.

    gavel submit --steps 60 -- python examples/frameworks/lightning_training.py

On several GPUs, one process for each: `--gpus 2`.
"""

from __future__ import annotations

import sys
import time

import lightning.pytorch as lightning
import torch
from torch import nn
from torch.utils.data import TensorDataset

from gavelpy.lightning import LeaseCallback, job_devices, resume_from
from gavelpy.torch import ResumableLoader

EPOCHS, ITEMS, BATCH = 3, 80, 4


class Regression(lightning.LightningModule):
    """Learns the sum of its inputs, and prints the loss of each step."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.2), nn.Linear(16, 1))
        self.pause_s = pause_s
        self.losses: list[float] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        time.sleep(self.pause_s)
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.network(inputs), targets)
        self.losses.append(loss.item())
        if self.trainer.is_global_zero:
            print(f"step {self.trainer.global_step + 1} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW, whose moments must survive a preemption."""
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def items() -> TensorDataset:
    """The same items on all ranks and in all runs."""
    inputs = torch.randn(ITEMS, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def main(pause_s: float) -> None:
    """Trains to the end, or until the lease ends."""
    lightning.seed_everything(3)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, callbacks=[LeaseCallback()], enable_checkpointing=False, logger=False, **job_devices()
    )
    loader = ResumableLoader(items(), BATCH, seed=5, rank=trainer.global_rank, world=trainer.world_size)
    trainer.fit(Regression(pause_s), loader, ckpt_path=resume_from())
    if trainer.is_global_zero:
        print("complete", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)
