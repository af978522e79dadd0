"""A lease that the test controls, for callbacks that run in the test's process; it lasts on a busy machine, too."""

from __future__ import annotations

import pytest

from gavelpy.runtime.lease_files import clock_s
from tests.runtime.iterator.conftest import Held, outside  # noqa: F401 a fixture
from tests.runtime.iterator.conftest import held as short_lease  # noqa: F401 a fixture
from tests.runtime.live.conftest import start  # noqa: F401 a fixture


@pytest.fixture
def held(short_lease: Held) -> Held:  # noqa: F811 the fixture
    """A lease of an hour."""
    short_lease.order(until_clock_s=clock_s() + 3600.0)
    return short_lease
