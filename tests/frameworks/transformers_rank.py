"""One rank of a gang that trains with Hugging Face's Trainer on CPUs: `FOLDER NAME STOP_AT`.

Resumes from the newest checkpoint in FOLDER, and writes the items of each of its steps as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from examples.frameworks.transformers_training import Sentences, trainer
from gavelpy.runtime.lease_files import newest_checkpoint
from gavelpy.torch import batch_per_rank
from gavelpy.transformers import LeaseTrainerCallback, resume_from
from tests.runtime.iterator.gang_of_torch import hold

TOTAL = 8  # samples of a step, over all ranks


def main(folder: Path, name: str, stop_at: float) -> None:
    """Trains until the lease or the work is over."""
    rank = os.environ["RANK"]
    found = [path for path in map(newest_checkpoint, sorted(folder.glob("checkpoints-*"))) if path]
    if found:
        os.environ["GAVEL_RESUME_DIR"] = str(max(found, key=lambda path: path.name))
    hold(folder / f"lease-{name}-{rank}", folder / f"checkpoints-{name}", steps_max=stop_at)
    numbers = {tuple(item["input_ids"].tolist()): number for number, item in enumerate(_items())}
    training = trainer(0.0, LeaseTrainerCallback(), per_device_train_batch_size=batch_per_rank(TOTAL))
    steps: list[list[int]] = []
    loss_of = training.compute_loss

    def compute_loss(model: Any, inputs: dict[str, torch.Tensor], *rest: Any, **options: Any) -> Any:
        steps.append([numbers[tuple(row)] for row in inputs["input_ids"].tolist()])
        return loss_of(model, inputs, *rest, **options)

    training.compute_loss = compute_loss
    try:
        training.train(resume_from_checkpoint=resume_from())
    finally:
        (folder / f"{name}-{rank}.json").write_text(json.dumps(steps))


def _items() -> list[dict[str, torch.Tensor]]:
    sentences = Sentences()
    return [sentences[number] for number in range(len(sentences))]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
