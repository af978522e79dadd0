"""PyTorch: exact checkpoints, loaders that resume within an epoch, and process groups, for use with LeaseIterator.

    with process_group() as ranks:
        model = ranks.wrap(Model())
        loader = ResumableLoader(dataset, 64, seed=1, rank=ranks.rank, world=ranks.world)
        state = TrainingState(model=model, optimizer=optimizer, scheduler=scheduler)
        for batch in LeaseIterator(loader, state.save, load=state.load, epochs=10):
            ...

A run that is stopped and resumed takes the same steps as an uninterrupted one: the order of the data is a function of
seed and epoch, and models, optimizers and random states are restored. If the ranks of a gang draw random numbers (for
example dropout), use `save_on="all"`, so that each rank saves its own random state.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from gavelpy.errors import InvalidInput

STATE_FILE: Final = "state.pt"
T = TypeVar("T")


class Stateful(Protocol):
    """Anything with a state: models, optimizers, schedulers, scalers."""

    def state_dict(self) -> Mapping[str, Any]:  # Any: as in torch
        """Returns the state."""
        ...

    def load_state_dict(self, state_dict: Any) -> object:  # Any: as in torch
        """Restores a state."""
        ...


class TrainingState:
    """Named parts of a training run and its random state, as one checkpoint.

    Pass `save` and `load` to LeaseIterator. The first rank saves the parts; each rank that calls `save` saves its
    random state. It is Stateful itself, so `torch.distributed.checkpoint` can save sharded models: save
    `{"training": state}` with `save_on="all"`.
    """

    def __init__(self, **parts: Stateful) -> None:
        if not parts:
            raise InvalidInput("parts must name at least one part to save (model=model, ...), got none")
        self._parts = parts

    def save(self, directory: Path) -> None:
        """Writes a checkpoint into a directory."""
        rank = _rank()
        if rank == 0:
            torch.save(
                {name: dict(_plain(part).state_dict()) for name, part in self._parts.items()}, directory / STATE_FILE
            )
        torch.save(random_state(), directory / _random_file(rank))

    def load(self, directory: Path) -> None:
        """Restores a checkpoint of `save`. The parts must have the same names; they stay on their devices."""
        saved = torch.load(directory / STATE_FILE, map_location="cpu", weights_only=True)
        if set(saved) != set(self._parts):
            raise InvalidInput(f"parts must be those in {directory}: {sorted(saved)}, got {sorted(self._parts)}")
        for name, part in self._parts.items():
            _plain(part).load_state_dict(saved[name])
        own = directory / _random_file(_rank())
        if own.exists():
            set_random_state(torch.load(own, map_location="cpu", weights_only=True))

    def state_dict(self) -> dict[str, Any]:  # Any: as in torch
        """The states of all parts by name, without the random state."""
        return {name: dict(_plain(part).state_dict()) for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # Any: as in torch
        """Restores the states of `state_dict`."""
        for name, part in self._parts.items():
            _plain(part).load_state_dict(state_dict[name])


def random_state() -> dict[str, Any]:  # Any: tensors, numbers and tuples of them
    """This process's random state: torch's on all devices, Python's, and numpy's if it is loaded."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:  # Any: the result of random_state
    """Restores the random state, except of devices that do not exist any more."""
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    for device, device_state in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(device_state, device)
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))


