"""All answers and watched lines that clients of a cluster received, for two kinds of checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from itertools import count

from msgspec.structs import replace

from rota.client.transports.port import Answer, GroupEvent, Transport
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinReply,
    LeaveReply,
    Reply,
    Request,
    SyncReply,
)
from rota.server.runtime.clock import SystemClock
from tests.faults.histories import Exchange, WatchStream
from tests.simulation.history import Call, History

_MEMBER_IS_KNOWN = (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


class Record:
    """One history of all clients, with the time at which each of them ended."""

    def __init__(self, shard_count: int) -> None:
        self.history = History()
        self.exchanges: list[Exchange] = []
        self.streams: list[WatchStream] = []
        self.clock = SystemClock()
        self.shard_count = shard_count
        self.acked: Counter[str] = Counter()
        """Acknowledged facts by kind."""
        self.unanswered = 0
        self.ended_ms: dict[str, int] = {}
        self._floors: Counter[int] = Counter()
        self._numbers = count(1)
        self._open: dict[int, Exchange] = {}

    @property
    def facts(self) -> int:
        return self.acked.total()

    def sent(self, client: str, request: Request) -> Call:
        group_id = getattr(request, "group_id", "")
        shard_id = shard_of(request.namespace, group_id, self.shard_count)
        call = Call(next(self._numbers), client, request, shard_id, self.clock.now_ms(), self._floors[shard_id])
        self.history.calls.append(call)
        self.exchanges.append(Exchange(client, request, start=call.number))
        self._open[call.number] = self.exchanges[-1]
        return call

    def answered(self, call: Call, answer: Answer) -> None:
        call.ret_ms = self.clock.now_ms()
        call.reply, call.revision, call.epoch = answer.reply, answer.revision, answer.epoch
        exchange = self._open.pop(call.number)
        exchange.end, exchange.answer = next(self._numbers), answer
        self._floors[call.shard_id] = max(self._floors[call.shard_id], call.revision)
        kind = _fact(call.request, answer.reply)
        if kind:
            self.acked[kind] += 1

    def marked(self, client: str, request: Request) -> Request:
        """Give each attempt to commit a mark of its own, so that the journal shows which of them landed."""
        if not isinstance(request, CommitOffsets):
            return request
        (item,) = request.offsets
        return replace(request, offsets=(replace(item, metadata=f"{client}/{next(self._numbers)}"),))


class RecordingTransport:
    """Passes on what a client sends and is answered, and writes it down."""

    def __init__(self, inner: Transport, client: str, record: Record) -> None:
        self._inner = inner
        self._client = client
        self._record = record

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        request = self._record.marked(self._client, request)
        call = self._record.sent(self._client, request)
        self._record.unanswered += 1
        answer = await self._inner.send(request, timeout_ms=timeout_ms)
        self._record.unanswered -= 1
        self._record.answered(call, answer)
        return answer

    async def watch(self, namespace: str, group_id: str, after_revision: int | None) -> AsyncIterator[GroupEvent]:
        stream = WatchStream(self._client, (namespace, group_id), after_revision)
        self._record.streams.append(stream)
        async for event in self._inner.watch(namespace, group_id, after_revision):
            stream.events.append(event)
            yield event

    async def close(self) -> None:
        await self._inner.close()


def _fact(request: Request, reply: Reply) -> str:
    """What kind of fact a reply acknowledges; empty where none."""
    match reply:
        case JoinReply(error=ErrorCode.NONE, pending=False):
            return "joins"
        case SyncReply(error=ErrorCode.NONE, pending=False):
            return "syncs"
        case LeaveReply(error=ErrorCode.NONE):
            return "leaves"
        case HeartbeatReply(error=error) if isinstance(request, Heartbeat) and error in _MEMBER_IS_KNOWN:
            return "heartbeats"
        case _ if isinstance(request, CommitOffsets) and reply.error is ErrorCode.NONE:
            return "commits"
    return ""
