"""What a program's log says while its members are not served, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rota.client import Rejected, Unreachable
from rota.client.events import Reachable
from tests.client.stage import GROUP, SESSION_S, TOPICS, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time


@in_virtual_time
async def test_the_cause_is_logged_in_time_each_minute_and_at_its_end() -> None:
    with _lines() as handler:
        async with a_coordinator() as coordinator:
            worker = a_worker(coordinator)
            worker.cable.pull()
            async with worker.member() as member:
                await asyncio.sleep(2)
                assert handler.of(logging.WARNING) == 1
                assert "the cable is pulled" in handler.lines[0]
                assert member.trouble == "the cable is pulled"
                await asyncio.sleep(180)
                assert 3 <= handler.of(logging.WARNING) <= 4
                worker.cable.plug_in()
                await member.wait_assigned()
                assert (handler.of(logging.INFO), member.trouble) == (1, "")


@in_virtual_time
async def test_a_server_that_accepts_calls_and_hangs_is_noticed() -> None:
    with _lines() as handler:
        async with a_coordinator() as coordinator:
            worker = a_worker(coordinator)
            worker.cable.is_silent = True
            async with worker.member() as member:
                await asyncio.sleep(2)
                assert member.trouble == "the coordinator does not answer"
                assert handler.of(logging.WARNING) == 1
                worker.cable.is_silent = False
                await member.wait_assigned()
                assert (handler.of(logging.INFO), member.trouble) == (1, "")
                worker.cable.is_silent = True
                began = asyncio.get_running_loop().time()
                await until(lambda: bool(member.trouble))
                # A heartbeat that got through is parked for a third of the session, and so would be the next one.
                assert asyncio.get_running_loop().time() - began <= 2 * SESSION_S / 3 + 1.1
                worker.cable.is_silent = False


@in_virtual_time
async def test_a_hundred_members_behind_a_bad_address_are_one_log_line() -> None:
    with _lines() as handler:
        async with a_coordinator() as coordinator:
            worker = a_worker(coordinator)
            worker.cable.pull()
            members = [worker.client.leader(f"election-{number}") for number in range(100)]
            for member in members:
                await member.start()
            await asyncio.sleep(30)
            assert handler.of(logging.WARNING) == 1
            worker.cable.plug_in()
            for member in members:
                await member.close()


@in_virtual_time
async def test_the_events_have_the_cause() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        seen: list[object] = []

        async with worker.member() as member:

            async def watch() -> None:
                async for event in member.events():
                    seen.append(event)  # noqa: PERF401 — looked at while more come

            watching = asyncio.create_task(watch())
            await member.wait_assigned()
            worker.cable.pull()
            await until(lambda: any(isinstance(event, Unreachable) for event in seen))
            worker.cable.plug_in()
            await until(lambda: any(isinstance(event, Reachable) for event in seen))
        await watching
        [unreachable] = [event for event in seen if isinstance(event, Unreachable)]
        assert unreachable.cause in ("the cable is pulled", "the cable was pulled")


@in_virtual_time
async def test_a_member_that_is_rejected_for_want_of_room_says_so() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.consumer(GROUP, TOPICS, session_timeout=SESSION_S) as member:
            seen: list[object] = []

            async def watch() -> None:
                async for event in member.events():
                    seen.append(event)
                    worker.cable.throttled_ms = 1_500

            worker.cable.throttled_ms = 1_500
            watching = asyncio.create_task(watch())
            await until(lambda: any(isinstance(event, Rejected) for event in seen))
            assert "THROTTLED" in member.trouble
            watching.cancel()


@contextmanager
def _lines() -> Iterator[_Lines]:
    handler, logger = _Lines(), logging.getLogger("rota.client")
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _Lines(logging.Handler):
    """Counts what the SDK logs of trouble."""

    def __init__(self) -> None:
        super().__init__()
        self.levels: list[int] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "rota.client":
            self.levels.append(record.levelno)
            self.lines.append(record.getMessage())

    def of(self, level: int) -> int:
        return self.levels.count(level)
