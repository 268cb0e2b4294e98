"""WatchGroup: a group's journal, live, resumable by revision."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rota.access.rules import WATCH
from rota.api.access.guard import Admission
from rota.api.beginning import EARLIEST, After, beginning_of_watch
from rota.api.grpc.calls import Context, Receive, dump
from rota.api.grpc.failures import Failure, abort, failure_of
from rota.api.ports import ServedCoordinator
from rota.observability.metrics import Metrics
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import MAX_SAFE_INTEGER, Limits
from rota.replica.ports import JournalEvent, StoreUnavailable
from rota.v1.admin_pb2 import WatchGroupRequest, WatchGroupResponse
from rota.wire.protobuf import parse
from rota.wire.routes import decode_path
from rota.wire.shapes import invalid

OPERATION = "WatchGroup"
INTERRUPTED = Failure(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group cannot be followed here any more: resume")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Watching:
    """The behaviour of `WatchGroup`."""

    coordinator: ServedCoordinator
    limits: Limits
    metrics: Metrics
    drained: asyncio.Event
    admission: Admission
    receive: Receive

    async def watch(self, context: Context) -> None:
        try:
            self.admission.admit_needing(WATCH)
            events = await self._open(await self.receive(context))
            with self.metrics.streaming():
                async with aclosing(events):
                    await self._forward(events, context)
        except RejectedRequest as rejected:
            self.metrics.request_answered(OPERATION, rejected.code)
            await abort(context, failure_of(rejected))
        except StoreUnavailable:
            _log.warning("a watch ended: the store cannot be reached")
        self.metrics.request_answered(OPERATION, ErrorCode.NONE)
        await abort(context, INTERRUPTED)

    async def _open(self, data: bytes) -> AsyncGenerator[JournalEvent, None]:
        message = parse(WatchGroupRequest, data)
        names = decode_path({"namespace": message.namespace, "group_id": message.group_id})
        group = names["namespace"], names["group_id"]
        after = await beginning_of_watch(self.coordinator, *group, self._after(message))
        events: Any = self.coordinator.watch(*group, after)
        return events  # type: ignore[no-any-return]  # the coordinators' watches are generators

    def _after(self, message: WatchGroupRequest) -> After | None:
        if message.from_earliest:
            if message.HasField("after_revision"):
                raise invalid("after_revision must be absent with from_earliest")
            return EARLIEST
        if not message.HasField("after_revision"):
            return None
        after: int = message.after_revision
        if not 0 <= after <= MAX_SAFE_INTEGER:
            raise invalid(f"after_revision must be from 0 to {MAX_SAFE_INTEGER}")
        return after

    async def _forward(self, events: AsyncGenerator[JournalEvent, None], context: Context) -> None:
        """Headers go out once the group is followed: what the client does from then on, it will see here."""
        drained = asyncio.ensure_future(self.drained.wait())
        following = asyncio.ensure_future(anext(events, None))
        try:
            await asyncio.sleep(0)
            await context.send_initial_metadata(())
            while True:
                await asyncio.wait((drained, following), return_when=asyncio.FIRST_COMPLETED)
                event = following.result() if following.done() else None
                if event is None:
                    return
                await context.write(dump(_line(event)))
                following = asyncio.ensure_future(anext(events, None))
        finally:
            drained.cancel()
            following.cancel()
            await asyncio.gather(drained, following, return_exceptions=True)


def _line(event: JournalEvent) -> WatchGroupResponse:
    return WatchGroupResponse(
        at_ms=event.at_ms,
        namespace=event.namespace,
        group_id=event.group_id,
        generation_id=event.generation_id,
        kind=event.kind,
        reason=event.reason,
        payload_json=json.dumps(event.payload, separators=(",", ":"), ensure_ascii=False),
        revision=event.seq,
        epoch=event.epoch,
    )
