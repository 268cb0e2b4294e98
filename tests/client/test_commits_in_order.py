"""Commits of one member, in virtual time: in order, flushed before shares are given up, and never back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from rota.client import (
    Consumer,
    CoordinatorError,
    CoordinatorUnreachable,
    InvalidRequest,
    MembershipLost,
    OffsetToCommit,
)
from rota.core.assignors import TopicPartition
from rota.core.membership import State
from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import CommitOffsets, LeaveGroup, Request
from rota.protocol.wire.replies import Received
from tests.client.stage import GROUP, SESSION_S, Cable, Worker, a_coordinator, a_worker, until
from tests.client.virtual_time import in_virtual_time

PLACE = ("work", 0)


class Busy(Cable):
    """A coordinator that is not available for the next commits, or calls of another kind."""

    kind: type[Request] = CommitOffsets
    refusals = 0
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE

    async def send(self, request: Request, *, timeout_ms: int) -> Received:
        if isinstance(request, self.kind) and self.refusals > 0:
            self.refusals -= 1
            self.requests.append(request)
            return Received(refuse(request, self.code, "busy"))
        return await super().send(request, timeout_ms=timeout_ms)  # type: ignore[return-value]


def a_busy_worker(coordinator: object) -> Worker:
    worker = a_worker(coordinator)  # type: ignore[arg-type]
    worker.cable.__class__ = Busy
    return worker


def a_consumer(worker: Worker, **options: object) -> Consumer:
    return worker.client.consumer(GROUP, {"work": 2}, session_timeout=SESSION_S, **options)  # type: ignore[arg-type]


@in_virtual_time
async def test_a_repeated_earlier_commit_overwrites_no_later_one() -> None:
    async with a_coordinator() as coordinator:
        worker = a_busy_worker(coordinator)
        outcomes: list[int] = []

        def note(items: Sequence[OffsetToCommit], error: CoordinatorError | None) -> None:
            assert error is None
            outcomes.append(items[0].offset)

        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            worker.cable.refusals = 1  # type: ignore[attr-defined]
            consumer.commit_soon([OffsetToCommit(*PLACE, 5)], note)
            consumer.commit_soon([OffsetToCommit(*PLACE, 10)], note)
            await until(lambda: len(outcomes) == 2)
            assert (outcomes, await worker.committed()) == ([5, 10], {0: 10})


@in_virtual_time
async def test_background_commits_are_sent_before_the_leave() -> None:
    async with a_coordinator() as coordinator:
        worker = a_busy_worker(coordinator)
        published: list[CoordinatorError | None] = []
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            worker.cable.refusals = 3  # type: ignore[attr-defined]
            consumer.commit_soon([OffsetToCommit(*PLACE, 7)], lambda _, error: published.append(error))
        assert (published, await worker.committed()) == ([None], {0: 7})
        kinds = [type(each) for each in worker.cable.requests]
        last_commit = max(number for number, kind in enumerate(kinds) if kind is CommitOffsets)
        assert last_commit < kinds.index(LeaveGroup)


@in_virtual_time
async def test_an_offset_stored_before_a_commit_is_not_sent_after_it() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker, auto_commit_interval=0.1) as consumer:
            await consumer.wait_assigned()
            consumer.store(*PLACE, 6)
            await consumer.commit([OffsetToCommit(*PLACE, 7)])
            await asyncio.sleep(1)
            assert await worker.committed() == {0: 7}


@in_virtual_time
@pytest.mark.parametrize("offset", [-1, 2**63, 1.5, "7"])
async def test_an_unacceptable_offset_is_rejected_where_it_is_stored(offset: object) -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker, auto_commit_interval=0.1) as consumer:
            await consumer.wait_assigned()
            with pytest.raises(InvalidRequest, match="work/0"):
                consumer.store(*PLACE, offset)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest, match="OFFSET_METADATA_TOO_LARGE"):
                consumer.store(*PLACE, 1, "x" * 5_000)
            consumer.store("work", 1, 3)
            await asyncio.sleep(1)
            assert await worker.committed() == {1: 3}


@in_virtual_time
async def test_one_rejected_offset_does_not_hold_back_the_others() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            good = asyncio.create_task(consumer.commit([OffsetToCommit("work", 1, 3)]))
            bad = asyncio.create_task(consumer.commit([OffsetToCommit(*PLACE, 3, metadata="x" * 5_000)]))
            await good
            with pytest.raises(InvalidRequest, match="OFFSET_METADATA_TOO_LARGE"):
                await bad
            assert await worker.committed() == {1: 3}


@in_virtual_time
async def test_an_error_in_the_outcomes_function_ends_the_member() -> None:
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        lost: list[object] = []

        def broken(items: Sequence[OffsetToCommit], error: CoordinatorError | None) -> None:
            raise ZeroDivisionError

        consumer = a_consumer(worker, on_lost=lost.append)
        await consumer.start()
        await consumer.wait_assigned()
        consumer.commit_soon([OffsetToCommit(*PLACE, 7)], broken)
        await until(lambda: consumer.is_over)
        with pytest.raises(ZeroDivisionError):
            await consumer.close()
        assert len(lost) == 1
        assert any(isinstance(request, LeaveGroup) for request in worker.cable.requests)


@in_virtual_time
async def test_a_commit_of_before_a_loss_is_not_sent_after_it() -> None:
    """The partition may have been another member's meanwhile, with more progress."""
    async with a_coordinator() as coordinator:
        worker = a_busy_worker(coordinator)
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            worker.cable.refusals = 1_000_000  # type: ignore[attr-defined]
            committing = asyncio.create_task(consumer.commit([OffsetToCommit(*PLACE, 5)]))
            await asyncio.sleep(0.2)
            consumer._withdraw("a test")
            consumer.come_back()
            await consumer.wait_assigned()
            worker.cable.refusals = 0  # type: ignore[attr-defined]
            with pytest.raises(CoordinatorError):
                await committing
            assert await worker.committed() == {}


