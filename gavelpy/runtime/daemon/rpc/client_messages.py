"""Converts answers of the queries to messages for clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gavelpy.journal.archive_tables import PastJob
from gavelpy.model.job import JobKind, JobSpec
from gavelpy.runtime.daemon.engine.forecasts import Times
from gavelpy.runtime.daemon.queries.cluster import ClusterStatus, NodeStatus
from gavelpy.runtime.daemon.queries.dry_runs import PlannedJob
from gavelpy.runtime.daemon.queries.explain import JobExplanation
from gavelpy.runtime.daemon.queries.job_status import JobStatus, PublicState, after_in_words
from gavelpy.runtime.daemon.queries.log_lines import LogOrigin
from gavelpy.runtime.daemon.queries.logs import LogChunk
from gavelpy.runtime.daemon.queries.past import described, history_lines, status_of
from gavelpy.runtime.daemon.queries.shadow_prices import ShadowPrice
from gavelpy.runtime.daemon.queries.usage import UsageReport
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import log_pb2, software_pb2

PAST = "this job is in the archive: its shares and the place of its checkpoint are not kept"
CODES = {state: pb.JobState.Value(f"JOB_STATE_{state.name}") for state in PublicState}
STATES = {code: state for state, code in CODES.items()}


def job_message(status: JobStatus) -> pb.Job:
    """A job."""
    return pb.Job(**job_fields(status))


def job_fields(status: JobStatus) -> dict[str, Any]:
    """The fields of a job's message."""
    metrics = [pb.JobMetric(**point._asdict()) for point in status.metrics]
    return vars(status) | {"state": CODES[status.state], "metrics": metrics}


def description_message(spec: JobSpec) -> pb.JobDescription:
    """A job as its owner described it."""
    return pb.JobDescription(
        name=spec.id,
        steps_total=0.0 if spec.open_ended else spec.steps_total,
        gpus=spec.gpus,
        sizes=spec.sizes,
        rates_by_size={size: pb.Rates(rates_steps_per_s=rates) for size, rates in spec.rates_by_size.items()},
        weight=spec.weight,
        job_type=spec.job_type,
        rates_steps_per_s=spec.rates_steps_per_s,
        deadline_s=spec.deadline_s if math.isfinite(spec.deadline_s) else 0.0,
        entity=spec.entity,
        command=spec.command,
        working_directory=spec.working_directory,
        environment=spec.environment,
        secrets=spec.secrets,
        one_process_a_node=spec.one_process_a_node,
        checkpoint_every_s=spec.checkpoint_every_s,
        warning_s=spec.warning_s,
        warning_signal=spec.warning_signal,
        preemptible=spec.preemptible,
        software=software_pb2.Software(**vars(spec.software)),
        hold=spec.hold,
        priority=spec.priority,
        time_s=spec.time_s,
        stall_s=spec.stall_s,
        gpu_memory_gib=spec.gpu_memory_gib,
        cpus_per_gpu=spec.cpus_per_gpu,
        memory_gib_per_gpu=spec.memory_gib_per_gpu,
        plans=spec.plans,
        completion_value=spec.completion_value,
        app=spec.app,
        gpu_types=spec.gpu_types,
        nodes=spec.nodes,
        exclude=spec.exclude,
        reservation=spec.reservation,
        no_preempt=spec.no_preempt,
        after=after_in_words(spec),
        array_size=spec.array_size,
        array_position=spec.array_position,
        array_limit=spec.array_limit,
        begin_at_s=spec.begin_at_s,
        interactive=spec.kind is JobKind.INTERACTIVE,
        notify=pb.Notify(kinds=spec.notify.kinds, webhook=spec.notify.webhook, mail=spec.notify.mail),
    )


def explanation_message(found: JobExplanation) -> pb.GetJobResponse:
    """One job in detail."""
    values = vars(found) | {
        "job": job_message(found.job),
        "description": description_message(found.description),
        "accounts": [pb.TypeAccount(**vars(account)) for account in found.accounts],
        "sizes": [pb.SizeAccount(**vars(account)) for account in found.sizes],
    }
    return pb.GetJobResponse(**values)


def planned_message(planned: PlannedJob) -> pb.SubmittedJob:
    """A job of a dry run."""
    return pb.SubmittedJob(job=-1, name=planned.name, forecast=pb.Forecast(**vars(planned.forecast)), note=planned.note)


def cluster_message(status: ClusterStatus) -> pb.GetClusterResponse:
    """The cluster in numbers."""
    types = [pb.TypeStatus(**vars(found)) for found in status.types]
    classes = [pb.PriorityClass(**vars(one)) for one in status.priorities]
    teams = [pb.Team(**(vars(one) | {"limits": [pb.TeamLimit(**vars(k)) for k in one.limits]})) for one in status.teams]
    return pb.GetClusterResponse(**(vars(status) | {"types": types, "priorities": classes, "teams": teams}))


def node_message(status: NodeStatus) -> pb.NodeStatus:
    """A node."""
    return pb.NodeStatus(**vars(status))


def past_message(past: PastJob, epoch_s: float, *, shows_environment: bool) -> pb.GetJobResponse:
    """A job of the archive in detail."""
    return pb.GetJobResponse(
        job=job_message(status_of(past)),
        description=description_message(described(past, shows_environment=shows_environment)),
        history=history_lines(past, epoch_s),
        **vars(Times()),
        preemption_gpu_s=-1.0,
        notes=[PAST],
    )


def usage_message(found: UsageReport) -> pb.GetUsageResponse:
    """GPU time by holder."""
    rows = [pb.UsageRow(**vars(row)) for row in found.rows]
    return pb.GetUsageResponse(rows=rows, since_s=found.since_s, until_s=found.until_s)


def shadow_prices_message(found: Sequence[ShadowPrice]) -> pb.GetShadowPricesResponse:
    """Marginal values by period."""
    return pb.GetShadowPricesResponse(rows=[pb.ShadowPriceRow(**vars(row)) for row in found])


def log_message(chunk: LogChunk, job_name: Callable[[int], str]) -> pb.ReadLogsResponse:
    """A batch of lines, or a notice."""
    if chunk.notice:
        return pb.ReadLogsResponse(notice=chunk.notice)
    batch = log_pb2.LogBatch()
    rows: dict[tuple[str, LogOrigin], int] = {}  # of the batch's origins
    for piece in chunk.pieces:
        lines = piece.lines
        row_of = {row: rows.setdefault((piece.node_id, lines.origins[row]), len(rows)) for row in set(lines.origin)}
        batch.origin.extend([row_of[row] for row in lines.origin])
        batch.time_s.extend(lines.time_s)
        batch.text.extend(lines.text)
    for node_id, origin in rows:
        batch.origins.add(**vars(origin), job_name=job_name(origin.job), node_id=node_id)
    return pb.ReadLogsResponse(batch=batch, positions=chunk.positions)


def line_messages(message: pb.ReadLogsResponse) -> Iterator[pb.ReadLogsResponse]:
    """One message a line, for a client that does not support batches."""
    if message.notice:
        yield message
    batch = message.batch
    for row, time_s, text in zip(batch.origin, batch.time_s, batch.text, strict=True):
        origin = batch.origins[row]
        yield pb.ReadLogsResponse(
            job=origin.job,
            job_name=origin.job_name,
            lease=origin.lease,
            rank=origin.rank,
            is_error_stream=origin.is_error_stream,
            node_id=origin.node_id,
            text=text,
            time_s=time_s,
        )
