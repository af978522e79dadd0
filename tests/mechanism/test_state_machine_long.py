"""The careless world of test_state_machine, for longer: `make test-slow`."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.mechanism.test_state_machine import CarelessWorld


@pytest.mark.slow
def test_careless_world_keeps_every_promise_for_longer() -> None:
    run_state_machine_as_test(
        CarelessWorld, settings=settings(max_examples=1500, stateful_step_count=80, deadline=None)
    )
