"""A connection at the shared port goes to the worker that owns its group; its client notices nothing."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from rota.access.budgets import BUDGETS
from rota.api.http.app import create_app
from rota.api.http.framing import Part
from rota.api.peer.descriptors import TakingSocket
from rota.observability.metrics import Metrics
from rota.protocol.ids import shard_of
from rota.protocol.messages import HeartbeatReply, Request
from rota.replica.forwarding import Forwarding
from rota.replica.known_owners import KnownOwners
from rota.replica.ports import Replica, ShardOwner
from rota.server.connections import Connections
from rota.server.fast_protocol import FastHttpProtocol
from rota.server.handing_over import HandingOver
from rota.server.http_server import HttpServer, listen
from rota.server.settings import Address
from rota.server.tls import ServerTls, TlsFiles
from tests.access.certificates import Authority
from tests.http.both_ways import BEAT, PLAIN, a_request
from tests.http.scripted import ScriptedCoordinator

SHARDS = 4
MINE, THEIRS = "mine", "theirs"
"""Groups of the first worker, and of the second."""
STATUS = re.compile(rb"HTTP/1\.1 (\d\d\d)")
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def beat(group: str, member: int = 1) -> bytes:
    body = BEAT.replace(b"m-1", b"m-%d" % member)
    return a_request(body, path=f"/v1/namespaces/default/groups/{group}/heartbeat")


@dataclass
class Worker:
    """One of two that share a supervisor."""

    coordinator: ScriptedCoordinator
    forwarding: Forwarding
    metrics: Metrics
    connections: Connections
    server: HttpServer
    shared_port: int
    own_port: int
    owned: set[int]
    """The shards that are here."""

    @property
    def asked(self) -> int:
        """Requests that it has answered."""
        return len(self.coordinator.requests)

    @property
    def protocols(self) -> list[FastHttpProtocol]:
        """Of its open connections."""
        return [each for each in self.server.server_state.connections if isinstance(each, FastHttpProtocol)]

    @property
    def open(self) -> int:
        return len(self.protocols)

    @property
    def handed_over(self) -> int:
        [count] = re.findall(rb"^rota_connections_handed_over_total (\d+)", self.metrics.exposition(), re.MULTILINE)
        return int(count)


@asynccontextmanager
async def a_worker(
    name: str, other: str, folder: Path, *, most: int = 1_000, tls: ServerTls | None = None
) -> AsyncIterator[Worker]:
    """Each owns the shard of one group, and all others are the other's."""
    own = {shard_of("default", MINE if name == "a" else THEIRS, SHARDS)}
    known = KnownOwners(name, SHARDS)
    known.peers = [Replica(other, "", other)]
    known.owners = {shard: ShardOwner(shard, other, "", 1, lease_left_ms=60_000) for shard in range(SHARDS)}
    shared, alone = listen(Address("127.0.0.1", 0)), listen(Address("127.0.0.1", 0))
    shared_port = shared.getsockname()[1]
    coordinator, metrics, forwarding = ScriptedCoordinator(), Metrics(), Forwarding(known, own)
    connections = Connections(BUDGETS, most, lambda _: None)
    api = create_app(coordinator, metrics=metrics)
    server = HttpServer(
        api,
        [shared, alone],
        drain_timeout_ms=2_000,
        tls=tls.context() if tls is not None else None,
        connections=connections,
        fast_path=api.fast_path,
        handing_over=HandingOver(forwarding, metrics, folder, name, shared_port),
    )
    serving = asyncio.create_task(server.run_until_stopped())
    await until(lambda: server.started)
    try:
        own_port = alone.getsockname()[1]
        yield Worker(coordinator, forwarding, metrics, connections, server, shared_port, own_port, own)
    finally:
        server.stop()
        await serving


@asynccontextmanager
async def two_workers(folder: Path, *, most: int = 1_000) -> AsyncIterator[tuple[Worker, Worker]]:
    async with a_worker("a", "b", folder) as first, a_worker("b", "a", folder, most=most) as second:
        yield first, second


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.address = writer.get_extra_info("sockname")

    def say(self, data: bytes) -> None:
        self._writer.write(data)

    async def answers(self, count: int = 1) -> list[int]:
        """The statuses of so many answers."""
        found = []
        async with asyncio.timeout(60):
            for _ in range(count):
                head = await self._reader.readuntil(b"\r\n\r\n")
                status = STATUS.match(head)
                assert status is not None, head
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await self._reader.readexactly(length)
                found.append(int(status[1]))
        return found

    async def ask(self, request: bytes) -> int:
        self.say(request)
        [status] = await self.answers()
        return status

    async def ended(self) -> bool:
        """Whether the server has closed it, and answered nothing more."""
        with suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                return await self._reader.read(1) == b""
        return True

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


