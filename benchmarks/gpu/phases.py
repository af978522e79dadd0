"""The phases of the benchmark, and its command line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gpu import checks, faults, rates, shared, turns
from benchmarks.gpu.stage import Target
from benchmarks.gpu.worker import JOBS, Answer
from gavelpy.runtime.profile import here

Phase = Callable[[Target], Answer]


def _profile(target: Target) -> Answer:
    """Rates as `gavel profile` measures them, as rows of a throughput table."""
    jobs, table = JOBS / ("full.toml" if target.on_gpu else "small.toml"), target.folder.parent / "rates.csv"
    words = [str(JOBS / "measure.py"), str(jobs), "--table", str(table), "--seconds", str(2.5 * target.seconds)]
    words += [] if target.on_gpu else ["--device", "cpu"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=400, check=False)
    return {
        "code": done.returncode,
        "errors": done.stderr[-2000:],
        "table": table.read_text() if table.exists() else "",
    }


PHASES: Mapping[str, Phase] = {
    "detect": checks.detect,
    "torch": checks.torch_parts,
    "digits": faults.digits,
    "faults": faults.run,
    "sliced": lambda target: shared.run(target, mps=False),
    "mps": lambda target: shared.run(target, mps=True),
    "profile": _profile,
    "rates": lambda target: rates.alone_and_paired(list(target.arguments), target.seconds, target.folder),
    "rates_mps": lambda target: rates.with_mps(list(target.arguments), target.seconds, target.folder),
    "turns": turns.run,
}


def run(options: Sequence[str] = ()) -> None:
    """Runs phases and writes results.json after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="directory of results.json and logs")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"which of {', '.join(PHASES)}")
    parser.add_argument("--device", choices=["auto", "cpu"], default="auto")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measured rate")
    parser.add_argument("--until", type=float, default=1e9, help="start no phase after so many seconds")
    given = parser.parse_args(options)
    on_cpu = given.device == "cpu"
    machine = here(on_cpu=on_cpu)
    arguments = ("--device=cpu",) if on_cpu else ("--full", "--device=cuda")
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    target = Target(machine.gpu_type, arguments, out, given.seconds)
    target = target if on_cpu else replace(target, memory_gib=_memory_gib())
    results: Answer = {}
    began_s = time.monotonic()
    for name in given.phases.split(","):
        if time.monotonic() - began_s > given.until:
            results[name] = {"left_out": "no time was left"}
            continue
        results[name] = _run(name, replace(target, folder=out / name))
        (out / "results.json").write_text(json.dumps(results, indent=1, default=str))


def _memory_gib() -> float:
    """Of the first GPU, as the driver reports it, in whole GiB."""
    words = ("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits")
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    return float(int(done.stdout.split()[0]) // 1024)


def _run(name: str, target: Target) -> Answer:
    target.folder.mkdir(parents=True)
    began_s = time.monotonic()
    try:
        found = PHASES[name](target)
    except Exception:  # noqa: BLE001 a phase that fails is a result, and the next ones run
        found = {"error": traceback.format_exc()}
    found["took_s"] = round(time.monotonic() - began_s, 1)
    print(f"{name}: {found['took_s']} s{': ' + found['error'][-1500:] if 'error' in found else ''}", flush=True)
    return found
