"""Registered topics, and which member works on which: over real sockets, HTTP and gRPC, led by members or not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack

import pytest

import rota
from rota.api.grpc.server import GrpcServer
from rota.api.http.app import create_app
from rota.client import Client, Consumer, InvalidRequest, Member, TopicPartition
from rota.protocol.limits import Limits
from rota.replica import assigning
from rota.runtime.clock import SystemClock
from rota.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryStore
from rota.types.plain import decode_plain_assignment
from tests.http.serving import serving

SESSION_S = 90.0
DEADLINE_S = 20.0
"""Shorter than the interval of heartbeats: members must be notified, not find out."""
LED_BY_MEMBERS, LED_BY_THE_SERVER = "", "server:"


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LocalCoordinator]:
    # Notified, or never.
    monkeypatch.setattr(assigning, "REFRESH_MS", 3_600_000)
    clock = SystemClock()
    store = MemoryStore(clock.monotonic_ms)
    await store.open(4)
    async with LocalCoordinator(store, shard_count=4, limits=Limits(initial_rebalance_delay_ms=50)) as coordinator:
        await coordinator.wait_until_ready()
        yield coordinator


@pytest.fixture(params=["http", "grpc", "grpc+stream"])
async def client(request: pytest.FixtureRequest, coordinator: LocalCoordinator) -> AsyncIterator[Client]:
    async with AsyncExitStack() as stack:
        if request.param == "http":
            http = await stack.enter_async_context(serving(create_app(coordinator, coordinator.limits)))
            url = str(http.base_url)
        else:
            server = GrpcServer(coordinator, coordinator.limits)
            await server.start("127.0.0.1")
            stack.push_async_callback(server.stop, 0.2)
            url = f"{request.param}://{server.address}"
        async with rota.connect(url) as client:
            yield client
        await coordinator.drain()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110 — what members hold has no event on the outside
            await asyncio.sleep(0.02)


def consumers(client: Client, count: int, topics: str | re.Pattern[str], strategy: str) -> list[Consumer]:
    """Members in racks a, b, …, of which each carries one more than the one before."""
    return [
        client.consumer(
            *("g", topics, strategy),
            rack_id="abc"[index],
            capacity=index + 1,
            topics_refresh_interval=3600.0,
            session_timeout=SESSION_S,
        )
        for index in range(count)
    ]


def sizes(members: Sequence[Consumer]) -> list[int]:
    return [len(member.assignment or ()) for member in members]


def numbers(member: Consumer) -> set[int]:
    return {partition for _, partition in member.assignment or ()}


@pytest.mark.parametrize("leads", [LED_BY_MEMBERS, LED_BY_THE_SERVER])
async def test_growth_and_weights_reassign_who_works(client: Client, leads: str) -> None:
    await client.put_topic("t", 6)
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(each) for each in consumers(client, 2, "t", f"{leads}weighted")]
        await until(lambda: sizes(members) == [2, 4])
        await client.put_topic("t", 9)
        await until(lambda: sizes(members) == [3, 6])
        await client.put_topic("t", 9, {"weights": "9,9,1,1,1,1,1,1,1"})
        await until(lambda: sizes(members) in ([1, 8], [7, 2]))


@pytest.mark.parametrize("leads", [LED_BY_MEMBERS, LED_BY_THE_SERVER])
async def test_partitions_move_to_the_members_in_their_racks(client: Client, leads: str) -> None:
    await client.put_topic("t", 5, {"racks": "a,b,a,b,a"})
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(each) for each in consumers(client, 2, "t", f"{leads}rack-aware")]
        await until(lambda: [numbers(each) for each in members] == [{0, 2, 4}, {1, 3}])
        await client.put_topic("t", 5, {"racks": "b,a,b,a,b"})
        await until(lambda: [numbers(each) for each in members] == [{1, 3}, {0, 2, 4}])


async def test_changes_that_no_strategy_reads_cause_no_rebalance(client: Client) -> None:
    await client.put_topic("t", 4)
    await client.put_topic("u", 1)
    (member,) = consumers(client, 1, re.compile("[tuv]"), "sticky")
    async with member:
        await until(lambda: sizes([member]) == [5])
        generation_id = member.generation_id
        await client.put_topic("t", 4, {"owner": "search"})
        await client.put_topic("v", 1)
        await until(lambda: sizes([member]) == [6])

        assert member.generation_id == generation_id + 1, "that there is a new topic, and nothing else"


@pytest.mark.parametrize("leads", [LED_BY_MEMBERS, LED_BY_THE_SERVER])
async def test_excepted_topics_are_no_members_work(client: Client, leads: str) -> None:
    for topic in ("w-1", "w-audit", "orders"):
        await client.put_topic(topic, 1)
    options = {"topics_except": ["w-au*"], "topics_refresh_interval": 3600.0, "session_timeout": SESSION_S}
    member = client.consumer("g", re.compile("w-.*"), f"{leads}range", **options)  # type: ignore[arg-type]
    async with member:
        await until(lambda: topics_of(member) == {"w-1"})
        await client.put_topic("w-audit-2", 1)
        await client.put_topic("w-2", 1)
        await until(lambda: topics_of(member) == {"w-1", "w-2"})

        await member.subscribe(["orders", "w-audit"])
        await until(lambda: topics_of(member) == {"orders"})


def topics_of(member: Consumer) -> set[str]:
    return {topic for topic, _ in member.assignment or ()}


async def test_a_deleted_topic_is_nobody_s_work(client: Client) -> None:
    await client.put_topic("t", 4)
    (member,) = consumers(client, 1, "t", "cooperative-sticky")
    async with member:
        await until(lambda: sizes([member]) == [4])
        await client.delete_topic("t")
        await until(lambda: member.assignment == ())


async def test_members_of_sdk_and_server_assignment_share_a_group(client: Client) -> None:
    await client.put_topic("t", 6)
    said = {"server:sticky": json.dumps({"topics": ["t"]}).encode()}
    thin: Member[bytes] = client.member("g", protocol_type="consumer", protocols=said, assign=_never)
    async with client.consumer("g", "t", ("sticky", "server:sticky")) as rich:
        await until(lambda: sizes([rich]) == [6])
        async with thin:

            def have_half_each() -> bool:
                mine, other = set(rich.assignment or ()), set(decode_plain_assignment(thin.assignment or b"{}"))
                return len(mine) == len(other) == 3 and mine | other == {TopicPartition("t", n) for n in range(6)}

            await until(have_half_each)
        await until(lambda: sizes([rich]) == [6])


async def test_members_assigned_by_the_server_subscribe_by_expression(client: Client) -> None:
    await client.put_topic("audit-1", 1)
    said = {"server:range": json.dumps({"topic_regex": "audit-[0-9]+"}).encode()}
    member: Member[bytes] = client.member("g", protocol_type="consumer", protocols=said)
    async with member:
        for names in (("audit-2", "audit-x"), ("audit-33", "old-audit-3")):
            for name in names:
                await client.put_topic(name, 1)

        def topics() -> set[str]:
            return {topic for topic, _ in decode_plain_assignment(member.assignment or b"{}")}

        await until(lambda: topics() == {"audit-1", "audit-2", "audit-33"})


async def test_an_expression_that_is_none_is_a_clear_error(client: Client) -> None:
    said = {"server:range": json.dumps({"topic_regex": "audit-(?=[0-9])"}).encode()}
    member: Member[bytes] = client.member("g", protocol_type="consumer", protocols=said)
    with pytest.raises(InvalidRequest, match="is no regular expression of RE2: invalid perl operator"):
        async with member:
            await member.wait_assigned()


def _never(*_: object) -> dict[str, bytes]:
    raise AssertionError("the server assigns")
