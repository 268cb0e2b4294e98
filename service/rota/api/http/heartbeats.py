"""The hot path: heartbeats, straight on ASGI, one or many in a message."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from starlette.types import Receive, Scope

from rota.api.access.guard import ADMIT_ALL, Admission
from rota.api.heartbeats import answers_to
from rota.api.http.bodies import check_no_query, receive_document
from rota.api.http.rendered import CallerGone, Rendered, render_answer, render_document
from rota.api.http.waiting import call_while_there, until_disconnect
from rota.api.ports import ServedCoordinator
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode
from rota.protocol.limits import Limits
from rota.protocol.messages import Heartbeat, HeartbeatReply
from rota.replica.ports import Answer
from rota.wire.fields import invalid, too_large
from rota.wire.requests import HEARTBEAT, HEARTBEAT_BATCH
from rota.wire.routes import decode_path

OPERATION = "heartbeat"
MAX_WAITING = 256
"""Members of one message that wait for news: each of them is parked by itself."""


@dataclass(frozen=True, slots=True)
class _Batch:
    requests: list[Heartbeat]
    wait_ms: int


class HeartbeatEndpoint:
    """Answers `POST …/heartbeat`. Errors are raised, for `outcome_of` to render."""

    def __init__(
        self, coordinator: ServedCoordinator, limits: Limits, metrics: Metrics, admission: Admission = ADMIT_ALL
    ) -> None:
        self._coordinator = coordinator
        self._admission = admission
        self._limits = limits
        self._metrics = metrics

    async def answer(self, scope: Scope, receive: Receive, namespace: str, group_id: str) -> Rendered:
        check_no_query(scope)
        path: dict[str, Any] = dict(decode_path({"namespace": namespace, "group_id": group_id}))
        self._admission.admit_unread(Heartbeat, namespace, group_id)
        limits = self._limits
        request = await receive_document(scope, receive, limits.request_max_bytes, lambda d: _read(d, path, limits))
        if isinstance(request, _Batch):
            return await self._answer_batch(request, receive)
        answer = self._coordinator.try_heartbeat(request)
        if answer is None:
            answer = await call_while_there(self._coordinator, request, receive, self._metrics, OPERATION)
        self._metrics.heartbeat_answered(answer.reply.error)
        return render_answer(answer)

    async def _answer_batch(self, batch: _Batch, receive: Receive) -> Rendered:
        requests = batch.requests
        answers = await self._now(requests)
        if requests and batch.wait_ms and all(map(_is_current, requests, answers)):
            answers = await self._at_first_news(requests, batch.wait_ms, receive)
        for answer in answers:
            self._metrics.heartbeat_answered(answer.reply.error)
        return _render_batch(requests, answers)

    async def _now(self, requests: list[Heartbeat]) -> list[Answer]:
        """One answer each, without parking any."""
        return await answers_to(self._coordinator, [replace(request, wait_ms=0) for request in requests])

    async def _at_first_news(self, requests: list[Heartbeat], wait_ms: int, receive: Receive) -> list[Answer]:
        """Park all; as soon as one is answered, ask again for where everybody stands.

        Each member is parked for its own time (a third of its session), so the shortest one ends the wait.
        """
        calls = [asyncio.ensure_future(self._coordinator.call(replace(r, wait_ms=wait_ms))) for r in requests]
        gone = asyncio.ensure_future(until_disconnect(receive))
        try:
            with self._metrics.parked(OPERATION):
                await asyncio.wait((*calls, gone), return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise CallerGone
        finally:
            for task in (*calls, gone):
                task.cancel()
            await asyncio.gather(*calls, gone, return_exceptions=True)
        return await self._now(requests)


def _read(document: dict[str, Any], path: dict[str, Any], limits: Limits) -> Heartbeat | _Batch:
    if "members" not in document:
        heartbeat: Heartbeat = HEARTBEAT.decode(document, limits, **path)
        return heartbeat
    batch = HEARTBEAT_BATCH.decode(document, limits)
    requests = [Heartbeat(**path, **member) for member in batch["members"]]
    if batch["wait_ms"]:
        if len(requests) > MAX_WAITING:
            raise too_large(f"members must have at most {MAX_WAITING} items where wait_ms is given")
        if len({request.member_id for request in requests}) < len(requests):
            raise invalid("members must name each member once where wait_ms is given")
    return _Batch(requests, batch["wait_ms"])


def _is_current(request: Heartbeat, answer: Answer) -> bool:
    reply = answer.reply
    assert isinstance(reply, HeartbeatReply)
    return reply.error is ErrorCode.NONE and reply.generation_id == request.generation_id


def _render_batch(requests: list[Heartbeat], answers: list[Answer]) -> Rendered:
    """Answered per member. The whole is as old as its oldest answer."""
    members = []
    for request, answer in zip(requests, answers, strict=True):
        reply = answer.reply
        assert isinstance(reply, HeartbeatReply)
        members.append(
            {
                "member_id": request.member_id,
                "error": reply.error,
                "generation_id": reply.generation_id,
                "state": reply.state,
                "revision": answer.revision,
                "epoch": answer.epoch,
            }
        )
    revision = min((answer.revision for answer in answers), default=0)
    epoch = min((answer.epoch for answer in answers), default=0)
    return render_document({"members": members, "revision": revision, "epoch": epoch})
