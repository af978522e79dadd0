"""Live runs of 12 jobs against their simulations from their own journals: by policy and seed.

Jobs of 8 to 30 s on six GPUs of three types on loopback, rounds of 5 s. Of each journal: the unchanged replay (`gavel
whatif --journal`), a replay in which all leases cost the averages of the journal, and with `--twice` a second live run
of the same jobs, which shows how much of a difference is chance. `--keep DIRECTORY` keeps the journals; those that are
there are not run again. A run takes two minutes on an idle machine. Goals, of the unchanged replay: average JCT and
makespan within 5 %, nine of ten jobs within 20 %.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from gavelpy.journal.recording import read_recording
from gavelpy.model.arrays import Floats
from gavelpy.runtime.local_cluster import LocalCluster, LocalNode
from gavelpy.simulator.past.change import Change
from gavelpy.simulator.past.learned import learn
from gavelpy.simulator.past.observed import observe
from gavelpy.simulator.past.replay import Replay
from gavelpy.simulator.past.work import Noise, Work, work_of
from tests.runtime.live.test_fidelity import SPEEDS, finish_times
from tests.runtime.live.test_whatif import drawn_trace

POLICIES = ("fifo", "max_min_fairness", "finish_time_fairness")
ROUND_S = 5.0


def run(arguments: Sequence[str] = ()) -> None:
    """Prints a line for each comparison."""
    parser = argparse.ArgumentParser(prog="benchmarks replays")
    parser.add_argument("--seeds", default="11,12,13,14,15", help="of the jobs, with commas (default: %(default)s)")
    parser.add_argument("--keep", type=Path, help="directory of the journals (default: they are deleted)")
    parser.add_argument("--twice", action="store_true", help="run the same jobs again, too")
    options = parser.parse_args(arguments)
    print(f"{'policy':<22} {'seed':>4} {'compared with the run':<16} {'avg':>7} {'makespan':>8} {'p90':>6}")
    with tempfile.TemporaryDirectory() as elsewhere:
        keep = options.keep or Path(elsewhere)
        keep.mkdir(parents=True, exist_ok=True)
        for seed in map(int, options.seeds.split(",")):
            for policy in POLICIES:
                _compare(policy, seed, keep, is_twice=options.twice)


def _compare(policy: str, seed: int, keep: Path, *, is_twice: bool) -> None:
    work = _work(_lived(policy, seed, keep / f"a-{policy}-{seed}.sqlite"))
    arrival_s = np.array([job.arrival_s for job in work.seen])
    found = {"unchanged": _replayed(work), "averages": _replayed(_without_leases(work))}
    if is_twice:
        found["another run"] = _jct_s(_work(_lived(policy, seed, keep / f"b-{policy}-{seed}.sqlite")))
    for name, jct_s in found.items():
        print(f"{policy:<22} {seed:>4} {name:<21}", _line(arrival_s, _jct_s(work), jct_s))


def _lived(policy: str, seed: int, journal: Path) -> Path:
    """The journal of a live run."""
    if journal.exists():
        return journal
    load = os.getloadavg()[0]
    nodes = tuple(LocalNode(name, f"{name}:2") for name in SPEEDS)
    settings = {"mechanism": {"round_s": ROUND_S}, "policy": {"name": policy}}
    with tempfile.TemporaryDirectory() as place, LocalCluster(Path(place) / "cluster", nodes, settings) as cluster:
        cluster.start()
        finish_times(cluster, drawn_trace(seed, least_s=8.0, most_s=30.0, arrive_s=60.0), Path(place))
        source = next((Path(place) / "cluster").rglob("journal.sqlite"))
        with closing(sqlite3.connect(source)) as used, closing(sqlite3.connect(journal)) as kept:
            used.backup(kept)
    print(f"{policy:<22} {seed:>4} ran at a load of {load:.1f} to {os.getloadavg()[0]:.1f}", flush=True)
    return journal


def _work(journal: Path) -> Work:
    observed = observe(read_recording(journal))
    return work_of(observed, learn(observed.ledger, observed.start_s))


def _without_leases(work: Work) -> Work:
    """The same jobs, of which the replay knows no single lease."""
    return replace(work, learned=replace(work.learned, by_job={}))


def _replayed(work: Work) -> Floats:
    jobs = Replay(work, Change(), Noise()).run().ledger.jobs
    return np.array([jobs[row].jct_s for row in range(len(work.seen))])


def _jct_s(work: Work) -> Floats:
    return np.array([job.jct_s for job in work.seen])


def _line(arrival_s: Floats, before: Floats, after: Floats) -> str:
    """Relative differences of the average and the makespan, and the 90th percentile of those of jobs."""
    makespans = [(arrival_s + jct_s).max() - arrival_s.min() for jct_s in (before, after)]
    off = np.quantile(np.abs(after / before - 1.0), 0.9)
    return f"{after.mean() / before.mean() - 1:>+7.1%} {makespans[1] / makespans[0] - 1:>+8.1%} {off:>6.1%}"
