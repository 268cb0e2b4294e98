"""A share is lost, in virtual time: the member joins again only once the program has ended its work on it."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Literal

import pytest

from rota.client import (
    CoordinatorError,
    CoordinatorUnreachable,
    FencedInstanceId,
    MembershipLost,
    OffsetToCommit,
    Shard,
)
from rota.client.callbacks import CallbackQueue
from rota.client.transports import Answer
from rota.client.twin import _in_thread, _Thread
from rota.client.worker_pool import Work, WorkerPool
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, JoinGroup, Request
from tests.client.stage import GROUP, SESSION_S, Partitions, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time, pause


def joins_of(worker: Worker) -> int:
    return sum(isinstance(request, JoinGroup) for request in worker.cable.requests)


async def lose_by_silence(worker: Worker) -> None:
    """The network is silent until the session is over by this member's clock, and back then."""
    worker.cable.pull()
    await asyncio.sleep(1.2 * SESSION_S)
    worker.cable.plug_in()


def a_pool(worker: Worker, work: Work) -> WorkerPool:
    return worker.client.worker_pool(GROUP, {"work": 1}, work, "range", session_timeout=SESSION_S, drain_timeout=0)


@in_virtual_time
async def test_a_member_joins_again_only_when_on_lost_has_returned(caplog: pytest.LogCaptureFixture) -> None:
    async with a_coordinator() as coordinator:
        worker, may_end = a_worker(coordinator), asyncio.Event()

        async def on_lost(removed: Partitions) -> None:
            await may_end.wait()

        async with worker.client.consumer(GROUP, {"work": 2}, session_timeout=SESSION_S, on_lost=on_lost) as member:
            await member.wait_assigned()
            before = joins_of(worker)
            with caplog.at_level(logging.WARNING, "rota.client.holding"):
                await lose_by_silence(worker)
                await asyncio.sleep(2 * SESSION_S)
            assert (joins_of(worker), member.assignment) == (before, None)
            warnings = [record.getMessage() for record in caplog.records]
            assert sum("group indexers: the work on a lost share has run for longer" in text for text in warnings) == 1
            may_end.set()
            await until(lambda: member.assignment is not None)


@in_virtual_time
async def test_a_member_joins_again_only_when_on_revoked_has_returned() -> None:
    """In a thread it goes on although the share was lost meanwhile; it must not end after the next on_assigned."""
    async with a_coordinator() as coordinator:
        worker, may_end = a_worker(coordinator), asyncio.Event()

        async def on_revoked(removed: Partitions) -> None:
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()

        async with worker.client.consumer(
            GROUP,
            {"work": 2},
            "range",
            session_timeout=SESSION_S,
            on_revoked=on_revoked,
            on_lost=lambda removed: None,
        ) as member:
            await member.wait_assigned()
            before = joins_of(worker)
            member.rejoin("for the test")
            await asyncio.sleep(0.1)
            member._withdraw("for the test")
            member.come_back()
            await asyncio.sleep(2 * SESSION_S)
            meanwhile = (joins_of(worker), member.assignment)
            may_end.set()
            await until(lambda: member.assignment is not None)
            assert meanwhile == (before, None)


@in_virtual_time
async def test_a_member_may_be_closed_while_on_lost_runs() -> None:
    async with a_coordinator() as coordinator:
        worker, ends = a_worker(coordinator), list[Partitions]()

        async def on_lost(removed: Partitions) -> None:
            await asyncio.sleep(5)
            ends.append(removed)

        async with worker.client.consumer(GROUP, {"work": 1}, session_timeout=SESSION_S, on_lost=on_lost) as member:
            await member.wait_assigned()
            await lose_by_silence(worker)
        assert ends == [(("work", 0),)]


@in_virtual_time
async def test_the_block_of_a_fenced_member_waits_for_on_lost() -> None:
    """As work in a thread, on_lost may not be there to be cancelled."""
    async with a_coordinator() as coordinator:
        worker, other, ends = a_worker(coordinator), a_worker(coordinator), list[Partitions]()
        begins = asyncio.Event()

        async def on_lost(removed: Partitions) -> None:
            begins.set()
            await asyncio.sleep(5)
            ends.append(removed)

        async def until_another_takes_its_place() -> None:
            async with worker.client.consumer(GROUP, {"work": 1}, group_instance_id="i", on_lost=on_lost) as member:
                await member.wait_assigned()
                async with other.client.consumer(GROUP, {"work": 1}, group_instance_id="i"):
                    await begins.wait()

        with pytest.raises(FencedInstanceId):
            await until_another_takes_its_place()
        assert ends == [(("work", 0),)]


