"""Apache Kafka: classic groups of members that join, sync and heartbeat as its own consumers do; commits of offsets."""

from __future__ import annotations

import asyncio
import struct
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import ClassVar

from bench.race.install import java_command
from bench.race.peer import DEADLINE_S, TTL_S, Candidate, Group, Leading, Peer, Session, Writer, opened
from bench.race.wire import LengthPrefixed, Refused, prefixed
from bench.servers import Server
from bench.setting import HOST
from tests.support.ports import free_port
from tests.support.processes import Process

HEARTBEAT_S = 0.5
"""Between two heartbeats of a member of a group that changes. Kafka's consumers have 3 s unless they are set."""
_OFFSET_COMMIT, _FIND_COORDINATOR, _JOIN, _HEARTBEAT, _LEAVE, _SYNC, _CREATE_TOPICS = 8, 10, 11, 12, 13, 14, 19
_NONE, _UNKNOWN_TOPIC, _ILLEGAL_GENERATION, _REBALANCE_IN_PROGRESS, _MEMBER_ID_REQUIRED = 0, 3, 22, 27, 79
_LONG_SESSION_MS = 600_000
_numbers = count(1)


class Kafka(Peer):
    """One broker that is its own controller, with a heap of 1 GiB. It syncs each append, as a lone broker must."""

    name = "Kafka"
    lacks: ClassVar = {
        "together": "a heartbeat is of one member",
        "memory": "the heap of Java does not show what a session costs",
        "large": "not tried: members learn of a newcomer by their next heartbeat",
    }

    async def start(self) -> None:
        self.port, controller = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.directory / "kafka",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "group.max.session.timeout.ms": _LONG_SESSION_MS,
            "log.flush.interval.messages": 1,
        }
        file = self.directory / "kafka.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = java_command("kafka", "kafka.tools.StorageTool")
        identity = "cm90YS1yYWNlLWNsdXN0ZQ"
        subprocess.run([*tool, "format", "-t", identity, "-c", file], check=True, capture_output=True, timeout=60)
        command = java_command("kafka", "kafka.Kafka")
        process = self.stack.enter_context(Process([*command, file], self.directory / "kafka.log"))
        await _wait_for_coordinator(process, self.port)
        self.servers = [Server(process.pid, self.port)]

    async def sessions(self, count: int) -> list[Session]:
        async def join(_number: int) -> Session:
            member = await KafkaMember.open_in(self.port, f"session-{next(_numbers)}", _LONG_SESSION_MS)
            await member.enter()
            return member

        return await opened(count, join)

    async def group(self, name: str) -> Group:
        return _Group(self.port, name)

    async def candidate(self, name: str) -> Candidate:
        return _Candidate(await KafkaMember.open_in(self.port, f"election-{name}", TTL_S * 1_000))

    async def writers(self, count: int) -> Sequence[Writer]:
        wire, name = await KafkaWire.open(self.port), f"orders-{next(_numbers)}"
        topic = struct.pack(">i", 1) + _text(name) + struct.pack(">ihii", count, 1, 0, 0)
        await wire.request(_CREATE_TOPICS, 4, topic + struct.pack(">ib", 30_000, 0))
        wire.close()
        writers: list[_Writer] = []
        for number in range(count):
            member = await KafkaMember.open_in(self.port, f"writer-{next(_numbers)}", _LONG_SESSION_MS)
            await member.enter()
            writers.append(_Writer(member, name, number))
            await writers[-1].until_topic_is_known()
        return writers


async def _wait_for_coordinator(process: Process, port: int) -> None:
    """Until the topic of the offsets is there: the first question creates it, and a group has a coordinator."""
    async with asyncio.timeout(DEADLINE_S):
        while process.running:
            try:
                wire = await KafkaWire.open(port)
                answer = await wire.request(_FIND_COORDINATOR, 1, _text("any") + b"\x00")
                wire.close()
                if struct.unpack_from(">h", answer, 8)[0] == _NONE:
                    member = await KafkaMember.open_in(port, "first", _LONG_SESSION_MS)
                    await member.enter()
                    member.close()
                    return
            except (OSError, Refused):
                pass
            await asyncio.sleep(0.2)
    raise Refused(process.output())


