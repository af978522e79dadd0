"""The Multi-Process Service with a substitute for NVIDIA's control daemon: start, watch, end, variables, fallback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import Gpus
from gavelpy.runtime.agent.leases.orders import NodeAssignment
from gavelpy.runtime.agent.mps import ON, TOOL, Mps
from gavelpy.runtime.local_cluster import wait_until
from tests.runtime.agent.fake_mps import CONTROL, daemon_of, written

JOB = NodeAssignment(("true",), "/", (2, 3), "v100", gpu_memory_gib=6.5, gpu_memory_share=0.40625)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state directory of an agent with the substitute in its PATH; ends the daemon."""
    written(tmp_path / "bin" / TOOL)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    yield tmp_path / "state"
    if process := daemon_of(tmp_path / "state"):
        os.kill(process, signal.SIGKILL)


def make(state: Path, *, vendor: str = "nvidia", **options: bool) -> Mps:
    config = NodeConfig(**{"state_directory": str(state), "mps": True, "run_as": "agent", **options})
    return Mps(config, Gpus("v100", ("4", "5", "6", "7"), vendor), lambda: None)


def test_the_daemon_is_started_with_all_devices_in_the_order_of_jobs_and_stopped(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    mps = make(state)

    mps.start()
    process = daemon_of(state)
    devices = (state / "mps" / "log" / "devices").read_text()
    mps.stop()

    assert process
    assert devices == "all PCI_BUS_ID\n", "it would give a selection other numbers"
    wait_until(lambda: daemon_of(state) == 0, "the daemon has ended", 10.0)


def test_the_next_agent_finds_the_daemon(state: Path) -> None:
    make(state).start()
    process = daemon_of(state)

    again = make(state)
    again.start()

    assert again.is_on
    assert daemon_of(state) == process


def test_a_daemon_that_ended_is_noticed_and_started_again(state: Path) -> None:
    mps = make(state)
    mps.start()
    os.kill(daemon_of(state), signal.SIGKILL)
    wait_until(lambda: daemon_of(state) == 0, "the daemon has ended", 10.0)

    mps.look()
    ended, variables = mps.text, mps.variables(JOB)
    mps.look()

    assert (ended, variables) == (f"time-slicing: {TOOL} has ended", {})
    assert mps.text == ON


def test_programs_have_the_places_and_a_limit_for_each_of_their_gpus(state: Path) -> None:
    mps = make(state)
    mps.start()

    assert mps.variables(JOB) == {
        "CUDA_MPS_PIPE_DIRECTORY": str(state / "mps" / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(state / "mps" / "log"),
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=6656M,1=6656M",
    }


def test_threads_are_divided_by_memory_if_wanted(state: Path) -> None:
    mps = make(state, mps_divides_threads=True)
    mps.start()

    assert mps.variables(JOB)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "41"


def test_a_job_that_shares_gpus_with_none_does_not_use_the_service(state: Path) -> None:
    mps = make(state)
    mps.start()

    assert mps.variables(replace(JOB, gpu_memory_gib=0.0)) == {}


def test_without_the_setting_nothing_is_started(state: Path) -> None:
    mps = make(state, mps=False)

    mps.start()

    assert (mps.text, mps.variables(JOB), daemon_of(state)) == ("", {}, 0)


@pytest.mark.parametrize(
    ("vendor", "program", "why"),
    [
        ("amd", CONTROL, "the GPUs are of vendor amd"),
        ("nvidia", "", "nvidia-cuda-mps-control is not in the PATH"),
        ("nvidia", "#!/bin/sh\nexit 1\n", "nvidia-cuda-mps-control cannot be started"),
        ("nvidia", "#!/bin/sh\n[ $# = 1 ]\n", "was started and does not answer"),
    ],
)
def test_jobs_are_sliced_in_time_where_the_daemon_cannot_be_started(
    state: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, program: str, why: str
) -> None:
    tool = state.parent / "bin" / TOOL
    tool.write_text(program)
    monkeypatch.setenv("PATH", str(tool.parent) if program else "/nonexistent")
    mps = make(state, vendor=vendor)

    mps.start()

    assert mps.text.startswith("time-slicing: ")
    assert why in mps.text


def test_slices_of_gpus_are_not_served(state: Path) -> None:
    config = NodeConfig(state_directory=str(state), mps=True, run_as="agent")
    mps = Mps(config, Gpus("a100-1g.5gb", ("MIG-a", "MIG-b")), lambda: None)

    mps.start()

    assert mps.text == "time-slicing: slices of GPUs need a daemon each"


def test_a_state_directory_with_a_long_path_has_no_room_for_sockets(state: Path) -> None:
    mps = make(state / ("x" * 80))

    mps.start()

    assert "too long for sockets" in mps.text


ADOPTING = """
import subprocess, sys
from pathlib import Path
from gavelpy.runtime.lease_files import ShimPhase, ShimState
from gavelpy.runtime.local_cluster import wait_until
from gavelpy.runtime.shim.processes import adopt_orphans, boot_id, lease_processes, this_process
from tests.runtime.agent.fake_mps import daemon_of
from tests.runtime.agent.test_mps import make

state = Path(sys.argv[1])
adopt_orphans()
subprocess.run(["/bin/sh", "-c", "setsid sleep 60 > /dev/null 2>&1 & echo $!"], check=True)
make(state).start()
ended = ShimState(1 << 22, this_process().start_ticks, boot_id(), ShimPhase.ENDED)
print(daemon_of(state), *lease_processes(ended, state))
"""


def test_a_daemon_that_the_agent_adopted_is_of_no_lease(state: Path) -> None:
    done = subprocess.run([sys.executable, "-c", ADOPTING, str(state)], capture_output=True, text=True, check=True)

    orphan, daemon, *killed = done.stdout.split()
    os.kill(int(orphan), signal.SIGKILL)

    assert orphan in killed
    assert daemon not in killed


def test_the_service_is_for_one_account(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs jobs as their owners")
    with pytest.raises(InvalidInput, match="mps must be false where jobs run as their owners"):
        NodeConfig(state_directory=str(tmp_path), mps=True, run_as="owner")
