"""Heartbeats and commits between workers of one machine, over a Unix socket: the answers are those of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, repeat
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from msgspec import structs

from rota.api.peer import heartbeats, unix
from rota.api.peer.answers import packed_answers, read_answer
from rota.api.peer.client import GrpcPeers
from rota.api.peer.server import PeerServer
from rota.api.peer.unix import Kind, UnixLink, UnixServer, socket_of
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    Act,
    CommitOffsets,
    Heartbeat,
    HeartbeatMany,
    HeartbeatReply,
    MemberHeartbeat,
    OffsetToCommit,
)
from rota.replica.forwarding import Beats, ForwardedAtOnce, NoAnswer
from rota.replica.ports import Answer, Replica
from rota.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from rota.wire.envelopes import pack, pack_heartbeats
from tests.runtime.conftest import NOW, FaultyStore, a_stable_member, until

BEAT = Heartbeat("default", "g", "m", 1)
CLOSED = NoAnswer("the connection to it is closed")


@asynccontextmanager
async def an_owner(tables: MemoryTables) -> AsyncIterator[LocalCoordinator]:
    store = FaultyStore(tables)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, limits=NOW) as local:
        await local.wait_until_ready()
        yield local


@asynccontextmanager
async def a_socket(local: LocalCoordinator, path: Path) -> AsyncIterator[UnixServer]:
    server = UnixServer(local, path)
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def a_link(path: Path) -> AsyncIterator[UnixLink]:
    link = UnixLink(path)
    yield link
    await link.close()


async def sent(link: UnixLink, message: bytes, limit_s: float = 60.0, kind: Kind = Kind.HEARTBEATS) -> bytes | NoAnswer:
    """The outcome of a message that is sent as soon as the link has a connection."""
    outcome: asyncio.Future[bytes | NoAnswer] = asyncio.get_running_loop().create_future()
    await until(lambda: link.send(message, limit_s, outcome.set_result, kind))
    return await outcome


async def beats(link: UnixLink, *requests: Beats) -> Sequence[Answer] | NoAnswer:
    """The same of heartbeats."""
    outcome: asyncio.Future[Sequence[Answer] | NoAnswer] = asyncio.get_running_loop().create_future()
    await until(lambda: link.ask(requests, 60.0, outcome.set_result))
    return await outcome


async def asked(peers: GrpcPeers, peer: Replica, request: ForwardedAtOnce) -> Answer | NoAnswer:
    outcome: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()
    peers.submit(peer, request, outcome.set_result)
    return await outcome


async def test_a_worker_beside_gives_the_answers_of_grpc(tables: MemoryTables, tmp_path: Path) -> None:
    async with an_owner(tables) as local:
        member = await a_stable_member(local, "g")
        server = PeerServer(local, "127.0.0.1")
        await server.start()
        peer = Replica("r", "http://r", f"127.0.0.1:{server.port}")
        named = (member.member_id, member.generation_id)
        beats: list[Beats] = [
            BEAT,
            Heartbeat("default", "g", *named),
            HeartbeatMany("default", "g", (MemberHeartbeat(*named), MemberHeartbeat("m", 1))),
        ]
        over_grpc, beside = GrpcPeers(), GrpcPeers(sockets=tmp_path)
        async with a_socket(local, socket_of(tmp_path, peer.peer_address)) as socket:
            expected = [await asked(over_grpc, peer, beat) for beat in beats]
            first = [await asked(beside, peer, beat) for beat in beats]
            await until(lambda: bool(socket.connections))
            await server.stop()  # gRPC has no part in what follows
            later = [await asked(beside, peer, beat) for beat in beats]
        await over_grpc.close()
        await beside.close()

    assert first == later == expected


async def test_commits_beside_have_the_answers_of_grpc(tables: MemoryTables, tmp_path: Path) -> None:
    async with an_owner(tables) as local:
        member = await a_stable_member(local, "g")
        server = PeerServer(local, "127.0.0.1")
        await server.start()
        peer = Replica("r", "http://r", f"127.0.0.1:{server.port}")
        commits = [
            a_commit(member.generation_id, member.member_id),
            a_commit(member.generation_id, member.member_id, group_instance_id="i"),
            a_commit(7, member.member_id),
            a_commit(-1, act=Act("an administrator", "why")),
        ]
        over_grpc, beside = GrpcPeers(), GrpcPeers(sockets=tmp_path)
        async with a_socket(local, socket_of(tmp_path, peer.peer_address)) as socket:
            await asked(beside, peer, BEAT)
            await until(lambda: bool(socket.connections))
            expected = [await asked(over_grpc, peer, commit) for commit in commits]
            given = [await asked(beside, peer, commit) for commit in commits]
            await server.stop()
            past_grpc = [await asked(beside, peer, commit) for commit in commits]
        await over_grpc.close()
        await beside.close()

    assert [each.reply for each in given if isinstance(each, Answer)] == [
        each.reply for each in expected if isinstance(each, Answer)
    ]
    assert [isinstance(each, NoAnswer) for each in past_grpc] == [False, False, False, True]


async def test_a_late_commit_holds_up_no_heartbeat(tmp_path: Path, tables: MemoryTables) -> None:
    path = tmp_path / "s"
    store = FaultyStore(tables)
    await store.open(2)
    elsewhere = next(each for each in ("h", "i", "j") if shard_of("default", each, 2) != shard_of("default", "g", 2))
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as local, a_socket(local, path), a_link(path) as link:
        await local.wait_until_ready()
        member = await a_stable_member(local, "g")
        commit = pack(a_commit(member.generation_id, member.member_id))
        store.open_gate.clear()

        late = await sent(link, commit, 0.0, Kind.COMMIT)
        outcome: asyncio.Future[bytes | NoAnswer] = asyncio.get_running_loop().create_future()
        assert link.send(commit, 60.0, outcome.set_result, Kind.COMMIT)
        beat = await beats(link, Heartbeat("default", elsewhere, "m", 1))
        assert not outcome.done(), "it is not durable"
        store.open_gate.set()
        in_time = await outcome

    assert late == NoAnswer("no answer in time")
    assert not isinstance(beat, NoAnswer)
    assert isinstance(in_time, bytes)
    reply: Any = read_answer(a_commit(1), in_time).reply
    assert [each.error for each in reply.partitions] == ["NONE"]


@pytest.mark.parametrize("beside", [True, False])
async def test_a_slow_shard_holds_up_no_others_heartbeat(
    beside: bool, tmp_path: Path, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "_LIMIT_S", 60.0)
    store = FaultyStore(tables)
    await store.open(2)
    elsewhere = next(each for each in ("h", "i", "j") if shard_of("default", each, 2) != shard_of("default", "g", 2))
    async with LocalCoordinator(store, shard_count=2, limits=NOW) as local:
        await local.wait_until_ready()
        server, peers = PeerServer(local, "127.0.0.1"), GrpcPeers(sockets=tmp_path)
        await server.start()
        peer = Replica("r", "http://r", f"127.0.0.1:{server.port}")
        async with a_socket(local, socket_of(tmp_path, peer.peer_address if beside else "none")) as socket:
            await asked(peers, peer, BEAT)
            await until(lambda: bool(socket.connections) is beside)
            member = await a_stable_member(local, "g")
            store.open_gate.clear()
            commit = asyncio.create_task(local.call(a_commit(member.generation_id, member.member_id)))
            await store.waiting.wait()

            alive = Heartbeat("default", "g", member.member_id, member.generation_id)
            both = await asyncio.gather(
                *(asked(peers, peer, each) for each in (alive, structs.replace(BEAT, group_id=elsewhere)))
            )
            store.open_gate.set()
            await commit
        await peers.close()
        await server.stop()

    codes = [outcome.reply.error for outcome in both if isinstance(outcome, Answer)]
    assert codes == ["COORDINATOR_NOT_AVAILABLE", "UNKNOWN_MEMBER_ID"]


async def test_a_commit_fails_with_its_connection(tmp_path: Path, tables: MemoryTables) -> None:
    path = tmp_path / "s"
    store = FaultyStore(tables)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, limits=NOW) as local, a_link(path) as link:
        await local.wait_until_ready()
        member = await a_stable_member(local, "g")
        async with a_socket(local, path):
            await beats(link, BEAT)
            store.open_gate.clear()
            outcome: asyncio.Future[bytes | NoAnswer] = asyncio.get_running_loop().create_future()
            commit = pack(a_commit(member.generation_id, member.member_id))
            assert link.send(commit, 60.0, outcome.set_result, Kind.COMMIT)
            await store.waiting.wait()
        assert await outcome == CLOSED
        store.open_gate.set()


def a_commit(generation_id: int, member_id: str = "", **fields: Any) -> CommitOffsets:
    return CommitOffsets("default", "g", generation_id, (OffsetToCommit("t", 0, 7),), member_id, **fields)


async def test_a_worker_without_a_socket_is_asked_over_grpc(tables: MemoryTables, tmp_path: Path) -> None:
    async with an_owner(tables) as local:
        server, peers = PeerServer(local, "127.0.0.1"), GrpcPeers(sockets=tmp_path)
        await server.start()
        answers = [await asked(peers, Replica("r", "", f"127.0.0.1:{server.port}"), BEAT) for _ in range(2)]
        await peers.close()
        await server.stop()

    assert [answer.reply.error for answer in answers if isinstance(answer, Answer)] == ["UNKNOWN_MEMBER_ID"] * 2


async def test_a_link_connects_again(tables: MemoryTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "RECONNECT_S", 0.0)
    path = tmp_path / "s"
    async with an_owner(tables) as local, a_link(path) as link:
        outcomes = []
        for _ in range(2):
            async with a_socket(local, path) as socket:
                outcomes.append([await beats(link, BEAT), await beats(link, BEAT)])
            await until(lambda: not socket.connections)

    for outcome in chain.from_iterable(outcomes):
        assert not isinstance(outcome, NoAnswer)
        assert [answer.reply.error for answer in outcome] == ["UNKNOWN_MEMBER_ID"]


async def test_repeated_heartbeats_have_their_own_answers(tables: MemoryTables, tmp_path: Path) -> None:
    async with an_owner(tables) as local, a_socket(local, tmp_path / "s"), a_link(tmp_path / "s") as link:
        member = await a_stable_member(local, "g")
        alive = Heartbeat("default", "g", member.member_id, member.generation_id)
        many = HeartbeatMany("default", "g", (MemberHeartbeat("m", 1), MemberHeartbeat(member.member_id, 1)))
        outcomes = [await beats(link, *some) for some in ([BEAT, alive], [alive, BEAT], [alive, many, BEAT]) * 3]
        expected = [local.try_heartbeat(each) for each in (BEAT, alive, alive, BEAT, alive, many, BEAT)] * 3

    assert [answer for outcome in outcomes if not isinstance(outcome, NoAnswer) for answer in outcome] == expected


async def test_answers_that_no_worker_sends_end_the_connection(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:4], "big"))
        answers = packed_answers([Answer(HeartbeatReply())] * 2)
        writer.write(len(answers).to_bytes(4, "big") + head[4:] + answers)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        is_closed.set()

    is_closed = asyncio.Event()
    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    async with a_link(tmp_path / "s") as link:
        outcome = await beats(link, BEAT)
        await is_closed.wait()
    server.close()

    assert outcome == NoAnswer("2 replies to 1 heartbeats")


async def test_nothing_is_read_behind_an_unreadable_answer(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads = []
        for _ in range(2):
            heads.append(await reader.readexactly(9))
            await reader.readexactly(int.from_bytes(heads[-1][:4], "big"))
        answers = [b"nonsense", packed_answers([Answer(HeartbeatReply())])]
        framed = zip(heads, answers, strict=True)
        writer.write(b"".join(len(each).to_bytes(4, "big") + head[4:] + each for head, each in framed))
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(answer, tmp_path / "s")
    async with a_link(tmp_path / "s") as link:
        outcomes: list[Sequence[Answer] | NoAnswer] = []
        await until(lambda: link.ask([BEAT], 60.0, outcomes.append))
        assert link.ask([BEAT], 60.0, outcomes.append)
        await until(lambda: len(outcomes) == 2)
    server.close()

    assert outcomes == [NoAnswer("not what a replica sends: ValidationError"), CLOSED]


@pytest.mark.parametrize("message", [b"", b"nonsense", b"\0\1\0\0\0\0\0\0\0", b'\1\1\0\0\0\0\0\0\0["default"]'])
async def test_what_no_worker_sends_ends_its_connection(
    message: bytes, tables: MemoryTables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with an_owner(tables) as local, a_socket(local, tmp_path / "s"), a_link(tmp_path / "s") as link:
        assert await sent(link, message) == CLOSED

    assert "a forwarded message was not answered" in caplog.text


async def test_messages_that_arrive_in_pieces_are_whole(tables: MemoryTables, tmp_path: Path) -> None:
    message = pack_heartbeats([BEAT])
    framed = len(message).to_bytes(4, "big") + (7).to_bytes(4, "big") + b"\0" + message
    async with an_owner(tables) as local, a_socket(local, tmp_path / "s"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        for cut in (1, 6, len(framed) - 1):
            writer.write(framed[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(framed[cut:] + framed)
            heads = []
            for _ in range(2):
                head = await reader.readexactly(9)
                heads.append(head[4:8])
                await reader.readexactly(int.from_bytes(head[:4], "big"))
            assert heads == [(7).to_bytes(4, "big")] * 2
        writer.close()


async def test_a_request_of_any_text_is_within_the_bound(tables: MemoryTables, tmp_path: Path) -> None:
    """JSON writes six characters for one that is not printable. Beyond the bound all other calls would fail as well."""
    note = "\x01" * NOW.request_max_bytes
    commit = CommitOffsets("default", "g", -1, (OffsetToCommit("t", 0, 1, metadata=note),))
    async with an_owner(tables) as local, a_socket(local, tmp_path / "s"), a_link(tmp_path / "s") as link:
        answer = await sent(link, pack(commit), kind=Kind.COMMIT)

    assert isinstance(answer, bytes)
    reply: Any = read_answer(commit, answer).reply
    assert [each.error for each in reply.partitions] == ["OFFSET_METADATA_TOO_LARGE"]


def test_a_message_in_many_pieces_is_not_copied_with_each() -> None:
    class Connected(asyncio.Transport):
        def is_closing(self) -> bool:
            return False

    class Receiver(unix._Messages):
        def received(self, number: int, kind: int, message: bytes) -> None:
            messages.append((number, kind, len(message)))

    messages: list[tuple[int, int, int]] = []
    receiver, size, piece = Receiver(), 2 * 1024 * 1024, bytes(64)
    receiver.connection_made(Connected())
    head = size.to_bytes(4, "big") + (7).to_bytes(4, "big") + b"\1"

    began_s = process_time()
    for data in chain([head], repeat(piece, size // len(piece))):
        receiver.data_received(data)

    assert messages == [(7, 1, size)]
    assert process_time() - began_s < 1.0, "it takes 0.02 s, and 5 s where each piece copies those before it"


async def test_a_message_beyond_the_bound_ends_its_connection(tables: MemoryTables, tmp_path: Path) -> None:
    async with an_owner(tables) as local, a_socket(local, tmp_path / "s"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"\xff" * 9)

        assert await reader.read() == b""
        writer.close()


async def test_a_silent_worker_is_given_up_and_connected_to_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "RECONNECT_S", 0.0)
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: connections.append(writer), tmp_path / "s")
    async with a_link(tmp_path / "s") as link:
        outcomes = [await sent(link, b"x", 0.0) for _ in range(2)]
    for writer in connections:
        writer.close()
    server.close()

    assert outcomes == [NoAnswer("no answer in time")] * 2
    assert len(connections) == 2


async def test_closing_a_link_leaves_no_call_waiting(tmp_path: Path) -> None:
    connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: connections.append(writer), tmp_path / "s")
    outcomes: list[bytes | NoAnswer] = []
    async with a_link(tmp_path / "s") as link:
        await until(lambda: link.send(b"x", 60.0, outcomes.append))
    for writer in connections:
        writer.close()
    server.close()

    assert outcomes == [CLOSED]
