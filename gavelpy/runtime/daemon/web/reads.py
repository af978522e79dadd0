"""GET requests of the web page: cluster, nodes, jobs, teams, prices, usage and events, as JSON.

The queries are those of gRPC, with the same caller, so a user sees what `gavel` shows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from aiohttp import web

import gavelpy
from gavelpy.model.job import JobSpec
from gavelpy.policies.base import registered
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.events import EventQueries
from gavelpy.runtime.daemon.queries.explain import Explainer
from gavelpy.runtime.daemon.queries.fields import number, require, text
from gavelpy.runtime.daemon.queries.job_status import JobStatus, PublicState
from gavelpy.runtime.daemon.queries.job_table import LIVING, SIZE_DEFAULT, JobFilter, page_of
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.queries.past import described, history_lines, status_of
from gavelpy.runtime.daemon.queries.usage import usage
from gavelpy.runtime.daemon.scheduler import Scheduler
from gavelpy.runtime.daemon.web.access import Access, answer
from gavelpy.runtime.daemon.web.samples import Samples
from gavelpy.runtime.security.identity import Caller, Operation

NODES_DEFAULT, NODES_MAX = 200, 1_000
EVENTS_DEFAULT, EVENTS_MAX = 100, 1_000
PAST = "this job is in the archive: its shares and the place of its checkpoint are not kept"
_INTERVALS = ("start_low_s", "start_high_s", "finish_low_s", "finish_high_s")
_TIMES = ("start_in_s", "finish_in_s", "preemption_gpu_s", *_INTERVALS)
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{0,9})?")
STATES: Mapping[str, frozenset[PublicState]] = {
    "living": LIVING,
    "over": frozenset(PublicState) - LIVING,
    "all": frozenset(PublicState),
    **{state.name.lower(): frozenset({state}) for state in PublicState},
}


class Reads:
    """Answers GET requests from a scheduler."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries, explainer: Explainer, samples: Samples) -> None:
        self._scheduler, self._jobs, self._explainer, self._samples = scheduler, jobs, explainer, samples
        self.cluster = ClusterQueries(scheduler, jobs)
        self._events = EventQueries(scheduler, jobs)

    def routes(self, access: Access) -> list[web.RouteDef]:
        """The routes, each with the operation of gRPC that has the same roles."""
        found = {
            "me": (Operation.GET_SERVER_INFO, self._me),
            "cluster": (Operation.GET_CLUSTER, self._cluster),
            "nodes": (Operation.LIST_NODES, self._nodes),
            "jobs": (Operation.LIST_JOBS, self._list),
            "jobs/{job}": (Operation.GET_JOB, self._job),
            "jobs/{job}/samples": (Operation.GET_JOB, self._of_job),
            "prices": (Operation.GET_CLUSTER, self._prices),
            "teams": (Operation.GET_CLUSTER, self._teams),
            "usage": (Operation.GET_USAGE, self._usage),
            "events": (Operation.LIST_EVENTS, self._list_events),
        }
        return [web.get(f"/api/v1/{path}", access.guarded(*each)) for path, each in found.items()]

    async def _me(self, _: web.Request, caller: Caller) -> web.Response:
        may = {operation.value: caller.may(operation) for operation in Operation}
        return answer(
            {
                "server_version": gavelpy.__version__,
                "cluster_name": self._scheduler.name,
                "incarnation": self._scheduler.incarnation,
                "user": caller.name,
                "role": caller.role.value,
                "is_sole": caller.is_sole,
                "may": may,
                "policies": sorted(registered()),
            }
        )

    async def _cluster(self, _: web.Request, __: Caller) -> web.Response:
        status = vars(self.cluster.cluster())
        return answer({name: value for name, value in status.items() if name not in ("teams", "priorities")})

    async def _nodes(self, request: web.Request, caller: Caller) -> web.Response:
        offset, limit = _span(request.query, NODES_DEFAULT, NODES_MAX)
        gpu_type = text("type", request.query.get("type", ""))
        pool = self._scheduler.core.pool
        order = sorted(
            pool.node_row.values(), key=lambda row: (pool.gpu_types[pool.node_type[row]], pool.node_ids[row])
        )
        rows = [row for row in order if gpu_type in ("", pool.gpu_types[pool.node_type[row]])]
        nodes = [
            vars(self.cluster.node_at(row, caller)) | {"gpu_jobs": self.cluster.gpu_jobs(row, caller)}
            for row in rows[offset : offset + limit]
        ]
        return answer({"nodes": nodes, "total": len(rows), "offset": offset})

    async def _list(self, request: web.Request, caller: Caller) -> web.Response:
        query = request.query
        states = query.get("state", "living")
        require(states in STATES, "state", f"one of {', '.join(STATES)}", states)
        order = query.get("order", "ascending")
        require(order in ("ascending", "descending"), "order", "ascending or descending", order)
        offset, limit = whole(query, "offset", 0), whole(query, "limit", SIZE_DEFAULT)
        wanted = JobFilter(
            STATES[states], query.get("owner", ""), query.get("team", ""), query.get("name", ""),
            query.get("sort", "job"), order == "descending", offset, limit,
        )  # fmt: skip
        page = page_of(self._scheduler, self._jobs, caller, wanted)
        return answer(
            {
                "jobs": [job_values(status) for status in self._jobs.statuses(page.jobs)],
                "total": page.total,
                "offset": offset,
                "now_s": self._scheduler.wall_s(self._scheduler.now_s()),
                "by_state": {state.name.lower(): count for state, count in page.by_state.items()},
            }
        )

    async def _job(self, request: web.Request, caller: Caller) -> web.Response:
        name = request.match_info["job"]
        past = (await self._scheduler.past.among(caller, self._jobs, [name])).get(name)
        if past is not None:
            spec = description_values(described(past, shows_environment=False))
            history = history_lines(past, self._scheduler.wall_s(0.0))
            values = {"job": job_values(status_of(past)), "description": spec, "history": history, "notes": [PAST]}
            return answer(values | {"accounts": [], "start_in_s": None, "finish_in_s": None, "is_past": True})
        forecast = request.query.get("forecast", "true")
        require(forecast in ("true", "false"), "forecast", "true or false", forecast)
        found = await self._explainer.explain(self._jobs.find(caller, name), forecasts=forecast == "true")
        values = {"job": job_values(found.job), "description": description_values(found.description)}
        times = {field: _known(getattr(found, field)) for field in _TIMES}
        return answer(vars(found) | values | times | {"is_past": False})

    async def _of_job(self, request: web.Request, caller: Caller) -> web.Response:
        job = self._jobs.find(caller, request.match_info["job"])
        return answer({"job": job, **self._samples.of_job(job)})

    async def _prices(self, _: web.Request, __: Caller) -> web.Response:
        return answer(self._samples.prices())

    async def _teams(self, _: web.Request, __: Caller) -> web.Response:
        status = self.cluster.cluster()
        reservations = [vars(one) for one in self.cluster.reservations()]
        return answer({"teams": status.teams, "priorities": status.priorities, "reservations": reservations})

    async def _usage(self, request: web.Request, caller: Caller) -> web.Response:
        since_s = _real(request.query, "since_s", 0.0)
        report = await usage(self._scheduler, caller, since_s=since_s, owner=text("owner", _first(request, "owner")))
        return answer(vars(report))

    async def _list_events(self, request: web.Request, caller: Caller) -> web.Response:
        limit = whole(request.query, "limit", EVENTS_DEFAULT)
        require(1 <= limit <= EVENTS_MAX, "limit", f"in [1, {EVENTS_MAX}]", limit)
        job = _first(request, "job")
        last = max(self._scheduler.driver.sequence - limit, 0)
        after = whole(request.query, "after", 0 if job else last)
        found = self._events.read(caller, after=after, job=job, events_max=limit)
        events = [
            {"sequence": event.sequence, "time_s": event.time_s, "kind": event.kind, "text": event.text}
            async for event in found
        ]
        next_after = events[-1]["sequence"] if events else after
        return answer({"events": events, "next_after": next_after})


