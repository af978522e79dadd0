"""One rank of a gang that trains with Lightning's DDP on CPUs: `FOLDER NAME STOP_AT`; writes its losses as JSON."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import lightning.pytorch as lightning

from examples.frameworks.lightning_training import BATCH, EPOCHS, Regression, items
from gavelpy.lightning import LeaseCallback, job_devices, resume_from
from gavelpy.runtime.lease_files import newest_checkpoint
from gavelpy.torch import ResumableLoader, batch_per_rank
from tests.runtime.iterator.gang_of_torch import hold


def main(folder: Path, name: str, stop_at: float) -> None:
    """Trains until the lease or the work is over."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    resume = newest_checkpoint(folder / "checkpoints-first")
    if name == "second" and resume is not None:
        os.environ["GAVEL_RESUME_DIR"] = str(resume)
    hold(folder / f"lease-{name}-{rank}", folder / f"checkpoints-{name}", steps_max=stop_at)
    lightning.seed_everything(3)
    model = Regression(0.0)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, callbacks=[LeaseCallback()], logger=False, enable_checkpointing=False, accelerator="cpu",
        strategy="ddp", enable_progress_bar=False, **job_devices(),
    )  # fmt: skip
    try:
        loader = ResumableLoader(items(), batch_per_rank(2 * BATCH), seed=5, rank=rank, world=world)
        trainer.fit(model, loader, ckpt_path=resume_from())
    finally:
        (folder / f"{name}-{rank}.json").write_text(json.dumps(model.losses))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
