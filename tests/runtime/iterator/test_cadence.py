"""How often `LeaseIterator` saves: as stated, or as often as the nodes' failures suggest."""

from __future__ import annotations

import os
import time

import pytest

from gavelpy import LeaseIterator
from gavelpy.runtime.iterator.lease_watch import read_context
from gavelpy.runtime.iterator.timing import save_every_s
from gavelpy.runtime.lease_files import clock_s
from tests.runtime.iterator.conftest import Held


def test_a_job_without_a_cadence_saves_as_often_as_its_nodes_fail(held: Held) -> None:
    held.environment(GAVEL_MTBF_S="0.5")  # a checkpoint takes longer than twice that at first: an interval of 1 s
    saved: list[float] = []
    began_s = clock_s()

    for _ in LeaseIterator(range(1_000), lambda directory: saved.append(clock_s() - began_s)):
        time.sleep(0.02)
        if len(saved) == 2:
            break

    assert 1.0 <= saved[0] < saved[1] - 1.0


@pytest.mark.parametrize(
    ("stated_s", "mtbf_s", "every_s"), [(60.0, 7_200.0, 60.0), (0.0, 0.0, 0.0), (0.0, 86_400.0, 3_180.0)]
)
def test_the_cadence_is_as_stated_or_by_failures(stated_s: float, mtbf_s: float, every_s: float) -> None:
    assert save_every_s(stated_s, mtbf_s, known_s=60.0) == pytest.approx(every_s, abs=0.5)


def test_a_cadence_of_zero_in_the_script_is_kept(held: Held) -> None:
    held.environment(GAVEL_MTBF_S="0.5")

    assert read_context(os.environ).cadence(0.0) == (0.0, 0.0)
    assert read_context(os.environ).cadence(None) == (0.0, 0.5)
