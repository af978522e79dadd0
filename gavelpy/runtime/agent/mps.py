"""NVIDIA's Multi-Process Service for jobs that share GPUs: starts its control daemon, watches it, and stops it.

With `mps = true`, and `nvidia-cuda-mps-control` in the agent's PATH, programs of jobs that need a known amount of GPU
memory connect to the service: kernels of two jobs then run at the same time, and each is refused more memory than it
needs. Where the daemon cannot be started, or has ended, jobs share GPUs by time-slicing, as without it.

The daemon outlives the agent, as jobs do: the next agent finds it by its directory. It is stopped when the agent leaves
and no lease is left. It serves one account, so it is not for jobs that run as their owners.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.gpus import NVIDIA, Gpus
from gavelpy.runtime.agent.leases.orders import NodeAssignment

logger = logging.getLogger(__name__)

TOOL: Final = "nvidia-cuda-mps-control"
QUESTION: Final = "get_server_list"  # a command that any daemon answers
DIRECTORY: Final = "mps"  # below the state directory
ON: Final = "mps"
TIMEOUT_S: Final = 10.0
ANSWER_S: Final = 2.0  # for a daemon that was started to answer
WATCH_S: Final = 5.0
RETRY_S: Final = 60.0  # until a daemon that ended is started again
_PATH_MAX: Final = 90  # bytes of the directory: the daemon makes sockets in it
_MIB: Final = 1024


class Mps:
    """The control daemon of a node. Calls `changed` when it was started or has ended."""

    def __init__(self, config: NodeConfig, gpus: Gpus, changed: Callable[[], None]) -> None:
        self._config, self._gpus, self._changed = config, gpus, changed
        self._directory = config.state / DIRECTORY
        self.text = ""  # how jobs share GPUs: `mps`, or `time-slicing: ` and why not; empty = mps is not configured

    @property
    def is_on(self) -> bool:
        """Whether the daemon answered the last time."""
        return self.text == ON

    def start(self) -> None:
        """Starts the daemon, or finds that of an earlier agent. Blocks for seconds."""
        if self._config.mps:
            self._set(self._started())

    async def keep_watching(self) -> None:
        """Notes when the daemon ends, and starts it again a while later."""
        while self._config.mps:
            await asyncio.sleep(WATCH_S if self.is_on else RETRY_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Notes whether the daemon has ended, or starts it if there is none. Blocks for seconds."""
        if not self.is_on:
            self.start()
        elif not self._control(QUESTION):
            self._set(f"{TOOL} has ended")

    def stop(self) -> None:
        """Stops the daemon. Blocks for seconds."""
        if self.is_on:
            self._control("quit")
            self.text = ""

    def variables(self, assignment: NodeAssignment) -> dict[str, str]:
        """The variables with which the programs of a lease use the service; none where they do not."""
        if not self.is_on or assignment.gpu_memory_gib <= 0 or assignment.software.image:
            return {}
        limit = f"{math.ceil(assignment.gpu_memory_gib * _MIB)}M"
        variables = {
            **self._places(),
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": ",".join(f"{k}={limit}" for k in range(len(assignment.gpus))),
        }
        if self._config.mps_divides_threads and assignment.gpu_memory_share:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{math.ceil(100 * assignment.gpu_memory_share)}"
        return variables

    def _set(self, why_not: str) -> None:
        text = f"time-slicing: {why_not}" if why_not else ON
        if text != self.text:
            logger.log(logging.WARNING if why_not else logging.INFO, "jobs share GPUs by %s", text)
            self.text = text
            self._changed()

    def _started(self) -> str:
        """Why there is no daemon after trying to start one; empty = there is one."""
        tool = shutil.which(TOOL)
        if self._gpus.vendor != NVIDIA:
            return f"the GPUs are of vendor {self._gpus.vendor}"
        if any(device.startswith("MIG-") for device in self._gpus.devices):
            return "slices of GPUs need a daemon each"
        if tool is None:
            return f"{TOOL} is not in the PATH"
        if len(os.fsencode(self._directory)) > _PATH_MAX:
            return f"the path of the state directory is too long for sockets: {self._directory}"
        if self._control(QUESTION):
            return ""
        try:
            for place in self._places().values():
                Path(place).mkdir(mode=0o700, parents=True, exist_ok=True)
            subprocess.run(
                [tool, "-d"], env=self._environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, check=True,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            return f"{TOOL} cannot be started: {error}"
        until_s = time.monotonic() + ANSWER_S
        while not (is_there := self._control(QUESTION)) and time.monotonic() < until_s:
            time.sleep(ANSWER_S / 10)
        return "" if is_there else f"{TOOL} was started and does not answer"

    def _control(self, command: str) -> bool:
        """Sends a command to the daemon; whether it was there."""
        try:
            done = subprocess.run(
                [TOOL], input=f"{command}\n", env=self._environment(), text=True, timeout=TIMEOUT_S, check=False,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def _environment(self) -> dict[str, str]:
        """Of the daemon: all GPUs in the order that jobs see, as it would give those of a selection other numbers."""
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**inherited, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **self._places()}

    def _places(self) -> dict[str, str]:
        names = {"CUDA_MPS_PIPE_DIRECTORY": "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
        return {variable: str(self._directory / name) for variable, name in names.items()}
