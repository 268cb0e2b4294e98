"""Heartbeats, one or many in a message."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from starlette.requests import Request as HttpRequest

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatMany, HeartbeatManyReply, MemberHeartbeat
from rota.protocol.values import Epoch, Revision, Wait, limited
from rota.protocol.wire.routes import REQUESTS
from rota.protocol.wire.shapes import Shape, invalid
from rota.server.http.dependencies import Backend, call_while_there, until_disconnect
from rota.server.http.rendered import CallerGone, Rendered, render_answer, render_json
from rota.server.observability.metrics import Metrics

OPERATION = "heartbeat"
MAX_WAITING = 256
"""Members of one message that wait for a change: each of them is parked separately."""
_NO_MEMBERS = Answer(HeartbeatManyReply())


@dataclass(frozen=True, slots=True)
class Batch:
    """The heartbeats of several members in one message."""

    request: HeartbeatMany
    wait_ms: int


class BatchedHeartbeat(msgspec.Struct, frozen=True):
    """The answer to one member's heartbeat among several."""

    member_id: str
    error: ErrorCode
    generation_id: int
    state: str
    revision: Revision
    epoch: Epoch


class HeartbeatBatchReply(msgspec.Struct, frozen=True):
    """The answers to the heartbeats of several members."""

    members: tuple[BatchedHeartbeat, ...]
    """One line per member of the request, in its order."""
    revision: Revision
    epoch: Epoch


async def answer_heartbeats(http: HttpRequest, backend: Backend, request: Heartbeat | Batch) -> Rendered:
    """Answer the heartbeat of one member, or those of several."""
    if isinstance(request, Batch):
        return render_heartbeats(request.request, await _answer_batch(http, backend, request), backend.metrics)
    answer = backend.coordinator.try_heartbeat(request)
    if answer is None:
        answer = await call_while_there(http, backend, request, OPERATION)
    return render_heartbeats(request, answer, backend.metrics)


async def _answer_batch(http: HttpRequest, backend: Backend, batch: Batch) -> Answer:
    request = batch.request
    answer = await _now(backend, request)
    if batch.wait_ms and request.members and _are_current(request, answer):
        answer = await _at_first_change(http, backend, request, batch.wait_ms)
    return answer


async def _now(backend: Backend, request: HeartbeatMany) -> Answer:
    """The answer without parking any member."""
    if not request.members:
        return _NO_MEMBERS
    return backend.coordinator.try_heartbeat(request) or await backend.coordinator.call(request)


async def _at_first_change(http: HttpRequest, backend: Backend, request: HeartbeatMany, wait_ms: int) -> Answer:
    """Park all; as soon as one is answered, read the state of all members again.

    Each member is parked for its own time (a third of its session), so the shortest one ends the wait.
    """
    place = request.namespace, request.group_id
    parked = [Heartbeat(*place, b.member_id, b.generation_id, b.group_instance_id, wait_ms) for b in request.members]
    calls = [asyncio.ensure_future(backend.coordinator.call(each)) for each in parked]
    gone = asyncio.ensure_future(until_disconnect(http.receive))
    try:
        with backend.metrics.parked(OPERATION):
            await asyncio.wait((*calls, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise CallerGone
    finally:
        for task in (*calls, gone):
            task.cancel()
        await asyncio.gather(*calls, gone, return_exceptions=True)
    return await _now(backend, request)


class HeartbeatBatch(msgspec.Struct, frozen=True):
    """Several members of one process in one message. With `wait_ms`, answered as soon as one of them has news."""

    members: Annotated[tuple[MemberHeartbeat, ...], limited("group_max_size")]
    """Several at once."""
    wait_ms: Wait | None = None
    """Above 0 the call parks and answers the moment the group leaves the generation."""


_HEARTBEAT = REQUESTS[Heartbeat]
HEARTBEAT_BATCH = Shape(HeartbeatBatch, closed=True)


_OF_SEVERAL = re.compile(rb'"members"\s*:')
"""No text of a heartbeat has this among its characters, where JSON escapes the quotes."""


def read_heartbeat(body: bytes, path: dict[str, Any], limits: Limits) -> Heartbeat | Batch:
    """The request of a body; `path` names its namespace and group. Raises `RejectedRequest`."""
    if not _OF_SEVERAL.search(body):
        heartbeat: Heartbeat = _HEARTBEAT.read(body, limits, **path)
        return heartbeat
    batch: HeartbeatBatch = HEARTBEAT_BATCH.read(body, limits)
    if batch.wait_ms:
        if len(batch.members) > MAX_WAITING:
            detail = f"members must have at most {MAX_WAITING} items if wait_ms is given"
            raise RejectedRequest(ErrorCode.PAYLOAD_TOO_LARGE, detail)
        if len({member.member_id for member in batch.members}) < len(batch.members):
            raise invalid("members must name each member once if wait_ms is given")
    return Batch(HeartbeatMany(**path, members=batch.members), batch.wait_ms or 0)


def render_heartbeats(request: Heartbeat | HeartbeatMany, answer: Answer, metrics: Metrics) -> Rendered:
    """The answer to one member, or a line for each of several. Count each member by its result."""
    reply = answer.reply
    if isinstance(request, Heartbeat):
        rendered = render_answer(answer)
        metrics.heartbeat_answered(rendered.code)
        return rendered
    assert isinstance(reply, HeartbeatManyReply)
    errors = {error.member_id: error.error for error in reply.errors}
    place = answer.revision, answer.epoch
    rest = reply.generation_id, reply.state, *place
    found = [(beat.member_id, errors.get(beat.member_id, reply.error)) for beat in request.members]
    for result, members in Counter(error for _, error in found).items():
        metrics.heartbeat_answered(result, members)
    lines = tuple([BatchedHeartbeat(member_id, error, *rest) for member_id, error in found])
    return render_json(msgspec.json.encode(HeartbeatBatchReply(lines, *place)))


def _are_current(request: HeartbeatMany, answer: Answer) -> bool:
    reply = answer.reply
    assert isinstance(reply, HeartbeatManyReply)
    is_well = reply.error is ErrorCode.NONE and not reply.errors
    return is_well and all(beat.generation_id == reply.generation_id for beat in request.members)
