"""POST requests of the web page: changes of jobs, nodes and the policy.

Each goes through the same functions as its counterpart in gRPC, so it has the same checks and becomes the same events
of the journal; the log names its caller.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from gavelpy.runtime.daemon.changes import hold, release, set_policy
from gavelpy.runtime.daemon.queries.cluster import ClusterQueries
from gavelpy.runtime.daemon.queries.fields import require
from gavelpy.runtime.daemon.queries.job_status import hold_note
from gavelpy.runtime.daemon.queries.jobs import JobQueries
from gavelpy.runtime.daemon.scheduler import NodeAction, Scheduler
from gavelpy.runtime.daemon.web.access import Access, answer, body_of
from gavelpy.runtime.daemon.web.reads import job_values
from gavelpy.runtime.security.identity import Caller, Operation

logger = logging.getLogger(__name__)
_ON_NODES = {action.value: action for action in (NodeAction.DRAIN, NodeAction.RESUME)}


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a change without parameters."""


class NodeChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a change of a node. `force`: a drain also ends jobs that are not preempted."""

    force: bool = False


class NewPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a change of the policy; empty or 0 = unchanged. `parameters` is a JSON object as a text."""

    policy: str = ""
    parameters: str = ""
    round_s: float = 0.0


class Actions:
    """Carries out POST requests."""

    def __init__(self, scheduler: Scheduler, jobs: JobQueries, cluster: ClusterQueries) -> None:
        self._scheduler, self._jobs, self._cluster = scheduler, jobs, cluster

    def routes(self, access: Access) -> list[web.RouteDef]:
        """The routes, each with the operation of gRPC that has the same roles."""
        found: dict[str, tuple[Operation, Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]]] = {
            "jobs/{job}/cancel": (Operation.CANCEL_JOBS, self._change_job),
            "jobs/{job}/{change:hold|release}": (Operation.CHANGE_JOBS, self._change_job),
            "nodes/{node}/{change:drain|resume}": (Operation.SET_NODE, self._change_node),
            "policy": (Operation.SET_POLICY, self._change_policy),
        }
        return [web.post(f"/api/v1/{path}", access.guarded(*each)) for path, each in found.items()]

    async def _change_job(self, request: web.Request, caller: Caller) -> web.Response:
        await body_of(request, Nothing)
        job = self._jobs.find(caller, request.match_info["job"])
        change = request.match_info.get("change", "cancel")
        match change:
            case "hold":
                await hold(self._scheduler, caller, [job])
            case "release":
                await release(self._scheduler, caller, [job])
            case _:
                await self._scheduler.cancel([job])
        logger.info("job changed on the web page", extra={"job_id": job, "change": change, "user": caller.name})
        status = self._jobs.statuses([job])[0]
        return answer({"job": job_values(status), "note": hold_note(status) if change != "cancel" else ""})

    async def _change_node(self, request: web.Request, caller: Caller) -> web.Response:
        wanted = await body_of(request, NodeChange)
        node_id, change = request.match_info["node"], request.match_info["change"]
        require(change in _ON_NODES, "change", "drain or resume", change)
        self._cluster.node(node_id, caller)
        await self._scheduler.set_node(node_id, _ON_NODES[change], force=wanted.force)
        logger.info("node changed on the web page", extra={"node_id": node_id, "change": change, "user": caller.name})
        return answer({"node": vars(self._cluster.node(node_id, caller))})

    async def _change_policy(self, request: web.Request, caller: Caller) -> web.Response:
        wanted = await body_of(request, NewPolicy)
        await set_policy(self._scheduler, wanted.policy, wanted.parameters, wanted.round_s)
        logger.info("policy changed on the web page", extra={"policy": wanted.policy, "user": caller.name})
        status = self._cluster.cluster()
        return answer(
            {"policy": status.policy, "policy_parameters": status.policy_parameters, "round_s": status.round_s}
        )
