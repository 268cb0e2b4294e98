"""Members on session streams, without the SDK: whatever comes is answered at once, by callbacks and not by tasks."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc

from bench.setting import HOST, NAMESPACE, WAIT_MS
from rota.protocol.wire.batching import dump_next, split_batch
from rota.v1 import coordinator_pb2 as pb

SESSION = f"/{pb.DESCRIPTOR.services_by_name['GroupCoordinator'].full_name}/Session"
SESSION_TIMEOUT_MS = 600_000
"""There are no heartbeats here."""
DEADLINE_S = 60.0
METADATA, SHARE = bytes(60), bytes(40)

OnAnswer = Callable[[pb.SessionEvent], None]
OnShare = Callable[["StreamMember"], None]


class MemberCalls:
    """The calls of one stream's members, by number. A subclass sends requests, and hands over the events that come."""

    def __init__(self) -> None:
        self._answers: dict[int, OnAnswer] = {}
        self._calls = 0
        self.members: dict[str, StreamMember] = {}

    def send(self, on_answer: OnAnswer, **request: Any) -> None:
        """Send it soon; its answer is for `on_answer`."""
        self._calls += 1
        self._answers[self._calls] = on_answer
        self.put(pb.SessionRequest(call=self._calls, **request))

    @abstractmethod
    def put(self, request: pb.SessionRequest) -> None:
        """Send it soon."""

    @abstractmethod
    async def until_over(self) -> None:
        """Return or raise when the stream has ended, which should not happen."""

    def take(self, event: pb.SessionEvent) -> None:
        """Call what waits for this answer, or the members that this event is for."""
        if event.call:
            self._answers.pop(event.call)(event)
        elif event.HasField("rebalance"):
            for member_id in event.rebalance.member_ids:
                self.members[member_id].join()
        elif event.HasField("election"):
            for share in event.election.members:
                self.members[share.member_id].enter(event.election)


class MemberStream(MemberCalls):
    """One stream on a connection of its own."""

    def __init__(self, port: int, *, path: str = SESSION, leave_after_ms: int | None = None) -> None:
        super().__init__()
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=own_connection)
        self._stream: grpc.aio.StreamStreamCall[bytes, bytes] = self._channel.stream_stream(path)()
        self._unsent: deque[pb.SessionRequest] = deque()
        self._wake = asyncio.Event()
        self._batching = path == SESSION
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]
        if path == SESSION:
            options = pb.SessionOptions(leave_after_ms=leave_after_ms)
            self.send(self._on_options, options=options)

    def put(self, request: pb.SessionRequest) -> None:
        self._unsent.append(request)
        self._wake.set()

    async def echo(self, payload: bytes, times: int) -> None:
        """At a server that sends back what it gets: send it so often without waiting, return when all are back."""
        back = asyncio.Event()
        answers = iter(range(1, times + 1))

        def on_answer(_: pb.SessionEvent) -> None:
            if next(answers) == times:
                back.set()

        for _ in range(times):
            join = pb.JoinGroupRequest(protocols=[pb.Protocol(metadata=payload)])
            self.send(on_answer, join=join)
        await back.wait()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stream.cancel()
        await self._channel.close()

    async def _write(self) -> None:
        while True:
            while self._unsent:
                unsent = self._unsent
                data = dump_next(unsent) if self._batching else unsent.popleft().SerializeToString()
                await self._stream.write(data)
            self._wake.clear()
            await self._wake.wait()

    async def until_over(self) -> None:
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                task.result()

    async def _read(self) -> None:
        while isinstance(data := await self._stream.read(), bytes):
            for each in split_batch(pb.SessionEvent, data):
                self.take(pb.SessionEvent.FromString(each))

    def _on_options(self, answer: pb.SessionEvent) -> None:
        """The stream is ready."""


@asynccontextmanager
async def open_streams(port: int, count: int, *, path: str = SESSION) -> AsyncIterator[list[MemberStream]]:
    streams = [MemberStream(port, path=path) for _ in range(count)]
    try:
        yield streams
    finally:
        for stream in streams:
            await stream.close()


class StreamCrowd:
    """The members of one group, spread over streams. Knows which generation each of them holds a share of."""

    def __init__(
        self,
        group_id: str,
        streams: Sequence[MemberCalls],
        *,
        is_election: bool = False,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        on_share: OnShare = lambda _: None,
    ) -> None:
        """`on_share` is called with each member that has its share, by the callback of the event that brings it."""
        self.group_id = group_id
        self.on_share = on_share
        self.protocol_type, self.protocol_name = ("leader", "single") if is_election else ("worker", "range")
        self.session_timeout_ms = session_timeout_ms
        self.members: list[StreamMember] = []
        self._streams = streams
        self._holding: Counter[int] = Counter()
        self._agreed = asyncio.Event()
        self.agreed_s = 0.0
        """When they held one last, by `time.perf_counter`."""

    def grow(self, size: int) -> None:
        """New members join until there are `size`."""
        self._agreed.clear()
        new = [StreamMember(self, self._streams[n % len(self._streams)]) for n in range(len(self.members), size)]
        self.members += new
        for member in new:
            member.join()

    async def all_hold_one_generation(self) -> None:
        """Return when every member has its share of the same generation; raise what ended a stream."""
        await all_agree([self], self._streams)

    @property
    def agreed(self) -> bool:
        return self._agreed.is_set()

    async def until_agreed(self) -> None:
        await self._agreed.wait()

    def __str__(self) -> str:
        return f"{self.group_id}: members of each generation: {dict(self._holding)}"

    def expect_news(self) -> None:
        """What they hold now does not count any more."""
        self._agreed.clear()

    def remove(self, member: StreamMember) -> None:
        """It is gone; the others will agree without it."""
        self._agreed.clear()
        self.members.remove(member)
        self._holding[member.generation_id] -= 1

    def moved(self, former: int, generation_id: int) -> None:
        self._holding[former] -= 1
        self._holding[generation_id] += 1
        if generation_id and self._holding[generation_id] == len(self.members):
            self.agreed_s = time.perf_counter()
            self._agreed.set()


