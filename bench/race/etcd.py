"""etcd: a lease for each session, a watch of a prefix for each member, its own Election service, transactions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import ClassVar

from bench.race.install import program
from bench.race.peer import (
    TTL_S,
    Batch,
    Candidate,
    Group,
    Leading,
    Peer,
    Session,
    Views,
    WatchedGroup,
    Watcher,
    Writer,
    opened,
)
from bench.race.wire import Grpc, Refused, fields_of, message, message_frame
from bench.servers import Server
from bench.setting import HOST
from tests.support.ports import free_port
from tests.support.processes import Process

_LEASE, _KV = "/etcdserverpb.Lease", "/etcdserverpb.KV"
_LONG_TTL_S = 600
BATCH = 500
_lease_ids = count(1)


class Etcd(Peer):
    """One node, as it comes: it syncs its log before it answers. Tracing and the gateway cost nothing when unused."""

    name = "etcd"
    lacks: ClassVar = {"large": "not tried: its members are many connections of the client, which would be measured"}

    async def start(self) -> None:
        self.port, peer_port = free_port(), free_port()
        client, peer = f"http://{HOST}:{self.port}", f"http://{HOST}:{peer_port}"
        command: list[str | Path] = [program("etcd"), "--data-dir", self.directory / "etcd", "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
        process = self.stack.enter_context(Process(command, self.directory / "etcd.log"))
        process.wait_for_url(f"{client}/health")
        self.servers = [Server(process.pid, self.port)]

    async def sessions(self, count: int) -> Sequence[Session]:
        return await opened(count, lambda _: _Lease.open_on(self.port, _LONG_TTL_S))

    async def batch(self) -> Batch:
        wire = await Grpc.open(self.port)
        leases = [await _grant(wire, _LONG_TTL_S) for _ in range(BATCH)]
        return _Leases(wire, leases)

    async def group(self, name: str) -> Group:
        async def open_watcher(views: Views, number: int) -> Watcher:
            return _Member(await Grpc.open(self.port), views, name, number)

        return WatchedGroup(open_watcher)

    async def candidate(self, name: str) -> Candidate:
        lease = await _Lease.open_on(self.port, TTL_S)
        return _Candidate(lease, name)

    async def writers(self, count: int) -> list[Writer]:
        return [await _Writer.open_on(self.port, f"fence/{number}") for number in range(count)]


async def _grant(wire: Grpc, ttl_s: int) -> int:
    lease = next(_lease_ids)
    await wire.unary(f"{_LEASE}/LeaseGrant", message({1: ttl_s, 2: lease}))
    return lease


class _Lease:
    def __init__(self, wire: Grpc, lease: int) -> None:
        self.wire, self.lease = wire, lease
        self._request = message_frame(wire.answer_calls_with(f"{_LEASE}/LeaseKeepAlive"), message({1: lease}))

    @classmethod
    async def open_on(cls, port: int, ttl_s: int) -> _Lease:
        wire = await Grpc.open(port)
        return cls(wire, await _grant(wire, ttl_s))

    async def keep_alive(self) -> None:
        answer = dict(fields_of(await self.wire.call(self._request)))
        if not answer.get(3):
            raise Refused("the lease has expired")

    def close(self) -> None:
        self.wire.close()


class _Leases:
    """Pipelined on one stream, as etcd's own client does."""

    def __init__(self, wire: Grpc, leases: list[int]) -> None:
        self._wire = wire
        stream = wire.answer_calls_with(f"{_LEASE}/LeaseKeepAlive")
        self._requests = b"".join(message_frame(stream, message({1: lease})) for lease in leases)
        self.size = len(leases)

    async def keep_alive_all(self) -> None:
        await self._wire.call(self._requests, self.size)

    def close(self) -> None:
        self._wire.close()


class _Member:
    """A key of its own under the group's prefix, which it watches. It counts keys by their events."""

    def __init__(self, wire: Grpc, views: Views, group: str, number: int) -> None:
        self._wire, self._views, self._group = wire, views, group
        self._key = f"{group}/{number}".encode()
        self._range = {1: f"{group}/", 2: f"{group}0"}
        self._seen: set[bytes] = set()

    async def enter(self) -> None:
        put = await self._wire.unary(f"{_KV}/Put", message({1: self._key, 2: bytes(60)}))
        found = dict(fields_of(put))
        revision = dict(fields_of(found[1]))[3]  # type: ignore[arg-type]
        listed = await self._wire.unary(f"{_KV}/Range", message({**self._range, 8: 1}))
        self._seen = {dict(fields_of(each))[1] for number, each in fields_of(listed) if number == 2}  # type: ignore[arg-type,misc]
        self._views.saw(self, len(self._seen))
        assert isinstance(revision, int)
        self._stream = self._wire.begin("/etcdserverpb.Watch/Watch", self._on_events)
        # From here on, not from the answer of the list: an event that comes twice does no harm.
        self._wire.send(self._stream, message({1: message({**self._range, 3: revision})}))

    async def leave(self) -> None:
        self._views = Views()
        await self._wire.unary(f"{_KV}/DeleteRange", message({1: self._key}))

    def close(self) -> None:
        self._wire.close()

    def _on_events(self, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception):
            return
        before = len(self._seen)
        for number, event in fields_of(answer):
            if number != 11:
                continue
            event_fields = dict(fields_of(event))  # type: ignore[arg-type]
            key = dict(fields_of(event_fields[2]))[1]  # type: ignore[arg-type]
            if event_fields.get(1):
                self._seen.discard(key)
            else:
                self._seen.add(key)  # type: ignore[arg-type]
        if len(self._seen) != before:
            self._views.saw(self, len(self._seen))


class _Candidate(Candidate):
    """Campaigns at the Election service, which has it wait for the key before its own."""

    def __init__(self, lease: _Lease, name: str) -> None:
        self.leads = Leading()
        self._lease = lease
        self._leader = b""
        request = message({1: name, 2: lease.lease, 3: "x"})
        lease.wire.submit_unary("/v3electionpb.Election/Campaign", request, self._on_answer)

    def _on_answer(self, answer: bytes | Exception) -> None:
        if isinstance(answer, bytes):
            self._leader = dict(fields_of(answer))[2]  # type: ignore[assignment]
            self.leads.set()

    async def keep_alive(self) -> None:
        await self._lease.keep_alive()

    async def resign(self) -> None:
        await self._lease.wire.unary("/v3electionpb.Election/Resign", message({1: self._leader}))

    def kill(self) -> None:
        self._lease.close()

    def close(self) -> None:
        self._lease.close()


class _Writer:
    """Puts while its lock's key still has the revision at which it was created."""

    def __init__(self, wire: Grpc, transaction: bytes) -> None:
        self._wire, self._transaction = wire, transaction

    @classmethod
    async def open_on(cls, port: int, key: str) -> _Writer:
        wire = await Grpc.open(port)
        put = dict(fields_of(await wire.unary(f"{_KV}/Put", message({1: f"{key}/lock", 2: "x"}))))
        revision = dict(fields_of(put[1]))[3]  # type: ignore[arg-type]
        is_still_mine = message({1: 0, 2: 2, 3: f"{key}/lock", 6: revision})
        write = message({2: message({1: f"{key}/offset", 2: "123456"})})
        return cls(wire, message({1: is_still_mine, 2: write}))

    async def write(self) -> None:
        answer = dict(fields_of(await self._wire.unary(f"{_KV}/Txn", self._transaction)))
        if not answer.get(2):
            raise Refused("the lock has another owner")

    def close(self) -> None:
        self._wire.close()
