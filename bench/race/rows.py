"""The rows of the race: each is measured for one system at a time, and all systems take turns."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from statistics import median

import psutil

from bench.figures import Effort
from bench.race.peer import TTL_S, Candidate, Peer, Session

CONNECTIONS = 64
SECONDS = 2.0
PACED_SESSIONS, PACE_S = 10_000, 3.0
FILES_OF_OTHERS = 1_000
"""Open files of each process, beside those of the sessions."""
IDLE_SESSIONS = 2_000
SETTLE_S = 0.6
"""For long polls to be parked again, and heartbeats to pass."""
SIZES = (10, 100, 500)
LARGE = 10_000
ELECTIONS = 5
KEEP_ALIVE_S = 0.5
_names = count(1)

Values = tuple[float, ...]
"""One for each quantity of the row."""
Measure = Callable[[Peer, Effort], Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured. A peer that `lacks` the `key` has no figures of it."""

    key: str
    title: str
    quantities: tuple[tuple[str, str], ...]
    """The name and the unit of each. The title may have a place for the name."""
    measure: Measure
    repeats: int | None = None
    """At most so many samples, for what takes long."""

    def names(self) -> list[tuple[str, str]]:
        """The full name and the unit of each quantity."""
        places = [
            self.title.format(name) if "{}" in self.title else f"{self.title}: {name}" for name, _ in self.quantities
        ]
        return list(zip(places, (unit for _, unit in self.quantities), strict=True))


async def one_by_one(peer: Peer, effort: Effort) -> Values:
    """Each of 64 sessions waits for its answer, and calls again."""
    sessions = await peer.sessions(CONNECTIONS)
    try:
        await _in_turns([session.keep_alive for session in sessions], 0.2)
        rate, cpu_ms, _ = await _cost(peer, [session.keep_alive for session in sessions], SECONDS * effort.scale)
        return cpu_ms, rate
    finally:
        _close(sessions)


async def paced(peer: Peer, effort: Effort) -> Values:
    """10,000 sessions, each of which calls every 3 s; timed from when a call was due."""
    sessions = await peer.sessions(_paced_sessions(effort))
    late: list[float] = []

    async def call(session: Session, due: float) -> None:
        await session.keep_alive()
        late.append((time.perf_counter() - due) * 1_000)

    try:
        for rounds in (1, 2):  # The first warms up.
            late.clear()
            before_ms, started = peer.cpu_ms(), time.perf_counter()
            calls = []
            for number in range(rounds * len(sessions)):
                due = started + number * PACE_S / len(sessions)
                if (early := due - time.perf_counter()) > 0:
                    await asyncio.sleep(early)
                elif number % 64 == 0:
                    await asyncio.sleep(0)
                calls.append(asyncio.create_task(call(sessions[number % len(sessions)], due)))
            await asyncio.gather(*calls)
        cpu_ms = (peer.cpu_ms() - before_ms) / len(late) * 1_000
        late.sort()
        return cpu_ms, median(late), late[int(len(late) * 0.99)]
    finally:
        _close(sessions)


async def together(peer: Peer, effort: Effort) -> Values:
    """As many at once as the protocol of the system takes well."""
    batch = await peer.batch()
    try:
        await _in_turns([batch.keep_alive_all], 0.2)
        _, cpu_ms, _ = await _cost(peer, [batch.keep_alive_all], SECONDS * effort.scale)
        return (cpu_ms / batch.size,)
    finally:
        batch.close()


async def change(peer: Peer, _effort: Effort, *, size: int) -> Values:
    """Until every member knows of one more, then of one less."""
    group = await peer.group(f"g{next(_names)}")
    try:
        await group.fill(size)
        await group.prepare()
        await asyncio.sleep(SETTLE_S)
        more = await _milliseconds(group.one_more())
        await asyncio.sleep(SETTLE_S)
        return more, await _milliseconds(group.one_less())
    finally:
        await group.close()


async def resigns(peer: Peer, effort: Effort) -> Values:
    """From the call of the leader until the next one leads."""
    return (await _election(peer, effort, lambda leader: leader.resign()),)


async def killed(peer: Peer, effort: Effort) -> Values:
    """From the end of the leader's connection."""

    async def kill(leader: Candidate) -> None:
        leader.kill()

    return (await _election(peer, effort, kill),)


async def frozen(peer: Peer, effort: Effort) -> Values:
    """From the last keep-alive of a leader that keeps its connection and says nothing more."""

    async def freeze(leader: Candidate) -> None:
        leader.freeze()

    return (await _election(peer, effort, freeze),)


async def writes(peer: Peer, effort: Effort, *, clients: int) -> Values:
    """Durable when answered, and refused once another has taken over."""
    writers = await peer.writers(clients)
    try:
        await _in_turns([writer.write for writer in writers], 0.2)
        rate, cpu_ms, p50_ms = await _cost(peer, [writer.write for writer in writers], SECONDS * effort.scale)
        return cpu_ms, p50_ms if clients == 1 else rate
    finally:
        _close(writers)


