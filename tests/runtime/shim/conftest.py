"""Fixtures of the tests of shims."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.shim.container_place import Place, open_container_place


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    yield from open_container_place()
