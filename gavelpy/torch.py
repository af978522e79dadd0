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

A run may resume on another number of ranks: `ranks.batch_per_rank(256)` instead of 64 keeps the batch of all ranks, so
that each step has the samples that it would have had, and steps count the same work (docs/training-scripts.md).
"""

from __future__ import annotations

import hashlib
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
from gavelpy.runtime.iterator.checkpoints import DataPosition, check_ranks

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
        save_random_state(directory)

    def load(self, directory: Path) -> None:
        """Restores a checkpoint of `save`. The parts must have the same names; they stay on their devices."""
        saved = torch.load(directory / STATE_FILE, map_location="cpu", weights_only=True)
        if set(saved) != set(self._parts):
            raise InvalidInput(f"parts must be those in {directory}: {sorted(saved)}, got {sorted(self._parts)}")
        for name, part in self._parts.items():
            _plain(part).load_state_dict(saved[name])
        load_random_state(directory)

    def state_dict(self) -> dict[str, Any]:  # Any: as in torch
        """The states of all parts by name, without the random state."""
        return {name: dict(_plain(part).state_dict()) for name, part in self._parts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:  # Any: as in torch
        """Restores the states of `state_dict`."""
        for name, part in self._parts.items():
            _plain(part).load_state_dict(state_dict[name])


def save_random_state(directory: Path) -> None:
    """Writes the random state of this rank into a directory that all ranks write to."""
    torch.save(random_state(), directory / _random_file(_rank()))


def load_random_state(directory: Path) -> None:
    """Restores the random state of this rank from a directory of `save_random_state`.

    A rank that has saved none, because the job had fewer ranks or only the first rank saved, gets one that the first
    rank's state and its own number determine. Without the first rank's state, nothing changes.
    """
    rank = _rank()
    own, first = directory / _random_file(rank), directory / _random_file(0)
    if own.exists():
        set_random_state(torch.load(own, map_location="cpu", weights_only=True))
    elif first.exists():
        state = torch.load(first, map_location="cpu", weights_only=True)["torch"]
        digest = hashlib.blake2b(state.numpy().tobytes(), digest_size=8, salt=str(rank).encode()).digest()
        _seed_all(int.from_bytes(digest, "big") >> 1)


def random_state() -> dict[str, Any]:  # Any: tensors, numbers and tuples of them
    """This process's random state: torch's on all devices, Python's, and numpy's if it is loaded."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
        state["device"] = torch.cuda.current_device()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, keys.tolist(), *rest]
    return state


def set_random_state(state: Mapping[str, Any]) -> None:  # Any: the result of random_state
    """Restores the random state; that of the device that was current goes to the one that is now.

    Devices that do not exist any more are left out.
    """
    torch.set_rng_state(state["torch"])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    for device, device_state in zip(range(torch.cuda.device_count()), state.get("cuda", ()), strict=False):
        torch.cuda.set_rng_state(device_state, device)
    if "device" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"][state["device"]])
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))


