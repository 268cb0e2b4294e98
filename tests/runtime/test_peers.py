"""Messages between replicas: which may send them, and how heartbeats travel in batches."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from pydantic import ValidationError

from rota.access.budgets import BUDGETS, Budgets, Share
from rota.api.peer import heartbeats, unproven
from rota.api.peer import server as server_of_peers
from rota.api.peer.client import GrpcPeers
from rota.api.peer.heartbeats import CollectedHeartbeats, may_be_collected
from rota.api.peer.methods import CALL, CALLS_OF_A_CONNECTION, HEARTBEATS, MAX_MESSAGE_BYTES, TOPICS_CHANGED, WATCH
from rota.api.peer.secret import shown
from rota.api.peer.server import PeerServer
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    Heartbeat,
    HeartbeatMany,
    HeartbeatReply,
    JoinGroup,
    ListTopics,
    ListTopicsReply,
    MemberHeartbeat,
)
from rota.replica.forwarding import NoAnswer
from rota.replica.ports import Answer, JournalEvent, Replica
from rota.runtime.coordinator import LocalCoordinator
from rota.runtime.forwarding import PeerUnreachable
from rota.server.settings import Settings
from rota.testing.memory import MemoryTables
from rota.wire.envelopes import Packed, pack, pack_answers, unpack_heartbeats
from tests.runtime.conftest import EVENTUALLY_S, NOW, FaultyStore, until
from tests.support.raw_http2 import PREFACE

SECRET, NEXT_SECRET = "a secret of replicas", "their next secret one"


# --- the secret -------------------------------------------------------------------------------------


@asynccontextmanager
async def a_peer(tables: MemoryTables, *secrets: str, budgets: Budgets = BUDGETS) -> AsyncIterator[Replica]:
    store = FaultyStore(tables)
    await store.open(1)
    async with LocalCoordinator(store, shard_count=1, limits=NOW) as local:
        await local.wait_until_ready()
        server = PeerServer(local, "127.0.0.1", secrets=lambda: secrets, budgets=budgets)
        await server.start()
        yield Replica("r", "http://r", f"127.0.0.1:{server.port}")
        await server.stop()


@asynccontextmanager
async def peers_that_show(*secrets: str) -> AsyncIterator[GrpcPeers]:
    peers = GrpcPeers(lambda: secrets)
    yield peers
    await peers.close()


@pytest.mark.parametrize("shown", [(), ("something else entirely",), (SECRET[:-1],), (NEXT_SECRET, SECRET)])
async def test_a_peer_that_does_not_show_the_secret_is_refused(tables: MemoryTables, shown: tuple[str, ...]) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(*shown) as peers:
        for request in (ListTopics("default"), Heartbeat("default", "g", "m", 1)):
            with pytest.raises(PeerUnreachable, match="show a secret"):
                await peers.call(peer, request)
        watched = [event async for event in peers.watch(peer, "default", "g", 0)]

    assert watched == []


async def test_an_answer_of_a_peer_may_be_as_large_as_it_is(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a group is described, or its leader joins, it has what all members have said."""
    reply = ListTopicsReply(ErrorCode.UNKNOWN_TOPIC, "x" * (MAX_MESSAGE_BYTES + 1))

    async def answer(*_: object) -> Answer:
        return Answer(reply)

    monkeypatch.setattr(LocalCoordinator, "call", answer)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        assert (await peers.call(peer, ListTopics("default"))).reply == reply


