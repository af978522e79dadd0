"""The gRPC service for clients of the leader: the reads of `client_reads`, changes, and streams.

Users change their own jobs, admins all jobs. Requests are validated before they have any effect. The interceptors turn
errors into statuses.
"""

# ruff: noqa: N802, ARG002 - gRPC defines names and arguments of the methods

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import numpy as np

from gavelpy.errors import RemoteViolation
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.mechanism.teams import of_token
from gavelpy.mechanism.windows import Window
from gavelpy.model.apps import AppRole
from gavelpy.runtime.daemon.changes import hold, release, set_policy
from gavelpy.runtime.daemon.job_history import name_of
from gavelpy.runtime.daemon.notifier import check_notify
from gavelpy.runtime.daemon.queries.events import EventQueries
from gavelpy.runtime.daemon.queries.explain import submission_note
from gavelpy.runtime.daemon.queries.fields import number, require, text
from gavelpy.runtime.daemon.queries.job_status import hold_note
from gavelpy.runtime.daemon.queries.logs import LogQueries, LogSelection
from gavelpy.runtime.daemon.rpc.client_messages import (
    cluster_message,
    job_message,
    line_messages,
    log_message,
    node_message,
    planned_message,
)
from gavelpy.runtime.daemon.rpc.client_reads import AT_ONCE, Context, ReadService, give_way
from gavelpy.runtime.daemon.rpc.requests import KEY, NAME, NAME_ALLOWED, JobReader
from gavelpy.runtime.daemon.rpc.tunnels import PORT_MAX
from gavelpy.runtime.daemon.scheduler import NodeAction, Scheduler
from gavelpy.runtime.security.identity import Refusal, caller
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import client_pb2_grpc

if TYPE_CHECKING:
    from gavelpy.model.job import JobSpec

FORECASTS = "forecasts"  # name of the record in the journal's database
_FIRST_MESSAGE_S = 10.0
_USERS_MAX = 1_000  # of a reservation
_ACTIONS = {
    pb.NODE_WISH_DRAIN: NodeAction.DRAIN,
    pb.NODE_WISH_RESUME: NodeAction.RESUME,
    pb.NODE_WISH_LOST: NodeAction.LOST,
}
_CHANGES = frozenset({pb.JOB_CHANGE_HOLD, pb.JOB_CHANGE_RELEASE, pb.JOB_CHANGE_REQUEUE, pb.JOB_CHANGE_PRIORITY})