def job_values(status: JobStatus) -> dict[str, Any]:
    """A job as JSON values, with the same fields as `gavel jobs -o json`."""
    return vars(status) | {"state": status.state.name.lower()}


def description_values(spec: JobSpec) -> dict[str, Any]:
    """A job as its owner described it."""
    names = [field.name for field in fields(spec) if field.name not in ("id", "begin_s", "kind")]
    values = {name: getattr(spec, name) for name in names}
    return {"name": spec.id, "kind": str(spec.kind.value), **values}


def whole(query: Mapping[str, str], field: str, default: int) -> int:
    """A whole number >= 0 of a query. Raises InvalidInput."""
    given = query.get(field, "")
    require(not given or (given.isascii() and given.isdecimal() and len(given) < 16), field, "a whole number", given)
    return int(given) if given else default


def _real(query: Mapping[str, str], field: str, default: float) -> float:
    given = query.get(field, "")
    require(bool(not given or _NUMBER.fullmatch(given)), field, "a number >= 0", given)
    return number(field, float(given) if given else default)


def _first(request: web.Request, field: str) -> str:
    return str(request.query.get(field, ""))


def _span(query: Mapping[str, str], default: int, most: int) -> tuple[int, int]:
    offset, limit = whole(query, "offset", 0), whole(query, "limit", default)
    require(1 <= limit <= most, "limit", f"in [1, {most}]", limit)
    return offset, limit


def _known(seconds: float) -> float | None:
    return None if seconds < 0 or math.isnan(seconds) else seconds
