"""ZooKeeper: pings, ephemeral nodes with watches of the parent, sequential nodes, writes by version."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from typing import ClassVar

from bench.race.install import java_command
from bench.race.peer import (
    TTL_S,
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
from bench.race.wire import LengthPrefixed, Refused, prefixed
from bench.servers import Server
from bench.setting import HOST
from tests.support.ports import free_port
from tests.support.processes import Process

_CREATE, _DELETE, _EXISTS, _SET_DATA, _PING, _CHILDREN, _CLOSE = 1, 2, 3, 5, 11, 12, -11
_PING_XID, _EVENT_XID = -2, -1
_NO_NODE, _EXISTS_ALREADY = -101, -110
_EPHEMERAL, _SEQUENTIAL = 1, 2
_ANSWER_S = 1.0
_TICK_MS = 500
"""The shortest session is two of these, and sessions end at multiples of one."""


class ZooKeeper(Peer):
    """One server, as it comes: it syncs its log before it answers. Its heap is 1 GiB."""

    name = "ZooKeeper"
    lacks: ClassVar = {
        "together": "a session is a connection",
        "memory": "the heap of Java does not show what a session costs",
        "large": "each member reads all the names again: 2 GB for one newcomer",
    }

    async def start(self) -> None:
        self.port = free_port()
        settings = {
            "dataDir": self.directory / "zookeeper",
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": _TICK_MS,
            "maxSessionTimeout": 600_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
        }
        file = self.directory / "zoo.cfg"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        command = java_command("zookeeper", "org.apache.zookeeper.server.quorum.QuorumPeerMain")
        process = self.stack.enter_context(Process([*command, file], self.directory / "zookeeper.log"))
        wire = await _open_when_listening(process, self.port)
        self.servers = [Server(process.pid, self.port)]
        for parent in ("/groups", "/elections", "/fences"):
            await wire.create(parent, b"", 0)
        wire.close()

    async def sessions(self, count: int) -> Sequence[Session]:
        return await opened(count, lambda _: ZooKeeperWire.session(self.port, 600))

    async def group(self, name: str) -> Group:
        root = await ZooKeeperWire.session(self.port, 60)
        await root.create(f"/groups/{name}", b"", 0)
        root.close()

        async def open_watcher(views: Views, number: int) -> Watcher:
            return _Member(await ZooKeeperWire.session(self.port, 600), views, f"/groups/{name}", number)

        return WatchedGroup(open_watcher)

    async def candidate(self, name: str) -> Candidate:
        wire = await ZooKeeperWire.session(self.port, TTL_S)
        await wire.create(f"/elections/{name}", b"", 0)
        candidate = _Candidate(wire, f"/elections/{name}")
        await candidate.stand()
        return candidate

    async def writers(self, count: int) -> list[Writer]:
        writers: list[Writer] = []
        for _ in range(count):
            wire = await ZooKeeperWire.session(self.port, 600)
            path = await wire.create("/fences/f", b"0", _SEQUENTIAL)
            writers.append(_Writer(wire, path))
        return writers


async def _open_when_listening(process: Process, port: int) -> ZooKeeperWire:
    while True:
        try:
            # What comes while it starts may never be answered.
            async with asyncio.timeout(_ANSWER_S):
                return await ZooKeeperWire.session(port, 60)
        except OSError:
            if not process.running:
                raise Refused(process.output()) from None
            await asyncio.sleep(0.1)


class ZooKeeperWire(LengthPrefixed):
    """One session. Requests have numbers, which must not matter: answers come in their order."""

    def __init__(self) -> None:
        super().__init__()
        self._ping = prefixed(struct.pack(">ii", _PING_XID, _PING))
        self._is_connected = False
        self.on_event: Callable[[], None] = lambda: None

    @classmethod
    async def session(cls, port: int, timeout_s: float) -> ZooKeeperWire:
        wire = await cls.open(port)
        request = struct.pack(">iqiqi16sb", 0, 0, int(timeout_s * 1_000), 0, 16, bytes(16), 0)
        answer = await wire.call(prefixed(request))
        if struct.unpack_from(">i", answer, 4)[0] <= 0:
            raise Refused("the session was refused")
        return wire

    async def keep_alive(self) -> None:
        await self.call(self._ping)

    def take(self, frame: bytes) -> None:
        if not self._is_connected:
            self._is_connected = True
        elif int.from_bytes(frame[:4], "big", signed=True) == _EVENT_XID:
            self.on_event()
            return
        self.answered(frame)

    async def request(self, kind: int, payload: bytes) -> tuple[int, bytes]:
        """The error and the answer."""
        return _error_and_rest(await self.call(_request(kind, payload)))

    async def create(self, path: str, data: bytes, flags: int) -> str:
        everyone = struct.pack(">ii", 1, 31) + _text("world") + _text("anyone")
        payload = _text(path) + prefixed(data) + everyone + struct.pack(">i", flags)
        error, answer = await self.request(_CREATE, payload)
        if error == _EXISTS_ALREADY:
            return path
        if error:
            raise Refused(f"{path}: {error}")
        return answer[4:].decode()

    async def children(self, path: str, *, watch: bool) -> list[str]:
        error, answer = await self.request(_CHILDREN, _text(path) + bytes([watch]))
        if error:
            raise Refused(f"{path}: {error}")
        return _names_in(answer)

    async def delete(self, path: str) -> None:
        await self.request(_DELETE, _text(path) + struct.pack(">i", -1))


class _Member:
    """An ephemeral node. At each event it reads the names again and watches on, as a watch is good for one."""

    def __init__(self, wire: ZooKeeperWire, views: Views, parent: str, number: int) -> None:
        self._wire, self._views, self._parent = wire, views, parent
        self._path = f"{parent}/{number}"
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        wire.on_event = self._changed.set

    async def enter(self) -> None:
        await self._wire.create(self._path, bytes(60), _EPHEMERAL)
        await self._look()
        self._watching = asyncio.create_task(self._watch())

    async def leave(self) -> None:
        self._stop()
        await self._wire.delete(self._path)

    def close(self) -> None:
        self._stop()
        self._wire.close()

    def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _look(self) -> None:
        self._changed.clear()
        self._views.saw(self, len(await self._wire.children(self._parent, watch=True)))

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            await self._look()


class _Candidate(Candidate):
    """A sequential node that waits for the end of the one before it: the usual recipe."""

    def __init__(self, wire: ZooKeeperWire, parent: str) -> None:
        self.leads = Leading()
        self._wire, self._parent = wire, parent
        self._path = ""
        wire.on_event = self._look

    async def stand(self) -> None:
        self._path = await self._wire.create(f"{self._parent}/c", b"", _EPHEMERAL | _SEQUENTIAL)
        self._look()

    def _look(self) -> None:
        self._wire.submit(_request(_CHILDREN, _text(self._parent) + bytes([False])), self._on_names)

    def _on_names(self, answer: bytes | Exception) -> None:
        if isinstance(answer, Exception):
            return
        _, names = _error_and_rest(answer)
        mine = self._path.rpartition("/")[2]
        before = [name for name in _names_in(names) if name < mine]
        if before:
            exists = _request(_EXISTS, _text(f"{self._parent}/{max(before)}") + bytes([True]))
            self._wire.submit(exists, self._on_watched)
        else:
            self.leads.set()

    def _on_watched(self, answer: bytes | Exception) -> None:
        if isinstance(answer, bytes) and _error_and_rest(answer)[0] == _NO_NODE:
            self._look()

    async def keep_alive(self) -> None:
        await self._wire.keep_alive()

    async def resign(self) -> None:
        await self._wire.delete(self._path)

    def kill(self) -> None:
        self._wire.close()

    def close(self) -> None:
        self._wire.close()


class _Writer:
    """Sets data at the version that it knows."""

    def __init__(self, wire: ZooKeeperWire, path: str) -> None:
        self._wire, self._path = wire, path
        self._version = 0

    async def write(self) -> None:
        payload = _text(self._path) + prefixed(b"123456") + struct.pack(">i", self._version)
        error, _ = await self._wire.request(_SET_DATA, payload)
        if error:
            raise Refused(f"{self._path}: {error}")
        self._version += 1

    def close(self) -> None:
        self._wire.close()


def _request(kind: int, payload: bytes) -> bytes:
    return prefixed(struct.pack(">ii", 1, kind) + payload)


def _error_and_rest(answer: bytes) -> tuple[int, bytes]:
    return struct.unpack_from(">i", answer, 12)[0], answer[16:]


def _names_in(answer: bytes) -> list[str]:
    (number,) = struct.unpack_from(">i", answer)
    names, at = [], 4
    for _ in range(number):
        length = int.from_bytes(answer[at : at + 4], "big")
        names.append(answer[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return names


def _text(value: str) -> bytes:
    return prefixed(value.encode())
