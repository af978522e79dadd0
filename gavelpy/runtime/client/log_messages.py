"""What a client makes of messages that bring it lines of logs: nothing comes twice, and nothing is missed."""

from __future__ import annotations

from gavelpy.runtime.client.failures import CallFailed
from gavelpy.runtime.wire import client_pb2 as pb
from gavelpy.runtime.wire import log_pb2


def batched(message: pb.ReadLogsResponse, asked: pb.ReadLogsRequest) -> pb.ReadLogsResponse:
    """A batch or a notice; the single line of a scheduler that knows no batches becomes one."""
    if message.notice or message.HasField("batch"):
        return message
    if asked.after:
        raise CallFailed("an older scheduler has come back, which cannot go on where the log was cut off")
    origin = log_pb2.LogOrigin(
        job=message.job,
        job_name=message.job_name,
        lease=message.lease,
        rank=message.rank,
        is_error_stream=message.is_error_stream,
        node_id=message.node_id,
    )
    batch = log_pb2.LogBatch(origins=[origin], origin=[0], time_s=[message.time_s], text=[message.text])
    return pb.ReadLogsResponse(batch=batch)


def go_on(asked: pb.ReadLogsRequest, message: pb.ReadLogsResponse) -> None:
    """Changes a question so that, asked again, it is answered by what follows a message."""
    if message.positions:
        asked.after.update(message.positions)
        asked.tail_lines = 0
    elif not message.notice and not message.HasField("batch"):
        asked.follow = False  # who knows no batches tells no positions: what is cut off stays cut off
    if asked.job and message.batch.origins:
        asked.job = str(message.batch.origins[0].job)  # a name may mean another job by then
