"""The contract of `ShardStore`, the same for the twin in memory, SQLite and Postgres."""

from __future__ import annotations

import asyncio

import pytest

from rota.core.group.rows import RowChanges, ShardImage
from rota.core.replica.ports import ShardClaim, ShardStore
from rota.protocol.errors import ErrorCode, LinesPruned, ReaderIsAhead
from tests.contracts.builders import (
    A_MINUTE_MS,
    AT_MS,
    a_batch,
    a_group,
    a_member,
    a_topic,
    an_event,
    an_offset,
    claim_one,
    image_of,
)
from tests.contracts.conftest import SHARD_COUNT, Backing

# --- the journal ------------------------------------------------------------------------------


async def test_appended_lines_are_read_in_order_with_their_epoch(store: ShardStore) -> None:
    await claim_one(store)
    claim = await claim_one(store)

    assert await store.append([a_batch(claim, an_event(1), an_event(2))]) == []

    assert await store.read_events(0, 0, 10) == [an_event(1, epoch=2), an_event(2, epoch=2)]


async def test_a_line_keeps_whatever_json_it_carries(store: ShardStore) -> None:
    payload = {
        "text": 'Grüße, 世界, 🎈, " \\ \n',
        "nothing": None,
        "numbers": [0, -1, 2**53 + 1, 1.5],
        "nested": {"": [True, False, {}, []]},
        "long": "x" * 300_000,
    }
    claim = await claim_one(store)
    event = an_event(1, group_id="", namespace="", generation_id=-1, reason="weil 世界", payload=payload)

    await store.append([a_batch(claim, event)])

    (read,) = await store.read_events(0, 0, 1)
    assert read == an_event(
        1, group_id="", namespace="", generation_id=-1, reason="weil 世界", payload=payload, epoch=1, at_ms=event.at_ms
    )


@pytest.mark.parametrize("at_ms", [0, 1, AT_MS, 1_999_999_999_999, 4_102_444_799_999])
async def test_a_line_keeps_its_time_to_the_millisecond(store: ShardStore, at_ms: int) -> None:
    claim = await claim_one(store)

    await store.append([a_batch(claim, an_event(1, at_ms=at_ms))])

    (read,) = await store.read_events(0, 0, 1)
    assert read.at_ms == at_ms


async def test_the_journal_is_read_in_pages(store: ShardStore) -> None:
    claim = await claim_one(store)
    day_ms = 86_400_000
    await store.append([a_batch(claim, *(an_event(n, at_ms=AT_MS + n * day_ms) for n in range(1, 8)))])

    pages = [await store.read_events(0, after, 3) for after in (0, 3, 6, 7)]

    assert [[event.seq for event in page] for page in pages] == [[1, 2, 3], [4, 5, 6], [7], []]


async def test_the_journal_of_one_group_is_read_by_its_name(store: ShardStore) -> None:
    claim = await claim_one(store)
    names = [("a", "g"), ("b", "g"), ("a", "h"), ("a", "g"), ("", "")]
    events = [an_event(0, namespace=namespace, group_id=group_id) for namespace, group_id in names]
    await store.append([a_batch(claim, *events)])

    async def seqs(after: int = 0, limit: int = 9, **names: str) -> list[int]:
        return [event.seq for event in await store.read_events(0, after, limit, **names)]

    assert await seqs(namespace="a", group_id="g") == [1, 4]
    assert await seqs(namespace="a", group_id="g", after=1) == [4]
    assert await seqs(namespace="a", group_id="g", limit=1) == [1]
    assert await seqs(namespace="a") == [1, 3, 4]
    assert await seqs(group_id="g") == [1, 2, 4]
    assert await seqs(namespace="b", group_id="h") == []


@pytest.mark.parametrize("limit", [0, 10])
async def test_a_reader_beyond_the_journals_end_is_refused(store: ShardStore, limit: int) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, an_event(1), an_event(2))])
    assert await store.read_events(0, 2, limit) == []

    refusals = []
    for shard_id, after in ((0, 3), (0, 1_000), (1, 1)):
        with pytest.raises(ReaderIsAhead, match="read the present state") as refused:
            await store.read_events(shard_id, after, limit, namespace="default", group_id="g")
        refusals.append(refused.value)

    assert [refusal.code for refusal in refusals] == [ErrorCode.REVISION_OUT_OF_RANGE] * 3
    ends = [(each.after_revision, each.first_revision, each.last_revision) for each in refusals]
    assert ends == [(3, 1, 2), (1_000, 1, 2), (1, 1, 0)]
    assert [each.incarnation for each in refusals[:2]] == [store.incarnation] * 2  # type: ignore[attr-defined]
    assert refusals[2].incarnation in ("", store.incarnation)  # type: ignore[attr-defined]


@pytest.mark.parametrize("limit", [0, 1, 9])
@pytest.mark.parametrize("names", [{}, {"namespace": "default", "group_id": "h"}, {"group_id": "none"}])
async def test_a_reader_behind_pruned_lines_is_refused(
    store: ShardStore, backing: Backing, limit: int, names: dict[str, str]
) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, *(an_event(n, group_id=name) for n, name in enumerate("ghghg")))])
    await backing.prune(0, up_to=3)

    async def first_revision(after: int) -> int:
        with pytest.raises(LinesPruned) as refused:
            await store.read_events(0, after, limit, **names)
        assert refused.value.code is ErrorCode.REVISION_OUT_OF_RANGE
        return refused.value.first_revision

    assert [await first_revision(after) for after in (0, 1, 2)] == [4, 4, 4]


