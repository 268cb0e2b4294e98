"""NATS: keys of JetStream's KV, watched by ordered consumers, and written by their last sequence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, ClassVar

from bench.race.install import program
from bench.race.peer import TTL_S, Batch, Candidate, Group, Leading, Peer, Session, Views, WatchedGroup, Watcher, Writer
from bench.race.wire import Refused, Wire
from bench.servers import Server
from bench.setting import HOST
from tests.support.ports import free_port
from tests.support.processes import Process

BATCH = 500
_SECOND = 1_000_000_000


class Nats(Peer):
    """One server. Sessions and elections are kept in memory; durable writes in a file that is synced at each."""

    name = "NATS"
    lacks: ClassVar = {"large": "not tried: a consumer for each member"}

    async def start(self) -> None:
        self.port = free_port()
        settings = {
            "listen": f"{HOST}:{self.port}",
            "max_connections": 20_000,
            "jetstream": {"store_dir": str(self.directory / "nats"), "sync_interval": "always"},
            "logfile": "/dev/null",
        }
        file = self.directory / "nats.conf"
        file.write_text(json.dumps(settings))
        process = self.stack.enter_context(Process([program("nats"), "-c", file], self.directory / "nats.log"))
        wire = await _open_when_listening(process, self.port)
        self.servers = [Server(process.pid, self.port)]
        for bucket in ("sessions", "groups", "elections"):
            await wire.create_bucket(bucket, "memory")
        await wire.create_bucket("fences", "file")
        wire.close()

    async def sessions(self, count: int) -> list[Session]:
        return [_Key(await NatsWire.connected(self.port), f"$KV.sessions.s{number}") for number in range(count)]

    async def batch(self) -> Batch:
        wire = await NatsWire.connected(self.port)
        return _Keys(wire, b"".join(wire.put(f"$KV.sessions.b{number}") for number in range(BATCH)))

    async def group(self, name: str) -> Group:
        async def open_watcher(views: Views, number: int) -> Watcher:
            return _Member(await NatsWire.connected(self.port), views, name, number)

        return WatchedGroup(open_watcher)

    async def candidate(self, name: str) -> Candidate:
        candidate = _Candidate(await NatsWire.connected(self.port), f"$KV.elections.{name}")
        await candidate.stand()
        return candidate

    async def writers(self, count: int) -> list[Writer]:
        return [_Writer(await NatsWire.connected(self.port), f"$KV.fences.f{number}") for number in range(count)]


async def _open_when_listening(process: Process, port: int) -> NatsWire:
    while True:
        try:
            return await NatsWire.connected(port)
        except OSError:
            if not process.running:
                raise Refused(process.output()) from None
            await asyncio.sleep(0.05)


class NatsWire(Wire):
    """Its inbox is the subscription 1. What a consumer delivers to the subscription 2 is for `on_event`."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = f"_INBOX.{id(self)}"
        self.on_event: Callable[[bytes, bytes, int], None] = lambda *_: None

    @classmethod
    async def connected(cls, port: int) -> NatsWire:
        wire = await cls.open(port)
        hello = {"verbose": False, "pedantic": False, "headers": True, "lang": "python", "version": "1", "protocol": 1}
        wire.transport.write(b"CONNECT " + json.dumps(hello).encode() + b"\r\n")
        wire.transport.write(f"SUB {wire.inbox} 1\r\nSUB {wire.inbox}.events 2\r\n".encode())
        await wire.call(b"PING\r\n")
        return wire

    def split(self, data: bytes) -> tuple[list[bytes], bytes]:
        frames, at = [], 0
        while (line := data.find(b"\r\n", at)) >= 0:
            end = line + 2
            if data[at : at + 3] in (b"MSG", b"HMS"):
                end += int(data[at:line].rpartition(b" ")[2]) + 2
            if end > len(data):
                break
            frames.append(data[at:end])
            at = end
        return frames, data[at:]

    def take(self, frame: bytes) -> None:
        if frame.startswith((b"MSG", b"HMSG")):
            head, _, body = frame.partition(b"\r\n")
            words = head.split()
            if words[2] == b"1":
                self.answered(Refused(body.decode()) if b'"error"' in body else body)
            else:
                headers = body[: int(words[-2])] if words[0] == b"HMSG" else b""
                self.on_event(words[1], headers, int(words[3].split(b".")[5]))
        elif frame.startswith(b"PING"):
            self.transport.write(b"PONG\r\n")
        elif frame.startswith(b"PONG"):
            self.answered(frame)
        elif frame.startswith(b"-ERR"):
            self.answered(Refused(frame.decode()))

    def put(self, subject: str, value: bytes = b"x", headers: dict[str, str | int] | None = None) -> bytes:
        """A put as it goes over the wire; its answer comes to the inbox."""
        if not headers:
            return f"PUB {subject} {self.inbox} {len(value)}\r\n".encode() + value + b"\r\n"
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode()
        head = f"HPUB {subject} {self.inbox} {len(block)} {len(block) + len(value)}\r\n"
        return head.encode() + block + value + b"\r\n"

    async def ask(self, subject: str, document: dict[str, Any]) -> Any:
        """A call of JetStream's API."""
        return json.loads(await self.call(self.put(f"$JS.API.{subject}", json.dumps(document).encode())))

    async def create_bucket(self, bucket: str, storage: str) -> None:
        stream = {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": 1,
            "storage": storage,
            "num_replicas": 1,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 10 * _SECOND,
        }
        await self.ask(f"STREAM.CREATE.KV_{bucket}", stream)

    async def watch(self, bucket: str, subject: str) -> None:
        """Deliver the last value of each key, and then each change."""
        name = f"c{id(self)}"
        consumer = {
            "name": name,
            "deliver_subject": f"{self.inbox}.events",
            "deliver_policy": "last_per_subject",
            "ack_policy": "none",
            "filter_subject": subject,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": 2 * _SECOND,
        }
        await self.ask(f"CONSUMER.CREATE.KV_{bucket}.{name}", {"stream_name": f"KV_{bucket}", "config": consumer})


