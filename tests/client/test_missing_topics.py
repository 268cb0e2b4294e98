"""A consumer that names a topic that is not registered says so soon, and again, and says when it is over."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from rota.client import Client, Consumer
from rota.protocol.messages import ListTopics
from tests.client.stage import Cable, a_coordinator
from tests.client.virtual_time import in_virtual_time

TEXT = (
    "topic 'orderz' is not registered: this member gets no partition of it until it is; registered are: audit, orders"
)
STRATEGIES = ["range", "cooperative-sticky", "server:sticky"]


class Stage:
    """A coordinator with two topics, and consumers that name others."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.cables: list[Cable] = []

    async def open(self) -> None:
        self.coordinator = await self.stack.enter_async_context(a_coordinator())
        self.admin = Client(Cable(self.coordinator))
        for topic in ("orders", "audit"):
            await self.admin.put_topic(topic, 2)

    async def consumer(self, topics: Any, strategy: str = "range", **options: Any) -> Consumer:
        cable = Cable(self.coordinator)
        self.cables.append(cable)
        consumer = Client(cable).consumer("g", topics, strategy, **options)
        await self.stack.enter_async_context(consumer)
        await consumer.wait_assigned()
        return consumer


def said(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "rota.client.topics" and record.levelno == level
    ]


@in_virtual_time
@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_leader_and_follower_warn_in_time_and_once_a_minute(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.open()
        members = [await stage.consumer("orderz", strategy) for _ in range(2)]
        await asyncio.sleep(2)
        assert said(caplog, logging.WARNING) == [f"group g: {TEXT}"] * 2
        assert [each._lookout.missing for each in members] == [TEXT, TEXT]

        await asyncio.sleep(600)
        warned = len(said(caplog, logging.WARNING))
        assert 2 * 8 <= warned <= 2 * 11

        await stage.admin.put_topic("orderz", 4)
        await asyncio.sleep(15)
        assert [len(each.assignment or ()) for each in members] == [2, 2]
        assert said(caplog, logging.INFO) == ["group g: topic 'orderz' is registered now"] * 2
        assert [each._lookout.missing for each in members] == ["", ""]
        await asyncio.sleep(600)
        assert len(said(caplog, logging.WARNING)) == warned


@in_virtual_time
async def test_one_of_two_topics_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.open()
        consumer = await stage.consumer(["orders", "b", "a"])
        await asyncio.sleep(2)
        text = consumer._lookout.missing
        assert text.startswith("topics 'a', 'b' are not registered: this member gets no partition of")
        assert [place.topic for place in consumer.assignment or ()] == ["orders", "orders"]


@in_virtual_time
async def test_a_subscription_that_is_corrected_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.open()
        consumer = await stage.consumer("orderz")
        await asyncio.sleep(2)
        await consumer.subscribe("orders")
        await asyncio.sleep(2)
        assert consumer._lookout.missing == ""


@in_virtual_time
async def test_counts_of_one_s_own_need_no_registered_topic(caplog: pytest.LogCaptureFixture) -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.open()
        await stage.consumer({"orderz": 4})
        await asyncio.sleep(100)
        assert said(caplog, logging.WARNING) == []


@in_virtual_time
async def test_a_member_without_a_share_lists_the_topics_once() -> None:
    async with AsyncExitStack() as stack:
        stage = Stage(stack)
        await stage.open()
        for _ in range(3):
            await stage.consumer("orders")
        await asyncio.sleep(10)
        before = len(stage.cables[2].requests)
        await asyncio.sleep(600)
        assert not [each for each in stage.cables[2].requests[before:] if isinstance(each, ListTopics)]
