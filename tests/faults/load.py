"""SDK members that share partitions, commit progress, come and go, for as long as a cluster is being hurt."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from rota.client import Client, Generation, Member
from rota.client.errors import CoordinatorUnreachable
from rota.client.events import Assigned, Lost, Revoked
from rota.client.transports import HttpTransport
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    FetchOffsets,
    FetchReply,
    OffsetToCommit,
    TopicPartitions,
    VerifyFence,
)
from tests.faults.record import Record, RecordingTransport
from tests.simulation.history import Departure, Hold

NAMESPACE = "default"
TOPIC = "t"
SESSION_MS = 6_000
REBALANCE_MS = 6_000
PARTITIONS = 6
PROGRESS_DEADLINE_S = 90.0
"""So long that a busy machine is not taken for a group that is stuck."""
_COMMIT_TIMEOUT_MS = 1_500
_WORK_S = 0.1
_VERIFIED = 0.2
"""The part of the commits after which a worker asks whether its fence still holds."""
_LOST_BY_DEADLINE = "share lost by the local deadline"


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many workers, and whether they come and go."""

    groups: int = 5
    workers: int = 4
    """In each group; the first is a static member, and stays."""
    churn_s: float | None = None
    """How long a worker stays, on average; None: to the end."""
    session_ms: int = SESSION_MS
    work_s: float = _WORK_S


PATIENT = Crowd(session_ms=10_000)
"""So much longer than a lease and a store's silence are that also a busy machine has moved the shards by then."""