class KafkaWire(LengthPrefixed):
    """Answers begin with the number of their request and, for most, a throttle time."""

    async def request(self, key: int, version: int, body: bytes) -> bytes:
        return await self.call(request_bytes(key, version, body))


def request_bytes(key: int, version: int, body: bytes) -> bytes:
    return prefixed(struct.pack(">hhi", key, version, 7) + _text("race") + body)


class KafkaMember:
    """A member of a classic group, on a connection of its own."""

    def __init__(self, wire: KafkaWire, group: str, session_ms: int) -> None:
        self.wire, self.group_id, self.session_ms = wire, group, session_ms
        self.member_id = ""
        self.generation = 0
        self.leads = False

    @classmethod
    async def open_in(cls, port: int, group: str, session_ms: int) -> KafkaMember:
        return cls(await KafkaWire.open(port), group, session_ms)

    async def enter(self) -> None:
        """Join and sync until this member has its share of a generation."""
        while True:
            members = await self._join()
            shares = struct.pack(">i", len(members))
            shares += b"".join(_text(each) + prefixed(bytes(40)) for each in members)
            place = _text(self.group_id) + struct.pack(">i", self.generation) + _text(self.member_id) + _NO_TEXT
            error = struct.unpack_from(">h", await self.wire.request(_SYNC, 3, place + shares), 8)[0]
            if error == _NONE:
                self._heartbeat = request_bytes(_HEARTBEAT, 3, place)
                return
            if error != _REBALANCE_IN_PROGRESS:
                raise Refused(f"sync: {error}")

    async def keep_alive(self) -> None:
        if not await self.is_in_generation():
            raise Refused("the group has a new generation")

    async def is_in_generation(self) -> bool:
        """Heartbeat; False if a rebalance has begun, or has ended while this member's sync is under way."""
        error = struct.unpack_from(">h", await self.wire.call(self._heartbeat), 8)[0]
        if error not in (_NONE, _REBALANCE_IN_PROGRESS, _ILLEGAL_GENERATION):
            raise Refused(f"heartbeat: {error}")
        return bool(error == _NONE)

    async def leave(self) -> None:
        member = struct.pack(">i", 1) + _text(self.member_id) + _NO_TEXT
        await self.wire.request(_LEAVE, 3, _text(self.group_id) + member)

    def close(self) -> None:
        self.wire.close()

    async def _join(self) -> list[str]:
        """The members, if this one leads."""
        while True:
            body = _text(self.group_id) + struct.pack(">ii", self.session_ms, 60_000) + _text(self.member_id) + _NO_TEXT
            body += _text("worker") + struct.pack(">i", 1) + _text("range") + prefixed(bytes(60))
            answer = await self.wire.request(_JOIN, 5, body)
            error, self.generation = struct.unpack_from(">hi", answer, 8)
            _, at = _read_text(answer, 14)
            leader, at = _read_text(answer, at)
            self.member_id, at = _read_text(answer, at)
            if error == _NONE:
                self.leads = leader == self.member_id
                return _members(answer, at)
            if error != _MEMBER_ID_REQUIRED:
                raise Refused(f"join: {error}")


