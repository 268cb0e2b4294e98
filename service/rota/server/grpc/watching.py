"""WatchGroup: a group's journal, live, resumable by revision."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from rota.core.access.rules import WATCH
from rota.core.replica.ports import JournalEvent
from rota.protocol.errors import ErrorCode, RejectedRequest
from rota.protocol.limits import MAX_SAFE_INTEGER
from rota.protocol.wire.protobuf import parse
from rota.protocol.wire.routes import decode_path
from rota.protocol.wire.shapes import invalid
from rota.server.access.open_work import Ending
from rota.server.beginning import EARLIEST, After, beginning_of_watch
from rota.server.grpc.calls import Calls
from rota.server.grpc.receiving import Context, dump
from rota.v1.admin_pb2 import WatchGroupRequest, WatchGroupResponse

INTERRUPTED = RejectedRequest(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group cannot be followed here any more: resume")


class Watching:
    """The behaviour of `WatchGroup`."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._open: set[Ending] = set()
        self._has_drained = False

    def drain(self) -> None:
        """End all watches: their clients resume at another replica."""
        self._has_drained = True
        for ending in self._open:
            ending.end(INTERRUPTED)

    async def watch(self, context: Context) -> None:
        """Send the group's journal until the client is gone; raises `RejectedRequest` when it cannot be followed."""
        self._calls.admission.admit_needing(WATCH)
        events = await self._events(await self._calls.receiver.message(context))
        ending = Ending()
        self._open.add(ending)
        if self._has_drained:
            ending.end(INTERRUPTED)
        # Once the group is followed: what the client does after it has the headers, it will see here.
        headers = asyncio.create_task(context.send_initial_metadata(()))
        try:
            with self._calls.metrics.streaming():
                async with aclosing(events):
                    while (event := await ending.wait_for(lambda: anext(events, None))) is not None:
                        await headers
                        await context.write(dump(_line(event)))
        finally:
            self._open.discard(ending)
            headers.cancel()
        raise INTERRUPTED

    async def _events(self, data: bytes) -> AsyncGenerator[JournalEvent, None]:
        message = parse(WatchGroupRequest, data)
        names = decode_path({"namespace": message.namespace, "group_id": message.group_id})
        group = names["namespace"], names["group_id"]
        after: After | None = message.after_revision if message.HasField("after_revision") else None
        if message.from_earliest:
            if after is not None:
                raise invalid("after_revision must be absent with from_earliest")
            after = EARLIEST
        elif isinstance(after, int) and not 0 <= after <= MAX_SAFE_INTEGER:
            raise invalid(f"after_revision must be from 0 to {MAX_SAFE_INTEGER}")
        coordinator = self._calls.coordinator
        events: Any = coordinator.watch(*group, await beginning_of_watch(coordinator, *group, after))
        return events  # type: ignore[no-any-return]  # the coordinators' watches are generators


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
