"""The contract of `ShardStore`, the same for the twin in memory, SQLite and Postgres."""

from __future__ import annotations

import asyncio

import pytest

from rota.group.rows import RowChanges, ShardImage
from rota.protocol.messages import Protocol
from rota.runtime.ports import ShardClaim, ShardStore, StoreRefused
from tests.contracts.builders import AT_MS, a_batch, a_group, a_member, a_topic, an_event, an_offset, image_of
from tests.contracts.conftest import SHARD_COUNT, Backing

A_MINUTE_MS = 60_000


async def claim_one(
    store: ShardStore, shard_id: int = 0, replica_id: str = "r-1", *, steal: bool = False
) -> ShardClaim:
    (claim,) = await store.claim([shard_id], replica_id, f"http://{replica_id}", A_MINUTE_MS, steal=steal)
    return claim


# --- claims and leases ------------------------------------------------------------------------


async def test_a_new_store_has_no_owners_and_empty_shards(store: ShardStore) -> None:
    assert await store.owners() == []
    assert await image_of(store, 3) == ShardImage(3)
    assert await store.read_events(3, 0, 10) == []


async def test_the_first_claim_of_a_shard_has_epoch_one_and_an_empty_journal(store: ShardStore) -> None:
    claims = await store.claim([5, 2], "r-1", "http://one", A_MINUTE_MS)

    assert claims == [ShardClaim(2, 1, 0), ShardClaim(5, 1, 0)]


async def test_owners_lists_every_claimed_shard_with_what_is_left_of_its_lease(store: ShardStore) -> None:
    await store.claim([1, 4], "r-1", "http://one", A_MINUTE_MS)

    owners = await store.owners()

    assert [(o.shard_id, o.replica_id, o.address, o.epoch, o.last_seq) for o in owners] == [
        (1, "r-1", "http://one", 1, 0),
        (4, "r-1", "http://one", 1, 0),
    ]
    assert all(A_MINUTE_MS - 10_000 < o.lease_left_ms <= A_MINUTE_MS for o in owners)


async def test_a_shard_under_lease_is_not_given_to_another_replica(store: ShardStore) -> None:
    await claim_one(store, 1, "r-1")

    claims = await store.claim([1, 2], "r-2", "http://two", A_MINUTE_MS)

    assert claims == [ShardClaim(2, 1, 0)]
    assert [(o.shard_id, o.replica_id) for o in await store.owners()] == [(1, "r-1"), (2, "r-2")]


async def test_a_replica_that_claims_its_own_shard_again_gets_a_new_epoch(store: ShardStore) -> None:
    first = await claim_one(store)

    again = await claim_one(store)

    assert again.epoch == first.epoch + 1


async def test_a_lease_that_is_over_lets_another_replica_in_with_a_new_epoch(
    store: ShardStore, backing: Backing
) -> None:
    (old,) = await store.claim([0], "r-1", "http://one", backing.lease_ms)
    await backing.until_over(store, old)

    new = await claim_one(store, 0, "r-2")

    assert new.epoch == old.epoch + 1
    assert await store.renew([old], "r-1", A_MINUTE_MS) == []


async def test_a_lease_that_is_over_can_be_renewed_as_long_as_nobody_took_the_shard(
    store: ShardStore, backing: Backing
) -> None:
    (claim,) = await store.claim([0], "r-1", "http://one", backing.lease_ms)
    await backing.until_over(store, claim)

    assert await store.renew([claim], "r-1", A_MINUTE_MS) == [0]
    assert await store.claim([0], "r-2", "http://two", A_MINUTE_MS) == []


async def test_steal_takes_a_shard_whatever_its_lease_says(store: ShardStore) -> None:
    old = await claim_one(store, 0, "r-1")

    new = await claim_one(store, 0, "r-2", steal=True)

    assert new.epoch == old.epoch + 1


async def test_renewing_prolongs_only_what_is_still_ours_with_the_claims_epoch(store: ShardStore) -> None:
    claims = await store.claim([0, 1, 2, 3], "r-1", "http://one", 20_000)
    await claim_one(store, 1, "r-1")
    await claim_one(store, 2, "r-2", steal=True)

    assert await store.renew(claims, "r-1", 600_000) == [0, 3]
    lefts = {owner.shard_id: owner.lease_left_ms for owner in await store.owners()}
    assert min(lefts[0], lefts[3]) > A_MINUTE_MS >= max(lefts[1], lefts[2])