class _Key:
    def __init__(self, wire: NatsWire, subject: str) -> None:
        self._wire, self._request = wire, wire.put(subject)

    async def keep_alive(self) -> None:
        await self._wire.call(self._request)

    def close(self) -> None:
        self._wire.close()


class _Keys:
    """Pipelined on one connection."""

    size = BATCH

    def __init__(self, wire: NatsWire, requests: bytes) -> None:
        self._wire, self._requests = wire, requests

    async def keep_alive_all(self) -> None:
        await self._wire.call(self._requests, self.size)

    def close(self) -> None:
        self._wire.close()


def _is_end(headers: bytes) -> bool:
    """Whether a key was deleted or has expired."""
    return b"KV-Operation" in headers or b"Nats-Marker-Reason" in headers


class _Member:
    """A key of its own below the group's, which it watches."""

    def __init__(self, wire: NatsWire, views: Views, group: str, number: int) -> None:
        self._wire, self._views, self._group = wire, views, group
        self._key = f"$KV.groups.{group}.{number}"
        self._seen: set[bytes] = set()

    async def enter(self) -> None:
        self._wire.on_event = self._on_event
        await self._wire.watch("groups", f"$KV.groups.{self._group}.>")
        await self._wire.call(self._wire.put(self._key, bytes(60)))

    async def leave(self) -> None:
        self._views = Views()
        await self._wire.call(self._wire.put(self._key, b"", {"KV-Operation": "DEL"}))

    def close(self) -> None:
        self._wire.close()

    def _on_event(self, subject: bytes, headers: bytes, _sequence: int) -> None:
        if _is_end(headers):
            self._seen.discard(subject)
        else:
            self._seen.add(subject)
        self._views.saw(self, len(self._seen))


class _Candidate(Candidate):
    """Puts the key where it is free: at the sequence of its end, of which its watch reports."""

    def __init__(self, wire: NatsWire, subject: str) -> None:
        self.leads = Leading()
        self._wire, self._subject = wire, subject
        self._sequence = 0

    async def stand(self) -> None:
        self._wire.on_event = self._on_event
        await self._wire.watch("elections", self._subject)
        self._take_at(0)

    def _on_event(self, _subject: bytes, headers: bytes, sequence: int) -> None:
        if _is_end(headers) and not self.leads.is_set():
            self._take_at(sequence)

    def _take_at(self, sequence: int) -> None:
        self._wire.submit(self._put(sequence, "Nats-TTL", f"{TTL_S}s"), self._on_answer)

    def _on_answer(self, answer: bytes | Exception) -> None:
        if isinstance(answer, bytes):
            self._sequence = json.loads(answer)["seq"]
            self.leads.set()

    def _put(self, sequence: int, name: str, value: str) -> bytes:
        headers: dict[str, str | int] = {"Nats-Expected-Last-Subject-Sequence": sequence, name: value}
        return self._wire.put(self._subject, b"", headers)

    async def keep_alive(self) -> None:
        if self.leads.is_set():
            answer = await self._wire.call(self._put(self._sequence, "Nats-TTL", f"{TTL_S}s"))
            self._sequence = json.loads(answer)["seq"]

    async def resign(self) -> None:
        await self._wire.call(self._put(self._sequence, "KV-Operation", "DEL"))

    def kill(self) -> None:
        self._wire.close()

    def close(self) -> None:
        self._wire.close()


class _Writer:
    """Writes at the sequence of its last write."""

    def __init__(self, wire: NatsWire, subject: str) -> None:
        self._wire, self._subject, self._sequence = wire, subject, -1

    async def write(self) -> None:
        headers: dict[str, str | int] = {"Nats-Expected-Last-Subject-Sequence": self._sequence}
        first = self._sequence < 0
        answer = await self._wire.call(self._wire.put(self._subject, b"123456", {} if first else headers))
        self._sequence = json.loads(answer)["seq"]

    def close(self) -> None:
        self._wire.close()
