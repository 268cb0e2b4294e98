"""What the race asks of every system: sessions, members that watch their group, candidates, and fenced writes.

A system that has no such thing leaves the method out; `lacks` says why, and the table repeats it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from bench.servers import Server

TTL_S = 2
"""Of a leader's session: the shortest that etcd grants."""
DEADLINE_S = 60.0
OPENED_AT_ONCE = 64
_T = TypeVar("_T")


class Session(Protocol):
    """A session on a connection of its own."""

    async def keep_alive(self) -> None: ...

    def close(self) -> None: ...


class Batch(Protocol):
    """Many sessions on one connection, kept alive together."""

    size: int

    async def keep_alive_all(self) -> None: ...

    def close(self) -> None: ...


class Leading(asyncio.Event):
    """Notes when it is set: neither what a candidate does next nor the turn of the task that waits is measured."""

    since_s = 0.0
    """By `time.perf_counter`."""

    def set(self) -> None:
        if not self.is_set():
            self.since_s = time.perf_counter()
        super().set()


class Candidate(Protocol):
    """Stands for election when it is made; `leads` is set when it leads."""

    leads: Leading

    async def keep_alive(self) -> None: ...

    async def resign(self) -> None: ...

    def freeze(self) -> None:
        """It calls no more. There is nothing to do where keep-alives are the bench's."""
        return

    def kill(self) -> None:
        """Its connection ends, as the kernel ends it for a killed process."""

    def close(self) -> None: ...


class Writer(Protocol):
    """Writes that are refused once the writer has been replaced, and durable when answered."""

    async def write(self) -> None: ...

    def close(self) -> None: ...


class Group(Protocol):
    """Members that each learn of every change."""

    async def fill(self, size: int) -> None: ...

    async def prepare(self) -> None:
        """Connect the newcomer, which is not measured."""

    async def one_more(self) -> None:
        """Return when every member knows of the newcomer."""

    async def one_less(self) -> None: ...

    async def close(self) -> None: ...


class Peer:
    """One system. Its servers run until `stack` is closed."""

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    most_sessions: ClassVar[int] = 100_000
    """That are opened to measure their memory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.stack = stack
        self.servers: Sequence[Server] = ()

    def cpu_ms(self) -> float:
        return sum(server.cpu_ms() for server in self.servers)

    async def start(self) -> None:
        raise NotImplementedError

    async def sessions(self, count: int) -> Sequence[Session]:
        raise NotImplementedError

    async def batch(self) -> Batch:
        raise NotImplementedError

    async def group(self, name: str) -> Group:
        raise NotImplementedError

    async def candidate(self, name: str) -> Candidate:
        raise NotImplementedError

    async def writers(self, count: int) -> Sequence[Writer]:
        raise NotImplementedError


class Views:
    """How many members each member knows of, for systems with members that watch a list instead of agreeing."""

    def __init__(self) -> None:
        self._sizes: dict[object, int] = {}
        self._counts: Counter[int] = Counter()
        self._changed = asyncio.Event()

    def saw(self, member: object, size: int) -> None:
        former = self._sizes.get(member)
        if former is not None:
            self._counts[former] -= 1
        self._sizes[member] = size
        self._counts[size] += 1
        self._changed.set()

    def forget(self, member: object) -> None:
        self._counts[self._sizes.pop(member)] -= 1
        self._changed.set()

    async def all_see(self, size: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self._counts[size] != size or len(self._sizes) != size:
                self._changed.clear()
                await self._changed.wait()


class Watcher(Protocol):
    """A member of a `WatchedGroup`."""

    async def enter(self) -> None: ...

    async def leave(self) -> None: ...

    def close(self) -> None: ...


class WatchedGroup:
    """A group of members that are registered in a list, which each of them watches."""

    def __init__(self, open_watcher: Callable[[Views, int], Awaitable[Watcher]]) -> None:
        self._open = open_watcher
        self._views = Views()
        self._members: list[Watcher] = []
        self._made = 0

    async def fill(self, size: int) -> None:
        for _ in range(size):
            await self.prepare()
            self._members.append(self._next)
        await asyncio.gather(*(member.enter() for member in self._members))
        await self._views.all_see(size)

    async def prepare(self) -> None:
        self._made += 1
        self._next = await self._open(self._views, self._made)

    async def one_more(self) -> None:
        self._members.append(self._next)
        await self._next.enter()
        await self._views.all_see(len(self._members))

    async def one_less(self) -> None:
        member = self._members.pop()
        self._views.forget(member)
        await member.leave()
        await self._views.all_see(len(self._members))
        member.close()

    async def close(self) -> None:
        for member in self._members:
            member.close()


async def opened(count: int, open_one: Callable[[int], Awaitable[_T]]) -> list[_T]:
    """So many, some of them side by side."""
    made: list[_T] = []
    for first in range(0, count, OPENED_AT_ONCE):
        made += await asyncio.gather(*map(open_one, range(first, min(count, first + OPENED_AT_ONCE))))
    return made
