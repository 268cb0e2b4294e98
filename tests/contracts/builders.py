"""Rows, journal lines and batches that are interesting in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rota.core.group.rows import (
    GroupRow,
    MemberImage,
    MemberRow,
    OffsetRow,
    Quarantine,
    RowChanges,
    ShardImage,
    TopicRow,
)
from rota.core.replica.ports import JournalEvent, ShardBatch, ShardClaim, ShardStore
from rota.protocol.messages import Protocol

AT_MS = 1_767_225_600_123
A_MINUTE_MS = 60_000


def an_event(seq: int, group_id: str = "g", **changes: Any) -> JournalEvent:
    event = JournalEvent(
        seq=seq,
        at_ms=AT_MS + seq,
        namespace="default",
        group_id=group_id,
        generation_id=seq,
        kind="generation_completed",
        reason="a member joined",
        payload={"leader_id": "m-1", "members": ["m-1", "m-2"]},
    )
    return replace(event, **changes)


def a_group(group_id: str = "g", **changes: Any) -> GroupRow:
    group = GroupRow(
        namespace="default",
        group_id=group_id,
        state="Stable",
        generation_id=3,
        join_generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader_id="m-1",
        state_since_ms=AT_MS,
        rebalance_reason="a member joined",
        rebalance_by="m-1",
        rebalance_cause="member_joined",
        frozen_until_ms=9_000,
        frozen_reason="a deploy",
        quarantine=Quarantine(3, 2, 60_000, (("docs/1", 2, 8_000),), (("docs/3", 0),)),
        leaving=(("m", 7_000),),
        takeovers=2,
    )
    return replace(group, **changes)


def a_member(member_id: str = "m-1", group_id: str = "g", position: int = 0, **changes: Any) -> MemberRow:
    image = MemberImage(
        member_id=member_id,
        group_instance_id=None,
        client_id="indexer",
        host="10.0.0.1",
        session_timeout_ms=45_000,
        rebalance_timeout_ms=300_000,
        protocols=(Protocol("range", b"\x00\x01topics"), Protocol("roundrobin", b"")),
        subject="token:ci",
    )
    assignment: bytes = changes.pop("assignment", b"\xff\x00")
    return MemberRow("default", group_id, position, replace(image, **changes), assignment, takeover=2)


def an_offset(partition: int = 0, offset: int = 7, group_id: str = "g", **changes: Any) -> OffsetRow:
    row = OffsetRow("default", group_id, "documents", partition, offset, 4, "checked by hand", AT_MS)
    return row._replace(**changes)


def a_topic(topic: str = "documents", partitions: int = 12, **changes: Any) -> TopicRow:
    return replace(TopicRow("default", topic, partitions, (("owner", "search"), ("kind", "table")), 3), **changes)


def a_batch(
    claim: ShardClaim, *events: JournalEvent, after: int | None = None, rows: RowChanges | None = None
) -> ShardBatch:
    """A batch that follows the journal as the claim saw it, or line `after`. One event, unless events are given."""
    first_seq = (claim.last_seq if after is None else after) + 1
    written = tuple(replace(event, seq=first_seq + i) for i, event in enumerate(events or (an_event(first_seq),)))
    return ShardBatch(claim.shard_id, claim.epoch, first_seq, written, rows or RowChanges())


async def image_of(store: ShardStore, shard_id: int) -> ShardImage:
    (image,) = await store.load([shard_id])
    return image


async def claim_one(
    store: ShardStore, shard_id: int = 0, replica_id: str = "r-1", *, steal: bool = False
) -> ShardClaim:
    (claim,) = await store.claim([shard_id], replica_id, f"http://{replica_id}", A_MINUTE_MS, steal=steal)
    return claim