class JournalKeeper:
    """Keeps the record of forecasts in the journal's database."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def load(self) -> str:
        """See Keeper."""
        return await self._scheduler.read_journal(lambda store: store.meta(FORECASTS))

    async def store(self, text: str) -> None:
        """See Keeper."""
        await self._scheduler.read_journal(lambda store: store.set_meta(FORECASTS, text))


class SchedulerService(ReadService, client_pb2_grpc.SchedulerServiceServicer):
    """Serves all clients of the leader."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler, JournalKeeper(scheduler))
        self._scheduler = scheduler
        self._events = EventQueries(scheduler, self._jobs)
        self._logs = LogQueries(scheduler, self._jobs)

    async def SubmitJobs(self, request: pb.SubmitJobsRequest, context: Context) -> pb.SubmitJobsResponse:
        """Submits all of the jobs or none; they are durable when the call returns."""
        client, key, most = caller(), request.idempotency_key, self._scheduler.config.limits.jobs_a_request_max
        require(1 <= len(request.jobs) <= most, "jobs", f"1 to {most} in a request", len(request.jobs))
        allowed = "at most 128 printable ASCII characters without spaces"
        require(not key or bool(KEY.fullmatch(key)), "idempotency_key", allowed, key)
        specs = await self._specs(request.jobs, client.name)
        specs = of_token(specs, self._scheduler.core.settings, client.name, client.team)
        if request.dry_run:
            planned = await self._explainer.dry_run(specs, client.name)
            return pb.SubmitJobsResponse(jobs=[planned_message(job) for job in planned])
        submitted = await self._scheduler.submit(specs, key, client.name)
        answer = pb.SubmitJobsResponse(repeated_submission=submitted.repeated)
        known = self._scheduler.core.jobs.by_serial.specs
        last = submitted.first_job + submitted.count
        for first in range(submitted.first_job, last, AT_ONCE):
            rows = np.arange(first, min(first + AT_ONCE, last))
            warnings = self._jobs.warnings(rows)
            for job in rows.tolist():
                note = submission_note(known[job], specs[job - submitted.first_job], self._scheduler)
                answer.jobs.add(job=job, name=name_of(known[job].id), warning=warnings.get(job, ""), note=note)
            await asyncio.sleep(0)
        return answer

    async def CancelJobs(self, request: pb.CancelJobsRequest, context: Context) -> pb.CancelJobsResponse:
        """Cancels jobs that are not over, and returns all when that is durable."""
        past, jobs = await self._named(request.jobs)
        await self._scheduler.cancel(jobs.tolist())
        return pb.CancelJobsResponse(jobs=[*past, *await self._messages(jobs.tolist())])

    async def CancelApp(self, request: pb.CancelAppRequest, context: Context) -> pb.CancelAppResponse:
        """Cancels the jobs of an app that are not over in one transaction, and returns when that is durable."""
        jobs = self._jobs.of_app(caller(), request.app)
        spec = self._scheduler.core.jobs.by_serial.specs[jobs[0]]
        role = AppRole.parse(spec.app)
        cancelled = await self._scheduler.cancel_app(jobs)
        return pb.CancelAppResponse(
            app=role.name, owner=spec.owner, first_job=jobs[0] - role.at, jobs=role.jobs, cancelled=cancelled
        )

    async def ChangeJobs(self, request: pb.ChangeJobsRequest, context: Context) -> pb.ChangeJobsResponse:
        """Holds, releases or requeues jobs, or changes their class, and returns them when that is durable."""
        client = caller()
        require(request.change in _CHANGES, "change", "hold, release, requeue or priority", request.change)
        is_named = bool(request.priority) == (request.change == pb.JOB_CHANGE_PRIORITY)
        require(is_named, "priority", "given with the change priority, and only then", request.priority)
        past, numbers = await self._named(request.jobs)
        jobs = numbers.tolist()
        is_lasting = request.change in (pb.JOB_CHANGE_HOLD, pb.JOB_CHANGE_RELEASE)
        require(is_lasting or not past, "jobs", "not over", ", ".join(job.name for job in past))
        if request.change == pb.JOB_CHANGE_HOLD:
            await hold(self._scheduler, client, jobs)
        elif request.change == pb.JOB_CHANGE_REQUEUE:
            self._jobs.check_requeue(jobs, force=request.force)
            await self._scheduler.requeue(jobs)
        elif request.change == pb.JOB_CHANGE_PRIORITY:
            over = [job for job in jobs if self._scheduler.core.jobs.by_serial.state[job] > ALIVE[-1]]
            require(not over, "jobs", "not over", ", ".join(map(self._jobs.name, over)))
            priority = text("priority", request.priority)
            await self._scheduler.change_priority(jobs, priority, by_admin=client.is_admin)
        else:
            await release(self._scheduler, client, jobs)
        answer = pb.ChangeJobsResponse()
        for status in self._jobs.statuses(jobs):
            answer.jobs.add(job=job_message(status), note=hold_note(status) if is_lasting else "")
        for job in past:
            answer.jobs.add(job=job, note="it is over: nothing changes")
        return answer

    async def SetNode(self, request: pb.SetNodeRequest, context: Context) -> pb.SetNodeResponse:
        """Drains, resumes or gives up a node, and returns it when that is durable."""
        require(request.wish in _ACTIONS, "wish", "drain, resume or lost", request.wish)
        self._cluster.node(request.node_id, caller())
        await self._scheduler.set_node(request.node_id, _ACTIONS[request.wish], force=request.force)
        return pb.SetNodeResponse(node=node_message(self._cluster.node(request.node_id, caller())))

    async def ReserveNodes(self, request: pb.ReserveNodesRequest, context: Context) -> pb.ReserveNodesResponse:
        """Reserves nodes, and returns all reservations when that is durable."""
        wanted = request.reservation
        name, why = text("name", wanted.name), text("reason", wanted.reason)
        require(bool(NAME.fullmatch(name)), "name", NAME_ALLOWED, name)
        begin_at_s, end_at_s = (number(f, getattr(wanted, f)) for f in ("begin_at_s", "end_at_s"))
        for node_id in wanted.node_ids:
            self._cluster.node(node_id, caller())
        nodes, users = (tuple(dict.fromkeys(each)) for each in (wanted.node_ids, wanted.users))
        require(len(users) <= _USERS_MAX, "users", f"at most {_USERS_MAX} names", len(users))
        for user in users:
            require(bool(text("users", user)), "users", "names", user)
        window = Window(name, nodes, begin_at_s, end_at_s, why, users)
        notes = await self._scheduler.reserve(window, force=request.force)
        return pb.ReserveNodesResponse(reservations=self._reservations(), notes=notes)

    async def DeleteReservation(
        self, request: pb.DeleteReservationRequest, context: Context
    ) -> pb.DeleteReservationResponse:
        """Deletes a reservation, and returns the others when that is durable."""
        known = [found.name for found in self._cluster.reservations()]
        require(
            request.name in known,
            "name",
            f"that of a reservation ({', '.join(known) or 'there is none'})",
            request.name,
        )
        await self._scheduler.delete_reservation(request.name)
        return pb.DeleteReservationResponse(reservations=self._reservations())

    async def SetPolicy(self, request: pb.SetPolicyRequest, context: Context) -> pb.SetPolicyResponse:
        """Changes policy or round length, and returns the cluster when that is durable."""
        await set_policy(self._scheduler, request.policy, request.policy_parameters, request.round_s)
        return pb.SetPolicyResponse(cluster=cluster_message(self._cluster.cluster()))

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> AsyncIterator[pb.ListEventsResponse]:
        """Events of the journal, with `follow` also new ones."""
        async for event in self._events.read(
            caller(), after=request.after, job=request.job, events_max=request.events_max, follow=request.follow
        ):
            yield pb.ListEventsResponse(**vars(event))

    async def ReadLogs(self, request: pb.ReadLogsRequest, context: Context) -> AsyncIterator[pb.ReadLogsResponse]:
        """Lines of the caller's jobs."""
        query = LogSelection(
            request.job, request.rank, request.pattern, request.follow, request.tail_lines, dict(request.after)
        )
        async for chunk in self._logs.read(caller(), query):
            message = log_message(chunk, self._jobs.name)
            for part in [message] if request.batches else line_messages(message):
                yield part

    async def OpenTunnel(
        self, requests: AsyncIterator[pb.OpenTunnelRequest], context: Context
    ) -> AsyncIterator[pb.OpenTunnelResponse]:
        """The terminal of an interactive job, or a port that a job listens on, for its owner and admins."""
        messages = aiter(requests)
        try:
            async with asyncio.timeout(_FIRST_MESSAGE_S):
                first = await anext(messages, None)
        except TimeoutError:
            raise RemoteViolation(f"the first message must arrive within {_FIRST_MESSAGE_S:g} s") from None
        if first is None:
            raise RemoteViolation("job must be in the first message, got none")
        require(first.port <= PORT_MAX, "port", f"a number in [0, {PORT_MAX}]", first.port)
        job = self._jobs.find(caller(), first.job)
        lease = self._scheduler.leases.leases.get(int(self._scheduler.core.jobs.by_serial.lease[job]))
        if lease is None or not lease.is_started:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, f"job {job} does not run now")
        node_id = next(iter(lease.parts))
        async for message in self._scheduler.tunnels.serve_client(node_id, job, first.port, messages):
            yield message

    # Helpers ------------------------------------------------------------------------------------------------------

    async def _specs(self, described: Sequence[pb.JobDescription], owner: str) -> list[JobSpec]:
        specs: list[JobSpec] = []
        client, names = caller(), {job.name for job in described if job.name}
        after = {name.rpartition(":")[0] or name for job in described for name in job.after} - names
        past = await self._past.among(client, self._jobs, sorted(after))
        reader = JobReader(owner, names, lambda name: past[name].job if name in past else self._jobs.find(client, name))
        for row, job in enumerate(described):
            specs.append(reader.spec(f"jobs[{row}]", job))
            self._past.check_after(specs[-1], {one.job: one for one in past.values()})
            check_notify(self._scheduler.config.notifications, specs[-1])
            await give_way(row)
        return specs
