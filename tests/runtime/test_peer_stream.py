"""Requests between replicas on one stream, their answers, and the bounds of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import grpc
import pytest

from rota.core.replica.forwarding import NoAnswer
from rota.core.replica.ports import Answer, JournalEvent, Replica
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import (
    CommitOffsets,
    Heartbeat,
    HeartbeatReply,
    JoinGroup,
    ListTopics,
    ListTopicsReply,
    OffsetToCommit,
    Protocol,
)
from rota.server.peer import client, messages
from rota.server.peer import server as server_of_peers
from rota.server.peer.messages import (
    EVENTS_AHEAD,
    EXCHANGE,
    MAX_BATCH_BYTES,
    MAX_MESSAGE_BYTES,
    SERVICE,
    Answered,
    Asked,
    Outbox,
    Watch,
    pack,
    pack_answer,
    pack_asked,
    unpack,
)
from rota.server.peer.secret import shown
from rota.server.peer.server import PeerServer
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.runtime.conftest import EVENTUALLY_S, a_join, a_stable_member, until
from tests.runtime.peers import (
    BEAT,
    EVENT,
    SECRET,
    a_peer,
    an_owner,
    peers_that_show,
    served,
    until_answered,
)
from tests.support.peers import answered, asked

# --- requests ---------------------------------------------------------------------------------------


async def test_many_calls_wait_at_a_peer_and_hold_up_no_other(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As members of a large group do, which wait for its rebalance: the last call ends the wait of all."""
    count, arrived, all_there = 500, 0, asyncio.Event()

    async def wait_for_all(*_: object) -> Answer:
        nonlocal arrived
        arrived += 1
        if arrived == count:
            all_there.set()
        await all_there.wait()
        return Answer(ListTopicsReply(ErrorCode.NONE))

    monkeypatch.setattr(LocalCoordinator, "call", wait_for_all)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers, asyncio.timeout(EVENTUALLY_S):
        waiting = [asyncio.create_task(answered(peers, peer, ListTopics("default"))) for _ in range(count - 1)]
        await until(lambda: arrived == count - 1)
        assert (await answered(peers, peer, BEAT)).reply.error is ErrorCode.UNKNOWN_MEMBER_ID
        answers = [await answered(peers, peer, ListTopics("default")), *await asyncio.gather(*waiting)]

    assert {answer.reply.error for answer in answers} == {ErrorCode.NONE}