async def memory(peer: Peer, effort: Effort) -> Values:
    """What the processes grow by for each session that idles; the first ones warm up."""
    number = min(effort.times(IDLE_SESSIONS), peer.most_sessions)
    waves = []
    try:
        waves.append(await _idle(peer, number))
        before_kb = _resident_kb(peer)
        waves.append(await _idle(peer, number))
        return ((_resident_kb(peer) - before_kb) / number,)
    finally:
        for wave in waves:
            _close(wave)


def rows_of(effort: Effort) -> list[Row]:
    """All rows. Sizes of 10 to 500 members are never scaled, because the figures are named after them."""
    many, large = _paced_sessions(effort), effort.times(LARGE)
    costs, delays = ("CPU of 1,000", "ms"), ("p50", "ms")
    fenced = "durable fenced writes"
    return [
        Row(
            "one by one", f"keep-alives one by one, {CONNECTIONS} connections", (costs, ("rate", "calls/s")), one_by_one
        ),
        Row("together", "keep-alives together", (costs,), together),
        *(
            Row("change", f"one {{}} in {size}", (("more", "ms"), ("less", "ms")), partial(change, size=size))
            for size in SIZES
        ),
        Row("large", f"one {{}} in {large:,}", (("more", "ms"), ("less", "ms")), partial(change, size=large), 2),
        Row("leader", "the leader {}, the next one leads", (("leaves", "ms"),), resigns),
        Row("killed", "the leader {}, the next one leads", (("is killed", "ms"),), killed, 2),
        Row("frozen", f"the leader {{}} (a session of {TTL_S} s), the next one leads", (("freezes", "ms"),), frozen, 2),
        Row("writes", f"{fenced}, 1 client", (costs, delays), partial(writes, clients=1)),
        Row("writes", f"{fenced}, 64 clients", (costs, ("rate", "calls/s")), partial(writes, clients=64)),
        # Once: later sessions take the memory of those that have gone.
        Row("memory", "memory of an idle session", (("memory", "kB"),), memory, 1),
        # The last, because it opens the most sessions.
        Row("paced", f"keep-alives of {many:,} sessions, one each 3 s", (costs, delays, ("p99", "ms")), paced, 2),
    ]


def _paced_sessions(effort: Effort) -> int:
    """No more than the system lets Rota have: half of its open files are for HTTP, the other half for gRPC."""
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(effort.times(PACED_SESSIONS), most_files // 2 - FILES_OF_OTHERS)


async def _idle(peer: Peer, number: int) -> Sequence[Session]:
    sessions = await peer.sessions(number)
    for session in sessions:
        await session.keep_alive()
        park = getattr(session, "park", None)
        if park is not None:
            park()
    await asyncio.sleep(SETTLE_S)
    return sessions


def _resident_kb(peer: Peer) -> float:
    """Of all processes, with what they share counted once."""
    total = 0.0
    for server in peer.servers:
        process = psutil.Process(server.pid)
        total += sum(each.memory_full_info().pss for each in (process, *process.children(recursive=True)))
    return total / 1_000


async def _election(peer: Peer, effort: Effort, end: Callable[[Candidate], Awaitable[None]]) -> float:
    taken = []
    for _ in range(effort.times(ELECTIONS)):
        name = f"e{next(_names)}"
        leader = await peer.candidate(name)
        second = None
        try:
            async with asyncio.timeout(30):
                await leader.leads.wait()
                second = await peer.candidate(name)
                await asyncio.sleep(SETTLE_S)
                await leader.keep_alive()
                await second.keep_alive()
                # Kafka's leader is elected anew with each member that joins.
                assert leader.leads.is_set()
                assert not second.leads.is_set()
                started = time.perf_counter()
                await end(leader)
                while not second.leads.is_set():
                    try:
                        async with asyncio.timeout(KEEP_ALIVE_S):
                            await second.leads.wait()
                    except TimeoutError:
                        await second.keep_alive()
                taken.append((second.leads.since_s - started) * 1_000)
        finally:
            leader.close()
            if second is not None:
                second.close()
    return median(taken)


async def _milliseconds(event: Awaitable[None]) -> float:
    started = time.perf_counter()
    await event
    return (time.perf_counter() - started) * 1_000


async def _cost(
    peer: Peer, calls: Sequence[Callable[[], Awaitable[None]]], seconds: float
) -> tuple[float, float, float]:
    """Calls a second, milliseconds of the servers' CPU for 1,000, and the median time of one in milliseconds."""
    before_ms, started = peer.cpu_ms(), time.perf_counter()
    times = await _in_turns(calls, seconds)
    passed, cpu_ms = time.perf_counter() - started, peer.cpu_ms() - before_ms
    return len(times) / passed, cpu_ms / len(times) * 1_000, median(times) * 1_000


async def _in_turns(calls: Sequence[Callable[[], Awaitable[None]]], seconds: float) -> list[float]:
    """Each calls again when it has its answer. The seconds that each took."""
    clock = time.perf_counter
    until = clock() + seconds
    times: list[float] = []

    async def again_and_again(call: Callable[[], Awaitable[None]]) -> None:
        began = clock()
        while began < until:
            await call()
            ended = clock()
            times.append(ended - began)
            began = ended

    await asyncio.gather(*map(again_and_again, calls))
    return times


def _close(opened: Sequence[object]) -> None:
    for each in opened:
        each.close()  # type: ignore[attr-defined]
