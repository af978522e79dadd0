"""What this machine is, what gavelpy detects of it, and the parts of gavelpy.torch that depend on CUDA."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from benchmarks.gpu.stage import Target
from benchmarks.gpu.worker import Answer
from gavelpy.runtime.agent.gpus import find_gpus
from gavelpy.runtime.local_cluster import free_port, program
from gavelpy.runtime.profile import here

ROOT = Path(__file__).resolve().parents[2]
_SEES_GPU = "import torch; print(torch.cuda.device_count(), torch.cuda.is_available())"


def detect(target: Target) -> Answer:
    """The machine, and what the agent would offer of it."""
    catalogue = tomllib.loads((ROOT / "workloads" / "gpus.toml").read_text())
    gpus = find_gpus("" if target.on_gpu else "cpu:1", os.environ)
    machine = here(on_cpu=not target.on_gpu)
    smi = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version,mig.mode.current,compute_mode", "--format=csv")
    return {
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "smi": _output(*smi) if shutil.which(smi[0]) else "not installed",
        "mps": shutil.which("nvidia-cuda-mps-control") or "",
        "gpus": [vars(one) if hasattr(one, "__dict__") else str(one) for one in gpus],
        "machine": vars(machine) if hasattr(machine, "__dict__") else str(machine),
        "catalogue": catalogue.get(gpus[0].gpu_type, {}),
        "check_config": _output(program("gavel-node"), "--state-dir", str(target.folder / "n"), "check-config"),
        "environment": {name: os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")},
        "clean_environment": _output("env", "-i", sys.executable, "-c", _SEES_GPU),
        "versions": _output(sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"),
    }


def torch_parts(_: Target) -> Answer:
    """Runs each check of this module in a process of its own; their errors are results."""
    names = ("random_state", "training_state", "nccl")
    found: Answer = {name: _output(sys.executable, "-m", "benchmarks.gpu.checks", name) for name in names}
    found["two_ranks_on_one_gpu"] = _ranks(2)
    return found


def _ranks(world: int) -> list[str]:
    """Ranks of one job on one device, with the backend that process_group chooses."""
    base = {**os.environ, "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    gang = {**base, "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "benchmarks.gpu.checks", "gang"]
    ranks = [
        subprocess.Popen(
            command, env={**gang, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in range(world)
    ]  # fmt: skip
    try:
        return [rank.communicate(timeout=60)[0][-1500:] for rank in ranks]
    except subprocess.TimeoutExpired:
        return ["they wait for each other"]
    finally:
        for rank in ranks:
            rank.kill()


def _output(*words: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    return (done.stdout + done.stderr)[-3000:].strip() + (f" [exit code {done.returncode}]" if done.returncode else "")


def random_state() -> Answer:
    """Numbers drawn after a state was restored equal those drawn after it was taken."""
    import torch

    from gavelpy.torch import random_state as taken
    from gavelpy.torch import set_random_state

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.rand(7, device=device)
    state = taken()
    first = (torch.rand(9, device=device), torch.rand(9))
    with tempfile.TemporaryDirectory() as name:
        torch.save(state, Path(name) / "state.pt")
        set_random_state(torch.load(Path(name) / "state.pt", map_location="cpu", weights_only=True))
    again = (torch.rand(9, device=device), torch.rand(9))
    return {"device": device, "equal": all(torch.equal(a, b) for a, b in zip(first, again, strict=True))}


def training_state() -> Answer:
    """A model and its Adam, saved and loaded into new ones, give the same next step; parts stay on the device."""
    import torch
    from torch import nn

    from gavelpy.torch import TrainingState

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def parts(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, TrainingState]:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).to(device)
        optimizer = torch.optim.Adam(model.parameters())
        return model, optimizer, TrainingState(model=model, optimizer=optimizer)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.randn(4, 8, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    one, of_one, state = parts(1)
    step(one, of_one)
    with tempfile.TemporaryDirectory() as name:
        state.save(Path(name))
        expected = [step(one, of_one) for _ in range(3)]
        other, of_other, loaded = parts(2)
        loaded.load(Path(name))
    found = [step(other, of_other) for _ in range(3)]
    devices = sorted({str(value.device) for group in of_other.state.values() for value in group.values()})
    return {"equal": found == expected, "devices": devices, "model": str(next(other.parameters()).device)}


def nccl() -> Answer:
    """NCCL with one rank sums a tensor."""
    import torch
    from torch import distributed

    if not torch.cuda.is_available():
        return {"left_out": "no GPU"}
    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    torch.cuda.set_device(0)
    distributed.init_process_group("nccl")
    value = torch.ones(3, device="cuda")
    distributed.all_reduce(value)
    distributed.destroy_process_group()
    return {"sum": value.tolist(), "version": str(torch.cuda.nccl.version())}  # type: ignore[no-untyped-call]  # torch has no types there


def gang() -> Answer:
    """A rank of a job: a model with averaged gradients takes a step."""
    import torch
    from torch import distributed, nn

    from gavelpy.torch import process_group

    with process_group() as ranks:
        torch.manual_seed(0)
        model = ranks.wrap(nn.Linear(4, 1))
        model(torch.full((2, 4), float(ranks.rank + 1), device=ranks.device)).sum().backward()
        gradient = next(model.parameters()).grad
        assert gradient is not None
        return {"backend": distributed.get_backend(), "device": str(ranks.device), "gradient": gradient.tolist()}


if __name__ == "__main__":
    print(
        json.dumps(
            {"random_state": random_state, "training_state": training_state, "nccl": nccl, "gang": gang}[sys.argv[1]]()
        )
    )