@asynccontextmanager
async def a_client(port: int, tls: ssl.SSLContext | None = None, *, new: bool = False) -> AsyncIterator[Client]:
    """Unless it is new it has asked once, so that its next request decides where it goes."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
    try:
        if not new:
            assert await client.ask(a_request(b"", PLAIN[0], path="/healthz", method="GET")) == 200
        yield client
    finally:
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.002)


@pytest.fixture(params=list(LOOPS))
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Callable[[Path], Awaitable[None]]], None]:
    """Plays a scene on the event loop of asyncio, and on that of production, in a folder for the workers' sockets."""

    def play(scene: Callable[[Path], Awaitable[None]]) -> None:
        async def played() -> None:
            await scene(tmp_path)

        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(played())

    return play


Play = Callable[[Callable[[Path], Awaitable[None]]], None]


# --- connections that move ------------------------------------------------------------------------------


def test_a_connection_goes_to_the_owner_of_its_group(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port) as client:
            statuses = [await client.ask(beat(group)) for group in (THEIRS, THEIRS, MINE, THEIRS)]
            peers = [each.client for each in second.protocols]
            await until(lambda: first.open == 0)

            assert statuses == [200] * 4
            assert (first.asked, second.asked) == (0, 4)
            assert (first.handed_over, second.handed_over) == (1, 0)
            assert peers == [client.address]

    play(scene)


def test_a_connection_with_a_single_call_stays(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port, new=True) as client:
            client.say(beat(THEIRS)[:-3])
            await until(lambda: any(each._part is Part.BODY for each in first.protocols))
            assert await client.ask(beat(THEIRS)[-3:]) == 200
            assert (first.asked, first.handed_over) == (1, 0)

            assert await client.ask(beat(THEIRS)) == 200
            assert (second.asked, first.handed_over) == (1, 1)

    play(scene)


@pytest.mark.parametrize("path", ["coordinator", "members/m?x=1", "leader"])
def test_any_path_of_a_group_names_it(path: str, play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port) as client:
            await client.ask(
                a_request(b"", PLAIN[0], path=f"/v1/namespaces/default/groups/{THEIRS}/{path}", method="GET")
            )

            assert (first.handed_over, second.open) == (1, 1)

    play(scene)


def test_requests_that_arrive_together_are_answered_in_order(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port) as client:
            second.coordinator.heartbeats_at_once = False
            second.coordinator.reply = None
            client.say(b"".join(beat(THEIRS, member) for member in range(4)))
            for member in range(4):
                await second.coordinator.until_parked(1)
                client.say(beat(THEIRS, 4 + member))
                second.coordinator.answer_one_parked(HeartbeatReply(generation_id=7, state="Stable"))
                assert await client.answers() == [200]
            for _ in range(4):
                await second.coordinator.until_parked(1)
                second.coordinator.answer_one_parked(HeartbeatReply(generation_id=7, state="Stable"))
                assert await client.answers() == [200]

            assert [member_of(request) for request in second.coordinator.requests] == [f"m-{n}" for n in range(8)]

    play(scene)


def member_of(request: Request) -> str:
    return str(getattr(request, "member_id", ""))


def test_no_byte_is_lost_wherever_requests_are_cut(play: Play) -> None:
    random, many = Random(7), 120

    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), AsyncExitStack() as clients:
            sent: list[list[bytes]] = []
            lines = []
            for number in range(many):
                lines.append(await clients.enter_async_context(a_client(first.shared_port)))
                requests = b"".join(beat(THEIRS, 10 * number + each) for each in range(5))
                whole = len(beat(THEIRS).partition(b"\r\n\r\n")[0]) + 4
                cuts = sorted({random.randrange(whole, len(requests)) for _ in range(random.randrange(4))})
                sent.append([requests[begin:end] for begin, end in zip([0, *cuts], [*cuts, None], strict=True)])
            while any(sent):
                for line, parts in zip(lines, sent, strict=True):
                    if parts:
                        line.say(parts.pop(0))
                await asyncio.sleep(0)
            statuses = [await line.answers(5) for line in lines]

            expected = [f"m-{10 * number + each}" for number in range(many) for each in range(5)]
            asked = [member_of(request) for one in (first, second) for request in one.coordinator.requests]
            assert statuses == [[200] * 5] * many
            assert sorted(asked) == sorted(expected)
            # Some stay where more come at once than the socket has room for.
            assert 0 < first.handed_over <= many

    play(scene)