@in_virtual_time
async def test_on_revoked_may_wait_for_a_commit_that_is_retried() -> None:
    async with a_coordinator() as coordinator:
        worker = a_busy_worker(coordinator)
        worker.cable.code = ErrorCode.REBALANCE_IN_PROGRESS  # type: ignore[attr-defined]
        third = a_consumer(a_worker(coordinator, "third"))
        took: list[float] = []

        async def on_revoked(removed: Sequence[object]) -> None:
            if took:
                return
            await third.start()
            await until(lambda: consumer._machine.state is State.REVOKING)
            began = asyncio.get_running_loop().time()
            worker.cable.refusals = 1  # type: ignore[attr-defined]
            await consumer.commit([OffsetToCommit(*PLACE, 3), OffsetToCommit("work", 1, 3)])
            took.append(asyncio.get_running_loop().time() - began)

        consumer = a_consumer(worker, on_revoked=on_revoked)
        async with consumer:
            await consumer.wait_assigned()
            async with a_consumer(a_worker(coordinator, "second")):
                await until(lambda: bool(took))
            assert took[0] < 1
            assert await worker.committed() == {0: 3, 1: 3}
            await third.close()


@in_virtual_time
async def test_a_commit_that_fails_after_a_revocation_stores_nothing() -> None:
    """An offset that was stored before it would be committed later, behind the progress of another member."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
            consumer.store(*PLACE, 14)
            worker.cable.pull()
            commit = asyncio.create_task(consumer.commit([OffsetToCommit(*PLACE, 15)]))
            await asyncio.sleep(0)
            consumer._forget((TopicPartition(*PLACE),))  # As once `on_revoked` has returned.
            consumer._commits.drop()
            with pytest.raises(CoordinatorError):
                await commit
            worker.cable.plug_in()
            await consumer.commit()
            assert await worker.committed() == {}


@in_virtual_time
async def test_a_last_commit_of_a_former_generation_is_not_repeated() -> None:
    async with a_coordinator() as coordinator:
        worker, errors = a_busy_worker(coordinator), list[type[CoordinatorError]]()
        worker.cable.code, worker.cable.refusals = ErrorCode.ILLEGAL_GENERATION, 1  # type: ignore[attr-defined]

        async def on_revoked(removed: object) -> None:
            try:
                await consumer.commit([OffsetToCommit(*PLACE, 7)])
            except CoordinatorError as error:
                errors.append(type(error))

        consumer = a_consumer(worker, strategy="range", on_revoked=on_revoked)
        async with asyncio.timeout(10), consumer:
            await consumer.wait_assigned()
            consumer.rejoin("its share is revoked")
            await until(lambda: bool(errors))
            assert errors == [MembershipLost]


@in_virtual_time
async def test_a_busy_coordinator_is_asked_again_to_let_a_member_leave() -> None:
    async with a_coordinator() as coordinator:
        worker = a_busy_worker(coordinator)
        worker.cable.kind, worker.cable.refusals = LeaveGroup, 5  # type: ignore[attr-defined]
        async with a_consumer(worker) as consumer:
            await consumer.wait_assigned()
        leaves = sum(isinstance(request, LeaveGroup) for request in worker.cable.requests)
        assert (leaves, worker.cable.refusals) == (6, 0)  # type: ignore[attr-defined]


@in_virtual_time
async def test_a_commit_that_outlasts_a_handover_is_not_sent_again() -> None:
    """The same partition comes back, and another member has committed more in between."""
    async with a_coordinator() as coordinator:
        worker, other = a_worker(coordinator), a_worker(coordinator, "other")
        async with worker.client.consumer(GROUP, {"work": 1}, "range", session_timeout=SESSION_S) as first:
            await first.wait_assigned()
            worker.cable.commits_may_go.clear()
            outlasting = asyncio.create_task(first.commit([OffsetToCommit(*PLACE, 5)]))
            await until(lambda: bool(first._commits._under_way))
            first.rejoin("for the other")
            async with other.client.consumer(GROUP, {"work": 1}, "range", session_timeout=SESSION_S) as second:
                await until(lambda: first.assignment == () or second.assignment is not None)
                holder = second if second.assignment else first
                assert holder is second, "the test needs the partition to move"
                await second.commit([OffsetToCommit(*PLACE, 100)])
            await until(lambda: first.assignment == (TopicPartition(*PLACE),))
            worker.cable.commits_may_go.set()

            with pytest.raises(MembershipLost):
                await outlasting
            await asyncio.sleep(SESSION_S)
            assert await worker.committed() == {0: 100}


@in_virtual_time
async def test_a_commit_in_doubt_takes_no_progress_back() -> None:
    """It was made, its answer was lost, and then the permission: what was stored before it is not sent again."""
    async with a_coordinator() as coordinator:
        worker = a_worker(coordinator)
        async with a_consumer(worker, auto_commit_interval=1.0) as consumer:
            await consumer.wait_assigned()
            consumer.store(*PLACE, 2)
            worker.cable.lost_answers.append(CommitOffsets)
            worker.cable.refused.append((CommitOffsets, ErrorCode.GROUP_AUTHORIZATION_FAILED))
            with pytest.raises(CoordinatorUnreachable, match="it is not known whether this was committed"):
                await consumer.commit([OffsetToCommit(*PLACE, 4)])
            await asyncio.sleep(3)
            assert await worker.committed() == {0: 4}
