"""Answers of a Redis that are nearly what our scripts return: about another program's keys, errors, garbled bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

from rota.core.group.sessions import MemberName
from rota.core.replica.ports import LivenessUnavailable, SeenMembers, ShardNews
from rota.server.liveness.redis import CONNECTIONS, RedisLiveness, _sha
from rota.server.liveness.scripts import PUBLISH, READ, RECORD, SEEN
from tests.fuzz.campaign import Broken, Target
from tests.fuzz.mutations import mutated, mutated_document

A: MemberName = ("default", "orders", "a")
NOW_MS = 1_790_000_000_000
TIMEOUT_S = 10.0
NAMES = ("default/orders/a", "", "another program's member", "a/b", "\udcff\udcfe", "default/orders/b", "x" * 5_000)
SCORES = (str(NOW_MS - 5), str(NOW_MS + 10**9), "inf", "-inf", "nan", "-1", "1e308", "x", "0", "1_0")
ERRORS = ("WRONGTYPE x", "ERR x", "NOSCRIPT x", "READONLY x", "LOADING x", "OOM x", "MOVED 1 h:1", "NOAUTH x", "x")
Answer = Callable[[str, Sequence[bytes]], Any]


class Refusal(str):
    """An error that the server answers with."""


def encoded(value: Any) -> bytes:
    """The value in the protocol of Redis."""
    try:
        return _encoded(value)
    except RecursionError:
        return b"*1\r\n" * 3_000


def _encoded(value: Any) -> bytes:
    match value:
        case Refusal():
            return b"-" + value.encode() + b"\r\n"
        case None:
            return b"$-1\r\n"
        case bool() | int():
            return b":%d\r\n" % value if abs(value) < 10**30 else b":9e999\r\n"
        case list():
            return b"*%d\r\n" % len(value) + b"".join(map(_encoded, value))
        case dict():
            return _encoded([each for pair in value.items() for each in pair])
        case _:
            text = str(value).encode("utf-8", "surrogateescape" if "\udcff" in str(value) else "replace")
            return b"$%d\r\n%s\r\n" % (len(text), text)


def answered(script: str, arguments: Sequence[bytes]) -> Any:
    """What the script returns for a shard of which Redis knows the member A."""
    match script:
        case str() if script == PUBLISH:
            return [NOW_MS, str(NOW_MS - 75)]
        case str() if script == READ:
            return [NOW_MS, ["", str(NOW_MS - 75), "/".join(A), str(NOW_MS - 5)]]
        case str() if script == SEEN:
            return [NOW_MS, [str(NOW_MS - 5) if each == "/".join(A).encode() else None for each in arguments]]
        case _:
            return [int(each == "/".join(A).encode()) for each in arguments]


class NearlyRedis:
    """A server that answers as a Redis with our scripts, until `change` says otherwise."""

    def __init__(self) -> None:
        self.change: Callable[[Any], bytes] | None = None
        self._scripts = {_sha(script): script for script in (PUBLISH, READ, SEEN, RECORD)}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                name, *arguments = await self._command(reader)
                if name != b"EVALSHA":
                    writer.write(encoded(arguments[0] if name == b"ECHO" else "OK"))
                    continue
                right = answered(self._scripts[arguments[0].decode()], arguments[3:])
                writer.write(encoded(right) if self.change is None else self.change(right))
                if self.change is not None:
                    await writer.drain()
                    break  # A caller that waits for more bytes learns that none come.
        writer.close()

    async def _command(self, reader: asyncio.StreamReader) -> list[bytes]:
        count = int((await reader.readuntil(b"\r\n"))[1:])
        words = []
        for _ in range(count):
            size = int((await reader.readuntil(b"\r\n"))[1:])
            words.append((await reader.readexactly(size + 2))[:-2])
        return words


class RedisFuzzer:
    """Asks as a replica does, and checks the form of what comes out of the client."""

    cpu_s = staticmethod(time.thread_time)

    def __init__(self, runner: asyncio.Runner) -> None:
        self._runner = runner
        self._server = NearlyRedis()
        runner.run(self._start())

    async def _start(self) -> None:
        self._listener = await asyncio.start_server(self._server.serve, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self._liveness = RedisLiveness(f"redis://127.0.0.1:{port}", incarnation="abc", timeout_s=TIMEOUT_S)

    async def end(self) -> None:
        await self._liveness.close()
        self._listener.close()

    def play(self, random: Random) -> None:
        self._runner.run(self._play(random))

    async def _play(self, random: Random) -> None:
        self._server.change = lambda right: _changed(random, right)
        with suppress(LivenessUnavailable):
            await self._ask(random)
        self._server.change = None
        for _ in range(CONNECTIONS):
            with suppress(LivenessUnavailable):  # The server has closed this connection.
                if await self._liveness.record(1, [A]) == [True]:
                    return
        raise Broken("the store does not answer again")

    async def _ask(self, random: Random) -> None:
        members = [A, ("default", "orders", "b")]
        found: Any
        match random.randrange(4):
            case 0:
                found = await self._liveness.publish([ShardNews(1, {A: 5}, ()), ShardNews(2, {}, [A])])
                is_right = type(found) is list and set(found) <= {1, 2}
            case 1:
                found = await self._liveness.read(1)
                is_right = isinstance(found, SeenMembers) and all(map(_is_seen, found.seen_ms_ago.items()))
                is_right = is_right and _is_age(found.published_ms_ago)
            case 2:
                found = await self._liveness.seen_ms_ago([(1, members[0]), (2, members[1])])
                is_right = len(found) == 2 and all(map(_is_age, found))
            case _:
                found = await self._liveness.record(1, members)
                is_right = len(found) == 2 and all(type(each) is bool for each in found)
        if not is_right:
            raise Broken(f"{found!r}")


def _is_seen(entry: tuple[Any, Any]) -> bool:
    name, ms_ago = entry
    return len(name) == 3 and all(type(each) is str for each in name) and ms_ago is not None and _is_age(ms_ago)


def _is_age(ms_ago: Any) -> bool:
    return ms_ago is None or (type(ms_ago) is int and 0 <= ms_ago < 2**40)


def _changed(random: Random, right: Any) -> bytes:
    match random.randrange(4):
        case 0:
            data = encoded(Refusal(random.choice(ERRORS)))
        case 1:
            entries = [random.choice(each) for _ in range(random.choice((0, 1, 3))) for each in (NAMES, SCORES)]
            data = encoded([random.choice((NOW_MS, NOW_MS, -1, 0, None, "x")), entries])
        case 2:
            data = encoded(mutated_document(random, right))
        case _:
            data = encoded(right)
    return mutated(random, data) if random.random() < 0.4 else data


@contextmanager
def opened() -> Iterator[RedisFuzzer]:
    with asyncio.Runner() as runner:
        fuzzer = RedisFuzzer(runner)
        yield fuzzer
        runner.run(fuzzer.end())


REDIS = Target("redis", "answers of Redis: another program's keys, errors, garbled bytes", opened)