async def all_agree(crowds: Sequence[StreamCrowd], streams: Sequence[MemberCalls]) -> None:
    """Return when the members of each crowd hold one generation; raise what ended one of their streams."""
    waits: list[asyncio.Future[Any]] = [asyncio.gather(*(crowd.until_agreed() for crowd in crowds))]
    waits += [asyncio.ensure_future(stream.until_over()) for stream in streams]
    try:
        await asyncio.wait(waits, timeout=DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
    for ended in await asyncio.gather(*waits, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    open_ones = [str(crowd) for crowd in crowds if not crowd.agreed]
    assert not open_ones, f"{len(open_ones)} do not agree: {open_ones[:3]}"


class StreamMember:
    """Joins when it is told to, syncs when it has joined. `generation_id` is 0 until it holds a share."""

    def __init__(self, crowd: StreamCrowd, stream: MemberCalls) -> None:
        self.member_id = ""
        self.generation_id = 0
        self.leads = False
        self._joins = False
        self._crowd = crowd
        self._stream = stream

    def join(self) -> None:
        """Unless that is under way: of a rebalance one may hear twice, as news and as the answer to a sync."""
        if self._joins:
            return
        self._joins = True
        former, self.generation_id = self.generation_id, 0
        if former:
            self._crowd.moved(former, 0)
        request = pb.JoinGroupRequest(
            **self._place(),
            member_id=self.member_id,
            client_id="crowd",
            protocol_type=self._crowd.protocol_type,
            protocols=[pb.Protocol(name=self._crowd.protocol_name, metadata=METADATA)],
            session_timeout_ms=self._crowd.session_timeout_ms,
            wait_ms=WAIT_MS,
        )
        self._stream.send(self._on_joined, join=request)

    def enter(self, election: pb.Election) -> None:
        """It was taken along. A heartbeat goes at once, as the SDK's does."""
        if self._joins:
            return
        self.leads = election.leader_id == self.member_id
        self._hold(election.generation_id)
        beat = pb.MemberHeartbeat(member_id=self.member_id, generation_id=election.generation_id)
        group = pb.GroupHeartbeat(**self._place(), members=[beat])
        self._stream.send(_expect_no_error, heartbeat=pb.HeartbeatManyRequest(groups=[group]))

    def leave(self) -> None:
        """Gone as soon as this is sent, for us."""
        self._crowd.remove(self)
        self._stream.members.pop(self.member_id)
        leaving = [pb.LeavingMember(member_id=self.member_id)]
        self._stream.send(_expect_no_error, leave=pb.LeaveGroupRequest(**self._place(), members=leaving))

    def _place(self) -> dict[str, Any]:
        return {"namespace": NAMESPACE, "group_id": self._crowd.group_id}

    def _on_joined(self, event: pb.SessionEvent) -> None:
        self._joins = False
        if event.error.code == "MEMBER_ID_REQUIRED":
            self.member_id = event.error.member_id
            self._stream.members[self.member_id] = self
            self.join()
            return
        _expect_no_error(event)
        joined = event.joined
        self.leads = joined.leader_id == self.member_id
        if joined.HasField("assignment"):
            self._hold(joined.generation_id)
            return
        shares = [pb.MemberAssignment(member_id=each.member_id, assignment=SHARE) for each in joined.members]
        sync = pb.SyncGroupRequest(
            **self._place(),
            member_id=self.member_id,
            generation_id=joined.generation_id,
            assignments=shares if self.leads else [],
            wait_ms=WAIT_MS,
        )
        self._stream.send(lambda answer: self._on_synced(answer, joined.generation_id), sync=sync)

    def _on_synced(self, event: pb.SessionEvent, generation_id: int) -> None:
        if event.error.code == "REBALANCE_IN_PROGRESS":
            self.join()
            return
        _expect_no_error(event)
        self._hold(generation_id)

    def _hold(self, generation_id: int) -> None:
        former, self.generation_id = self.generation_id, generation_id
        self._crowd.moved(former, generation_id)
        self._crowd.on_share(self)


def _expect_no_error(event: pb.SessionEvent) -> None:
    assert not event.HasField("error"), event
