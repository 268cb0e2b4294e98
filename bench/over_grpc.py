"""Heartbeats over gRPC, one a call and on streams, and the memory of idle streams, beside a server that echoes."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path

import grpc
import uvloop

from bench.bare_grpc import STREAM, UNARY
from bench.figures import Effort, Figure, transposed
from bench.members import Crowd
from bench.servers import Server, bare_grpc_server, rota_server
from bench.setting import HOST, NAMESPACE
from rota.protocol.calls import COORDINATOR
from rota.v1 import coordinator_pb2 as pb

GROUPS = 20
MEMBERS_OF_A_GROUP = 50
CALLERS = 64
STREAMS = 4
CONNECTIONS = 4
SECONDS = 2.0
HEARTBEAT = f"/{COORDINATOR}/Heartbeat"
SESSION = f"/{COORDINATOR}/Session"

BATCHED_CPU_AIM_MS = 2.0
UNARY_TIMES_AIM = 1 / 0.9
ALONE, AMONG_MANY = (100, 1), (2, 500)
"""Streams that are opened at once, and members on each."""
WAVES, WARM_UP_WAVES = 9, 2
"""What the first ones use for a while is there for those after them. A connection has up to 1,000 streams in all."""
ALONE_AIM_KB, AMONG_MANY_AIM_KB = 9.0, 1.2

Load = Callable[[int], Awaitable[int]]
"""Loads the server at this port until the time is over; returns how many messages were answered."""


def run(effort: Effort) -> list[Figure]:
    """1,000 members in 20 groups: all in one message of a stream, one a message, one a call."""
    with tempfile.TemporaryDirectory(prefix="rota-bench-") as name:
        directory = Path(name)
        with rota_server(directory, f"sqlite:///{directory / 'rota.db'}") as ours, bare_grpc_server(directory) as bare:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(_heartbeats(effort, ours, bare))
                return figures + runner.run(_memory(effort, directory))


async def _heartbeats(effort: Effort, ours: Server, bare: Server) -> list[Figure]:
    crowds = [Crowd(f"heartbeats-{number}", ours.port) for number in range(GROUPS)]
    for crowd in crowds:
        await crowd.grow(MEMBERS_OF_A_GROUP)
    await asyncio.gather(*(member.enter() for crowd in crowds for member in crowd.members))
    all_members = [on_a_stream([a_group(crowd) for crowd in crowds])]
    each = [on_a_stream([a_group(crowd, number)]) for crowd in crowds for number in range(MEMBERS_OF_A_GROUP)]
    calls = [a_call(crowd, number) for crowd in crowds for number in range(MEMBERS_OF_A_GROUP)]
    seconds = SECONDS * effort.scale
    try:
        figures = [
            *await _compare(effort, "1,000 a message", ours, bare, streams(all_members, seconds), members=1_000),
            *await _compare(effort, "one a message", ours, bare, streams(each, seconds)),
            *await _compare(effort, "one a call", ours, bare, callers(calls, seconds)),
        ]
        # A figure of refusals says nothing.
        for crowd in crowds:
            await crowd.all_live()
        return figures
    finally:
        for crowd in crowds:
            await crowd.disperse()


async def _compare(
    effort: Effort, name: str, ours: Server, bare: Server, load: Callable[[str, str], Load], *, members: int = 1
) -> list[Figure]:
    """Rate and cost in heartbeats; `members` of them are in one message."""
    pairs = []
    for _ in range(effort.repeats):
        below = await _measure(bare, load(UNARY, STREAM), members)
        pairs.append((*await _measure(ours, load(HEARTBEAT, SESSION), members), *below))
    rate, cost, floor_rate, floor_cost = transposed(pairs)
    kind = "unary" if "call" in name else "stream"
    floor = f"bare grpc.aio {kind}, same messages"
    aim = BATCHED_CPU_AIM_MS if members > 1 else None
    figures = [
        Figure("grpc", f"heartbeats, {name}", "heartbeats/s", rate, floor, floor_rate),
        Figure("grpc", f"server CPU of 1,000 heartbeats, {name}", "ms", cost, floor, floor_cost, aim),
    ]
    if kind == "unary":
        times = tuple(below / above for above, below in zip(rate, floor_rate, strict=True))
        figures.append(Figure("grpc", f"the echo's rate over ours, {name}", "×", times, aim=UNARY_TIMES_AIM))
    return figures


async def _measure(server: Server, load: Load, members: int) -> tuple[float, float]:
    """Heartbeats a second, and milliseconds of the server's CPU for 1,000 of them."""
    before_ms, started = server.cpu_ms(), time.perf_counter()
    heartbeats = await load(server.grpc_port) * members
    seconds = time.perf_counter() - started
    return heartbeats / seconds, (server.cpu_ms() - before_ms) / heartbeats * 1_000


# --- the load -----------------------------------------------------------------------------------------


def callers(requests: Sequence[bytes], seconds: float) -> Callable[[str, str], Load]:
    """Callers that each wait for their answer, on a few connections."""

    def load_of(unary: str, _stream: str) -> Load:
        async def load(port: int) -> int:
            async with AsyncExitStack() as stack:
                channels = [await stack.enter_async_context(_channel(port)) for _ in range(CONNECTIONS)]
                methods: list[grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]] = [
                    channel.unary_unary(unary) for channel in channels
                ]
                until = time.perf_counter() + seconds

                async def call(number: int) -> int:
                    method, done = methods[number % CONNECTIONS], 0
                    for request in cycle(requests[number::CALLERS]):
                        if time.perf_counter() >= until:
                            break
                        await method(request)
                        done += 1
                    return done

                return sum(await asyncio.gather(*map(call, range(CALLERS))))

        return load

    return load_of


