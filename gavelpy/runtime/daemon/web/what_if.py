"""What-if from here: forecasts of the living jobs as things are, and under another policy or with more GPUs.

Both simulate a copy of the scheduler's state, under the assumptions of `gavel explain`. A caller sees its own jobs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from gavelpy.mechanism.events import ConfigChanged, Event, NodeJoined
from gavelpy.model.job import NodeId
from gavelpy.runtime.daemon.changes import check_policy
from gavelpy.runtime.daemon.engine.forecast import Ahead, Forecaster
from gavelpy.runtime.daemon.engine.policy_choice import PolicyChoice
from gavelpy.runtime.daemon.leases.lease import measured_rates
from gavelpy.runtime.daemon.queries.fields import require
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.daemon.web.access import Access, answer, body_of
from gavelpy.runtime.security.identity import Caller, Operation
from gavelpy.simulator.expected import Expected

GPUS_MAX = 10_000  # of a type, in addition
JOBS_SHOWN = 20
_UNKNOWN = Expected()


class Supposed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a request: another policy (empty = as it is), and more GPUs by type."""

    policy: str = ""
    parameters: str = ""
    gpus: dict[str, int] = {}


class WhatIf:
    """Answers requests with two forecasts."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries, forecaster: Forecaster) -> None:
        self._scheduler, self._jobs, self._forecaster = scheduler, jobs, forecaster

    def routes(self, access: Access) -> list[web.RouteDef]:
        """The route. It changes nothing, so everyone who sees the cluster may call it."""
        return [web.post("/api/v1/what-if", access.guarded(Operation.GET_CLUSTER, self._compare))]

    async def _compare(self, request: web.Request, caller: Caller) -> web.Response:
        wanted = await body_of(request, Supposed)
        choice, events = self._supposed(wanted)
        living = self._scheduler.core.jobs.ids.of_rows(self._scheduler.core.jobs.active).tolist()
        jobs = {job: self._jobs.name(job) for job in living if self._jobs.may_see(caller, job)}
        now, then = await self._ahead(self._scheduler.choice, []), await self._ahead(choice, events)
        changes = [_change(job, name, now, then) for job, name in jobs.items()]
        changes.sort(key=lambda one: -abs(one["sooner_s"] or 0.0))
        return answer({"now": _sums(now, jobs), "then": _sums(then, jobs), "jobs": changes[:JOBS_SHOWN]})

    def _supposed(self, wanted: Supposed) -> tuple[PolicyChoice, list[Event]]:
        """The policy, and the events that change the state. Raises InvalidInput."""
        scheduler, pool = self._scheduler, self._scheduler.core.pool
        check_policy(wanted.policy, wanted.parameters)
        choice, events = scheduler.choice, list[Event]()
        if wanted.policy or wanted.parameters:
            choice = choice.changed(wanted.policy, wanted.parameters)
            choice.refuse_living(scheduler.core.jobs)
            settings = scheduler.config.for_policy(scheduler.core.settings, choice.policy)
            events += [choice.event, ConfigChanged(settings)]
        for gpu_type, count in wanted.gpus.items():
            require(gpu_type in pool.gpu_types, "gpus", f"of types {', '.join(pool.gpu_types) or 'none yet'}", gpu_type)
            require(1 <= count <= GPUS_MAX, f"gpus[{gpu_type!r}]", f"in [1, {GPUS_MAX}]", count)
            events += _nodes(gpu_type, count, self._node_size(gpu_type))
        return choice, events

    def _node_size(self, gpu_type: str) -> int:
        """GPUs of the largest node of a type."""
        pool = self._scheduler.core.pool
        kind = pool.gpu_types.index(gpu_type)
        rows = [row for row, of in enumerate(pool.node_type) if of == kind]
        return max((int(pool.present[pool.on(pool.node_ids[row])].sum()) for row in rows), default=0) or 8

    async def _ahead(self, choice: PolicyChoice, supposed: list[Event]) -> Ahead:
        scheduler = self._scheduler
        rates = measured_rates(scheduler.core, scheduler.leases.leases.values())
        return await self._forecaster.ask(
            scheduler.core, scheduler.now_s(), choice, wanted=(), rates=rates, everything=True, supposed=supposed
        )


def _nodes(gpu_type: str, count: int, size: int) -> list[Event]:
    """Nodes of a size that have so many GPUs together."""
    sizes = [size] * (count // size) + ([count % size] if count % size else [])
    return [NodeJoined(NodeId(f"what-if-{gpu_type}-{k}"), gpu_type, gpus) for k, gpus in enumerate(sizes)]


def _change(job: int, name: str, now: Ahead, then: Ahead) -> dict[str, Any]:
    before, after = now.seen.get(job, _UNKNOWN), then.seen.get(job, _UNKNOWN)
    sooner_s = before.finish_in_s - after.finish_in_s
    return {
        "job": job,
        "name": name,
        "now": _times(before),
        "then": _times(after),
        "sooner_s": sooner_s if math.isfinite(sooner_s) else None,
    }


def _times(expected: Expected) -> dict[str, float | None]:
    times = {"start_in_s": expected.start_in_s, "finish_in_s": expected.finish_in_s}
    return {name: seconds if math.isfinite(seconds) else None for name, seconds in times.items()}


def _sums(ahead: Ahead, jobs: Mapping[int, str]) -> dict[str, Any]:
    """What becomes of these jobs: how many finish, when on average and the last; and why that is not all."""
    ends = [ahead.seen[job].finish_in_s for job in jobs if job in ahead.seen]
    known = [end for end in ends if math.isfinite(end)]
    return {
        "jobs": len(jobs),
        "jobs_finishing": len(known),
        "finish_in_s_mean": statistics.fmean(known) if known else None,
        "finish_in_s_last": max(known) if known else None,
        "why_incomplete": ahead.why_not,
    }