async def test_more_calls_wait_at_a_peer_than_a_connection_takes(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As members of a large group do, which wait for its rebalance: the last call ends the wait of all."""
    count, arrived, all_there = 3 * CALLS_OF_A_CONNECTION, 0, asyncio.Event()

    async def wait_for_all(*_: object) -> Answer:
        nonlocal arrived
        arrived += 1
        if arrived == count:
            all_there.set()
        await all_there.wait()
        return Answer(ListTopicsReply(ErrorCode.NONE))

    monkeypatch.setattr(LocalCoordinator, "call", wait_for_all)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        async with asyncio.timeout(EVENTUALLY_S):
            answers = await asyncio.gather(*(peers.call(peer, ListTopics("default")) for _ in range(count)))

    assert {answer.reply.error for answer in answers} == {ErrorCode.NONE}


async def test_the_largest_message_reaches_a_peer(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of 8 MiB whose bytes take six each as JSON."""
    received: list[object] = []

    async def keep(_: object, request: object) -> Answer:
        received.append(request)
        return Answer(refuse(largest, ErrorCode.NOT_COORDINATOR, "moved"))

    monkeypatch.setattr(LocalCoordinator, "call", keep)
    largest = JoinGroup("default", "g", "worker", (), 1_000, 1_000, client_id="\x00" * (8 * 1024 * 1024))
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        await peers.call(peer, largest)

    assert received == [largest]


async def test_a_peer_that_is_gone_is_not_connected_to_any_more(tables: MemoryTables) -> None:
    async with peers_that_show(SECRET) as peers:
        async with a_peer(tables, SECRET) as gone:
            await peers.call(gone, ListTopics("default"))
        with pytest.raises(PeerUnreachable):
            await peers.call(gone, ListTopics("default"))
        channels = [link.channel for link in peers._links.values()]
        async with a_peer(tables, SECRET) as peer:
            await peers.call(peer, ListTopics("default"))
            await until(lambda: not peers._closing)

            assert [channel.get_state() for channel in channels] == [grpc.ChannelConnectivity.SHUTDOWN]


async def test_peers_are_notified_over_new_channels(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as one, a_peer(tables, SECRET) as other, peers_that_show(SECRET) as peers:
        await peers.notify_released([one, other])
        await peers.notify_topics_changed([other, one], ["default"])


async def test_a_peer_says_which_shards_it_holds_in_which_epoch(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        (owner,) = tables.owners()
        held = replace(owner, peer_address=peer.peer_address)
        others = [replace(held, epoch=2), replace(held, replica_id="its predecessor"), replace(held, shard_id=7)]

        assert await peers.held([held]) == {0}
        assert [await peers.held([each]) for each in others] == [set()] * 3
        assert await peers.held([replace(held, peer_address="127.0.0.1:1"), held]) == {0}
    async with peers_that_show(SECRET) as peers:
        assert await peers.held([held]) == set(), "it is gone"


async def test_a_peer_that_is_silent_holds_nothing(tables: MemoryTables) -> None:
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        (owner,) = tables.owners()
        async with a_line_to(peer, asyncio.Event()) as line:
            assert await peers.held([replace(owner, peer_address=line.peer_address)]) == set()


@asynccontextmanager
async def a_line_to(peer: Replica, passes: asyncio.Event) -> AsyncIterator[Replica]:
    """Another address of the peer: nothing passes while `passes` is not set, though every byte is acknowledged."""
    lines: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await passes.wait()
            writer.write(data)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*peer.peer_address.split(":"))
        both = (asyncio.create_task(copy(reader, there_writer)), asyncio.create_task(copy(there_reader, writer)))
        lines.update(both)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        writer.close()
        there_writer.close()

    line = await asyncio.start_server(carry, "127.0.0.1", 0)
    yield Replica(peer.replica_id, peer.address, f"127.0.0.1:{line.sockets[0].getsockname()[1]}")
    line.close()
    for each in lines:
        each.cancel()
    await asyncio.gather(*lines, return_exceptions=True)


async def test_connections_without_proof_are_few_and_short(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proven one stays; of the others the newest ones stay for a moment, whatever files the process opens."""
    monkeypatch.setattr(unproven, "PROOF_S", 0.3)
    monkeypatch.setattr(unproven, "SWEEP_EVERY_S", 0.02)
    few, files = Budgets(handshakes=Share(3, 3)), open_files()
    async with a_peer(tables, SECRET, budgets=few) as peer, peers_that_show(SECRET) as peers:
        await peers.call(peer, ListTopics("default"))
        host, port = peer.peer_address.split(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(10)]
        async with asyncio.timeout(EVENTUALLY_S):
            for reader, writer in silent:
                writer.write(PREFACE + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                with suppress(OSError):
                    await reader.read()
                writer.close()

        (link,) = peers._links.values()
        assert link.channel.get_state() is grpc.ChannelConnectivity.READY
        assert (await peers.call(peer, ListTopics("default"))).reply.error is ErrorCode.NONE
    await until(lambda: open_files() <= files + 10)


def open_files() -> int:
    return len(os.listdir("/dev/fd"))


async def test_a_silent_peer_is_given_up_before_the_deadline(tables: MemoryTables) -> None:
    passes = asyncio.Event()
    passes.set()
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers, a_line_to(peer, passes) as line:
        await peers.call(line, ListTopics("default"))
        passes.clear()  # as a process that is stopped, whose kernel goes on

        with pytest.raises(PeerUnreachable, match="ping timeout"):
            await peers.call(line, ListTopics("default"))


async def test_what_a_silent_peer_has_left_ends(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_of_peers, "KEEPALIVE_MS", 500)
    monkeypatch.setattr(server_of_peers, "KEEPALIVE_TIMEOUT_MS", 250)
    ended = asyncio.Event()

    async def watch(*_: object) -> AsyncIterator[JournalEvent]:
        yield JournalEvent(7, 1, "default", "g", 1, "member_left", "it ended", {"member_id": "m"}, 5)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(LocalCoordinator, "watch", watch)
    passes = asyncio.Event()
    passes.set()
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers, a_line_to(peer, passes) as line:
        watching = peers.watch(line, "default", "g", 0)
        await anext(watching)
        passes.clear()

        async with asyncio.timeout(EVENTUALLY_S):
            await ended.wait()
        passes.set()
        assert [event async for event in watching] == []


@asynccontextmanager
async def a_peer_that_answers(method: str, data: bytes) -> AsyncIterator[Replica]:
    """A replica of a later release, whose answers this one cannot read."""

    async def call(_request: bytes, _context: Any) -> bytes:
        return data

    async def watch(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        yield data

    handler: Any = (
        grpc.unary_stream_rpc_method_handler(watch) if method == WATCH else grpc.unary_unary_rpc_method_handler(call)
    )
    service, name = method.removeprefix("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {name: handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Replica("r", "http://r", f"127.0.0.1:{port}")
    await server.stop(None)


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b'{"type": "Later", "fields": {}}', b'{"type": "ListTopicsReply", "fields": {"error": "LATER"}}'],
)
async def test_an_answer_that_cannot_be_read_is_of_no_use(data: bytes) -> None:
    async with a_peer_that_answers(CALL, data) as peer, peers_that_show(SECRET) as peers:
        with pytest.raises(PeerUnreachable, match="cannot be read"):
            await peers.call(peer, ListTopics("default"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"seq": 1}'])
async def test_an_event_that_cannot_be_read_ends_a_watch(data: bytes) -> None:
    async with a_peer_that_answers(WATCH, data) as peer, peers_that_show(SECRET) as peers:
        assert [event async for event in peers.watch(peer, "default", "g", 0)] == []


async def test_an_event_with_a_field_of_a_later_release_is_read() -> None:
    event = JournalEvent(7, 1, "default", "g", 1, "member_left", "it ended", {"member_id": "m"}, 5)
    data = pack({**asdict(event), "later": 1})
    async with a_peer_that_answers(WATCH, data) as peer, peers_that_show(SECRET) as peers:
        assert [event async for event in peers.watch(peer, "default", "g", 0)] == [event]


MALFORMED = [
    (CALL, pack(["LeaveReply", {}])),
    (CALL, pack([])),
    (CALL, pack(["ListTopics", {"namespace": 1}])),
    (CALL, b"\x92\xaaListTopics\x81\xa9namespace\xa3\xed\xa0\x80"),  # half of a character
    (HEARTBEATS, pack({})),
    (HEARTBEATS, pack([[None, None]])),
    (HEARTBEATS, pack([[{"namespace": "n", "group_id": "g", "member_id": "m", "generation_id": 2**63}, None]])),
    (WATCH, pack({"namespace": "default", "group_id": 1, "after_revision": 0})),
    (TOPICS_CHANGED, pack("default")),
    (TOPICS_CHANGED, b"\xff"),
    (WATCH, b""),
    (WATCH, b"\x91" * 100_000),
]


@pytest.mark.parametrize(("method", "data"), MALFORMED)
async def test_what_no_replica_sends_is_an_invalid_argument(tables: MemoryTables, method: str, data: bytes) -> None:
    async with a_peer(tables, SECRET) as peer, grpc.aio.insecure_channel(peer.peer_address) as channel:
        call: Any = (channel.unary_stream if method == WATCH else channel.unary_unary)(method)
        answer = call(data, metadata=shown([SECRET]))
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
            await (answer.read() if method == WATCH else answer)


@pytest.mark.parametrize("shown", [SECRET, NEXT_SECRET])
async def test_any_of_the_secrets_is_accepted(tables: MemoryTables, shown: str) -> None:
    async with a_peer(tables, SECRET, NEXT_SECRET) as peer, peers_that_show(shown) as peers:
        answer = await peers.call(peer, ListTopics("default"))

    assert answer.reply.error == "NONE"


def test_peers_beyond_loopback_need_a_secret(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text(f"{SECRET}\n\n{NEXT_SECRET}\n")

    with pytest.raises(ValidationError, match="peer beyond loopback needs peer_secret_file"):
        Settings(peer="0.0.0.0:0")  # type: ignore[arg-type]

    assert Settings(peer="0.0.0.0:0", peer_secret_file=file).peer_secret_file == file  # type: ignore[arg-type]
    for loopback in ("127.0.0.1:0", "[::1]:0", "localhost:0"):
        assert Settings(peer=loopback).peer_secret_file is None  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [None, "", "short", f"{SECRET}\nshort", "sécret de beaucoup"])
def test_a_file_without_a_secret_is_rejected_without_quoting_it(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "secrets"
    if content is not None:
        file.write_text(content)

    with pytest.raises(ValidationError) as refused:
        Settings(peer_secret_file=file)

    (error,) = refused.value.errors()
    assert error["loc"] == ("peer_secret_file",)
    assert SECRET not in error["msg"]


# --- heartbeats -------------------------------------------------------------------------------------


class Wire:
    """Where the messages go: answered when the test says so, in the way of a peer that knows every member."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, asyncio.Future[bytes]]] = []
        self.timeouts_s: list[float] = []

    async def send(self, data: bytes, timeout_s: float) -> bytes:
        self.timeouts_s.append(timeout_s)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.messages.append((data, answer))
        return await answer

    def members(self) -> list[list[str]]:
        return [[request.member_id for request in beats(data)] for data, _ in self.messages]

    def answer(self, number: int) -> None:
        data, answer = self.messages[number]
        answer.set_result(
            pack_answers([Packed(HeartbeatReply(generation_id=beat.generation_id), 7, 3, "") for beat in beats(data)])
        )


def beats(data: bytes) -> list[Heartbeat]:
    return [request for request in unpack_heartbeats(data) if isinstance(request, Heartbeat)]


def a_heartbeat(number: int) -> Heartbeat:
    return Heartbeat("default", f"g{number}", f"m{number}", number)


def ask(collected: CollectedHeartbeats, request: Heartbeat) -> asyncio.Future[Answer | NoAnswer]:
    answered: asyncio.Future[Answer | NoAnswer] = asyncio.get_running_loop().create_future()
    collected.ask(request, answered.set_result)
    return answered


async def turns() -> None:
    """Let everything that can go on without the outside go on."""
    for _ in range(10):
        await asyncio.sleep(0)


async def asked_one_by_one(collected: CollectedHeartbeats, count: int) -> list[asyncio.Future[Answer | NoAnswer]]:
    """The answers to so many heartbeats, each of which comes once the one before has nothing left to do."""
    asked = []
    for number in range(count):
        asked.append(ask(collected, a_heartbeat(number)))
        await turns()
    return asked


async def test_heartbeats_of_one_moment_share_a_message() -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    asked = asyncio.gather(*(ask(collected, a_heartbeat(number)) for number in range(3)))
    await turns()

    wire.answer(0)

    assert await asked == [Answer(HeartbeatReply(generation_id=number), 7, 3, "") for number in range(3)]
    assert wire.members() == [["m0", "m1", "m2"]]


async def test_a_message_has_no_more_members_than_it_must() -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    sizes = [1, 1_500, 600, 5_000, 1]
    for number, size in enumerate(sizes):
        beats = tuple(MemberHeartbeat(f"m{number}-{each}", 1) for each in range(size))
        collected.ask(HeartbeatMany("default", "g", beats), lambda _: None)
    await turns()
    await collected.close()

    assert [len(unpack_heartbeats(data)) for data, _ in wire.messages] == [3, 1]


async def test_requests_wait_for_a_message_that_is_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "SECOND_AFTER_S", EVENTUALLY_S)
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    asked = await asked_one_by_one(collected, 3)

    wire.answer(0)
    await turns()
    wire.answer(1)
    await asyncio.gather(*asked)
    await collected.close()

    assert wire.members() == [["m0"], ["m1", "m2"]]


async def test_a_second_message_is_sent_where_the_first_is_slow() -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    asked = [ask(collected, a_heartbeat(0))]
    await turns()
    asked.append(ask(collected, a_heartbeat(1)))

    await until(lambda: len(wire.messages) == 2)
    wire.answer(1)
    wire.answer(0)
    await asyncio.gather(*asked)

    assert wire.members() == [["m0"], ["m1"]]


async def test_later_requests_wait_for_the_first_of_two_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "SECOND_AFTER_S", 0)
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    asked = await asked_one_by_one(collected, 4)

    before = wire.members()
    wire.answer(1)
    await turns()
    after = wire.members()
    wire.answer(0)
    wire.answer(2)
    await asyncio.gather(*asked)

    assert before == [["m0"], ["m1"]]
    assert after == [["m0"], ["m1"], ["m2", "m3"]]


async def test_a_receiver_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    collected.ask(a_heartbeat(0), lambda _: 1 / 0)  # type: ignore[arg-type]
    stays = ask(collected, a_heartbeat(1))
    await turns()

    wire.answer(0)

    assert (await stays) == Answer(HeartbeatReply(generation_id=1), 7, 3, "")
    assert "ZeroDivisionError" in caplog.text


async def test_an_answer_that_is_none_leaves_nobody_waiting() -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    for spoiled in (b"nonsense", b"[]"):
        asked = ask(collected, a_heartbeat(1))
        await turns()
        wire.messages[-1][1].set_result(spoiled)

        assert isinstance(await asked, NoAnswer)


@pytest.mark.parametrize(("waited_s", "is_sent"), [(0.4, True), (0.6, False)])
async def test_a_heartbeat_behind_unanswered_messages_keeps_its_limit(waited_s: float, is_sent: bool) -> None:
    """It was sent once one of them had failed, with a second of its own: the member had hung up by then."""
    wire, loop = Wire(), asyncio.get_running_loop()
    began_s, now_s = loop.time(), 0.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "time", lambda: began_s + now_s)
        patched.setattr(heartbeats, "SECOND_AFTER_S", 0)
        collected = CollectedHeartbeats(wire.send)
        asked = await asked_one_by_one(collected, 3)
        now_s = waited_s
        wire.messages[0][1].set_result(b"nonsense")
        await turns()
        if is_sent:
            assert wire.timeouts_s == [1.0, 1.0, pytest.approx(1.0 - waited_s)]
            wire.answer(2)
        else:
            assert await asked[2] == NoAnswer("it has not answered earlier heartbeats")
            assert len(wire.messages) == 2
        await collected.close()
        await asyncio.gather(*asked)


async def test_heartbeats_of_a_process_that_was_paused_are_sent() -> None:
    """The pause was its own: nothing says that the peer is silent."""
    wire, loop = Wire(), asyncio.get_running_loop()
    collected = CollectedHeartbeats(wire.send)
    asked = ask(collected, a_heartbeat(1))
    await asyncio.sleep(0)
    now_s = loop.time() + 60
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "time", lambda: now_s)
        await turns()

        assert wire.timeouts_s == [1.0]
        wire.answer(0)
        assert await asked == Answer(HeartbeatReply(generation_id=1), 7, 3, "")


async def test_closing_leaves_nobody_waiting() -> None:
    wire = Wire()
    collected = CollectedHeartbeats(wire.send)
    asked = await asked_one_by_one(collected, 3)

    await collected.close()

    assert await asyncio.gather(*asked) == 3 * [NoAnswer("the connection to it is closed")]


def test_a_heartbeat_that_waits_keeps_nobody_else_waiting() -> None:
    waits = Heartbeat("default", "g", "m", 1, wait_ms=3_000)
    many = HeartbeatMany("default", "g", (MemberHeartbeat("m", 1),))

    assert [may_be_collected(request) for request in (waits, a_heartbeat(1), many)] == [False, True, True]
