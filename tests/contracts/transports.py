"""The same conversation over each transport, each with servers of its own, and the answers in a comparable form."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

from msgspec import Struct, structs

from rota.client.transports import Transport
from rota.client.transports.addresses import transport_to
from rota.client.transports.port import Answer
from rota.core.replica.leases import preferred_owners, shards_of
from rota.protocol.ids import shard_of
from rota.protocol.limits import Limits
from rota.protocol.messages import HeartbeatReply, Reply, Request
from rota.server.grpc.server import GrpcServer
from rota.server.http.app import create_app
from rota.server.peer.client import GrpcPeers
from rota.server.peer.server import PeerServer
from rota.server.runtime.clock import SystemClock
from rota.server.runtime.coordinator import LocalCoordinator, RoutedCoordinator
from rota.testing.memory import MemoryStore, MemoryTables
from tests.http.serving import serving
from tests.runtime.conftest import until

LIMITS = Limits(initial_rebalance_delay_ms=0, metadata_max_bytes=2_000, assignment_max_bytes=3_000)
TIMEOUT_MS = 30_000
SHARDS = 8
REPLICAS = ("asked", "owner")
OWNER = REPLICAS[1]
NAMES = ("g", "t")
"""The group and the topic that the conversations are about."""
_TIME = re.compile(r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT")
_RANDOM_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

TRANSPORTS = ("http", "grpc", "stream", "http forwarded", "grpc forwarded", "stream forwarded")
REFERENCE, OTHERS = TRANSPORTS[0], TRANSPORTS[1:]
PEER_SECRET = "what the replicas show"

Say = Callable[[Request], Awaitable[Reply]]
Conversation = Callable[[Say], Awaitable[None]]


async def spoken(conversations: Sequence[Conversation], transport: str) -> list[list[Any]]:
    """The answers of each of the conversations, one after the other, each in a namespace of its own."""
    async with a_transport(transport) as sender:
        return [
            await _spoken(conversation, sender, namespace)
            for conversation, namespace in zip(conversations, namespaces(), strict=False)
        ]


async def _spoken(conversation: Conversation, sender: Transport, namespace: str) -> list[Any]:
    """Every answer, in the order of the requests, with numbers in the place of random ids, and no times of day."""
    answers: list[Any] = []

    async def say(request: Any) -> Reply:
        if request.namespace == "default":
            request = structs.replace(request, namespace=namespace)
        place = len(answers)
        answers.append(None)
        answers[place] = await sender.send(request, timeout_ms=TIMEOUT_MS)
        reply: Reply = answers[place].reply
        return reply

    await conversation(say)
    names: dict[str, str] = {}
    return [_comparable_answer(answer, names) for answer in answers]


def _comparable_answer(answer: Answer, names: dict[str, str]) -> Any:
    """Replicas that share shards have claimed them oftener, so only whether there is a revision and epoch counts.

    How long a heartbeat was parked differs by a millisecond, and on a session stream the client parks it.
    """
    reply = answer.reply
    if isinstance(reply, HeartbeatReply):
        reply = structs.replace(reply, waited_ms=0)
    return comparable(reply, names), answer.revision > 0, answer.epoch > 0


def namespaces() -> Iterator[str]:
    """Those in which the group and the topic of the conversations are not the asked replica's."""
    owners = preferred_owners(REPLICAS, SHARDS)
    for number in count():
        namespace = f"n{number}"
        if all(owners[shard_of(namespace, name, SHARDS)] == OWNER for name in NAMES):
            yield namespace


def comparable(value: Any, names: dict[str, str]) -> Any:
    """`names` gives every random id a number, by the order in which they appear."""
    if isinstance(value, Struct):
        fields = {name: comparable(getattr(value, name), names) for name in value.__struct_fields__}
        return type(value).__name__, {k: v and "some time" if is_time(k) else v for k, v in fields.items()}
    if isinstance(value, tuple):
        return [comparable(item, names) for item in value]
    if isinstance(value, str):
        timeless = _TIME.sub("some time", str(value))
        return _RANDOM_ID.sub(lambda found: names.setdefault(found[0], f"#{len(names)}"), timeless)
    return value


def is_time(name: str) -> bool:
    return name.endswith(("_at_ms", "_since_ms", "_deadline_ms"))


@asynccontextmanager
async def a_transport(name: str) -> AsyncIterator[Transport]:
    """A client's way to a fresh coordinator, or to a replica that forwards to the one that owns everything."""
    async with a_door(name) as url:
        transport = transport_to([url], None)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def a_door(name: str) -> AsyncIterator[str]:
    """The URL at which the coordinator of `a_transport` is; "http refused" is a replica that forwards nothing."""
    kind, _, how = name.partition(" ")
    async with AsyncExitStack() as stack:
        coordinator: LocalCoordinator | RoutedCoordinator
        replicas = two_replicas(forward=how == "forwarded") if how else a_coordinator()
        coordinator = await stack.enter_async_context(replicas)
        if kind == "http":
            client = await stack.enter_async_context(serving(create_app(coordinator, LIMITS)))
            yield str(client.base_url)
        else:
            server = GrpcServer(coordinator, LIMITS)
            await server.start("127.0.0.1")
            stack.push_async_callback(server.stop, 0)
            yield f"{'grpc+stream' if kind == 'stream' else 'grpc'}://{server.address}"


@asynccontextmanager
async def a_coordinator() -> AsyncIterator[LocalCoordinator]:
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(SHARDS)
    async with LocalCoordinator(store, shard_count=SHARDS, limits=LIMITS, clock=clock) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator


@asynccontextmanager
async def two_replicas(*, forward: bool) -> AsyncIterator[RoutedCoordinator]:
    """Two replicas that share the shards; the first is asked, and owns nothing of the conversations."""
    tables = MemoryTables(SystemClock().monotonic_ms)
    async with AsyncExitStack() as stack:
        locals_, routed = [], []
        for replica_id in REPLICAS:
            peers = GrpcPeers(lambda: [PEER_SECRET])
            stack.push_async_callback(peers.close)
            store = MemoryStore(SystemClock().monotonic_ms, tables=tables)
            await store.open(SHARDS)
            local = LocalCoordinator(
                store,
                shard_count=SHARDS,
                limits=LIMITS,
                replica_id=replica_id,
                address=f"http://{replica_id}",
                lease_ms=1_000,
                peers=peers,
                forward=forward,
            )
            server = PeerServer(local, "127.0.0.1", secrets=lambda: [PEER_SECRET])
            local.reached_at(peer_address=f"127.0.0.1:{server.port}")
            await server.start()
            stack.push_async_callback(server.stop)
            await stack.enter_async_context(local)
            locals_.append(local)
            routed.append(RoutedCoordinator(local))
        await until(lambda: all(_has_its_share(local) for local in locals_))
        await locals_[0].directory.look()
        yield routed[0]


def _has_its_share(local: LocalCoordinator) -> bool:
    return [owner.shard_id for owner in local.owners()] == shards_of(local.replica_id, REPLICAS, SHARDS)
