"""Reservations for users by brute force: small clusters, random reservations, limits, classes and jobs.

After each plan no job of others is on a reserved node, unless no plan may preempt it, and no job waits for GPUs that
are free on nodes that it may use.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.events import (
    CheckpointSaved,
    ConfigChanged,
    JobsReleased,
    JobSubmitted,
    ReservationAdded,
    ReservationRemoved,
)
from gavelpy.mechanism.gpus import NONE
from gavelpy.mechanism.priority_classes import ranking
from tests.conftest import costly
from tests.mechanism.builders import make_spec, tell
from tests.mechanism.test_priority_order import SmallCluster

USERS = ("ann", "bob", "cid")


class ReservedCluster(SmallCluster):
    """As its base, with reservations for users, maintenance, limits, and jobs that are or become preemptible."""

    def __init__(self, seed: int, *, is_ranked: bool, keeps_unsaved: bool) -> None:
        gang_max = 1 if keeps_unsaved else 3  # GPUs may be reserved for a gang that cannot take those of such jobs
        super().__init__(seed, gpu_types=2, gang_max=gang_max, node_max=2)
        classes = self.core.settings.priorities if is_ranked else ()
        settings = replace(self.core.settings, priorities=classes, keep_unsaved=keeps_unsaved)
        tell(self.core, ConfigChanged(settings))
        self.order, self.is_ranked = ranking(classes), is_ranked

    def step(self) -> None:
        match self.rng.choice(["reserve", "delete", "save", "release", *["other"] * 8]):
            case "reserve":
                self.reserve()
            case "delete" if self.core.windows:
                self.tell(ReservationRemoved(self.rng.choice(sorted(self.core.windows))))
            case "save" if len(self.core.jobs.leased):
                job = np.array([self.rng.choice(self.core.jobs.leased.tolist())])
                self.tell(CheckpointSaved(job, self.core.jobs.lease[job].copy(), np.array([5.0])))
            case "release" if len(self.core.jobs.active):
                self.tell(JobsReleased(self.core.jobs.active.copy()))
        super().step()

    def reserve(self) -> None:
        rng, core = self.rng, self.core
        ids = [str(node) for node in core.pool.node_ids]
        begin_s = core.now_s + rng.choice([0.0, 30.0, 150.0, 400.0])
        nodes = tuple(rng.sample(ids, rng.randint(1, len(ids))))
        users = rng.choice([(), ("ann",), ("ann", "bob"), ("bob",)])
        end_s = begin_s + rng.choice([50.0, 300.0])
        with suppress(InvalidInput):  # it overlaps another one
            self.tell(ReservationAdded(f"w{rng.randint(0, 3)}", nodes, begin_s, end_s, "", users))

    def submit(self) -> None:
        rng = self.rng
        rates = {name: rng.choice([0.0, 1.0, 4.0]) for name in self.types} | {self.types[0]: 2.0}
        spec = make_spec(
            f"j{self.core.jobs.count}", steps=1e6, gpus=rng.randint(1, self.gang_max), rates=rates,
            owner=rng.choice(USERS), preemptible=rng.random() < 0.4, no_preempt=False,
            time_s=rng.choice([0.0, 0.0, 60.0, 500.0]), reservation=rng.choice(["", "", *sorted(self.core.windows)]),
            priority=rng.choice(["", "urgent", "low"]) if self.is_ranked else "",
        )  # fmt: skip
        self.tell(JobSubmitted(replace(spec, **self.choice_of_nodes())))

    def may_use(self, job: int, gpu: int) -> bool:
        """From the reservations alone, without the core's parts and sets."""
        core = self.core
        node, spec = str(core.pool.node_ids[core.pool.node_of[gpu]]), core.jobs.specs[job]
        here = [one for one in core.windows.values() if one.begin_s <= core.now_s and node in one.node_ids]
        is_own = [spec.owner in one.users and core.jobs.booked.get(job) == one.name for one in here]
        inside = any(is_own) if job in core.jobs.booked else not here
        return inside and all(one.users for one in here) and spec.may_use(node) and not self.is_barred(job, node)

    def is_barred(self, job: int, node: str) -> bool:
        """Whether a waiting job would run into a coming reservation of others on this node, or of its own."""
        core, jobs = self.core, self.core.jobs
        if jobs.lease[job] >= 0 or not core.settings.keep_unsaved:
            return False
        if jobs.resumes[job] == 2 or jobs.saved_lease[job] >= 0:  # by its owner
            return False
        limit_s = jobs.specs[job].time_s
        left_s = max(limit_s - jobs.attained_gpu_s[job] / jobs.gpus[job], 1.0) if limit_s else np.inf
        return any(
            node in one.node_ids
            and one.begin_s > core.now_s
            and left_s > one.begin_s - core.now_s
            and not (jobs.booked.get(job) == one.name and jobs.specs[job].owner in one.users)
            for one in core.windows.values()
        )

    def contenders(self) -> list[int]:
        jobs, core = self.core.jobs, self.core
        found = super().contenders()
        sets = core.planner.sets
        if sets is None:
            return found
        return [j for j in found if can_run(jobs, core.pool, np.array([j]), core.pool.usable & sets.of(j)).any()]

    def is_overtaken(self, rank: int, gpu_type: int) -> bool:
        return self.is_ranked and super().is_overtaken(rank, gpu_type)

    def check_places(self) -> None:
        core, pool = self.core, self.core.pool
        fixed = set(core.exempt.jobs.tolist())
        wrong = [
            (job, gpu)
            for gpu, job in enumerate(pool.job.tolist())
            if job != NONE and job not in fixed and not self.may_use(job, gpu)
        ]
        assert not wrong, f"(job, GPU) of others on reserved nodes: {wrong}"


@pytest.mark.parametrize("is_ranked", [False, True], ids=["one-class", "classes"])
@pytest.mark.parametrize("keeps_unsaved", [False, True], ids=["preemptible", "keeps-unsaved"])
@costly(4)
@given(seed=st.integers(0, 2**32))
def test_no_job_of_others_is_on_a_reserved_node_and_none_waits_in_vain(
    seed: int, is_ranked: bool, keeps_unsaved: bool
) -> None:
    cluster = ReservedCluster(seed, is_ranked=is_ranked, keeps_unsaved=keeps_unsaved)

    for _ in range(25):
        cluster.step()