class ResumableSampler(DistributedSampler[int]):
    """Indices of a dataset in an order that depends on seed and epoch only, split among the ranks.

    The next indices of the order go to the ranks in turn, so that the ranks together have used a beginning of the order
    at each step, whatever their number. Each rank gets the same number: if the ranks do not divide what is left of an
    epoch, its first items are repeated at the end. With `multiple_of`, the items at the end that fill no multiple of
    this number are left out instead. Frameworks leave a DistributedSampler as it is and call its `set_epoch`.
    """

    def __init__(
        self, length: int, *, seed: int = 0, shuffle: bool = True, rank: int = 0, world: int = 1, multiple_of: int = 0
    ) -> None:
        if length < 1:
            raise InvalidInput(f"length must be 1 or more, got {length!r}")
        if not 0 <= rank < world:
            raise InvalidInput(f"rank must be in [0, {world - 1}], got {rank!r}")
        if multiple_of % world:
            raise InvalidInput(f"multiple_of must be a multiple of the {world} ranks, got {multiple_of!r}")
        super().__init__(range(length), num_replicas=world, rank=rank, shuffle=shuffle, seed=seed)  # type: ignore[arg-type]  # uses its length only
        self._length = length
        self._seed = seed
        self._shuffle = shuffle
        self._rank = rank
        self._world = world
        self._multiple_of = multiple_of
        self._begins_at = 0

    def set_epoch(self, epoch: int) -> None:
        """Makes the next iteration one of this epoch: from its start, unless it resumes within this epoch."""
        if epoch != self.epoch:
            self.resume_at_sample(epoch, 0)

    @property
    def start(self) -> tuple[int, int]:
        """The epoch of the next iteration, and the indices of its order, over all ranks, that it leaves out."""
        return self.epoch, self._begins_at

    def resume_at(self, epoch: int, items: int) -> None:
        """Makes the next iteration start in this epoch, after `items` indices of this rank."""
        self.resume_at_sample(epoch, items * self._world)

    def resume_at_sample(self, epoch: int, samples: int) -> None:
        """Makes the next iteration start in this epoch, after this many indices over all ranks."""
        self.epoch = epoch
        self._begins_at = samples

    def left_after(self, samples: int) -> int:
        """Indices that each rank has left of an epoch after this many over all ranks."""
        left = max(0, self._length - samples)
        if self._multiple_of:
            return left // self._multiple_of * self._multiple_of // self._world
        return -(-left // self._world)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(epoch_seed(self._seed, self.epoch))
        order = torch.randperm(self._length, generator=generator) if self._shuffle else torch.arange(self._length)
        begin, self._begins_at = self._begins_at, 0
        of_rank = begin + self._rank + self._world * torch.arange(self.left_after(begin))
        return iter(order[of_rank % self._length].tolist())

    def __len__(self) -> int:
        return self.left_after(0)


class ResumableLoader(DataLoader[T]):
    """A DataLoader that LeaseIterator can start within an epoch, without loading the earlier items.

    `batch_size` is that of each rank. The position in an epoch is counted in samples over all ranks, so that it is
    valid at any number of ranks. A run that resumes on another number of ranks must keep the batch of all ranks
    (`batch_per_rank`), unless `scales_batch` is set: then a step has more samples on more ranks.

    Its `state_dict` is the position, for frameworks that save loaders. Takes the options of DataLoader, except those
    that determine the order of items; `drop_last` drops a batch that is not full over all ranks. It draws no global
    random numbers; those of its workers depend on seed and epoch only, so augmentation in workers resumes exactly if it
    is a function of the item.
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
        scales_batch: bool = False,
        **options: Any,  # those of DataLoader
    ) -> None:
        self._seed = seed
        self._world = world
        self._batch_size = batch_size
        self.scales_batch = scales_batch
        whole = batch_size * world if options.get("drop_last") else 0
        length = _length(dataset)
        self._indices = ResumableSampler(length, seed=seed, shuffle=shuffle, rank=rank, world=world, multiple_of=whole)
        self._own = torch.Generator()
        super().__init__(dataset, batch_size, sampler=self._indices, generator=self._own, **options)
        self.resume_at(0, 0)

    @property
    def samples_per_item(self) -> int:
        """Samples of a batch, over all ranks."""
        return self._batch_size * self._world

    def items_after(self, samples: int) -> int:
        """Batches that are left of an epoch after this many samples over all ranks."""
        return -(-self._indices.left_after(samples) // self._batch_size)

    def resume_at(self, epoch: int, position: int) -> None:
        """Makes the next iteration start in this epoch, after `position` batches."""
        self.resume_at_sample(epoch, position * self.samples_per_item)

    def resume_at_sample(self, epoch: int, samples: int) -> None:
        """Makes the next iteration start in this epoch, after this many samples over all ranks."""
        self._indices.resume_at_sample(epoch, samples)
        self._state = (epoch, samples)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # any iterator of batches is one
        epoch, samples = self._indices.start
        self._own.manual_seed(epoch_seed(self._seed, epoch))
        batches = super().__iter__()
        for batch in batches:
            samples += self.samples_per_item
            self._state = (epoch, samples)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Epoch, and batches and samples of it that were handed out."""
        epoch, samples = self._state
        batch = self.samples_per_item
        position = {"epoch": epoch, "position": samples // batch}
        return {**position, "samples": samples, "batch": batch, "ranks": self._world}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Makes the next iteration continue after the samples of `state_dict`."""
        saved = DataPosition(steps=1, **state_dict)
        check_ranks(saved, self._world, self.samples_per_item, scales=self.scales_batch, name=type(self).__name__)
        samples = saved.samples if saved.batch else saved.position * self.samples_per_item
        is_over = self.items_after(samples) == 0
        self.resume_at_sample(saved.epoch + is_over, 0 if is_over else samples)


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

    def batch_per_rank(self, total: int) -> int:
        """Samples for each rank of a batch of `total`; raises InvalidInput if the ranks do not divide it."""
        return batch_per_rank(total, self.world)

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


def batch_per_rank(total: int, world: int = 0) -> int:
    """Samples for each of `world` ranks (default: those of the job) of a batch of `total`, so that steps stay the same.

    Raises InvalidInput if the ranks do not divide it, now or on another size of the job.
    """
    ranks = world or int(os.environ.get("WORLD_SIZE", "1"))
    sizes = {ranks, *map(int, filter(None, os.environ.get("GAVEL_GPU_SIZES", "").split(",")))}
    if total < 1 or any(total % size for size in sizes):
        raise InvalidInput(
            "total must be a multiple of all numbers of ranks that the job may have, so that each rank has as many "
            f"samples, here of {', '.join(map(str, sorted(sizes)))}, got {total!r}"
        )
    return total // ranks


@contextmanager
def process_group(backend: str = "", *, on_cpu: bool = False) -> Iterator[Ranks]:
    """Initialises torch.distributed for the ranks of the job, from the environment, and destroys it at the end.

    Default backend: NCCL if each rank of this node has a GPU of its own, else gloo: NCCL refuses two ranks on one GPU.
    A job of one process needs none. `on_cpu` ignores GPUs.
    """
    rank, local_rank, world = (int(os.environ.get(name, default)) for name, default in _RANK_VARIABLES)
    gpus = 0 if on_cpu else torch.cuda.device_count()
    device = torch.device("cuda", local_rank % gpus) if gpus else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world == 1:
        yield Ranks(rank, local_rank, world, device)
        return
    distributed.init_process_group(backend or _backend(gpus, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    try:
        yield Ranks(rank, local_rank, world, device)
    finally:
        distributed.destroy_process_group()


_RANK_VARIABLES: Final = (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))


def _backend(gpus: int, local_world: int) -> str:
    """The backend for ranks of a node with so many GPUs."""
    return "nccl" if 0 < local_world <= gpus else "gloo"


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


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
