"""A process that holds one of the shipped jobs on its device, and runs steps of it on command of the benchmark.

    python -m benchmarks.gpu.worker image_classification --full

Reads one JSON command a line from stdin, and answers with one line. `at_s` is a time of CLOCK_MONOTONIC, so that two
workers can begin together.

    {"do": "steps", "seconds": 3, "at_s": 0}           bare loop: {"steps": ..., "seconds": ...}
    {"do": "leased", "seconds": 3, "directory": ...}   the same steps in a LeaseIterator under a lease
    {"do": "save", "directory": ...}                   {"seconds": ..., "bytes": ...}
    {"do": "load", "directory": ...}                   {"seconds": ...}
    {"do": "memory"}                                   GiB of the GPU by torch's count, and as a job reports it
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gavelpy import LeaseIterator
from gavelpy.runtime import lease_files
from gavelpy.runtime.iterator.lease_watch import peak_gpu_gib

JOBS = Path(__file__).resolve().parents[2] / "workloads" / "jobs"
CLASSES: Mapping[str, str] = {
    "image_classification": "ImageClassification",
    "language_model": "LanguageModelling",
    "translation": "Translation",
    "recommender": "Recommender",
    "gan": "Gan",
    "actor_critic": "Balancing",
}
LEASE_S = 3600.0
WARM_UP_STEPS = 5
_GIB = 1 << 30
Answer = dict[str, Any]  # Any: JSON values


class Worker:
    """One job on its device, and an endless loop over its batches."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        sys.path.insert(0, str(JOBS))
        choices, module = importlib.import_module("choices"), importlib.import_module(name)
        job = getattr(module, CLASSES[name])
        chosen = choices.chosen("", job.small, job.full, arguments)
        torch = importlib.import_module("gavelpy.torch").torch
        on_gpu = chosen.device != "cpu" and torch.cuda.is_available()
        if not on_gpu:
            torch.set_num_threads(chosen.threads)
        device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
        self.cuda = torch.cuda if on_gpu else None
        ranks = importlib.import_module("gavelpy.torch").Ranks(0, 0, 1, device)
        self.training = job(chosen, ranks)
        self.batches = self._endless()
        for _ in range(WARM_UP_STEPS):
            self.training.train(next(self.batches))
        self._wait()

    def answer(self, command: Answer) -> Answer:
        """Carries out a command."""
        match command["do"]:
            case "steps":
                return self._timed(self.batches, command)
            case "leased":
                return self._leased(command)
            case "save":
                return self._save(Path(command["directory"]))
            case "load":
                began_s = time.monotonic()
                self.training.load(Path(command["directory"]))
                self._wait()
                return {"seconds": time.monotonic() - began_s}
            case _:
                return self._memory()

    def _leased(self, command: Answer) -> Answer:
        directory = Path(command["directory"])
        lease_files.write_launch(directory, lease_files.Launch(1, 1, ("x",), "/", {}, ({},)))
        lease_files.write_lease(directory, lease_files.LeaseTerms(1, lease_files.clock_s() + LEASE_S))
        variables = {"GAVEL_LEASE_DIR": str(directory), "GAVEL_CHECKPOINT_DIR": str(directory / "checkpoints")}
        with patch.dict(os.environ, variables):
            loop = LeaseIterator(self.training.batches, self.training.save, steps_total=10**12)
        try:
            return {**self._timed(iter(loop), command), "reported": loop.rate_steps_per_s}
        finally:
            loop.close()

    def _timed(self, batches: Iterator[Any], command: Answer) -> Answer:  # Any: batches
        time.sleep(max(0.0, command.get("at_s", 0.0) - time.monotonic()))
        steps, began_s = 0, time.monotonic()
        until_s = began_s + command["seconds"]
        while time.monotonic() < until_s:
            self.training.train(next(batches))
            steps += 1
        self._wait()
        return {"steps": steps, "seconds": time.monotonic() - began_s}

    def _save(self, directory: Path) -> Answer:
        self._wait()
        directory.mkdir(parents=True, exist_ok=True)
        began_s = time.monotonic()
        self.training.save(directory)
        took_s = time.monotonic() - began_s
        return {"seconds": took_s, "bytes": sum(file.stat().st_size for file in directory.iterdir())}

    def _memory(self) -> Answer:
        if self.cuda is None:
            return {}
        peaks = {"allocated": self.cuda.max_memory_allocated(), "reserved": self.cuda.max_memory_reserved()}
        free, total = self.cuda.mem_get_info()
        gib = {name: value / _GIB for name, value in {**peaks, "device_free": free, "device_total": total}.items()}
        return {**gib, "reported": peak_gpu_gib(), "process": os.getpid()}

    def _wait(self) -> None:
        if self.cuda is not None:
            self.cuda.synchronize()

    def _endless(self) -> Iterator[Any]:  # Any: batches
        while True:
            yield from self.training.batches


def main(arguments: list[str]) -> None:
    """Answers commands until the end of stdin."""
    began_s = time.monotonic()
    worker = Worker(arguments[0], arguments[1:])
    _say({"ready_s": time.monotonic() - began_s})
    for line in sys.stdin:
        _say(worker.answer(json.loads(line)))


def _say(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
