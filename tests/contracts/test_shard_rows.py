"""The contract of `ShardStore`: today's state, written as rows and read back as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rota.core.group.rows import NO_QUARANTINE, RowChanges, ShardImage
from rota.core.replica.ports import ShardStore, StoreRefused
from rota.protocol.messages import Protocol
from rota.storage.store import SqlStore
from tests.contracts.builders import (
    A_MINUTE_MS,
    a_batch,
    a_group,
    a_member,
    a_topic,
    an_offset,
    claim_one,
    image_of,
)
from tests.contracts.conftest import SHARD_COUNT, Backing


@pytest.mark.parametrize("together", [True, False], ids=["in_one_batch", "a_batch_for_each"])
async def test_every_kind_of_row_is_loaded_as_it_was_written(store: ShardStore, together: bool) -> None:
    claim = await claim_one(store)
    groups = [
        a_group("a", namespace="other", protocol_type=None, protocol_name=None, leader_id=None),
        a_group("g", rebalance_reason="weil 世界 'so' ist", rebalance_by=""),
    ]
    members = [
        a_member("m-2", position=0, group_instance_id="static-1", protocols=(), assignment=b""),
        a_member(
            "m-1",
            position=1,
            client_id="ünïcödé",
            host="10.0.0.2",
            session_timeout_ms=1,
            rebalance_timeout_ms=2,
            protocols=(Protocol("x", bytes(range(256))),),
            subject="",
        ),
    ]
    offsets = [
        an_offset(0, 2**63 - 1, leader_epoch=None, metadata=""),
        an_offset(1, 0, leader_epoch=2**31 - 1, metadata="世界\n\t"),
    ]
    topics = [
        a_topic("a", 1, attributes=(), revision=2**40),
        a_topic("b", 2**31 - 1, attributes=(("ключ", "値"), ("", ""))),
    ]

    kinds: dict[str, list[Any]] = {
        "groups": groups,
        "members": members,
        "offsets": offsets,
        "topics": topics,
    }
    if together:
        batches = [kinds]
    else:
        batches = [{kind: [rows[number]] for kind, rows in kinds.items()} for number in range(2)]

    for number, rows in enumerate(batches):
        assert await store.append([a_batch(claim, after=number, rows=RowChanges(**rows))]) == []

    assert await image_of(store, 0) == ShardImage(
        0,
        len(batches),
        tuple(sorted(groups, key=lambda g: g.namespace)),
        tuple(members),
        tuple(offsets),
        tuple(topics),
    )


async def test_protocols_that_members_share_are_loaded_once(store: ShardStore) -> None:
    if not isinstance(store, SqlStore):
        return
    claim = await claim_one(store)
    rows = RowChanges(groups=[a_group("g")], members=[a_member("m-1", position=0), a_member("m-2", position=1)])
    await store.append([a_batch(claim, rows=rows)])

    first, second = (member.image for member in (await image_of(store, 0)).members)

    assert first.protocols is second.protocols


async def test_large_values_come_back_whole(store: ShardStore) -> None:
    claim = await claim_one(store)
    member = a_member(
        protocols=tuple(Protocol(f"p{n}", bytes([n]) * 65_536) for n in range(4)), assignment=b"\x00\xff" * 131_072
    )
    offset = an_offset(metadata="é" * 4_096)

    await store.append([a_batch(claim, rows=RowChanges(members=[member], offsets=[offset]))])

    image = await image_of(store, 0)
    assert (image.members, image.offsets) == ((member,), (offset,))


async def test_names_sort_by_characters_whatever_the_locale(store: ShardStore) -> None:
    names = ["B", "_", "a", "a-b", "a.b", "ab", "b", "Z", "10", "9"]
    claim = await claim_one(store)

    await store.append([a_batch(claim, rows=RowChanges(groups=[a_group(name) for name in names]))])

    assert [group.group_id for group in (await image_of(store, 0)).groups] == sorted(names)


async def test_members_are_loaded_in_the_order_in_which_they_joined(store: ShardStore) -> None:
    claim = await claim_one(store)
    members = [a_member("m-a", position=12), a_member("m-b", position=3), a_member("m-c", position=7)]

    await store.append([a_batch(claim, rows=RowChanges(members=members))])

    assert [row.image.member_id for row in (await image_of(store, 0)).members] == ["m-b", "m-c", "m-a"]


async def test_a_row_written_again_replaces_all_its_columns(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(groups=[a_group()], members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    await store.append([a_batch(claim, rows=first)])
    group = a_group(
        state="Empty", generation_id=9, join_generation_id=9, protocol_type="worker", protocol_name=None,
        leader_id=None, state_since_ms=1, rebalance_reason="", rebalance_by="", leaving=(), quarantine=NO_QUARANTINE,
    )  # fmt: skip
    member = a_member(
        position=4, group_instance_id="i", client_id="c", host="h", session_timeout_ms=1, rebalance_timeout_ms=2,
        protocols=(), assignment=b"new",
    )  # fmt: skip
    offset = an_offset(0, 1, leader_epoch=None, metadata="", committed_at_ms=2, expires_at_ms=3)
    topic = a_topic(partitions=13, attributes=())

    second = RowChanges(groups=[group], members=[member], offsets=[offset], topics=[topic])
    await store.append([a_batch(claim, after=1, rows=second)])

    assert await image_of(store, 0) == ShardImage(0, 2, (group,), (member,), (offset,), (topic,))


async def test_deleted_rows_are_gone_and_their_neighbours_stay(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(
        members=[a_member("m-1"), a_member("m-2", position=1), a_member("m-1", "h")],
        offsets=[an_offset(0), an_offset(1), an_offset(0, group_id="h")],
    )
    await store.append([a_batch(claim, rows=first)])

    deletions = RowChanges(
        members_deleted=[("default", "g", "m-1")],
        offsets_deleted=[("default", "g", "documents", 0)],
    )
    await store.append([a_batch(claim, after=1, rows=deletions)])

    image = await image_of(store, 0)
    assert image.members == (a_member("m-2", position=1), a_member("m-1", "h"))
    assert image.offsets == (an_offset(1), an_offset(0, group_id="h"))


async def test_deleting_what_is_not_there_does_nothing(store: ShardStore) -> None:
    claim = await claim_one(store)
    deletions = RowChanges(members_deleted=[("default", "g", "m-1")])

    assert await store.append([a_batch(claim, rows=deletions)]) == []

    assert await image_of(store, 0) == ShardImage(0, 1)


async def test_a_replacement_takes_its_place_in_one_batch(store: ShardStore) -> None:
    claim = await claim_one(store)
    await store.append([a_batch(claim, rows=RowChanges(members=[a_member("old", position=5)]))])

    replaced = RowChanges(members_deleted=[("default", "g", "old")], members=[a_member("new", position=5)])
    await store.append([a_batch(claim, after=1, rows=replaced)])

    assert (await image_of(store, 0)).members == (a_member("new", position=5),)


async def test_a_row_deleted_and_written_in_one_batch_is_written(store: ShardStore) -> None:
    claim = await claim_one(store)
    first = RowChanges(members=[a_member()], offsets=[an_offset()], topics=[a_topic()])
    await store.append([a_batch(claim, rows=first)])

    both = RowChanges(
        members_deleted=[("default", "g", "m-1")],
        members=[a_member(client_id="again")],
        offsets_deleted=[("default", "g", "documents", 0), ("default", "g", "documents", 1)],
        offsets=[an_offset(0, 1)],
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


async def test_namespaces_have_topics_or_groups_that_were_not_deleted(store: ShardStore) -> None:
    if not isinstance(store, SqlStore):
        return
    groups = [a_group(namespace="grouped"), a_group(namespace="dead", state="Dead")]
    topics = [a_topic(namespace="a"), a_topic(namespace="deleted", partitions=0)]
    await store.append([a_batch(await claim_one(store), rows=RowChanges(groups=groups, topics=topics))])

    assert await store.namespaces() == ["a", "grouped"]


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


async def test_offsets_of_a_deleted_topic_are_not_loaded(store: ShardStore) -> None:
    claim = await claim_one(store)
    deleted = a_topic(partitions=0, topic_id=5)
    late, current, other = an_offset(0), an_offset(1, topic_id=5), an_offset(0, topic="orders")

    await store.append([a_batch(claim, rows=RowChanges(offsets=[late, current, other], topics=[deleted]))])

    image = await image_of(store, 0)
    assert (image.offsets, image.topics) == ((current, other), (deleted,))


@pytest.mark.parametrize("offset", [2**53 - 1, 2**53, 2**63 - 1])
async def test_offsets_have_64_bits(store: ShardStore, offset: int) -> None:
    claim = await claim_one(store)

    await store.append([a_batch(claim, rows=RowChanges(offsets=[an_offset(0, offset)]))])

    assert (await image_of(store, 0)).offsets == (an_offset(0, offset),)
