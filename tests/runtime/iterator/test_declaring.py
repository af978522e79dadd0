"""A loop declares whether its job can be preempted."""

from __future__ import annotations

import pytest

from gavelpy import LeaseIterator
from tests.runtime.iterator.conftest import Held
from tests.runtime.iterator.counting import Count

pytestmark = pytest.mark.usefixtures("outside")


@pytest.mark.parametrize("saves", [False, True])
def test_a_loop_that_saves_declares_so_with_its_first_report(held: Held, saves: bool) -> None:
    batches = LeaseIterator(range(10), Count().save if saves else None)

    assert held.progress().saves_at_end is saves
    batches.close()
