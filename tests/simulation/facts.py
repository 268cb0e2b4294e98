"""The facts of a shard as plain values, so that a live shard, a loaded one and a folded journal can be compared."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rota.core.group.rows import ShardImage
from rota.core.group.shard import ShardState
from rota.core.group.state import Group


def facts_of(shard: ShardState) -> dict[str, Any]:
    """Everything that a restart must find again. Groups that hold nothing but pending ids are no facts."""
    groups = {group.group_id: _group_facts(group) for group in shard.groups.values() if _is_fact(group)}
    return {
        "groups": groups,
        "tombstones": {key: value for key, value in shard.tombstones.items() if not _lives(shard, key)},
        "topics": dict(shard.topics),
    }


def rows_of(image: ShardImage) -> dict[str, Any]:
    """The rows of an image without regard to their order or to `last_seq`."""
    return {
        "groups": {(row.namespace, row.group_id): row for row in image.groups},
        "members": {(row.namespace, row.group_id, row.image.member_id): row for row in image.members},
        "offsets": {(row.namespace, row.group_id, row.topic, row.partition): row for row in image.offsets},
        "topics": {(row.namespace, row.topic): row for row in image.topics},
    }


OffsetName = tuple[str, str, str, int]
"""Namespace, group id, topic, partition."""


def without_offsets(facts: dict[str, Any], names: Collection[OffsetName]) -> dict[str, Any]:
    """Less the progress that users' transactions have committed and no owner has taken in."""
    for _, group_id, topic, partition in names:
        group = facts["groups"].get(group_id)
        if group is not None:
            group["offsets"].pop((topic, partition), None)
    return facts


def image_differences(live_image: ShardImage, stored_image: ShardImage, but: Collection[OffsetName] = ()) -> list[str]:
    """Where the store's rows are not those of the live shard, but for the named offsets."""
    live, stored = rows_of(live_image), rows_of(stored_image)
    for name in but:
        live["offsets"].pop(name, None)
        stored["offsets"].pop(name, None)
    return [
        f"{table} {key}: live {live[table].get(key)}, stored {stored[table].get(key)}"
        for table in live
        for key in {**live[table], **stored[table]}
        if live[table].get(key) != stored[table].get(key)
    ]


def _is_fact(group: Group) -> bool:
    return bool(group.settled is not None or group.members)


def _lives(shard: ShardState, key: tuple[str, str]) -> bool:
    group = shard.groups.get(key)
    return group is not None and group.settled is not None


def _group_facts(group: Group) -> dict[str, Any]:
    return {
        "state": group.state,
        "generation_id": group.generation_id,
        "join_generation_id": group.join_generation_id,
        "protocol": (group.protocol_type, group.protocol_name),
        "leader_id": (group.leader_id, group.generation_leader_id),
        "rebalance": (group.rebalance_cause, group.rebalance_reason, group.rebalance_by),
        "maintenance": (group.frozen_until_ms, group.frozen_reason, dict(group.leaving), group.quarantine),
        "settled": group.settled,
        "members": [(m.position, m.image, m.settled, m.assignment, m.takeover) for m in group.members.values()],
        "static_members": dict(group.static_members),
        "support": dict(group.support),
        "next_position": group.next_position,
        "offsets": dict(group.offsets),
    }