def streams(messages: Sequence[bytes], seconds: float) -> Callable[[str, str], Load]:
    """Streams on which a message is sent when the last one was answered; members are on one of them."""

    def load_of(_unary: str, path: str) -> Load:
        async def load(port: int) -> int:
            until = time.perf_counter() + seconds

            async def talk(number: int) -> int:
                async with _channel(port) as channel:
                    stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(path)()
                    done = 0
                    for message in cycle(messages[number::STREAMS]):
                        if time.perf_counter() >= until:
                            break
                        await stream.write(message)
                        await _next(stream)
                        done += 1
                    await stream.done_writing()
                    return done

            return sum(await asyncio.gather(*map(talk, range(min(STREAMS, len(messages))))))

        return load

    return load_of


def _channel(port: int) -> grpc.aio.Channel:
    # A pool of its own, or all channels of the process would share one connection.
    return grpc.aio.insecure_channel(f"{HOST}:{port}", options=[("grpc.use_local_subchannel_pool", 1)])


def a_call(crowd: Crowd, number: int) -> bytes:
    member = crowd.members[number]
    return pb.HeartbeatRequest(
        namespace=NAMESPACE, group_id=crowd.group_id, member_id=member.member_id, generation_id=member.generation_id
    ).SerializeToString()


def a_group(crowd: Crowd, number: int | None = None) -> pb.GroupHeartbeat:
    some = crowd.members if number is None else [crowd.members[number]]
    beats = [pb.MemberHeartbeat(member_id=m.member_id, generation_id=m.generation_id) for m in some]
    return pb.GroupHeartbeat(namespace=NAMESPACE, group_id=crowd.group_id, members=beats)


def on_a_stream(groups: Sequence[pb.GroupHeartbeat]) -> bytes:
    return pb.SessionRequest(call=1, heartbeat=pb.HeartbeatManyRequest(groups=groups)).SerializeToString()


# --- memory -------------------------------------------------------------------------------------------


async def _memory(effort: Effort, directory: Path) -> list[Figure]:
    """What a server's memory grows by for each member that is silent on a stream, its place in the group included."""
    figures = []
    for (streams, members), name, aim in (
        (ALONE, "alone on its stream", ALONE_AIM_KB),
        (AMONG_MANY, f"among {AMONG_MANY[1]} on its stream", AMONG_MANY_AIM_KB),
    ):
        pairs = []
        for turn in range(min(2, effort.repeats)):
            url = f"sqlite:///{directory / f'memory-{streams}-{turn}.db'}"
            with rota_server(directory, url) as ours, bare_grpc_server(directory) as bare:
                below = await _kb_of_a_member(bare, STREAM, streams, members)
                pairs.append((await _kb_of_a_member(ours, SESSION, streams, members), below))
        ours_kb, floor_kb = transposed(pairs)
        floor = "bare grpc.aio streams, as many"
        figures.append(Figure("grpc", f"memory of an idle member {name}", "kB", ours_kb, floor, floor_kb, aim))
    return figures


async def _kb_of_a_member(server: Server, path: str, streams: int, members: int) -> float:
    """Each wave is a group. The bare server gets the joins, too."""
    async with _channel(server.grpc_port) as channel:
        opened, grown = [], []
        for wave in range(WAVES):
            before = server.resident_kb()
            opened += await idle_streams(channel, path, f"idle-{wave}", streams, members)
            grown.append(server.resident_kb() - before)
        for stream in opened:
            stream.cancel()
        return sum(grown[WARM_UP_WAVES:]) / (streams * members * (WAVES - WARM_UP_WAVES))


async def idle_streams(
    channel: grpc.aio.Channel, path: str, group_id: str, streams: int, members: int
) -> list[grpc.aio.StreamStreamCall[bytes, bytes]]:
    """Streams with members of a Stable group, or, at the bare server, with the same messages."""
    opened: list[grpc.aio.StreamStreamCall[bytes, bytes]] = [channel.stream_stream(path)() for _ in range(streams)]
    for number, stream in enumerate(opened):
        for call in range(1, members + 1):
            await stream.write(_join(call, group_id, f"i{number}-{call}"))
    joined = [(stream, await _joined(stream)) for stream in opened for _ in range(members)]
    if path == SESSION:
        leader = next(each for _, each in joined if each.leader_id == each.member_id)
        for call, (stream, each) in enumerate(joined, members + 1):
            await stream.write(_sync(call, group_id, each, leader))
        for stream, _ in joined:
            await _next(stream)
    return opened


async def _joined(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> pb.JoinGroupResponse:
    return pb.SessionEvent.FromString(await _next(stream)).joined


async def _next(stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> bytes:
    data = await stream.read()
    assert isinstance(data, bytes), "the server ended the stream"
    return data


def _join(call: int, group_id: str, instance: str) -> bytes:
    join = pb.JoinGroupRequest(
        namespace=NAMESPACE,
        group_id=group_id,
        group_instance_id=instance,
        protocol_type="worker",
        protocols=[pb.Protocol(name="range", metadata=bytes(60))],
        session_timeout_ms=600_000,
        wait_ms=50_000,
    )
    return pb.SessionRequest(call=call, join=join).SerializeToString()


def _sync(call: int, group_id: str, joined: pb.JoinGroupResponse, leader: pb.JoinGroupResponse) -> bytes:
    shares = [pb.MemberAssignment(member_id=each.member_id, assignment=bytes(40)) for each in leader.members]
    sync = pb.SyncGroupRequest(
        namespace=NAMESPACE,
        group_id=group_id,
        member_id=joined.member_id,
        generation_id=joined.generation_id,
        assignments=shares if joined is leader else [],
        wait_ms=50_000,
    )
    return pb.SessionRequest(call=call, sync=sync).SerializeToString()