async def test_a_reader_at_the_first_line_that_is_left_reads_on(store: ShardStore, backing: Backing) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, *(an_event(n, group_id=name) for n, name in enumerate("ghghg")))])
    await backing.prune(0, up_to=3)
    left = await store.read_events(0, 3, 9)
    await backing.prune(0, up_to=5)

    none_left = await store.read_events(0, 5, 9)
    with pytest.raises(LinesPruned, match="begins at revision 6: revisions 5 to 5 are pruned"):
        await store.read_events(0, 4, 9)

    assert [event.seq for event in left] == [4, 5]
    assert none_left == []
    assert await store.append([a_batch(claim, an_event(6), after=5)]) == []
    assert [event.seq for event in await store.read_events(0, 5, 9)] == [6]


async def test_shards_have_journals_of_their_own(store: ShardStore) -> None:
    claims = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)

    await store.append([a_batch(claims[0], an_event(1, "g"), an_event(2, "g")), a_batch(claims[1], an_event(1, "h"))])

    assert [event.group_id for event in await store.read_events(0, 0, 9)] == ["g", "g"]
    assert [event.group_id for event in await store.read_events(1, 0, 9)] == ["h"]


# --- refusals ---------------------------------------------------------------------------------


async def test_an_old_epoch_is_rejected_while_other_shards_land(store: ShardStore) -> None:
    old, other = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)
    await claim_one(store, 0, "r-2", steal=True)
    changes = RowChanges(groups=[a_group()], members=[a_member()], offsets=[an_offset()], topics=[a_topic()])

    refused = await store.append([a_batch(old, rows=changes), a_batch(other, rows=changes)])

    assert refused == [0]
    assert await image_of(store, 0) == ShardImage(0)
    assert await store.read_events(0, 0, 9) == []
    image = await image_of(store, 1)
    assert (image.last_seq, image.groups, image.members) == (1, (a_group(),), (a_member(),))
    assert (image.offsets, image.topics) == ((an_offset(),), (a_topic(),))


async def test_shards_that_are_loaded_together_do_not_mix(store: ShardStore) -> None:
    first, second = await store.claim([2, 5], "r-1", "http://one", A_MINUTE_MS)
    ours = RowChanges(groups=[a_group()], members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    theirs = RowChanges(groups=[a_group("h")], members=[a_member("m-2")])
    await store.append([a_batch(first, rows=ours), a_batch(second, rows=theirs)])
    await store.append([a_batch(second, after=1)])

    assert await store.load([5, 3, 2]) == [
        ShardImage(5, 2, (a_group("h"),), (a_member("m-2"),)),
        ShardImage(3),
        ShardImage(2, 1, (a_group(),), (a_member(),), (an_offset(),), (a_topic(),)),
    ]


@pytest.mark.parametrize("after", [0, 2, 5])
async def test_a_batch_beyond_the_journals_end_is_rejected(store: ShardStore, after: int) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim)])

    assert await store.append([a_batch(claim, after=after, rows=RowChanges(groups=[a_group()]))]) == [0]

    assert (await image_of(store, 0)).last_seq == 1
    assert (await image_of(store, 0)).groups == ()
    assert await store.append([a_batch(claim, after=1)]) == []


async def test_a_shard_that_nobody_claimed_takes_no_batch(store: ShardStore) -> None:
    assert await store.append([a_batch(ShardClaim(7, 1, 0))]) == [7]
    assert await store.append([a_batch(ShardClaim(7, 0, 0))]) == [7]


async def test_a_released_shard_takes_its_owners_batch_until_a_claim(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.release([claim], "r-1")

    assert await store.append([a_batch(claim)]) == []
    await claim_one(store, 0, "r-2")
    assert await store.append([a_batch(claim, after=1)]) == [0]


async def test_a_batch_without_events_writes_rows_and_checks_the_epoch(store: ShardStore) -> None:
    old = await claim_one(store)
    silent = a_batch(old, rows=RowChanges(topics=[a_topic()]))
    silent = type(silent)(old.shard_id, old.epoch, 1, (), silent.rows)

    assert await store.append([silent]) == []
    await claim_one(store)
    assert await store.append([silent]) == [0]

    image = await image_of(store, 0)
    assert (image.last_seq, image.topics) == (0, (a_topic(),))


async def test_two_writers_leave_the_journal_of_the_newer_epoch(store: ShardStore) -> None:
    old = await claim_one(store, 0, "r-1")

    async def write(claim: ShardClaim, name: str) -> int:
        landed = claim.last_seq
        for _ in range(20):
            if await store.append([a_batch(claim, an_event(0, name), after=landed)]) == [0]:
                break
            landed += 1
        return landed

    async def take_over() -> int:
        return await write(await claim_one(store, 0, "r-2", steal=True), "new")

    old_end, new_end = await asyncio.gather(write(old, "old"), take_over())

    events = await store.read_events(0, 0, 100)
    assert [event.seq for event in events] == list(range(1, new_end + 1))
    assert [event.epoch for event in events] == [1] * old_end + [2] * 20
    assert [event.group_id for event in events] == ["old"] * old_end + ["new"] * 20


async def test_appends_of_many_shards_in_any_order_never_deadlock(store: ShardStore) -> None:
    claims = await store.claim(range(SHARD_COUNT), "r-1", "http://one", A_MINUTE_MS)

    async def race(order: list[ShardClaim], name: str) -> int:
        refused = await store.append([a_batch(claim, an_event(1, name)) for claim in order])
        return len(order) - len(refused)

    landed = await asyncio.gather(*(race(claims[:: 1 if n % 2 else -1], f"g{n}") for n in range(6)))

    assert sum(landed) == SHARD_COUNT
    assert [owner.last_seq for owner in await store.owners()] == [1] * SHARD_COUNT