async def test_an_answer_of_a_peer_may_be_as_large_as_it_is(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a group is described, or its leader joins, it has what all members have said."""
    reply = ListTopicsReply(ErrorCode.UNKNOWN_TOPIC, "x" * (MAX_MESSAGE_BYTES + 1))

    async def answer(*_: object) -> Answer:
        return Answer(reply)

    monkeypatch.setattr(LocalCoordinator, "call", answer)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        assert (await answered(peers, peer, ListTopics("default"))).reply == reply


async def test_a_large_request_reaches_a_peer_and_one_beyond_the_bound_fails_alone(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[object] = []

    def keep(_: object, request: JoinGroup, done: Callable[[Answer], None]) -> None:
        received.append(request)
        done(Answer(refuse(request, ErrorCode.NOT_COORDINATOR, "moved")))

    monkeypatch.setattr(LocalCoordinator, "submit", keep)
    large, too_large = (
        a_join(protocols=(Protocol("p", b"\x00" * size),)) for size in (8 * 1024 * 1024, MAX_MESSAGE_BYTES)
    )
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        outcomes = await asyncio.gather(asked(peers, peer, large), asked(peers, peer, too_large))

    assert received == [large]
    assert isinstance(outcomes[0], Answer)
    assert outcomes[1] == NoAnswer("the request is larger than a message between replicas")


async def test_a_call_whose_client_is_gone_is_cancelled_at_the_peer(tables: MemoryTables) -> None:
    async with an_owner(tables) as (local, _), served(local, SECRET) as peer, peers_that_show(SECRET) as peers:
        member = await a_stable_member(local, "g")
        waits = Heartbeat("default", "g", member.member_id, member.generation_id, wait_ms=60_000)
        waiting = asyncio.create_task(asked(peers, peer, waits))
        await until(lambda: local.parked() == 1)

        waiting.cancel()
        await until(lambda: local.parked() == 0)
        await asyncio.wait((waiting,))
        alive = Heartbeat("default", "g", member.member_id, member.generation_id)
        assert (await answered(peers, peer, alive)).reply.error is ErrorCode.NONE


async def test_a_late_answer_ends_its_call_alone(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is slow for one shard. Heartbeats of that shard have no answer, and those of others have theirs."""
    monkeypatch.setattr(client, "answer_timeout_ms", lambda request: 50 if request.group_id == "g" else 60_000)
    async with an_owner(tables, 2) as (local, store), served(local, SECRET) as peer, peers_that_show(SECRET) as peers:
        member = await a_stable_member(local, "g")
        elsewhere = next(
            each for each in ("h", "i", "j") if shard_of("default", each, 2) != shard_of("default", "g", 2)
        )
        store.open_gate.clear()
        commit = asyncio.create_task(asked(peers, peer, a_commit(member.generation_id, member.member_id)))
        await store.waiting.wait()
        alive = Heartbeat("default", "g", member.member_id, member.generation_id)

        other = await answered(peers, peer, Heartbeat("default", elsewhere, "m", 1))
        late = [await asked(peers, peer, alive), await commit]
        store.open_gate.set()
        await until(lambda: not store.waiting.is_set())
        in_time = await answered(peers, peer, Heartbeat("default", elsewhere, "m", 1))

    assert late == [NoAnswer("no answer in time")] * 2
    assert [answer.reply.error for answer in (other, in_time)] == ["UNKNOWN_MEMBER_ID"] * 2


def a_commit(generation_id: int, member_id: str = "") -> CommitOffsets:
    return CommitOffsets("default", "g", generation_id, (OffsetToCommit("t", 0, 7),), member_id)


async def test_unanswered_calls_fail_with_the_stream_and_later_ones_open_another(tables: MemoryTables) -> None:
    async with an_owner(tables) as (local, store), peers_that_show(SECRET) as peers:
        member = await a_stable_member(local, "g")
        server = PeerServer(local, "127.0.0.1", secrets=lambda: [SECRET])
        await server.start()
        peer = Replica("r", "http://r", f"127.0.0.1:{server.port}")
        store.open_gate.clear()
        commit = asyncio.create_task(asked(peers, peer, a_commit(member.generation_id, member.member_id)))
        await store.waiting.wait()

        await server.stop()
        outcome = await commit
        store.open_gate.set()
        server = PeerServer(local, "127.0.0.1", server.port, secrets=lambda: [SECRET])
        await server.start()
        await until_answered(lambda: asked(peers, peer, BEAT))
        await server.stop()

    assert isinstance(outcome, NoAnswer)


@pytest.mark.parametrize("end", ["the replica that asks", "the owner"])
async def test_a_stream_that_cannot_be_written_is_given_up(
    end: str, tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine, messages_left = Outbox._next_message, 1 if end == "the owner" else 0

    def break_once(outbox: Outbox) -> bytes:
        nonlocal messages_left
        messages_left -= 1
        if messages_left == -1:
            raise ValueError("a defect of ours")
        return genuine(outbox)

    monkeypatch.setattr(Outbox, "_next_message", break_once)
    monkeypatch.setattr(client, "answer_timeout_ms", lambda _request: 500)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        assert isinstance(await asked(peers, peer, BEAT), NoAnswer)
        await until_answered(lambda: asked(peers, peer, BEAT))


@pytest.mark.parametrize("bound", ["MOST_UNANSWERED", "MOST_UNSENT_BYTES"])
async def test_requests_beyond_the_bound_fail_at_once(
    tables: MemoryTables, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that is silent must not make this replica keep all that its clients send."""
    monkeypatch.setattr(client, bound, 1)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        first, second = await asyncio.gather(asked(peers, peer, BEAT), asked(peers, peer, BEAT))
        later = await asked(peers, peer, BEAT)

    assert isinstance(first, Answer)
    assert second == NoAnswer("too many requests wait for its answers")
    assert isinstance(later, Answer)


async def test_a_request_that_was_given_up_is_not_sent(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Asked] = []
    monkeypatch.setattr(server_of_peers._Stream, "_take", lambda _, taken: received.append(taken))
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        link = peers._link(peer.peer_address)
        number = link.ask(BEAT, lambda _: None, None)
        link.cancel(number)
        link.ask(Watch("default", "g", None), lambda _: None, None)
        await until(lambda: bool(received))

    assert [each.kind for each in received] == ["Watch"]


# --- the bounds of the owner ------------------------------------------------------------------------


class Wire:
    """The other end of a stream that an owner answers. Nothing is written while `is_open` is not set."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.read = 0
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.answers: list[Answered] = []

    def send(self, *requests: bytes) -> None:
        self.sent.put_nowait(pack_list(*requests))

    async def receive(self) -> bytes | None:
        data = await self.sent.get()
        self.read += 1
        return data

    async def write(self, data: bytes) -> None:
        await self.is_open.wait()
        self.answers += unpack(list[Answered], data)


def pack_list(*parts: bytes) -> bytes:
    return b"\xdc" + len(parts).to_bytes(2, "big") + b"".join(parts)


@asynccontextmanager
async def a_stream(local: LocalCoordinator) -> AsyncIterator[Wire]:
    wire = Wire()
    serving = asyncio.create_task(server_of_peers._Stream(local, wire.write).answer_all(wire.receive))
    yield wire
    wire.is_open.set()
    wire.sent.put_nowait(None)
    await serving


async def test_nothing_more_is_read_from_a_peer_that_does_not_read(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_of_peers, "MOST_UNSENT_BYTES", 100)
    async with an_owner(tables) as (local, _), a_stream(local) as wire:
        wire.is_open.clear()
        for number in range(100):
            wire.send(pack_asked(number, BEAT))
        await turns()
        read = wire.read
        wire.is_open.set()
        await until(lambda: len(wire.answers) == 100)

    assert read < 10


async def test_nothing_more_is_read_while_too_many_calls_wait(
    tables: MemoryTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_of_peers, "MOST_UNANSWERED", 5)
    released = asyncio.Event()

    async def wait(*_: object) -> Answer:
        await released.wait()
        return Answer(ListTopicsReply(ErrorCode.NONE))

    monkeypatch.setattr(LocalCoordinator, "call", wait)
    async with an_owner(tables) as (local, _), a_stream(local) as wire:
        for number in range(100):
            wire.send(pack_asked(number, ListTopics("default")))
        await turns()
        read = wire.read
        released.set()
        await until(lambda: len(wire.answers) == 100)

    assert read == 6


async def test_calls_end_with_the_stream(tables: MemoryTables) -> None:
    async with an_owner(tables) as (local, _):
        member = await a_stable_member(local, "g")
        async with a_stream(local) as wire:
            wire.send(pack_asked(1, Heartbeat("default", "g", member.member_id, member.generation_id, wait_ms=60_000)))
            await until(lambda: local.parked() == 1)

        assert local.parked() == 0


async def test_a_slow_reader_holds_up_its_watch_alone(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    given = 0

    async def watch(*_asked: object) -> AsyncIterator[JournalEvent]:
        nonlocal given
        for _ in range(3 * EVENTS_AHEAD):
            given += 1
            yield EVENT

    monkeypatch.setattr(LocalCoordinator, "watch", watch)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        watching = peers.watch(peer, "default", "g", 0)
        await anext(watching)
        assert (await answered(peers, peer, BEAT)).reply.error is ErrorCode.UNKNOWN_MEMBER_ID
        await turns()
        ahead = given
        rest = [event async for event in watching]

    assert ahead == EVENTS_AHEAD + 1
    assert len(rest) == 3 * EVENTS_AHEAD - 1


async def test_a_watch_that_is_left_ends_at_the_peer(tables: MemoryTables, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncio.Event()

    async def watch(*_: object) -> AsyncIterator[JournalEvent]:
        try:
            yield EVENT
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(LocalCoordinator, "watch", watch)
    async with a_peer(tables, SECRET) as peer, peers_that_show(SECRET) as peers:
        watching: Any = peers.watch(peer, "default", "g", 0)
        await anext(watching)
        await watching.aclose()
        async with asyncio.timeout(EVENTUALLY_S):
            await ended.wait()


async def turns() -> None:
    """Let everything that can go on without the outside go on."""
    for _ in range(50):
        await asyncio.sleep(0)


# --- messages ---------------------------------------------------------------------------------------


class Written:
    """The messages that an outbox has written. Each takes until `go_on` is set."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def write(self, data: bytes) -> None:
        self.messages.append(unpack(list[int], data))
        await self.go_on.wait()


@asynccontextmanager
async def an_outbox() -> AsyncIterator[tuple[Outbox, Written]]:
    outbox, written = Outbox(), Written()
    sending = asyncio.create_task(outbox.send_all(written.write))
    yield outbox, written
    sending.cancel()
    await asyncio.wait((sending,))


async def test_requests_of_one_turn_share_a_message() -> None:
    async with an_outbox() as (outbox, written):
        loop = asyncio.get_running_loop()
        for number in range(3):
            loop.call_soon(outbox.put, pack(number))
        await turns()

    assert written.messages == [[0, 1, 2]]


async def test_a_message_is_bounded_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BATCH", 3)
    async with an_outbox() as (outbox, written):
        for number in range(4):
            outbox.put(pack(number))
        await turns()
    sizes: list[int] = []

    async def write(data: bytes) -> None:
        sizes.append(len(unpack(list[bytes], data)))

    outbox = Outbox()
    for size in (1, MAX_BATCH_BYTES, 10 * MAX_BATCH_BYTES, 1, 1):
        outbox.put(pack(bytes(size)))
    sending = asyncio.create_task(outbox.send_all(write))
    await turns()
    sending.cancel()
    await asyncio.wait((sending,))

    assert written.messages == [[0, 1, 2], [3]]
    assert sizes == [1, 1, 1, 2]


# --- messages that no replica of this release sends --------------------------------------------------


@asynccontextmanager
async def a_peer_that_answers(*answers: Callable[[int], bytes]) -> AsyncIterator[Replica]:
    """A replica of another release, which answers each request with these."""

    async def exchange(_requests: object, context: Any) -> None:
        while isinstance(data := await context.read(), bytes):
            for each in unpack(list[Asked], data):
                for answer in answers:
                    await context.write(answer(each.number))

    methods: Any = {"Exchange": grpc.stream_stream_rpc_method_handler(exchange)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield Replica("r", "http://r", f"127.0.0.1:{port}")
    await server.stop(None)


UNREADABLE: list[Callable[[int], bytes]] = [
    lambda number: pack([[number, None]]),
    lambda number: pack([[number, []]]),
    lambda number: pack([[number, {"error": "LATER"}]]),
    lambda number: pack([[number, {"topics": 7}]]),
]


@pytest.mark.parametrize("answer", UNREADABLE)
async def test_an_answer_that_cannot_be_read_is_of_no_use(answer: Callable[[int], bytes]) -> None:
    async with a_peer_that_answers(answer) as peer, peers_that_show(SECRET) as peers:
        outcome = await asked(peers, peer, ListTopics("default"))

    assert isinstance(outcome, NoAnswer)
    assert "cannot be read" in outcome.why


@pytest.mark.parametrize("data", [b"", b"\x93", pack([]), pack({}), pack([[1]]), pack([["x", None]])])
async def test_a_message_that_cannot_be_read_ends_the_stream(data: bytes) -> None:
    async with a_peer_that_answers(lambda _: data, lambda _: b"\xc1") as peer, peers_that_show(SECRET) as peers:
        assert isinstance(await asked(peers, peer, ListTopics("default")), NoAnswer)


async def test_an_answer_that_was_not_asked_for_is_dropped() -> None:
    stray = pack_list(pack_answer(77, Answer(HeartbeatReply())))
    async with (
        a_peer_that_answers(
            lambda _: stray, lambda number: pack_list(pack_answer(number, Answer(HeartbeatReply(generation_id=3))))
        ) as peer,
        peers_that_show(SECRET) as peers,
    ):
        assert await asked(peers, peer, BEAT) == Answer(HeartbeatReply(generation_id=3))


@pytest.mark.parametrize("event", [None, {"seq": 1}, [{"seq": 1}]])
async def test_an_event_that_cannot_be_read_ends_a_watch(event: object) -> None:
    async with (
        a_peer_that_answers(lambda number: pack([[number, event]])) as peer,
        peers_that_show(SECRET) as peers,
    ):
        assert [event async for event in peers.watch(peer, "default", "g", 0)] == []


async def test_an_event_with_a_field_of_a_later_release_is_read() -> None:
    def answer(number: int) -> bytes:
        return pack([[number, [{**asdict(EVENT), "later": 1}]], [number, []]])

    async with a_peer_that_answers(answer) as peer, peers_that_show(SECRET) as peers:
        assert [event async for event in peers.watch(peer, "default", "g", 0)] == [EVENT]


MALFORMED = [
    ("LeaveReply", {}),
    ("ListTopics", {"namespace": 1}),
    ("Heartbeat", {"namespace": "n", "group_id": "g", "member_id": "m", "generation_id": 2**63}),
    ("Watch", {"namespace": "default", "group_id": 1, "after_revision": 0}),
    ("TopicsChanged", "default"),
    ("LaterRequest", {}),
]


@pytest.mark.parametrize(("kind", "body"), MALFORMED)
async def test_a_request_that_no_replica_sends_has_no_answer(tables: MemoryTables, kind: str, body: object) -> None:
    async with an_owner(tables) as (local, _), a_stream(local) as wire:
        wire.send(pack((1, kind, body)), pack_asked(2, BEAT))
        await until(lambda: len(wire.answers) == 2)

    assert [bool(answer.failure) for answer in wire.answers] == [True, False]


NO_MESSAGES = [b"", b"\xff", pack({}), pack([[1]]), pack([["1", "Heartbeat", {}]]), b"\x91" * 100_000]


@pytest.mark.parametrize("data", NO_MESSAGES)
async def test_a_message_that_no_replica_sends_is_an_invalid_argument(tables: MemoryTables, data: bytes) -> None:
    async with a_peer(tables, SECRET) as peer, grpc.aio.insecure_channel(peer.peer_address) as channel:
        rpc: Any = channel.stream_stream(EXCHANGE)
        stream = rpc(metadata=shown([SECRET]))
        await stream.write(data)
        with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT"):
            await stream.read()
