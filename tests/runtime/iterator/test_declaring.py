"""A loop declares with its first report whether its job can be preempted, and announces the steps of the job."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from gavelpy import LeaseIterator
from gavelpy.runtime.iterator.lease_loop import LeaseLoop
from tests.runtime.iterator.conftest import Held
from tests.runtime.iterator.counting import Count

pytestmark = pytest.mark.usefixtures("outside")


@pytest.mark.parametrize("saves", [False, True])
def test_a_loop_that_saves_declares_so_with_its_first_report(held: Held, saves: bool) -> None:
    batches = LeaseIterator(range(10), Count().save if saves else None)

    assert held.progress().saves_at_end is saves
    batches.close()


class Cuda:
    """As torch.cuda of a process that has reserved so many GiB on each of its GPUs."""

    def __init__(self, *gib: float) -> None:
        self.gib = gib

    def is_initialized(self) -> bool:
        return bool(self.gib)

    def device_count(self) -> int:
        return len(self.gib)

    def max_memory_reserved(self, device: int) -> int:
        return int(self.gib[device] * 2**30)


@pytest.mark.parametrize(("gib", "reported"), [((), 0.0), ((0.0, 0.0), 0.0), ((2.0, 3.5), 4.25)])
def test_a_loop_reports_the_most_memory_that_torch_reserved_and_the_context(
    held: Held, monkeypatch: pytest.MonkeyPatch, gib: tuple[float, ...], reported: float
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(*gib)))

    batches = LeaseIterator(range(10))

    assert held.progress().gpu_memory_gib == reported
    batches.close()


class Stream:
    """A loader without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class StreamOfLoader(Stream):
    """As torch's DataLoader over a stream: it has `__len__`, which raises."""

    def __len__(self) -> int:
        raise TypeError("object of type 'Dataset' has no len()")


@pytest.mark.parametrize(
    ("loader", "options", "submitted", "announced"),
    [
        (range(10), {}, "", 10),  # one pass
        (range(10), {"epochs": 3}, "", 30),
        (range(10), {"epochs": 3}, "1000", 30),  # as the loop ends then
        (range(10), {"epochs": 3}, "8", 8),
        (range(10), {}, "25", 25),  # passes until then
        (range(10), {"steps_total": 7}, "1000", 7),
        (range(10), {"steps_total": 70, "epochs": 2}, "", 20),
        (Stream(), {"epochs": 3}, "", 0),
        (StreamOfLoader(), {"epochs": 3}, "", 0),
        (Stream(), {}, "12", 12),
        ((), {}, "", 0),  # the script calls step_done
    ],
)
def test_steps_are_announced_with_the_first_report(
    held: Held, loader: Iterator[int], options: dict[str, int], submitted: str, announced: int
) -> None:
    held.environment(GAVEL_STEPS_TOTAL=submitted)

    batches = LeaseIterator(loader, Count().save, **options)  # type: ignore[arg-type]  # options of several types

    assert held.progress().steps_total == announced
    batches.close()


def test_loop_of_a_framework_announces_its_steps(held: Held) -> None:
    loop = LeaseLoop(Count().save, steps_total=60)

    assert held.progress().steps_total == 60
    loop.close()