# --- connections that stay ------------------------------------------------------------------------------


def test_other_connections_stay_where_they_were_accepted(play: Play) -> None:
    cut = beat(THEIRS)

    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), AsyncExitStack() as clients:

            async def opened(port: int) -> Client:
                return await clients.enter_async_context(a_client(port))

            own, mine, split = [await opened(port) for port in (first.own_port, first.shared_port, first.shared_port)]
            assert [await own.ask(beat(THEIRS)), await own.ask(beat(THEIRS))] == [200, 200]
            assert [await mine.ask(beat(group)) for group in (MINE, THEIRS)] == [200, 200]
            split.say(cut[:30])
            await until(lambda: any(each._head_bytes for each in first.protocols))
            assert await split.ask(cut[30:]) == 200
            first.forwarding.is_draining = True
            assert await (await opened(first.shared_port)).ask(beat(THEIRS)) == 200

            assert (first.handed_over, first.open, second.open) == (0, 4, 0)

    play(scene)


def test_a_connection_that_lasts_goes_when_its_group_has_gone(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port) as client:
            assert [await client.ask(beat(MINE)) for _ in range(2)] == [200, 200]
            [protocol] = first.protocols
            move(MINE, first, second)
            assert await client.ask(beat(MINE)) == 200
            first.coordinator.heartbeats_at_once, first.coordinator.reply = False, None
            client.say(beat(MINE))
            await first.coordinator.until_parked(1)
            protocol.timeout_keep_alive_handler()
            client.say(beat(MINE))
            await until(lambda: bool(protocol.pipeline))
            first.coordinator.answer_one_parked(HeartbeatReply(generation_id=7, state="Stable"))
            assert await client.answers() == [200]
            await first.coordinator.until_parked(1)
            protocol.timeout_keep_alive_handler()
            first.coordinator.answer_one_parked(HeartbeatReply(generation_id=7, state="Stable"))
            assert await client.answers() == [200]
            assert first.handed_over == 0, "an answer was under way"

            assert [await client.ask(beat(MINE)) for _ in range(2)] == [200, 200]
            assert (first.handed_over, first.asked, second.asked) == (1, 5, 2)

    play(scene)


def move(group: str, *workers: Worker) -> None:
    """The group's shard, from one of them to the other."""
    for worker in workers:
        worker.owned.symmetric_difference_update({shard_of("default", group, SHARDS)})


def test_a_connection_is_handed_over_once(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second), a_client(first.shared_port) as client:
            second.server.config.hand_over.shared_port = first.shared_port  # type: ignore[attr-defined]
            assert [await client.ask(beat(THEIRS)) for _ in range(2)] == [200, 200]
            move(THEIRS, first, second)
            [protocol] = second.protocols
            protocol.timeout_keep_alive_handler()

            assert [await client.ask(beat(THEIRS)) for _ in range(2)] == [200, 200]
            assert (first.handed_over, second.handed_over, second.open) == (1, 0, 1)

    play(scene)