@in_virtual_time
async def test_a_failed_member_leaves_though_its_session_is_over() -> None:
    """It would join again, and hold a share that no program works on."""
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator)

        async def on_lost(removed: Partitions) -> None:
            await asyncio.sleep(2 * SESSION_S)

        member = worker.client.consumer(GROUP, {"work": 1}, session_timeout=SESSION_S, on_lost=on_lost)
        await member.start()
        await member.wait_assigned()
        member._fail(ZeroDivisionError())
        await lose_by_silence(worker)
        async with asyncio.timeout(60):
            await until(lambda: member.is_over)
        with pytest.raises(ZeroDivisionError):
            await member.close()
        async with other.client.consumer(GROUP, {"work": 1}, session_timeout=SESSION_S) as next_one:
            async with asyncio.timeout(1):
                await next_one.wait_assigned()


@in_virtual_time
async def test_two_interruptions_keep_time_and_order_of_callbacks() -> None:
    notes: list[str] = []
    queue = CallbackQueue(1, lambda error: notes.append(repr(error)))

    async def takes_time(name: str) -> None:
        notes.append(f"{name} begins")
        await asyncio.sleep(1)
        notes.append(f"{name} ends")

    queue.add(partial(takes_time, "work"))
    await asyncio.sleep(0)
    queue.interrupt(partial(takes_time, "first"))
    await asyncio.sleep(0.5)
    queue.interrupt(partial(takes_time, "second"))
    queue.interrupt()
    queue.add(partial(takes_time, "next"))
    await until(lambda: queue.is_idle)

    order = [f"{name} {what}" for name in ("first", "second", "next") for what in ("begins", "ends")]
    assert notes == ["work begins", *order]


@in_virtual_time
async def test_works_last_steps_survive_a_second_cancellation() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        ends: list[int] = []

        async def work(shard: Shard) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(2 * SESSION_S)
                ends.append(shard.partition)

        async with a_pool(worker, work) as pool:
            await until(lambda: len(pool.shards) == 1)
            pool.consumer.rejoin("the first cancellation")
            await asyncio.sleep(0.1)
            await lose_by_silence(worker)
            assert (pool.consumer.assignment, ends) == (None, [])
            await until(lambda: pool.consumer.assignment is not None)
            assert ends == [0]


# --- commits ------------------------------------------------------------------------------------


@in_virtual_time
async def test_commits_under_way_at_a_loss_fail_at_once() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.consumer(GROUP, {"work": 2}, session_timeout=SESSION_S) as member:
            await member.wait_assigned()
            worker.cable.commits_may_go.clear()
            commits = [asyncio.create_task(member.commit([OffsetToCommit("work", 0, 1)]))]
            await asyncio.sleep(0)
            commits.append(asyncio.create_task(member.commit([OffsetToCommit("work", 1, 1)])))
            await asyncio.sleep(0.01)
            worker.cable.is_silent = True
            await until(lambda: member.assignment is None)
            sent, waiting = await asyncio.gather(*commits, return_exceptions=True)
            assert isinstance(sent, CoordinatorUnreachable)
            assert "not known whether" in str(sent)
            assert isinstance(waiting, MembershipLost)
            worker.cable.commits_may_go.set()
            worker.cable.is_silent = False


@in_virtual_time
async def test_an_exception_of_one_commits_function_hides_no_outcome() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        outcomes: list[int] = []

        def note(number: int, _items: object, error: CoordinatorError | None) -> None:
            outcomes.append(number)
            if number == 1:
                raise ValueError("planned")

        async def commit_three() -> None:
            async with worker.client.consumer(GROUP, {"work": 2}, session_timeout=SESSION_S) as member:
                await member.wait_assigned()
                for number in range(1, 4):
                    member.commit_soon([OffsetToCommit("work", 0, number)], partial(note, number))
                await asyncio.Event().wait()

        with pytest.raises(ValueError, match="planned"):
            await commit_three()
        assert outcomes == [1, 2, 3]


# --- work in threads ----------------------------------------------------------------------------


