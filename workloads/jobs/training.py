"""Common parts of the training jobs: state saved in checkpoints, ranks, the loop, the last line.

A job is a subclass of `Training` with its data, its networks and one step. `main` runs it: under a lease of gavel (see
docs/training-scripts.md), or alone. With WORLD_SIZE etc. in the environment (gavel and torchrun set them) the ranks
train together.

A run that was stopped and resumed ends as an uninterrupted one: a checkpoint contains networks, optimizers, schedules,
random numbers and other state of a job, and the step determines the next batch. On the CPU this is exact to the last
digit.
"""

from __future__ import annotations

import json
import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from choices import Choices, Sizes, chosen
from shuffled import Shuffled
from torch import Tensor, distributed, nn

from gavelpy import LeaseIterator
from gavelpy.errors import InvalidInput
from gavelpy.torch import Ranks, process_group, random_state, set_random_state

Batch = tuple[Tensor, ...]


class Stateful(Protocol):
    """An object that a checkpoint can contain."""

    def state_dict(self) -> dict[str, Any]: ...  # Any: state in the object's own format

    def load_state_dict(self, state: Any, /) -> object: ...


Kept = TypeVar("Kept", bound=Stateful)


class Training(ABC):
    """A training job: its networks, its batches, and one step."""

    job_type: ClassVar[str]
    small: ClassVar[Sizes]  # milliseconds per step on one core
    full: ClassVar[Sizes]  # large enough for a GPU
    batches: Iterable[Batch]

    def __init__(self, choices: Choices, ranks: Ranks) -> None:
        self.choices, self.sizes = choices, choices.sizes
        self.ranks, self.device = ranks, ranks.device
        self.networks: dict[str, nn.Module] = {}
        self.shared: dict[str, Stateful] = {}  # equal on all ranks
        self.own: dict[str, Stateful] = {}  # specific to this rank
        self.loss = torch.tensor(math.nan)  # of the last step
        torch.manual_seed(choices.seed)  # the same networks on all ranks
        self.build()
        torch.manual_seed(choices.seed * ranks.world + ranks.rank)  # but different noise

    @abstractmethod
    def build(self) -> None:
        """Creates networks, optimizers and `batches`."""

    @abstractmethod
    def step(self, batch: Batch) -> Tensor:
        """Trains on one batch on `device`; returns its loss, detached."""

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Quality figures of the job by name; called without gradients, with networks in evaluation mode."""

    def network(self, name: str, network: nn.Module) -> nn.Module:
        """Adds `network` to the checkpoints and moves it to the device; with several ranks, it averages gradients."""
        self.networks[name] = self.kept(name, network)
        return self.ranks.wrap(network)

    def kept(self, name: str, part: Kept) -> Kept:
        """Adds `part` to all checkpoints: networks, optimizers and schedules."""
        self.shared[name] = part
        return part

    def kept_by_rank(self, name: str, part: Kept) -> Kept:
        """Adds `part` to the checkpoints of this rank: every rank saves its own."""
        self.own[name] = part
        return part

    def shuffled(self, *data: Tensor) -> Shuffled:
        """Batches of these rows, `batch_size` for each rank."""
        return Shuffled(data, self.sizes["batch_size"], self.choices.seed, self.ranks.rank, self.ranks.world)

    def train(self, batch: Batch) -> None:
        self.loss = self.step(tuple(part.to(self.device, non_blocking=True) for part in batch))

    def save(self, directory: Path) -> None:
        """Writes a file per rank, and the shared state from the first rank."""
        if self.ranks.rank == 0:
            torch.save(_states(self.shared), directory / "shared.pt")
        own = {"parts": _states(self.own), "loss": self.loss, "random": random_state()}
        torch.save(own, directory / f"rank-{self.ranks.rank}.pt")

    def load(self, directory: Path) -> None:
        shared = torch.load(directory / "shared.pt", map_location="cpu", weights_only=True)
        own = torch.load(directory / f"rank-{self.ranks.rank}.pt", map_location="cpu", weights_only=True)
        for parts, states in ((self.shared, shared), (self.own, own["parts"])):
            for name, part in parts.items():
                part.load_state_dict(states[name])
        self.loss = own["loss"]
        set_random_state(own["random"])

    @torch.no_grad()
    def summary(self) -> dict[str, Any]:  # Any: JSON values
        """The last step's loss, over all ranks, and the figures; the squared norm of the parameters of each rank."""
        size = sum(
            value.double().square().sum() for network in self.networks.values() for value in network.parameters()
        )
        mine = torch.stack([self.loss.double().to(self.device), torch.as_tensor(size).to(self.device)])
        everyone = [mine.clone() for _ in range(self.ranks.world)]
        if self.ranks.world > 1:
            distributed.all_gather(everyone, mine)
        for network in self.networks.values():
            network.eval()
        losses, sizes = torch.stack(everyone).T.tolist()
        return {"loss": sum(losses) / len(losses), "parameters": sizes, **self.figures()}


def main(job: type[Training], arguments: Sequence[str] | None = None) -> int:
    """Runs the job; its last line on stdout is JSON, from the first rank."""
    module = sys.modules[job.__module__]
    choices = chosen(module.__doc__ or "", job.small, job.full, arguments)
    if choices.device != "cuda":
        torch.set_num_threads(choices.threads)
    if choices.is_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as torch demands, before cuBLAS is loaded
        torch.use_deterministic_algorithms(True)
    with process_group(on_cpu=choices.device == "cpu") as ranks:
        if choices.device == "cuda" and ranks.device.type != "cuda":
            raise InvalidInput(
                f"--device must be one that is there, got 'cuda' and torch {torch.__version__} sees none"
            )
        training = job(choices, ranks)
        in_gang = ranks.world > 1 and "GAVEL_LEASE_DIR" in os.environ  # otherwise ranks cannot agree on a stop
        loop = LeaseIterator(
            training.batches,
            training.save,
            load=training.load,
            steps_total=choices.steps,
            save_on="all" if in_gang else "first",
            checkpoint_directory=choices.checkpoints or None,
        )
        for batch in loop:
            training.train(batch)
        line = {
            "job_type": job.job_type if choices.is_full else f"{job.job_type} small",
            "steps": loop.steps_done,
            "steps_total": choices.steps,
            "finished": loop.finished,
            "rate_steps_per_s": loop.rate_steps_per_s,
            "device": str(ranks.device),
            **(training.summary() if loop.finished else {}),  # a lease that ends leaves no time for more
        }
        if ranks.rank == 0:
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    return 0


def _states(parts: dict[str, Stateful]) -> dict[str, Any]:  # Any: as in Stateful
    return {name: part.state_dict() for name, part in parts.items()}