async def test_a_connection_with_tls_stays(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("rota")
    tls = ServerTls(TlsFiles(issued.cert, issued.key))
    async with (
        a_worker("a", "b", tmp_path, tls=tls) as first,
        a_worker("b", "a", tmp_path, tls=tls) as second,
        a_client(first.shared_port, authority.client_context()) as client,
    ):
        assert await client.ask(beat(THEIRS)) == 200
        assert (first.handed_over, first.open, second.open) == (0, 1, 0)


def test_a_worker_that_is_not_there_gets_none(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.api.peer.descriptors.RECONNECT_S", 0.0)

    async def scene(folder: Path) -> None:
        async with a_worker("a", "b", folder) as first:

            async def ask_on_a_new_one() -> int:
                async with a_client(first.shared_port) as client:
                    return await client.ask(beat(THEIRS))

            statuses = [await ask_on_a_new_one()]
            for _ in range(2):
                async with a_worker("b", "a", folder) as second:
                    statuses.append(await ask_on_a_new_one())
                    assert second.asked == 1
                statuses.append(await ask_on_a_new_one())

            assert statuses == [200] * 5
            assert (first.handed_over, first.asked) == (2, 3)

    play(scene)


# --- limits ----------------------------------------------------------------------------------------------------


def test_connections_count_where_they_are(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder, most=8) as (first, second), AsyncExitStack() as clients:
            statuses = []
            for _ in range(20):
                client = await clients.enter_async_context(a_client(first.shared_port))
                statuses.append(await client.ask(beat(THEIRS)))
            await until(lambda: first.open == 20 - second.open)

            # It has room for six from others, and the seventh makes it say so.
            assert statuses == [200] * 20
            assert (first.handed_over, second.open, len(second.connections._open)) == (7, 7, 7)
            assert len(first.connections._open) == 13
            await clients.aclose()
            await until(lambda: not first.open and not second.open)
            assert not first.connections._open
            assert not second.connections._open
            assert not first.connections._silent._total
            assert not second.connections._silent._total

    play(scene)


# --- descriptors -----------------------------------------------------------------------------------------------


def test_no_descriptor_is_left(play: Play) -> None:
    async def scene(folder: Path) -> None:
        async with two_workers(folder) as (first, second):
            await handed_over(first, second, 3)
            before, watched = descriptors(), watched_descriptors()
            await handed_over(first, second, 40)

            assert descriptors() == before
            assert watched_descriptors() == watched

    play(scene)


async def handed_over(first: Worker, second: Worker, count: int) -> None:
    """Open so many connections that are handed over, and close them."""
    async with AsyncExitStack() as clients:
        lines = [await clients.enter_async_context(a_client(first.shared_port)) for _ in range(count)]
        assert [await line.ask(beat(THEIRS)) for line in lines] == [200] * count
        await until(lambda: (first.open, second.open) == (0, count))
        # The giver's event loop hears nothing of them any more.
        assert len(descriptors_of(second)) == count
    await until(lambda: (first.open, second.open) == (0, 0))


def descriptors_of(worker: Worker) -> Sequence[int]:
    return [each.transport.get_extra_info("socket").fileno() for each in worker.protocols]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def watched_descriptors() -> int:
    """The entries of this process's event loops in epoll."""
    infos = [Path(f"/proc/self/fdinfo/{each}") for each in os.listdir("/proc/self/fd")]
    return sum(info.read_text().count("tfd:") for info in infos if info.exists())


def test_a_server_that_stops_serves_what_was_on_its_way(play: Play) -> None:
    async def stopped(folder: Path) -> None:
        async with two_workers(folder) as (first, second), AsyncExitStack() as clients:
            lines = [await clients.enter_async_context(a_client(first.shared_port)) for _ in range(10)]
            await until(lambda: first.open == 10)
            for line in lines:
                line.say(beat(THEIRS))
            await until(lambda: first.handed_over > 0)
            second.server.stop()
            assert [await line.answers() for line in lines] == [[200]] * 10
            assert first.asked + second.asked == 10
        assert list(folder.iterdir()) == []

    async def scene(folder: Path) -> None:
        await stopped(folder)
        before = descriptors()
        await stopped(folder)
        await until(lambda: descriptors() <= before)

    play(scene)


async def test_links_to_workers_that_are_gone_are_closed(tmp_path: Path) -> None:
    def given_to(worker: str) -> bool:
        owner = Replica(worker, "", worker)
        forwarding: Any = SimpleNamespace(taker=lambda *_: owner)
        handing_over._forwarding = forwarding
        taker = TakingSocket(tmp_path / f"{worker}.fd", lambda connection, _: connection.close(), lambda: True)
        taker.start()
        ours, client = socket.socketpair()
        with ours, client:
            went = handing_over.give(ours, beat(THEIRS))
        taker.close()
        return went

    handing_over = HandingOver(Forwarding(KnownOwners("me", SHARDS), ()), Metrics(), tmp_path, "me", 0)
    assert given_to("first")
    before = len(os.listdir("/proc/self/fd"))
    assert [given_to(f"worker {number}") for number in range(5)] == [True] * 5
    after = len(os.listdir("/proc/self/fd"))
    handing_over.close()

    assert after == before