def test_a_body_in_a_thread_is_awaited_despite_cancellations() -> None:
    """By the sync SDK: work in a thread ends when it checks its assignment, and not before."""

    async def main() -> list[str]:
        notes: list[str] = []
        may_end = threading.Event()
        has_begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def body() -> None:
            loop.call_soon_threadsafe(has_begun.set)
            may_end.wait(10)
            notes.append("body ends")

        running: asyncio.Future[None] = asyncio.ensure_future(_in_thread(body, _Thread())())
        await has_begun.wait()
        for _ in range(3):
            running.cancel()
            await asyncio.sleep(0)
        assert not running.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        notes.append("its canceller goes on")
        return notes

    assert asyncio.run(main()) == ["body ends", "its canceller goes on"]


def test_on_lost_is_not_called_after_on_revoked_has_returned() -> None:
    """The thread returns while the event loop is busy; the share is lost before the loop notices."""
    calls: list[str] = []
    callbacks, has_begun, may_return = _Thread(), threading.Event(), threading.Event()
    callbacks.workers = ThreadPoolExecutor(1)

    def on_revoked(removed: Partitions) -> None:
        has_begun.set()
        may_return.wait(10)
        calls.append("on_revoked returns")

    async def main() -> None:
        async with a_coordinator() as coordinator:
            worker = a_worker(coordinator)
            async with (
                asyncio.timeout(30),
                worker.client.consumer(
                    GROUP,
                    {"work": 1},
                    "range",
                    on_revoked=_in_thread(on_revoked, callbacks),
                    on_lost=_in_thread(lambda removed: calls.append("on_lost"), callbacks),
                ) as member,
            ):
                await member.wait_assigned()
                member.rejoin("the share is revoked")
                await until(has_begun.is_set)
                may_return.set()
                callbacks.workers.submit(int).result(10)  # The one thread is free: on_revoked has returned.
                member._withdraw("the share is lost")

    asyncio.run(main())
    assert calls == ["on_revoked returns"]


class _Impatient(asyncio.Event):
    """Fails where it is waited for again and again although it is set: the event loop would never run."""

    waits = 0

    async def wait(self) -> Literal[True]:
        self.waits += 1
        assert self.waits < 10
        return await super().wait()


@in_virtual_time
async def test_a_member_that_ends_while_it_steps_aside_blocks_no_loop() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        worker.cable.send = lambda *_, **__: asyncio.sleep(3_600)  # type: ignore[assignment]
        member = worker.member()
        changed = member._driver.changed = _Impatient()
        await member.start()
        stepping = asyncio.create_task(member.step_aside("for a while"))
        await asyncio.sleep(0.01)  # Its first join is under way: the coordinator gives it an id.
        assert member._driver._is_naming

        member._driver.react(member._machine.abandon())
        async with asyncio.timeout(10):
            await stepping

        assert changed.waits < 10
        await member.close()


@in_virtual_time
async def test_a_commit_answered_as_the_deadline_passes_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process stands still between the answer and its reading, for longer than its session."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        is_answered, may_be_read, send = asyncio.Event(), asyncio.Event(), worker.cable.send

        async def send_and_wait(request: Request, *, timeout_ms: int) -> Answer:
            answer = await send(request, timeout_ms=timeout_ms)
            if isinstance(request, CommitOffsets):
                is_answered.set()
                await may_be_read.wait()
            return answer

        monkeypatch.setattr(worker.cable, "send", send_and_wait)
        async with worker.client.consumer(GROUP, {"work": 1}, session_timeout=SESSION_S) as member:
            await member.wait_assigned()
            commit = asyncio.create_task(member.commit([OffsetToCommit("work", 0, 1)]))
            await is_answered.wait()
            may_be_read.set()
            pause(SESSION_S)
            await commit
            await until(lambda: member.assignment is None)


@in_virtual_time
async def test_an_uncertain_commit_is_not_followed_by_a_lower_one() -> None:
    """Its first try was made, but its answer was lost; the second came too late for its generation."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with worker.client.consumer(GROUP, {"work": 1}, "range", session_timeout=SESSION_S) as member:
            await member.wait_assigned()
            member.store("work", 0, 2)
            worker.cable.lost_answers.append(CommitOffsets)
            worker.cable.refused.append((CommitOffsets, ErrorCode.ILLEGAL_GENERATION))
            commit = asyncio.create_task(member.commit([OffsetToCommit("work", 0, 4)]))
            await until(lambda: not worker.cable.refused)
            member.rejoin("for the test")
            with pytest.raises(CoordinatorUnreachable, match="not known whether"):
                await commit
            await until(lambda: member.generation_id == 2)

        sent = [
            item.offset for each in worker.cable.requests if isinstance(each, CommitOffsets) for item in each.offsets
        ]
        assert sent == sorted(sent)
        assert sent[0] == sent[-1] == 4