async def test_renewing_in_another_replicas_name_does_nothing(store: ShardStore) -> None:
    claim = await claim_one(store, 0, "r-1")

    assert await store.renew([claim], "r-2", A_MINUTE_MS) == []


async def test_a_released_shard_is_free_at_once(store: ShardStore) -> None:
    claims = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)

    await store.release(claims[:1], "r-1")

    assert await store.claim([0, 1], "r-2", "http://two", A_MINUTE_MS) == [ShardClaim(0, 2, 0)]


async def test_releasing_a_shard_that_was_claimed_again_since_does_nothing(store: ShardStore) -> None:
    old = await claim_one(store)
    await claim_one(store)

    await store.release([old], "r-1")

    assert await store.claim([0], "r-2", "http://two", A_MINUTE_MS) == []


async def test_asking_for_nothing_answers_nothing(store: ShardStore) -> None:
    await store.ping()

    assert await store.claim([], "r-1", "http://one", A_MINUTE_MS) == []
    assert await store.renew([], "r-1", A_MINUTE_MS) == []
    assert await store.append([]) == []
    await store.release([], "r-1")


async def test_of_many_replicas_that_claim_at_once_each_shard_goes_to_one(store: ShardStore) -> None:
    shard_ids = list(range(SHARD_COUNT))

    claims = await asyncio.gather(*(store.claim(shard_ids, f"r-{n}", "http://any", A_MINUTE_MS) for n in range(6)))

    assert sorted(claim.shard_id for taken in claims for claim in taken) == shard_ids
    assert {claim.epoch for taken in claims for claim in taken} == {1}


# --- the journal ------------------------------------------------------------------------------


async def test_appended_lines_are_read_back_in_order_with_the_epoch_that_wrote_them(store: ShardStore) -> None:
    await claim_one(store)
    claim = await claim_one(store)

    assert await store.append([a_batch(claim, an_event(1), an_event(2))]) == []

    assert await store.read_events(0, 0, 10) == [an_event(1, epoch=2), an_event(2, epoch=2)]


async def test_a_claim_says_where_the_journal_ends(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, an_event(1), an_event(2), an_event(3))])

    assert (await claim_one(store)).last_seq == 3
    assert [owner.last_seq for owner in await store.owners()] == [3]
    assert (await image_of(store, 0)).last_seq == 3


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


async def test_what_the_caller_does_to_a_payload_later_does_not_change_the_journal(store: ShardStore) -> None:
    payload = {"members": ["m-1"]}
    claim = await claim_one(store)
    await store.append([a_batch(claim, an_event(1, payload=payload))])

    payload["members"].append("m-2")

    (read,) = await store.read_events(0, 0, 1)
    assert read.payload == {"members": ["m-1"]}


@pytest.mark.parametrize("at_ms", [0, 1, AT_MS, 1_999_999_999_999, 4_102_444_799_999])
async def test_a_line_keeps_its_time_to_the_millisecond_on_whatever_day(store: ShardStore, at_ms: int) -> None:
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


async def test_shards_have_journals_of_their_own(store: ShardStore) -> None:
    claims = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)

    await store.append([a_batch(claims[0], an_event(1, "g"), an_event(2, "g")), a_batch(claims[1], an_event(1, "h"))])

    assert [event.group_id for event in await store.read_events(0, 0, 9)] == ["g", "g"]
    assert [event.group_id for event in await store.read_events(1, 0, 9)] == ["h"]


# --- what is refused --------------------------------------------------------------------------


async def test_an_old_epoch_is_refused_and_nothing_of_it_written_while_other_shards_land(store: ShardStore) -> None:
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


async def test_an_old_epochs_deletions_are_refused_too(store: ShardStore) -> None:
    old = await claim_one(store)
    await store.append([a_batch(old, rows=RowChanges(members=[a_member()], offsets=[an_offset()], topics=[a_topic()]))])
    before = await image_of(store, 0)
    await claim_one(store, 0, "r-2", steal=True)
    deletions = RowChanges(
        members_deleted=[("default", "g", "m-1")],
        offsets_deleted=[("default", "g", "documents", 0)],
        topics_deleted=[("default", "documents")],
    )

    assert await store.append([a_batch(old, after=1, rows=deletions)]) == [0]

    assert await image_of(store, 0) == before