class Load:
    """Workers of several groups. What one of them finds wrong ends the load and is raised."""

    def __init__(self, urls: Sequence[str], shard_count: int, seed: int, crowd: Crowd | None = None) -> None:
        self.record = Record(shard_count)
        self.crowd = crowd or Crowd()
        self.urls = list(urls)
        self.workers = [
            Worker(self, f"g{group}", number, random.Random(f"{seed}/{group}/{number}"))
            for group in range(self.crowd.groups)
            for number in range(self.crowd.workers)
        ]
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the workers for as long as the block lasts, from when each of them has held a share."""
        self._tasks = [asyncio.create_task(worker.run()) for worker in self.workers]
        self._tasks += [asyncio.create_task(self._watch(f"g{group}")) for group in range(self.crowd.groups)]
        try:
            await self._until(lambda: all(worker.has_worked for worker in self.workers), "every worker had a share")
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _watch(self, group_id: str) -> None:
        """Watch a group from its first line, and resume the watch whenever its stream breaks."""
        client_id = f"{group_id}-watch"
        async with Client(RecordingTransport(HttpTransport(self.urls), client_id, self.record)) as client:
            async for _ in client.watch(group_id, 0):
                pass

    async def until_facts(self, more: int) -> None:
        """Return once `more` facts were acknowledged."""
        wanted = self.record.facts + more
        await self._until(lambda: self.record.facts >= wanted, f"{more} facts more")

    async def until_all_hold(self) -> None:
        """Return once every worker holds a share of its group's current generation."""
        await self._until(self._all_hold, "every worker has a share again")

    def _all_hold(self) -> bool:
        generations: dict[str, set[int]] = {}
        for worker in self.workers:
            generations.setdefault(worker.group_id, set()).add(worker.generation_id)
        return all(len(those) == 1 and -1 not in those for those in generations.values())

    async def _until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PROGRESS_DEADLINE_S):
                while not condition():
                    self._raise_failure()
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not within {PROGRESS_DEADLINE_S:g} s: {what}") from None

    def _raise_failure(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()


class Worker:
    """One place in a group: a member, and after it another, until the load is over."""

    def __init__(self, load: Load, group_id: str, number: int, chance: random.Random) -> None:
        self.group_id = group_id
        self._load = load
        self._record = load.record
        self._chance = chance
        self._name = f"{group_id}-{number}"
        self._lives = 0
        # A member with an instance id comes back as the same; that is tried by killing servers one by one.
        self._instance_id = self._name if number == 0 else None
        self._member: Member[bytes] | None = None
        self._held: Hold | None = None
        self.has_worked = False

    @property
    def member_id(self) -> str:
        return self._held.member_id if self._held else ""

    @property
    def generation_id(self) -> int:
        """The partition of which it holds a share; -1 while it holds none."""
        return self._held.generation_id if self._held else -1

    async def run(self) -> None:
        while True:
            self._lives += 1
            await self._live(f"{self._name}-{self._lives}")

    # --- a life --------------------------------------------------------------------------------------

    async def _live(self, client_id: str) -> None:
        """Join, work, and go in order or without a word."""
        stay_s = self._stays_s()
        # A member that stays to the end of the load must not make the others rebalance when it goes.
        goes_silently = stay_s is None or self._chance.random() < 0.3
        urls = self._chance.sample(self._load.urls, len(self._load.urls))
        transport = RecordingTransport(HttpTransport(urls), client_id, self._record)
        try:
            async with Client(transport, client_id=client_id) as client, self._joining(client, goes_silently) as member:
                self._member = member
                async with asyncio.timeout(stay_s):
                    await self._work(member, transport, client_id)
        except TimeoutError:
            pass
        finally:
            self._end(client_id, silently=goes_silently)

    def _stays_s(self) -> float | None:
        mean_s = self._load.crowd.churn_s
        return None if mean_s is None or self._instance_id else self._chance.uniform(0.5, 1.5) * mean_s

    def _joining(self, client: Client, goes_silently: bool) -> Member[bytes]:
        return client.member(
            self.group_id,
            protocol_type="worker",
            protocols={"even": b""},
            assign=spread,
            session_timeout=self._load.crowd.session_ms / 1000,
            rebalance_timeout=REBALANCE_MS / 1000,
            group_instance_id=self._instance_id,
            leave_on_close=not goes_silently,
        )

    def _end(self, client_id: str, *, silently: bool) -> None:
        now_ms = self._record.clock.now_ms()
        self._record.ended_ms[client_id] = now_ms
        if self._member is not None and self._member.member_id and silently:
            departed = Departure((NAMESPACE, self.group_id), self._member.member_id, now_ms)
            self._record.history.departures.append(departed)
        self._member = None

    # --- a share ---------------------------------------------------------------------------------------

    async def _work(self, member: Member[bytes], transport: RecordingTransport, client_id: str) -> None:
        """Commit progress on its share, as long as it holds one."""
        try:
            async with asyncio.TaskGroup() as tasks:
                work: asyncio.Task[None] | None = None
                async for event in member.events():
                    now_ms = self._record.clock.now_ms()
                    if isinstance(event, Assigned | Revoked | Lost) and work is not None:
                        work.cancel()
                        self._close_hold(now_ms)
                    if isinstance(event, Lost) and event.reason == "deadline":
                        self._record.history.sometimes[_LOST_BY_DEADLINE] += 1
                    if isinstance(event, Assigned):
                        self._open_hold(client_id, member, event, now_ms)
                        work = tasks.create_task(self._commit_on(member, transport, event))
        finally:
            # Not when the member has left: that may take effect long before its answer comes.
            self._close_hold(self._record.clock.now_ms())

    async def _commit_on(self, member: Member[bytes], transport: RecordingTransport, assigned: Assigned[bytes]) -> None:
        """Fetch the committed offset, and go on from there. A commit without an answer is made again."""
        partitions = _partitions(assigned.share)
        positions = await self._positions(transport, partitions)
        while partitions:
            partition = self._chance.choice(partitions)
            item = OffsetToCommit(TOPIC, partition, positions[partition])
            identity = (member.member_id, self._instance_id)
            commit = CommitOffsets(NAMESPACE, self.group_id, assigned.generation_id, (item,), *identity)
            with suppress(CoordinatorUnreachable):
                answer = await transport.send(commit, timeout_ms=_COMMIT_TIMEOUT_MS)
                positions[partition] += answer.reply.error is ErrorCode.NONE
                if self._chance.random() < _VERIFIED:
                    fence = VerifyFence(NAMESPACE, self.group_id, assigned.generation_id, member.member_id)
                    await transport.send(fence, timeout_ms=_COMMIT_TIMEOUT_MS)
            await asyncio.sleep(self._load.crowd.work_s * self._chance.uniform(0.5, 1.5))

    async def _positions(self, transport: RecordingTransport, partitions: tuple[int, ...]) -> dict[int, int]:
        fetch = FetchOffsets(NAMESPACE, self.group_id, (TopicPartitions(TOPIC, partitions),))
        while True:
            with suppress(CoordinatorUnreachable):
                reply = (await transport.send(fetch, timeout_ms=_COMMIT_TIMEOUT_MS)).reply
                if isinstance(reply, FetchReply) and reply.error is ErrorCode.NONE:
                    return {found.partition: max(found.offset, 0) + 1 for found in reply.offsets}
            await asyncio.sleep(self._load.crowd.work_s)

    def _open_hold(self, client_id: str, member: Member[bytes], event: Assigned[bytes], now_ms: int) -> None:
        group, partitions = (NAMESPACE, self.group_id), _partitions(event.share)
        identity = (client_id, self._instance_id, member.member_id, event.generation_id)
        self.has_worked = True
        self._held = Hold(group, *identity, partitions, now_ms, event.fencing_token, now_ms)

    def _close_hold(self, now_ms: int) -> None:
        if self._held is not None:
            self._record.history.holds.append(self._held._replace(until_ms=now_ms))
            self._held = None


def spread(generation: Generation) -> dict[str, bytes]:
    """Each partition to one member, to others in each generation."""
    order = sorted(member.member_id for member in generation.members)
    shares: dict[str, list[str]] = {member_id: [] for member_id in order}
    for partition in range(PARTITIONS):
        shares[order[(partition + generation.generation_id) % len(order)]].append(str(partition))
    return {member_id: ",".join(share).encode() for member_id, share in shares.items()}


def _partitions(share: bytes) -> tuple[int, ...]:
    return tuple(int(partition) for partition in share.decode().split(",") if partition)
