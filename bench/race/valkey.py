"""Valkey: a lock's key with a time to live, extended by the usual script; members that publish and subscribe."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import ClassVar

from bench.race.peer import TTL_S, Batch, Candidate, Group, Leading, Peer, Session, Views, WatchedGroup, Watcher, Writer
from bench.race.wire import Refused, Wire
from bench.servers import Server
from tests.support.valkey import ValkeyServer

BATCH = 500
_tokens = count(1)
_EXTEND = "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('pexpire',KEYS[1],ARGV[2]) else return 0 end"
_RELEASE = (
    "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('del',KEYS[1]) "
    "redis.call('publish',KEYS[1],'free') return 1 else return 0 end"
)
_FENCED = "if redis.call('get',KEYS[1])==ARGV[1] then redis.call('set',KEYS[2],ARGV[2]) return 1 else return 0 end"


class Valkey(Peer):
    """One server that forgets all when it ends; for durable writes, another that syncs its log at each."""

    name = "Valkey"
    lacks: ClassVar = {"large": "not tried: its members are many connections of the client, which would be measured"}

    async def start(self) -> None:
        memory = self.stack.enter_context(ValkeyServer(options=["--notify-keyspace-events", "Ex"]))
        durable = self.stack.enter_context(ValkeyServer(options=["--appendonly", "yes", "--appendfsync", "always"]))
        self.servers = [Server(each.process.pid, each.port) for each in (memory, durable)]
        self.port, self.durable_port = memory.port, durable.port

    async def sessions(self, count: int) -> list[Session]:
        return [await _Lock.open_on(self.port, f"session-{number}") for number in range(count)]

    async def batch(self) -> Batch:
        wire = await Resp.open(self.port)
        digest = await wire.load(_EXTEND)
        keys = [f"batch-{number}" for number in range(BATCH)]
        for key in keys:
            await wire.call(command("SET", key, "me", "PX", 600_000))
        return _Locks(wire, [command("EVALSHA", digest, 1, key, "me", 600_000) for key in keys])

    async def group(self, name: str) -> Group:
        async def open_watcher(views: Views, number: int) -> Watcher:
            return _Member(await Resp.open(self.port), await Resp.open(self.port), views, name, number)

        return WatchedGroup(open_watcher)

    async def candidate(self, name: str) -> Candidate:
        calls, news = await Resp.open(self.port), await Resp.open(self.port)
        await news.call(command("SUBSCRIBE", name, "__keyevent@0__:expired"), 2)
        candidate = _Candidate(calls, news, name, str(next(_tokens)))
        await candidate.stand()
        return candidate

    async def writers(self, count: int) -> list[Writer]:
        writers: list[Writer] = []
        for number in range(count):
            wire = await Resp.open(self.durable_port)
            await wire.call(command("SET", f"lock-{number}", "me"))
            digest = await wire.load(_FENCED)
            writers.append(
                _Script(wire, command("EVALSHA", digest, 2, f"lock-{number}", f"offset-{number}", "me", "123456"))
            )
        return writers


class Resp(Wire):
    """Redis' protocol, version 2. Pushed messages are for `on_message`."""

    def __init__(self) -> None:
        super().__init__()
        self.on_message: Callable[[], None] = lambda: None

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        frames, at = [], 0
        while (end := _end_of_value(data, at)) >= 0:
            frames.append(data[at:end])
            at = end
        return frames, data[at:]

    def take(self, frame: bytes) -> None:
        if frame.startswith(b"*3\r\n$7\r\nmessage\r\n"):
            self.on_message()
        else:
            self.answered(Refused(frame.decode()) if frame.startswith(b"-") else frame)

    async def load(self, script: str) -> str:
        answer = await self.call(command("SCRIPT", "LOAD", script))
        return answer.split(b"\r\n")[1].decode()


def command(*parts: str | int) -> bytes:
    """A command as it goes over the wire."""
    texts = [str(part).encode() for part in parts]
    return b"".join((b"*%d\r\n" % len(texts), *(b"$%d\r\n%b\r\n" % (len(text), text) for text in texts)))