class ResumableSampler(DistributedSampler[int]):
    """Indices of a dataset in an order that depends on seed and epoch only, split among the ranks.

    Each rank gets the same number: if the ranks do not divide the dataset, its first items are repeated at the end.
    Frameworks leave a DistributedSampler as it is and call its `set_epoch`.
    """

    def __init__(self, length: int, *, seed: int = 0, shuffle: bool = True, rank: int = 0, world: int = 1) -> None:
        if length < 1:
            raise InvalidInput(f"length must be 1 or more, got {length!r}")
        if not 0 <= rank < world:
            raise InvalidInput(f"rank must be in [0, {world - 1}], got {rank!r}")
        super().__init__(range(length), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]  # uses its length only
        self._length = length
        self._seed = seed
        self._shuffle = shuffle
        self._rank = rank
        self._world = world
        self._begins_at = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration one of this epoch: from its start, unless it resumes within this epoch."""
        if epoch != self.epoch:
            self.resume_at(epoch, 0)

    @property
    def start(self) -> tuple[int, int]:
        """The epoch of the next iteration, and the indices of this rank that it leaves out."""
        return self.epoch, self._begins_at

    def resume_at(self, epoch: int, items: int) -> None:
        """Makes the next iteration start in this epoch, after `items` indices of this rank."""
        self.epoch = epoch
        self._begins_at = items

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, self.epoch))
        order = torch.randperm(self._length, generator=generator) if self._shuffle else torch.arange(self._length)
        of_rank = torch.arange(self._rank, len(self) * self._world, self._world) % self._length
        begins_at, self._begins_at = self._begins_at, 0
        return iter(order[of_rank[begins_at:]].tolist())

    def __len__(self) -> int:
        return -(-self._length // self._world)


class ResumableLoader(DataLoader[T]):
    """A DataLoader that LeaseIterator can start within an epoch, without loading the earlier items.

    Its `state_dict` is the epoch and the number of its batches that were handed out, for frameworks that save loaders.
    Takes the options of DataLoader, except those that determine the order of items. It draws no global random
    numbers; those of its workers depend on seed and epoch only, so augmentation in workers resumes exactly if it is a
    function of the item.
    """

    def __init__(
        self,
        dataset: Dataset[T],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        **options: Any,  # those of DataLoader
    ) -> None:
        self._seed = seed
        self._indices = ResumableSampler(_length(dataset), seed=seed, shuffle=shuffle, rank=rank, world=world)
        self._own = torch.Generator()
        super().__init__(dataset, batch_size, sampler=self._indices, generator=self._own, **options)
        self.resume_at(0, 0)

    def resume_at(self, epoch: int, position: int) -> None:
        """Makes the next iteration start in this epoch, after `position` batches."""
        assert self.batch_size is not None, "the constructor requires a batch size"
        self._indices.resume_at(epoch, position * self.batch_size)
        self._state = (epoch, position)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # any iterator of batches is one
        assert self.batch_size is not None, "the constructor requires a batch size"
        epoch, items = self._indices.start
        self._own.manual_seed(epoch_seed(self._seed, epoch))
        batches = super().__iter__()
        for position, batch in enumerate(batches, 1 + items // self.batch_size):
            self._state = (epoch, position)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Epoch, and batches of it that were handed out."""
        epoch, position = self._state
        return {"epoch": epoch, "position": position}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Makes the next iteration continue after the batches of `state_dict`."""
        epoch, position = state_dict["epoch"], state_dict["position"]
        self.resume_at(*((epoch, position) if position < len(self) else (epoch + 1, 0)))


def epoch_seed(seed: int, epoch: int) -> int:
    """A seed for an epoch, far from those of neighbouring epochs and seeds."""
    return (seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % (1 << 63)


@dataclass(frozen=True)
class Ranks:
    """The rank of this process in its job, and its device."""

    rank: int
    local_rank: int
    world: int
    device: torch.device

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model on this rank's device, with gradients averaged over all ranks if there are several.

        DDP rebuilds its buckets after the first backward pass, in the order in which gradients arrived. A ring of three
        or more ranks sums in an order that depends on the position in a bucket, so the first step of a resumed run
        would differ in its last bits. `find_unused_parameters` keeps the first buckets; it costs a pass over the graph
        and prints a warning. It is set on CPUs, and on GPUs after `torch.use_deterministic_algorithms(True)`.
        """
        moved = model.to(self.device)
        if self.world == 1:
            return moved
        on_gpu = self.device.type == "cuda"
        keep_buckets = self.world > 2 and (not on_gpu or torch.are_deterministic_algorithms_enabled())
        return DistributedDataParallel(
            moved, device_ids=[self.device] if on_gpu else None, find_unused_parameters=keep_buckets
        )


@contextmanager
def process_group(backend: str = "", *, on_cpu: bool = False) -> Iterator[Ranks]:
    """Initialises torch.distributed for the ranks of the job, from the environment, and destroys it at the end.

    Default backend: NCCL if there are GPUs, else gloo. A job of one process needs none. `on_cpu` ignores GPUs.
    """
    rank, local_rank, world = (int(os.environ.get(name, default)) for name, default in _RANK_VARIABLES)
    gpus = 0 if on_cpu else torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(rank, local_rank, world, device)
        return
    distributed.init_process_group(backend or ("nccl" if gpus else "gloo"))
    try:
        yield Ranks(rank, local_rank, world, device)
    finally:
        distributed.destroy_process_group()


_RANK_VARIABLES: Final = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _random_file(rank: int) -> str:
    return f"random-{rank}.pt"


def _plain(part: Stateful) -> Stateful:
    """The model without its DDP wrapper, so that its checkpoint fits any number of ranks."""
    return part.module if isinstance(part, DistributedDataParallel) else part


def _length(dataset: Dataset[T]) -> int:
    length = getattr(dataset, "__len__", None)
    if length is None:
        raise InvalidInput(f"dataset must have a length, got {type(dataset).__name__}")
    return int(length())
