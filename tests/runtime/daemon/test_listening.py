"""Addresses that the scheduler cannot open are refused before it acknowledges or writes anything."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.daemon.listening import close, opened_sockets, port_of
from gavelpy.runtime.daemon.service import serve
from tests.runtime.daemon.harness import make_config


@pytest.fixture
def taken() -> Iterator[str]:
    """An address on which another process listens."""
    sockets = opened_sockets("http_listen", "127.0.0.1:0")
    yield f"127.0.0.1:{port_of(sockets)}"
    close(sockets)


@pytest.mark.parametrize("field", ["http_listen", "web_listen", "listen", "agents_listen"])
def test_scheduler_with_a_taken_address_ends_with_its_setting_and_leaves_nothing(
    tmp_path: Path, taken: str, field: str
) -> None:
    config = make_config(tmp_path / "new", scheduler={field: taken})
    complaint = f"scheduler.{field} must be an address that can be opened, got '{taken}' (Address already in use)"

    with pytest.raises(InvalidInput, match=re.escape(complaint)):
        asyncio.run(serve(config))

    assert not (tmp_path / "new").exists()


def test_path_of_an_earlier_process_is_opened_again_and_a_file_is_kept(tmp_path: Path) -> None:
    close(opened_sockets("http_listen", f"unix:{tmp_path}/socket"))
    (tmp_path / "file").write_text("precious")

    again = opened_sockets("http_listen", f"unix:{tmp_path}/socket")

    assert port_of(again) == 0
    close(again)
    with pytest.raises(InvalidInput, match="Address already in use"):
        opened_sockets("http_listen", f"unix:{tmp_path}/file")
    assert (tmp_path / "file").read_text() == "precious"


def test_name_of_several_addresses_is_opened_on_each_that_this_host_has() -> None:
    sockets = opened_sockets("http_listen", "localhost:0")

    families = {one.family for one in sockets}
    close(sockets)
    assert socket.AF_INET in families


@pytest.mark.parametrize(
    ("listen", "reason"),
    [("203.0.113.1:1", "Cannot assign requested address"), ("unix:/no/such/x", "No such file or directory")],
)
def test_address_that_is_not_of_this_host_is_refused(listen: str, reason: str) -> None:
    complaint = f"scheduler.http_listen must be an address that can be opened, got '{listen}' ({reason})"

    with pytest.raises(InvalidInput, match=f"^{re.escape(complaint)}$"):
        opened_sockets("http_listen", listen)