def _end_of_value(data: bytes, at: int) -> int:
    """Where the value that begins at `at` ends; -1 if it is not whole."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return -1
    kind, end = data[at : at + 1], line + 2
    if kind == b"$":
        length = int(data[at + 1 : line])
        end += length + 2 if length >= 0 else 0
        return end if end <= len(data) else -1
    if kind == b"*":
        for _ in range(int(data[at + 1 : line])):
            end = _end_of_value(data, end)
            if end < 0:
                return -1
    return end


class _Script:
    """A script that must answer 1."""

    def __init__(self, wire: Resp, request: bytes) -> None:
        self._wire, self._request = wire, request

    async def write(self) -> None:
        if await self._wire.call(self._request) != b":1\r\n":
            raise Refused("the lock has another owner")

    def close(self) -> None:
        self._wire.close()


class _Lock(_Script):
    @classmethod
    async def open_on(cls, port: int, key: str) -> _Lock:
        wire = await Resp.open(port)
        await wire.call(command("SET", key, "me", "PX", 600_000))
        return cls(wire, command("EVALSHA", await wire.load(_EXTEND), 1, key, "me", 600_000))

    async def keep_alive(self) -> None:
        await self.write()


class _Locks:
    """Pipelined on one connection."""

    def __init__(self, wire: Resp, requests: list[bytes]) -> None:
        self._wire, self._requests, self.size = wire, b"".join(requests), len(requests)

    async def keep_alive_all(self) -> None:
        await self._wire.call(self._requests, self.size)

    def close(self) -> None:
        self._wire.close()


class _Member:
    """A name in a set. Each change is published, and each member reads the set's size again."""

    def __init__(self, calls: Resp, news: Resp, views: Views, group: str, number: int) -> None:
        self._calls, self._news, self._views, self._group = calls, news, views, group
        self._name = str(number)
        self._watching: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        news.on_message = self._changed.set

    async def enter(self) -> None:
        await self._news.call(command("SUBSCRIBE", self._group))
        self._watching = asyncio.create_task(self._watch())
        await self._calls.call(command("SADD", self._group, self._name) + command("PUBLISH", self._group, "more"), 2)

    async def leave(self) -> None:
        self._stop()
        await self._calls.call(command("SREM", self._group, self._name) + command("PUBLISH", self._group, "less"), 2)

    def close(self) -> None:
        self._stop()
        self._calls.close()
        self._news.close()

    def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            names = await self._calls.call(command("SMEMBERS", self._group))
            self._views.saw(self, int(names[1 : names.index(b"\r\n")]))


class _Candidate(Candidate):
    """Takes the lock when it is published as free, or when its key has expired."""

    def __init__(self, calls: Resp, news: Resp, key: str, token: str) -> None:
        self.leads = Leading()
        self._calls, self._news, self._key, self._token = calls, news, key, token
        self._extend = self._release = b""

    async def stand(self) -> None:
        extend, release = await self._calls.load(_EXTEND), await self._calls.load(_RELEASE)
        self._extend = command("EVALSHA", extend, 1, self._key, self._token, TTL_S * 1_000)
        self._release = command("EVALSHA", release, 1, self._key, self._token)
        self._news.on_message = self._take
        self._take()

    def _take(self) -> None:
        if not self.leads.is_set():
            self._calls.submit(command("SET", self._key, self._token, "NX", "PX", TTL_S * 1_000), self._on_answer)

    def _on_answer(self, answer: bytes | Exception) -> None:
        if answer == b"+OK\r\n":
            self.leads.set()

    async def keep_alive(self) -> None:
        if self.leads.is_set():
            await self._calls.call(self._extend)

    async def resign(self) -> None:
        await self._calls.call(self._release)

    def kill(self) -> None:
        self._calls.close()
        self._news.close()

    def close(self) -> None:
        self.kill()