class _Group:
    """Members that rejoin when their heartbeat says so. Knows which generation each of them holds a share of."""

    def __init__(self, port: int, name: str) -> None:
        self._port, self._name = port, f"group-{name}"
        self._members: dict[KafkaMember, asyncio.Task[None]] = {}
        self._holding: Counter[int] = Counter()
        self._changed = asyncio.Event()

    async def fill(self, size: int) -> None:
        new = [
            await KafkaMember.open_in(self._port, self._name, _LONG_SESSION_MS)
            for _ in range(size - len(self._members))
        ]
        for member in new:
            self._start(member)
        await self._agree()

    async def prepare(self) -> None:
        self._next = await KafkaMember.open_in(self._port, self._name, _LONG_SESSION_MS)

    async def one_more(self) -> None:
        self._start(self._next)
        await self._agree()

    async def one_less(self) -> None:
        member, life = self._members.popitem()
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        self._holding[member.generation] -= 1
        # On a connection of its own: on the member's, its last heartbeat may be under way.
        leaving = await KafkaMember.open_in(self._port, self._name, _LONG_SESSION_MS)
        leaving.member_id = member.member_id
        before = max(self._holding)
        await leaving.leave()
        await self._agree(above=before)
        leaving.close()
        member.close()

    async def close(self) -> None:
        for member, life in self._members.items():
            life.cancel()
            member.close()
        await asyncio.gather(*self._members.values(), return_exceptions=True)

    def _start(self, member: KafkaMember) -> None:
        self._members[member] = asyncio.create_task(self._live(member))

    async def _live(self, member: KafkaMember) -> None:
        while True:
            await member.enter()
            self._holding[member.generation] += 1
            self._changed.set()
            held = member.generation
            while await member.is_in_generation():  # noqa: ASYNC110 - heartbeats are paced
                await asyncio.sleep(HEARTBEAT_S)
            self._holding[held] -= 1

    async def _agree(self, above: int = 0) -> None:
        size = len(self._members)
        async with asyncio.timeout(DEADLINE_S):
            while not any(holders == size for generation, holders in self._holding.items() if generation > above):
                for life in self._members.values():
                    if life.done():
                        life.result()
                self._changed.clear()
                await self._changed.wait()


class _Candidate(Candidate):
    """Leads when it is the group's leader."""

    def __init__(self, member: KafkaMember) -> None:
        self.leads = Leading()
        self._member = member
        self._life = asyncio.create_task(self._live())

    async def _live(self) -> None:
        while True:
            await self._member.enter()
            if self._member.leads:
                self.leads.set()
            while await self._member.is_in_generation():  # noqa: ASYNC110 - heartbeats are paced
                await asyncio.sleep(HEARTBEAT_S)

    async def keep_alive(self) -> None:
        await self._member.is_in_generation()

    async def resign(self) -> None:
        self.freeze()
        await self._member.leave()

    def freeze(self) -> None:
        self._life.cancel()

    def kill(self) -> None:
        self.freeze()
        self._member.close()

    def close(self) -> None:
        self.kill()


class _Writer:
    """Commits an offset as a member of a generation; another generation's commit is refused."""

    def __init__(self, member: KafkaMember, topic: str, partition: int) -> None:
        self._member = member
        place = _text(member.group_id) + struct.pack(">i", member.generation) + _text(member.member_id) + _NO_TEXT
        offset = struct.pack(">iqi", partition, 123_456, -1) + _NO_TEXT
        topics = struct.pack(">i", 1) + _text(topic) + struct.pack(">i", 1) + offset
        self._request = request_bytes(_OFFSET_COMMIT, 7, place + topics)

    async def until_topic_is_known(self) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self._error() == _UNKNOWN_TOPIC:  # noqa: ASYNC110 - a broker has no news of it
                await asyncio.sleep(0.05)

    async def write(self) -> None:
        if error := await self._error():
            raise Refused(f"commit: {error}")

    async def _error(self) -> int:
        answer = await self._member.wire.call(self._request)
        return int.from_bytes(answer[-2:], "big", signed=True)

    def close(self) -> None:
        self._member.close()


_NO_TEXT = struct.pack(">h", -1)


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    length = struct.unpack_from(">h", data, at)[0]
    end = at + 2 + max(0, length)
    return data[at + 2 : end].decode(), end


def _members(data: bytes, at: int) -> list[str]:
    number = struct.unpack_from(">i", data, at)[0]
    at += 4
    members = []
    for _ in range(number):
        member, at = _read_text(data, at)
        _, at = _read_text(data, at)
        at += 4 + struct.unpack_from(">i", data, at)[0]
        members.append(member)
    return members
