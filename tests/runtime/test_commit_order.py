"""Nothing is answered before it is durable, and nothing durable is contradicted by an answer."""

from __future__ import annotations

import asyncio
from typing import Any

from rota.core.replica.ports import Answer
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import (
    CommitOffsets,
    FetchOffsets,
    FetchReply,
    Heartbeat,
    OffsetToCommit,
    Protocol,
)
from rota.server.runtime.coordinator import LocalCoordinator
from rota.testing.memory import MemoryTables
from tests.client.virtual_time import LoopClock, in_virtual_time
from tests.runtime.conftest import EVENTUALLY_S, NOW, FaultyStore, a_join, a_stable_member, until, until_ready


def a_commit(offset: int, group_id: str = "simple") -> CommitOffsets:
    return CommitOffsets("default", group_id, -1, (OffsetToCommit("t", 0, offset),))


async def fetched(coordinator: LocalCoordinator, group_id: str = "simple") -> int:
    reply = (await coordinator.call(FetchOffsets("default", group_id))).reply
    assert isinstance(reply, FetchReply)
    return reply.offsets[0].offset if reply.offsets else -1


async def test_an_answer_waits_until_its_facts_are_durable(coordinator: LocalCoordinator, store: FaultyStore) -> None:
    store.open_gate.clear()

    call = asyncio.create_task(coordinator.call(a_commit(7)))
    await store.waiting.wait()
    answered_before = call.done()
    store.open_gate.set()
    answer = await call

    assert not answered_before
    assert answer.reply.error is ErrorCode.NONE
    assert answer.revision > 0


async def test_an_error_of_one_caller_costs_no_other_answer(coordinator: LocalCoordinator, store: FaultyStore) -> None:
    """Those of one batch are given out together; what a caller raises is reported, and the shard goes on."""
    store.open_gate.clear()
    coordinator.submit(a_commit(0), lambda _: None)
    await store.waiting.wait()
    errors: list[dict[str, object]] = []
    answers: list[Answer] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    epoch_before = coordinator.locate("default", "simple").epoch

    for done in (answers.append, _raise, answers.append):
        coordinator.submit(a_commit(1), done)
    store.open_gate.set()
    await until(lambda: len(answers) == 2)

    assert [type(context["exception"]) for context in errors] == [ZeroDivisionError]
    assert answers[1].revision == answers[0].revision + 2
    assert coordinator.locate("default", "simple").epoch == epoch_before


def _raise(_: Answer) -> None:
    raise ZeroDivisionError


async def test_a_failed_write_is_retriable_and_changed_nothing(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    await coordinator.call(a_commit(1))
    store.fail = True

    refused = await coordinator.call(a_commit(2))
    store.fail = False
    await until_ready(coordinator)

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await fetched(coordinator) == 1


async def test_an_unknown_outcome_makes_the_owner_claim_the_shard_anew(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    epoch_before = coordinator.locate("default", "simple").epoch
    store.lose_answer = True

    refused = await coordinator.call(a_commit(2))
    store.lose_answer = False
    await until_ready(coordinator)

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.locate("default", "simple").epoch > epoch_before
    assert await fetched(coordinator) == 2, "it had landed, and the reload finds it"


async def test_an_append_that_raises_costs_its_shards_and_not_the_process(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    """Such as a value that a store cannot encode: the journal's JSON has no NaN."""
    epoch_before = coordinator.locate("default", "simple").epoch
    store.broken = ValueError("Out of range float values are not JSON compliant")

    refused = await coordinator.call(a_commit(2))
    await until_ready(coordinator)

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.locate("default", "simple").epoch > epoch_before
    assert (await coordinator.call(a_commit(3))).reply.error is ErrorCode.NONE


async def test_a_record_without_a_line_costs_its_shard_and_not_the_process(coordinator: LocalCoordinator) -> None:
    no_bytes: Any = "text where the journal's line needs bytes"

    refused = await coordinator.call(a_join(protocols=(Protocol("p", no_bytes),)))
    await until_ready(coordinator)

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await coordinator.call(a_commit(3))).reply.error is ErrorCode.NONE


async def test_an_overtaken_owner_writes_nothing_and_drops_the_shard(
    coordinator: LocalCoordinator, store: FaultyStore, tables: MemoryTables
) -> None:
    await coordinator.call(a_commit(1))
    for shard_id in range(2):
        tables.claim([shard_id], "usurper", "", 60_000, steal=True)

    refused = await coordinator.call(a_commit(2))

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not coordinator.ready()[0]


async def test_a_restart_keeps_everything_that_was_acknowledged(tables: MemoryTables) -> None:
    store = FaultyStore(tables)
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2, limits=NOW, replica_id="r1") as first:
        await until_ready(first)
        joined = await a_stable_member(first)

    async with LocalCoordinator(store, shard_count=2, limits=NOW, replica_id="r2") as second:
        await until_ready(second)
        beat = await second.call(Heartbeat("default", "g", joined.member_id, joined.generation_id))

    assert beat.reply.error is ErrorCode.NONE


@in_virtual_time
async def test_an_append_of_unknown_outcome_costs_every_shard_in_it() -> None:
    clock = LoopClock()
    store = FaultyStore(MemoryTables(clock.monotonic_ms))
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2, limits=NOW, clock=clock) as coordinator:
        await until_ready(coordinator)
        epochs_before = {owner.shard_id: owner.epoch for owner in coordinator.owners()}
        store.fail = True

        calls = [asyncio.create_task(coordinator.call(a_commit(1, group_id))) for group_id in ("b", "c", "d", "e")]
        _, unanswered = await asyncio.wait(calls, timeout=EVENTUALLY_S)
        assert not unanswered
        store.fail = False
        await until_ready(coordinator)

        assert {call.result().reply.error for call in calls} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert all(owner.epoch > epochs_before[owner.shard_id] for owner in coordinator.owners())


async def test_what_is_decided_during_an_append_is_in_the_next_one(
    coordinator: LocalCoordinator, store: FaultyStore
) -> None:
    store.open_gate.clear()
    first = asyncio.create_task(coordinator.call(a_commit(1, "b")))
    await store.waiting.wait()
    appends = len(store.appends)
    later = [asyncio.create_task(coordinator.call(a_commit(1, group_id))) for group_id in ("c", "d", "e")]
    await asyncio.sleep(0)
    store.open_gate.set()

    await asyncio.gather(first, *later)

    assert store.appends[appends:] == [1, 3]


@in_virtual_time
async def test_a_lease_lost_in_an_outage_gives_full_sessions() -> None:
    clock = LoopClock()
    store = FaultyStore(MemoryTables(clock.monotonic_ms))
    await store.open(2)
    async with LocalCoordinator(store, shard_count=2, limits=NOW, clock=clock) as coordinator:
        await until_ready(coordinator)
        epoch_before = coordinator.locate("default", "g").epoch
        store.away = True
        await until(lambda: not coordinator.ready()[0])
        refused = await coordinator.call(a_commit(1))

        store.away = False
        await until(lambda: coordinator.locate("default", "g").epoch > epoch_before)
        await until_ready(coordinator)
        answer = await coordinator.call(a_commit(2))

    assert refused.reply.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert answer.reply.error is ErrorCode.NONE
