"""The leading member is notified of changed topics on one parked call; without it, all refresh now and then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack

import pytest

from rota.client import Client, Consumer, CoordinatorUnreachable
from rota.client.transports import Answer
from rota.core.replica.ports import JournalEvent
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.ids import shard_of
from rota.protocol.messages import ListTopics, ListTopicsReply, Request, SyncGroup
from rota.protocol.wire.replies import Received
from rota.server.runtime.coordinator import LocalCoordinator
from tests.client.stage import Cable, a_coordinator, sizes
from tests.client.virtual_time import in_virtual_time

A_MOMENT_S = 0.2
HOUR_MS = 3_600_000
REST_S = 200.0
WAITS_AT_REST = 11
"""Of 20 seconds each."""
LOOKS_AT_REST = (REST_S / 3.75 - 1, REST_S / 2.25 + 1)
"""The watch may miss a change: one check in three refresh intervals, of a second each, give or take a quarter."""


class Line(Cable):
    """A cable with watches of topics that may be answered by the test."""

    def __init__(self, coordinator: LocalCoordinator) -> None:
        super().__init__(coordinator)
        self.serving = coordinator
        self.answer_watch: Callable[[ListTopics], Answer] | None = None
        self.listing_s = self.asking_s = 0.0
        """How long a listing, or the call that is to be parked, is on its way."""
        self.is_deaf = False
        """Watches are parked for as long as they should, and answered that nothing has changed, whatever has."""
        self.waits = 0
        self.parked = 0
        self.syncs_may_go = asyncio.Event()
        self.syncs_may_go.set()

    async def journal(self) -> list[JournalEvent]:
        """All lines of the group."""
        coordinator = self.serving
        shard_id = shard_of("default", "g", coordinator.shard_count)
        return [line for line in await coordinator.events(shard_id, 0, 10_000) if line.group_id == "g"]

    async def send(self, request: Request, *, timeout_ms: int) -> Answer:
        if isinstance(request, SyncGroup):
            await self.syncs_may_go.wait()
        if isinstance(request, ListTopics) and not request.wait_ms:
            await asyncio.sleep(self.listing_s)
        if not (isinstance(request, ListTopics) and request.wait_ms):
            return await super().send(request, timeout_ms=timeout_ms)
        self.waits += 1
        if self.answer_watch is not None:
            return self.answer_watch(request)
        await asyncio.sleep(self.asking_s)
        if self.is_deaf:
            await asyncio.sleep(20)
            return Received(ListTopicsReply(version=request.version))
        self.parked += 1
        try:
            return await super().send(request, timeout_ms=timeout_ms)
        finally:
            self.parked -= 1


Group = tuple[Client, list[Line], list[Consumer]]


async def a_group(
    stack: AsyncExitStack,
    topics: str | re.Pattern[str] = "t",
    strategy: str = "range",
    *,
    refresh_ms: int = HOUR_MS,
    debounce_ms: int = 0,
    answer_watch: Callable[[ListTopics], Answer] | None = None,
) -> Group:
    """Two members on a line each, the first of which leads, and a topic of two partitions."""
    coordinator = await stack.enter_async_context(a_coordinator())
    lines = [Line(coordinator) for _ in range(3)]
    admin, *clients = (Client(line) for line in lines)
    await admin.put_topic("t", 2)
    members = []
    for client, line in zip(clients, lines[1:], strict=True):
        line.answer_watch = answer_watch
        member = client.consumer(
            "g", topics, strategy, topics_refresh_interval=refresh_ms / 1000, topics_debounce=debounce_ms / 1000
        )
        members.append(await stack.enter_async_context(member))
        await member.wait_assigned()
    await within(30, lambda: sizes(members) == [1, 1])
    await asyncio.sleep(7)  # not when the server lists topics by itself: the next list may wait for PAUSE_MS after that
    return admin, lines[1:], members


async def within(seconds: float, is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():  # noqa: ASYNC110 — what members hold has no event on the outside
            await asyncio.sleep(0.01)


@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:sticky"])
async def test_growth_is_assigned_within_a_moment(strategy: str) -> None:
    async with AsyncExitStack() as stack:
        admin, _, members = await a_group(stack, strategy=strategy)
        await admin.put_topic("t", 6)
        await within(A_MOMENT_S, lambda: sizes(members) == [3, 3])


@in_virtual_time
async def test_at_rest_the_leader_has_one_parked_call_and_others_none() -> None:
    async with AsyncExitStack() as stack:
        _, lines, members = await a_group(stack, refresh_ms=1_000)
        assert [member.is_leader for member in members] == [True, False]
        before = [line.requests.copy() for line in lines]
        await asyncio.sleep(REST_S)
        asked = [lists(line.requests[len(known) :]) for line, known in zip(lines, before, strict=True)]
        waits = [request for request in asked[0] if request.wait_ms]
        assert len(waits) <= WAITS_AT_REST
        assert LOOKS_AT_REST[0] <= len(asked[0]) - len(waits) <= LOOKS_AT_REST[1]
        assert asked[1] == []
        assert [line.parked for line in lines] == [1, 0]


def lists(requests: Sequence[Request]) -> list[ListTopics]:
    return [request for request in requests if isinstance(request, ListTopics)]


@in_virtual_time
async def test_the_next_leader_watches_and_the_former_one_hangs_up() -> None:
    async with AsyncExitStack() as stack:
        admin, lines, members = await a_group(stack)
        await members[0].__aexit__(None, None, None)
        await within(10, lambda: [line.parked for line in lines] == [0, 1])
        await admin.put_topic("t", 7)
        await within(A_MOMENT_S, lambda: sizes(members[1:]) == [7])
        stack.pop_all().push_async_callback(members[1].__aexit__, None, None, None)


@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:sticky"])
async def test_growth_between_count_and_sync_is_assigned_then(strategy: str) -> None:
    async with AsyncExitStack() as stack:
        admin, lines, members = await a_group(stack, strategy=strategy)
        lines[0].syncs_may_go.clear()
        members[0].rejoin("so that there is a rebalance")
        await asyncio.sleep(1)
        await admin.put_topic("t", 6)
        await asyncio.sleep(1)
        lines[0].syncs_may_go.set()
        await within(2 * A_MOMENT_S, lambda: sizes(members) == [3, 3])


@in_virtual_time
@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky", "server:sticky"])
@pytest.mark.parametrize("topics", ["t", re.compile("t.*")], ids=["name", "pattern"])
async def test_changes_collect_for_as_long_as_the_group_says(strategy: str, topics: str | re.Pattern[str]) -> None:
    """Twelve changes a quarter of a second apart are one change; without the setting they were 16 to 20 generations."""
    async with AsyncExitStack() as stack:
        admin, lines, members = await a_group(stack, topics, strategy, refresh_ms=1_000, debounce_ms=5_000)
        generation_id, held = members[0].generation_id, sizes(members)
        began = asyncio.get_running_loop().time()
        for number in range(12):
            await admin.put_topic("t", 3 + number)
            if topics != "t":
                await admin.put_topic(f"t{number}", 1)
            await asyncio.sleep(0.25)
        assert (members[0].generation_id, sizes(members)) == (generation_id, held)

        whole = 14 if topics == "t" else 26
        await within(6, lambda: sum(sizes(members)) == whole and min(sizes(members)) >= 7)

        assert 5 <= asyncio.get_running_loop().time() - began <= 6.5
        reasons = [line.reason for line in await lines[0].journal() if line.generation_id >= generation_id]
        assert any(("t 2 → 14" if topics == "t" else "t11 0 → 1") in reason for reason in reasons), reasons
        # A cooperative group, and members that ask for other topics, need a round more.
        rounds = 1 if strategy != "cooperative-sticky" and topics == "t" else 2
        assert members[0].generation_id - generation_id <= rounds, reasons


def unreachable(_: ListTopics) -> Answer:
    raise CoordinatorUnreachable("a proxy that lets nobody wait")


def forbidden(request: ListTopics) -> Answer:
    return Received(refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED, "no"))


def at_once(request: ListTopics) -> Answer:
    return Received(ListTopicsReply(version=request.version))


def always_another() -> Iterator[str]:
    number = 0
    while True:
        yield f"v{(number := number + 1)}"


@in_virtual_time
@pytest.mark.parametrize("answer", [unreachable, forbidden])
async def test_where_the_watch_fails_members_look_now_and_then(answer: Callable[[ListTopics], Answer]) -> None:
    async with AsyncExitStack() as stack:
        admin, _, members = await a_group(stack, refresh_ms=2_000, answer_watch=answer)
        await admin.put_topic("t", 6)
        await within(3, lambda: sizes(members) == [3, 3])


@in_virtual_time
@pytest.mark.parametrize("answer", [unreachable, forbidden, at_once])
async def test_a_watch_that_is_answered_at_once_is_no_busy_loop(answer: Callable[[ListTopics], Answer]) -> None:
    async with AsyncExitStack() as stack:
        _, lines, _ = await a_group(stack, refresh_ms=10_000, answer_watch=answer)
        before = lines[0].waits
        await asyncio.sleep(REST_S)
        assert 1 <= lines[0].waits - before <= REST_S / 1.5


@in_virtual_time
async def test_topics_that_change_endlessly_are_read_twice_a_second() -> None:
    versions = always_another()
    async with AsyncExitStack() as stack:
        _, lines, _ = await a_group(stack, answer_watch=lambda _: Received(ListTopicsReply(version=next(versions))))
        before = lines[0].waits
        await asyncio.sleep(10)
        assert lines[0].waits - before <= 20


@in_virtual_time
async def test_a_watch_that_failed_is_taken_up_again() -> None:
    async with AsyncExitStack() as stack:
        admin, lines, members = await a_group(stack, answer_watch=unreachable)
        lines[0].answer_watch = None
        await within(3_600, lambda: lines[0].parked == 1)
        await asyncio.sleep(1)
        await admin.put_topic("t", 6)
        await within(A_MOMENT_S, lambda: sizes(members) == [3, 3])


DELAYS_S = [number / 50 for number in range(60)]


async def on_a_slow_line(stack: AsyncExitStack, strategy: str, topics: str | re.Pattern[str] = "t") -> Group:
    group = await a_group(stack, topics, strategy)
    for line in group[1]:
        line.listing_s, line.asking_s = 0.15, 0.1
    return group


@in_virtual_time
@pytest.mark.parametrize("strategy", ["weighted", "server:weighted"])
async def test_weights_changed_and_changed_back_are_seen(strategy: str) -> None:
    async with AsyncExitStack() as stack:
        admin, _, members = await on_a_slow_line(stack, strategy)
        await admin.put_topic("t", 6)
        await within(5, lambda: sizes(members) == [3, 3])
        for number, delay_s in enumerate(DELAYS_S):
            # So that the leader is just about to list the topics when the weights change.
            await admin.put_topic("t", 6, {"label": str(number)})
            await asyncio.sleep(0.2)
            await admin.put_topic("t", 6, {"label": str(number), "weights": "50,1,1,1,1,1"})
            await asyncio.sleep(delay_s)
            await admin.put_topic("t", 6, {"label": str(number)})
            await asyncio.sleep(3)
            assert sizes(members) == [3, 3], delay_s


@in_virtual_time
async def test_a_change_that_the_watch_misses_is_found_by_refresh() -> None:
    async with AsyncExitStack() as stack:
        admin, lines, members = await a_group(stack, refresh_ms=1_000)
        lines[0].is_deaf = True
        await asyncio.sleep(60)
        await admin.put_topic("t", 6)
        await within(15, lambda: sizes(members) == [3, 3])
