"""A scheduler with a web page, and journals in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gavelpy.runtime.security.tokens import Role
from tests.journal.conftest import postgres_server, postgres_url  # noqa: F401 fixtures
from tests.runtime.client.serving import Serving, make_description, serving

USERS = {"alice": Role.USER, "root": Role.ADMIN, "n0": Role.NODE, "n1280": Role.NODE, "n400": Role.NODE}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Jobs of alice, with tokens."""
    sections: dict[str, dict[str, Any]] = {
        "scheduler": {"web_listen": "127.0.0.1:0"},
        "nodes": {"silent_after_s": 600.0},
    }
    with serving(tmp_path_factory.mktemp("journeys"), users=USERS, **sections) as found:
        leave = found.join_node("n0", gpus=4, name="n0")
        with found.client("alice") as alice:
            alice.submit([make_description(f"train-{k}") for k in range(60)] + [make_description("big", gpus=64)])
        yield found
        leave()