@pytest.mark.parametrize("after", [0, 2, 5])
async def test_a_batch_that_does_not_follow_the_journals_end_is_refused(store: ShardStore, after: int) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim)])

    assert await store.append([a_batch(claim, after=after, rows=RowChanges(groups=[a_group()]))]) == [0]

    assert (await image_of(store, 0)).last_seq == 1
    assert (await image_of(store, 0)).groups == ()
    assert await store.append([a_batch(claim, after=1)]) == []


async def test_a_shard_that_nobody_claimed_takes_no_batch(store: ShardStore) -> None:
    assert await store.append([a_batch(ShardClaim(7, 1, 0))]) == [7]
    assert await store.append([a_batch(ShardClaim(7, 0, 0))]) == [7]


async def test_a_released_shard_still_takes_its_last_owners_batch_until_somebody_claims_it(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.release([claim], "r-1")

    assert await store.append([a_batch(claim)]) == []
    await claim_one(store, 0, "r-2")
    assert await store.append([a_batch(claim, after=1)]) == [0]


async def test_a_batch_without_events_writes_its_rows_and_checks_the_epoch(store: ShardStore) -> None:
    old = await claim_one(store)
    silent = a_batch(old, rows=RowChanges(topics=[a_topic()]))
    silent = type(silent)(old.shard_id, old.epoch, 1, (), silent.rows)

    assert await store.append([silent]) == []
    await claim_one(store)
    assert await store.append([silent]) == [0]

    image = await image_of(store, 0)
    assert (image.last_seq, image.topics) == (0, (a_topic(),))


async def test_two_writers_with_two_epochs_leave_the_journal_of_the_newer_one(store: ShardStore) -> None:
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


async def test_of_two_batches_for_the_same_place_one_lands(store: ShardStore) -> None:
    claim = await claim_one(store)

    answers = await asyncio.gather(*(store.append([a_batch(claim, an_event(1, f"g{n}"))]) for n in range(4)))

    assert sorted(answers) == [[], [0], [0], [0]]
    assert [event.group_id for event in await store.read_events(0, 0, 9)] == [f"g{answers.index([])}"]


async def test_appends_of_many_shards_in_any_order_do_not_block_one_another_for_good(store: ShardStore) -> None:
    claims = await store.claim(range(SHARD_COUNT), "r-1", "http://one", A_MINUTE_MS)

    async def race(order: list[ShardClaim], name: str) -> int:
        refused = await store.append([a_batch(claim, an_event(1, name)) for claim in order])
        return len(order) - len(refused)

    landed = await asyncio.gather(*(race(claims[:: 1 if n % 2 else -1], f"g{n}") for n in range(6)))

    assert sum(landed) == SHARD_COUNT
    assert [owner.last_seq for owner in await store.owners()] == [1] * SHARD_COUNT


async def test_batches_that_contradict_themselves_are_a_bug_of_the_caller(store: ShardStore) -> None:
    claim = await claim_one(store)
    batch = a_batch(claim, an_event(1), an_event(2))
    with_a_gap = type(batch)(0, claim.epoch, 1, (an_event(1), an_event(3)), RowChanges())

    with pytest.raises(AssertionError, match="two batches"):
        await store.append([batch, batch])
    with pytest.raises(AssertionError, match="line 3 stands where 2"):
        await store.append([with_a_gap])

    assert await image_of(store, 0) == ShardImage(0)


# --- rows -------------------------------------------------------------------------------------


async def test_every_kind_of_row_is_loaded_as_it_was_written(store: ShardStore) -> None:
    claim = await claim_one(store)
    groups = [
        a_group("a", namespace="other", protocol_type=None, protocol_name=None, leader_id=None),
        a_group("g", rebalance_reason="weil 世界 'so' ist", rebalance_by=""),
    ]
    members = [
        a_member("m-2", position=0, group_instance_id="static-1", protocols=(), assignment=b""),
        a_member("m-1", position=1, client_id="ünïcödé", protocols=(Protocol("x", bytes(range(256))),)),
    ]
    offsets = [
        an_offset(0, 2**63 - 1, leader_epoch=None, metadata=""),
        an_offset(1, 0, leader_epoch=2**31 - 1, metadata="世界\n\t"),
    ]
    topics = [a_topic("a", 1, attributes=()), a_topic("b", 2**31 - 1, attributes=(("ключ", "値"), ("", "")))]

    await store.append(
        [a_batch(claim, rows=RowChanges(groups=groups, members=members, offsets=offsets, topics=topics))]
    )

    assert await image_of(store, 0) == ShardImage(
        0, 1, tuple(sorted(groups, key=lambda g: g.namespace)), tuple(members), tuple(offsets), tuple(topics)
    )


async def test_large_values_come_back_whole(store: ShardStore) -> None:
    claim = await claim_one(store)
    member = a_member(
        protocols=tuple(Protocol(f"p{n}", bytes([n]) * 65_536) for n in range(4)), assignment=b"\x00\xff" * 131_072
    )
    offset = an_offset(metadata="é" * 4_096)

    await store.append([a_batch(claim, rows=RowChanges(members=[member], offsets=[offset]))])

    image = await image_of(store, 0)
    assert (image.members, image.offsets) == ((member,), (offset,))


async def test_names_sort_by_their_characters_whatever_the_databases_locale(store: ShardStore) -> None:
    names = ["B", "_", "a", "a-b", "a.b", "ab", "b", "Z", "10", "9"]
    claim = await claim_one(store)

    await store.append([a_batch(claim, rows=RowChanges(groups=[a_group(name) for name in names]))])

    assert [group.group_id for group in (await image_of(store, 0)).groups] == sorted(names)


async def test_members_are_loaded_in_the_order_in_which_they_joined(store: ShardStore) -> None:
    claim = await claim_one(store)
    members = [a_member("m-a", position=12), a_member("m-b", position=3), a_member("m-c", position=7)]

    await store.append([a_batch(claim, rows=RowChanges(members=members))])

    assert [row.image.member_id for row in (await image_of(store, 0)).members] == ["m-b", "m-c", "m-a"]


async def test_a_row_that_is_written_again_replaces_the_one_before_in_all_its_columns(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(groups=[a_group()], members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    await store.append([a_batch(claim, rows=first)])
    group = a_group(
        state="Empty", generation_id=9, join_generation_id=9, protocol_type="worker", protocol_name=None,
        leader_id=None, state_since_ms=1, rebalance_reason="", rebalance_by="",
    )  # fmt: skip
    member = a_member(
        position=4, group_instance_id="i", client_id="c", host="h", session_timeout_ms=1, rebalance_timeout_ms=2,
        protocols=(), assignment=b"new",
    )  # fmt: skip
    offset = an_offset(0, 1, leader_epoch=None, metadata="", committed_at_ms=2)
    topic = a_topic(partitions=13, attributes=())

    second = RowChanges(groups=[group], members=[member], offsets=[offset], topics=[topic])
    await store.append([a_batch(claim, after=1, rows=second)])

    assert await image_of(store, 0) == ShardImage(0, 2, (group,), (member,), (offset,), (topic,))


async def test_deleted_rows_are_gone_and_their_neighbours_stay(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(
        members=[a_member("m-1"), a_member("m-2", position=1), a_member("m-1", "h")],
        offsets=[an_offset(0), an_offset(1), an_offset(0, group_id="h")],
        topics=[a_topic("a"), a_topic("b"), a_topic("a", namespace="other")],
    )
    await store.append([a_batch(claim, rows=first)])

    deletions = RowChanges(
        members_deleted=[("default", "g", "m-1")],
        offsets_deleted=[("default", "g", "documents", 0)],
        topics_deleted=[("default", "a")],
    )
    await store.append([a_batch(claim, after=1, rows=deletions)])

    image = await image_of(store, 0)
    assert image.members == (a_member("m-2", position=1), a_member("m-1", "h"))
    assert image.offsets == (an_offset(1), an_offset(0, group_id="h"))
    assert image.topics == (a_topic("b"), a_topic("a", namespace="other"))


async def test_deleting_what_is_not_there_does_nothing(store: ShardStore) -> None:
    claim = await claim_one(store)
    deletions = RowChanges(members_deleted=[("default", "g", "m-1")], topics_deleted=[("default", "a")])

    assert await store.append([a_batch(claim, rows=deletions)]) == []

    assert await image_of(store, 0) == ShardImage(0, 1)


async def test_a_member_that_is_replaced_leaves_its_place_to_the_new_one_in_one_batch(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, rows=RowChanges(members=[a_member("old", position=5)]))])

    replaced = RowChanges(members_deleted=[("default", "g", "old")], members=[a_member("new", position=5)])
    await store.append([a_batch(claim, after=1, rows=replaced)])

    assert (await image_of(store, 0)).members == (a_member("new", position=5),)


async def test_a_row_that_is_deleted_and_written_in_one_batch_is_there_as_written(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    await store.append([a_batch(claim, rows=first)])

    both = RowChanges(
        members_deleted=[("default", "g", "m-1")],
        members=[a_member(client_id="again")],
        offsets_deleted=[("default", "g", "documents", 0), ("default", "g", "documents", 1)],
        offsets=[an_offset(0, 1)],
        topics_deleted=[("default", "documents")],
        topics=[a_topic(partitions=99)],
    )
    await store.append([a_batch(claim, after=1, rows=both)])

    image = await image_of(store, 0)
    assert (image.members, image.offsets, image.topics) == (
        (a_member(client_id="again"),),
        (an_offset(0, 1),),
        (a_topic(partitions=99),),
    )


async def test_one_shard_cannot_touch_the_rows_of_another(store: ShardStore) -> None:
    one, two = await store.claim([0, 1], "r-1", "http://one", A_MINUTE_MS)
    await store.append([a_batch(one, rows=RowChanges(groups=[a_group()], members=[a_member()]))])
    before = await image_of(store, 0)

    trespass = RowChanges(groups=[a_group(state="Empty")], members_deleted=[("default", "g", "m-1")])
    await store.append([a_batch(two, rows=trespass)])

    assert await image_of(store, 0) == before


async def test_the_tombstone_of_a_group_keeps_its_generation(store: ShardStore) -> None:
    claim = await claim_one(store)
    tombstone = a_group(state="Dead", generation_id=41, protocol_type=None, protocol_name=None, leader_id=None)

    await store.append([a_batch(claim, rows=RowChanges(groups=[tombstone]))])

    assert (await image_of(store, 0)).groups == (tombstone,)


async def test_load_never_shows_half_a_batch(store: ShardStore) -> None:
    claim = await claim_one(store)

    async def write() -> None:
        for seq in range(1, 16):
            rows = RowChanges(groups=[a_group(generation_id=seq)], offsets=[an_offset(0, seq)])
            assert await store.append([a_batch(claim, after=seq - 1, rows=rows)]) == []

    async def read() -> list[ShardImage]:
        images = [await image_of(store, 0)]
        while images[-1].last_seq < 15:
            images.append(await image_of(store, 0))
            await asyncio.sleep(0)
        return images

    async with asyncio.timeout(30):
        _, images = await asyncio.gather(write(), read())

    for image in images:
        seen = {image.last_seq, *(group.generation_id for group in image.groups), *(o.offset for o in image.offsets)}
        assert len(seen) == 1 or image == ShardImage(0)


# --- opening again ----------------------------------------------------------------------------


async def test_everything_is_there_when_the_store_is_opened_again(backing: Backing) -> None:
    first = backing.new_store()
    await first.open(SHARD_COUNT)
    claim = await claim_one(first)
    await first.append([a_batch(claim, rows=RowChanges(groups=[a_group()], members=[a_member()]))])
    image, events = await image_of(first, 0), await first.read_events(0, 0, 9)
    await first.close()

    again = backing.new_store()
    await again.open(SHARD_COUNT)

    assert (await image_of(again, 0), await again.read_events(0, 0, 9)) == (image, events)
    assert [(o.replica_id, o.epoch, o.last_seq) for o in await again.owners()] == [("r-1", 1, 1)]
    assert (await claim_one(again, steal=True)).epoch == 2
    await again.close()


async def test_a_store_keeps_the_shard_count_that_it_was_made_with(backing: Backing) -> None:
    first = backing.new_store()
    await first.open(SHARD_COUNT)
    await first.close()
    other = backing.new_store()

    with pytest.raises(StoreRefused, match=r"shard_count 8, not 9"):
        await other.open(SHARD_COUNT + 1)
    await other.close()

    same = backing.new_store()
    await same.open(SHARD_COUNT)
    await same.close()


async def test_closing_twice_does_no_harm(backing: Backing) -> None:
    store = backing.new_store()
    await store.open(SHARD_COUNT)

    await store.close()
    await store.close()
