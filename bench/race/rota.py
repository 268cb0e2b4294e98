"""Rota, over HTTP and over streams: one server on Postgres with fsync, their processes are counted together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count, groupby
from typing import ClassVar

import grpc

from bench.connection import request_bytes
from bench.members import Crowd, CrowdMember
from bench.over_grpc import on_a_stream
from bench.race.peer import TTL_S, Batch, Candidate, Group, Leading, Peer, Session, Writer, opened
from bench.race.wire import Grpc, Http, Refused, message_frame
from bench.servers import Server, rota_server
from bench.setting import HOST, NAMESPACE
from bench.stream_members import SESSION, MemberCalls, MemberStream, StreamCrowd, StreamMember
from rota.storage.migrate import upgrade
from rota.v1 import coordinator_pb2 as pb
from tests.support.postgres import PostgresServer

MEMBERS_OF_A_GROUP = 50
GROUPS_AT_ONCE = 4
"""That form side by side, before anything is measured."""
STREAMS = 10
GROUP_MAX_SIZE = 20_000
"""The row of 10,000 members has one more, which is one above the default."""
ON_A_STREAM, IN_A_REQUEST = 1_000, 50
_groups = count(1)


class RotaHttp(Peer):
    """Calls over HTTP. Members of a group wait for news in long polls."""

    name = "Rota, HTTP"
    options: tuple[str, ...] = ()
    """Of `rota serve`."""
    lacks: ClassVar = {
        "leader": "as over streams",
        "killed": "noticed by its session",
        "frozen": "as over streams",
        "large": "as over streams",
    }

    async def start(self) -> None:
        postgres = self.stack.enter_context(PostgresServer())
        url = postgres.create_database("rota")
        await upgrade(url)
        limits = {"group_max_size": GROUP_MAX_SIZE}
        rota = self.stack.enter_context(rota_server(self.directory, url, *self.options, limits=limits))
        self.servers = [rota, Server(postgres.process.pid, postgres.port)]

    @property
    def rota(self) -> Server:
        return self.servers[0]

    async def sessions(self, count: int) -> Sequence[Session]:
        members = await stable_members(self.rota, count)

        async def open_one(number: int) -> Session:
            crowd, member = members[number]
            session = _Heartbeats(await Http.open(self.rota.port), crowd, [member])
            # The server waits less long for the first request of a connection than for the next one.
            await session.keep_alive()
            return session

        return await opened(count, open_one)

    async def batch(self) -> Batch:
        members = await stable_members(self.rota, IN_A_REQUEST)
        crowd = members[0][0]
        return _Heartbeats(await Http.open(self.rota.port), crowd, [member for _, member in members])

    async def group(self, name: str) -> Group:
        return _HttpGroup(name, self.rota)

    async def writers(self, count: int) -> Sequence[Writer]:
        members = await stable_members(self.rota, count)
        return [
            _Commits(await Http.open(self.rota.port), crowd, member, number)
            for number, (crowd, member) in enumerate(members)
        ]


class RotaStreams(RotaHttp):
    """Sessions over gRPC streams, those of a group over ten."""

    name = "Rota, streams"
    lacks: ClassVar = {"writes": "as over HTTP"}

    def __init__(self, of: RotaHttp) -> None:
        super().__init__(of.directory, of.stack)
        self._of = of

    async def start(self) -> None:
        self.servers = self._of.servers

    async def sessions(self, count: int) -> Sequence[Session]:
        members = await stable_members(self.rota, count)

        async def open_one(number: int) -> Session:
            session = _Stream(await Grpc.open(self.rota.grpc_port), *members[number])
            # Connections that had not called yet were reset while many more were opened.
            await session.keep_alive()
            return session

        return await opened(count, open_one)

    async def batch(self) -> Batch:
        members = await stable_members(self.rota, ON_A_STREAM)
        return _Batch(self.rota.grpc_port, members)

    async def group(self, name: str) -> Group:
        return _StreamGroup(name, self.rota)

    async def candidate(self, name: str) -> Candidate:
        return _Candidate(name, await Grpc.open(self.rota.grpc_port))


async def stable_members(server: Server, wanted: int) -> list[tuple[Crowd, CrowdMember]]:
    """Members that have their share, and are not connected any more. Groups have 50 of them, or as many as wanted."""
    size = min(wanted, MEMBERS_OF_A_GROUP)
    crowds = [Crowd(f"stable-{next(_groups)}", server.port) for _ in range(-(-wanted // size))]
    for some in range(0, len(crowds), GROUPS_AT_ONCE):
        await asyncio.gather(*(_stabilise(crowd, size) for crowd in crowds[some : some + GROUPS_AT_ONCE]))
    return [(crowd, member) for crowd in crowds for member in crowd.members][:wanted]


async def _stabilise(crowd: Crowd, size: int) -> None:
    await crowd.grow(size)
    await asyncio.gather(*(member.enter() for member in crowd.members))
    await crowd.all_hold_one_generation()
    await crowd.disperse()


def _beats(group_id: str, members: Sequence[CrowdMember | StreamMember]) -> pb.GroupHeartbeat:
    beats = [pb.MemberHeartbeat(member_id=each.member_id, generation_id=each.generation_id) for each in members]
    return pb.GroupHeartbeat(namespace=NAMESPACE, group_id=group_id, members=beats)


class _Heartbeats:
    """One request for some members of a group."""

    def __init__(self, wire: Http, crowd: Crowd, members: Sequence[CrowdMember]) -> None:
        self._wire, self.size = wire, len(members)
        each = [{"member_id": member.member_id, "generation_id": member.generation_id} for member in members]
        document = each[0] if len(each) == 1 else {"members": each}
        path = f"{crowd.path}/heartbeat"
        self._request = request_bytes(path, document)
        self._parked = request_bytes(path, {**each[0], "wait_ms": 50_000})

    async def keep_alive(self) -> None:
        await self._wire.call(self._request)

    async def keep_alive_all(self) -> None:
        answer = await self._wire.call(self._request)
        if answer.count(b'"NONE"') != self.size:
            raise Refused(answer.decode())

    def park(self) -> None:
        """Wait for news in a long poll, which is how a member over HTTP idles."""
        self._wire.call(self._parked).add_done_callback(lambda done: done.cancelled() or done.exception())

    def close(self) -> None:
        self._wire.close()


class _Stream:
    """A member alone on its stream."""

    def __init__(self, wire: Grpc, crowd: Crowd, member: CrowdMember) -> None:
        self._wire = wire
        request = on_a_stream([_beats(crowd.group_id, [member])])
        self._request = message_frame(wire.answer_calls_with(SESSION), request)

    async def keep_alive(self) -> None:
        _check(await self._wire.call(self._request))

    def close(self) -> None:
        self._wire.close()


class _Batch:
    """One message for all members of some groups. Such a message fills a window of HTTP/2, so a library sends it."""

    def __init__(self, port: int, members: Sequence[tuple[Crowd, CrowdMember]]) -> None:
        self.size = len(members)
        self._channel = grpc.aio.insecure_channel(f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self._stream: grpc.aio.StreamStreamCall[bytes, bytes] = self._channel.stream_stream(SESSION)()
        by_group = groupby(members, key=lambda each: each[0])
        self._request = on_a_stream([_beats(crowd.group_id, [each for _, each in some]) for crowd, some in by_group])

    async def keep_alive_all(self) -> None:
        await self._stream.write(self._request)
        answer = await self._stream.read()
        if not isinstance(answer, bytes):
            raise Refused("the server ended the stream")
        _check(answer)

    def close(self) -> None:
        self._stream.cancel()


def _check(answer: bytes) -> None:
    event = pb.SessionEvent.FromString(answer)
    if event.HasField("error") or any(group.errors for group in event.heartbeat.groups):
        raise Refused(str(event))


class _HttpGroup:
    def __init__(self, name: str, server: Server) -> None:
        self._crowd = Crowd(name, server.port)

    async def fill(self, size: int) -> None:
        await self._crowd.grow(size)
        await self._crowd.start(self._crowd.members)
        await self._crowd.all_hold_one_generation()

    async def prepare(self) -> None:
        await self._crowd.grow(len(self._crowd.members) + 1)

    async def one_more(self) -> None:
        await self._crowd.start(self._crowd.members[-1:])
        await self._crowd.all_hold_one_generation()

    async def one_less(self) -> None:
        await self._crowd.last_leaves()
        await self._crowd.all_hold_one_generation()

    async def close(self) -> None:
        await self._crowd.disperse()


class _StreamGroup:
    def __init__(self, name: str, server: Server) -> None:
        self._streams = [MemberStream(server.grpc_port) for _ in range(STREAMS)]
        self._crowd = StreamCrowd(name, self._streams)

    async def fill(self, size: int) -> None:
        self._crowd.grow(size)
        await self._crowd.all_hold_one_generation()

    async def prepare(self) -> None:
        """Its stream is there."""

    async def one_more(self) -> None:
        self._crowd.grow(len(self._crowd.members) + 1)
        await self._crowd.all_hold_one_generation()

    async def one_less(self) -> None:
        self._crowd.members[-1].leave()
        await self._crowd.all_hold_one_generation()

    async def close(self) -> None:
        for stream in self._streams:
            await stream.close()


class _WireStream(MemberCalls):
    """Members' calls as bytes on the race's own wire, whose callback takes each event."""

    def __init__(self, wire: Grpc, options: pb.SessionOptions) -> None:
        super().__init__()
        self._wire = wire
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stream = wire.begin(SESSION, self._on_message)
        self.send(lambda _: None, options=options)

    def put(self, request: pb.SessionRequest) -> None:
        self._wire.send(self._stream, request.SerializeToString())

    async def until_over(self) -> None:
        await self._over

    def close(self) -> None:
        self._wire.close()

    def _on_message(self, message: bytes | Exception) -> None:
        if isinstance(message, bytes):
            self.take(pb.SessionEvent.FromString(message))
        elif not self._over.done():
            self._over.set_result(None)


class _Candidate(Candidate):
    """A member with a stream that counts as its life: if that ends, it has left."""

    def __init__(self, name: str, wire: Grpc) -> None:
        self.leads = Leading()
        self._stream = _WireStream(wire, pb.SessionOptions(leave_after_ms=0))
        self._crowd = StreamCrowd(
            name,
            [self._stream],
            is_election=True,
            session_timeout_ms=TTL_S * 1_000,
            on_share=self._on_share,
        )
        self._crowd.grow(1)
        self._member = self._crowd.members[0]

    def _on_share(self, member: StreamMember) -> None:
        if member.leads:
            self.leads.set()

    async def keep_alive(self) -> None:
        answered = asyncio.Event()
        heartbeat = pb.HeartbeatManyRequest(groups=[_beats(self._crowd.group_id, [self._member])])
        self._stream.send(lambda _: answered.set(), heartbeat=heartbeat)
        await answered.wait()

    async def resign(self) -> None:
        self._member.leave()

    def kill(self) -> None:
        self._stream.close()

    def close(self) -> None:
        self.kill()


class _Commits:
    """Commits an offset as a member of a generation; another generation's commit is refused."""

    def __init__(self, wire: Http, crowd: Crowd, member: CrowdMember, partition: int) -> None:
        self._wire = wire
        document = {
            "member_id": member.member_id,
            "generation_id": member.generation_id,
            "offsets": [{"topic": "orders", "partition": partition, "offset": 123_456}],
        }
        self._request = request_bytes(f"{crowd.path}/offsets", document)

    async def write(self) -> None:
        await self._wire.call(self._request)

    def close(self) -> None:
        self._wire.close()
