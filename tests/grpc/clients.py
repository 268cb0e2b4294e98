"""The generated stubs, as a program without our SDK calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from grpc_status import rpc_status

from rota.v1 import coordinator_pb2 as pb
from rota.v1.admin_pb2_grpc import AdminStub
from rota.v1.coordinator_pb2_grpc import GroupCoordinatorStub

Channel: TypeAlias = grpc.aio.Channel
G: dict[str, Any] = {"namespace": "default", "group_id": "g"}


def stub(channel: Channel) -> Any:
    return GroupCoordinatorStub(channel)  # type: ignore[no-untyped-call]


def admin(channel: Channel) -> Any:
    return AdminStub(channel)  # type: ignore[no-untyped-call]


def a_join(instance: str | None = "i1", **fields: Any) -> pb.JoinGroupRequest:
    protocols = [pb.Protocol(name="range", metadata=b"m")]
    given = {"protocol_type": "worker", "protocols": protocols, "session_timeout_ms": 30_000, **G, **fields}
    return pb.JoinGroupRequest(group_instance_id=instance, **given)


async def a_stable_member(channel: Channel, instance: str = "i1") -> pb.JoinGroupResponse:
    """One static member that leads, alone, a Stable group."""
    joined: pb.JoinGroupResponse = await stub(channel).JoinGroup(a_join(instance))
    await stub(channel).SyncGroup(a_sync(joined, {joined.member_id: b"all"}))
    return joined


def a_sync(joined: pb.JoinGroupResponse, assignments: dict[str, bytes] | None = None) -> pb.SyncGroupRequest:
    given = [pb.MemberAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()]
    return pb.SyncGroupRequest(**G, member_id=joined.member_id, generation_id=joined.generation_id, assignments=given)


class Refused:
    """How a call failed, as the standard library for it reads our status."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        status = rpc_status.from_call(error)  # type: ignore[arg-type]
        assert status is not None, f"no details: {error.code()} {error.details()}"
        self.status = error.code()
        info, retry = ErrorInfo(), RetryInfo()
        self.retry_after_s: int | None = None
        for detail in status.details:
            if detail.Unpack(info):
                self.code, self.domain, self.metadata = info.reason, info.domain, dict(info.metadata)
                self.detail = self.metadata.get("detail", status.message)
            if detail.Unpack(retry):
                self.retry_after_s = retry.retry_delay.seconds


async def refused(call: Any) -> Refused:
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return Refused(error)
    raise AssertionError(f"it succeeded: {answer}")


class SessionClient:
    """One session stream with its answers by number and its news in order."""

    def __init__(self, channel: Channel, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self.stream = stub(channel).Session(metadata=metadata)
        self.calls = 0
        self.messages = 0
        """That have come."""
        self.answers: dict[int, pb.SessionEvent] = {}
        self.news: list[pb.SessionEvent] = []
        self.ended: grpc.StatusCode | None = None
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def ask(self, **request: Any) -> pb.SessionEvent:
        return await self.answer_to(await self.send(**request))

    async def send(self, **request: Any) -> int:
        """Returns the call's number, without waiting for its answer."""
        self.calls += 1
        await self.stream.write(pb.SessionRequest(call=self.calls, **request))
        return self.calls

    async def answer_to(self, call: int) -> pb.SessionEvent:
        await self.until(lambda: call in self.answers)
        return self.answers.pop(call)

    async def next_news(self, kind: str) -> Any:
        """The earliest news that was not looked at yet; it must be of this kind."""
        await self.until(lambda: bool(self.news))
        event = self.news.pop(0)
        assert event.WhichOneof("event") == kind, event
        return getattr(event, kind)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not holds():
                assert self.ended is None or holds(), f"the stream ended: {self.ended}"
                self._changed.clear()
                await self._changed.wait()

    async def until_ended(self) -> grpc.StatusCode:
        await self.until(lambda: self.ended is not None)
        assert self.ended is not None
        return self.ended

    async def done_writing(self) -> None:
        await self.stream.done_writing()

    async def close(self) -> None:
        """Break the stream off, as a process that dies does."""
        self.stream.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        try:
            async for message in self.stream:
                self.messages += 1
                for event in message.batch or (message,):
                    if event.call:
                        self.answers[event.call] = event
                    else:
                        self.news.append(event)
                self._changed.set()
            self.ended = await self.stream.code()
        except grpc.aio.AioRpcError as error:
            self.ended = error.code()
        finally:
            self._changed.set()


async def a_pair(*streams: SessionClient) -> list[pb.JoinGroupResponse]:
    """Two static members, `i0` that leads and `i1`, in one Stable group, on the streams given."""
    first, second = streams[0], streams[-1]
    alone = (await first.ask(join=a_join("i0"))).joined
    call = await second.send(join=a_join("i1"))
    await first.next_news("rebalance")
    leader = (await first.ask(join=a_join("i0", member_id=alone.member_id))).joined
    follower = (await second.answer_to(call)).joined
    shares = {leader.member_id: b"left", follower.member_id: b"right"}
    await first.ask(sync=a_sync(leader, shares))
    await second.ask(sync=a_sync(follower))
    return [leader, follower]


def beats(*members: Any) -> pb.HeartbeatManyRequest:
    """One heartbeat message for all of them."""
    each = [pb.MemberHeartbeat(member_id=m.member_id, generation_id=m.generation_id) for m in members]
    return pb.HeartbeatManyRequest(groups=[pb.GroupHeartbeat(**G, members=each)])
