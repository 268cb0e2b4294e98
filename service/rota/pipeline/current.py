"""How groups stand after the last line that was folded, as rows: state, leader, and members that are there now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rota.pipeline.fold import GroupFold, Key
from rota.pipeline.tables import CURRENT_GROUPS, CURRENT_MEMBERS, GOLD, Table

BY_GROUP = (CURRENT_GROUPS, CURRENT_MEMBERS)
"""The tables that this module has rows for; those of offsets are folded by columns."""


def current_rows(key: Key, group: GroupFold) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The rows of one group; none for anything else: a shard, or the topics of a namespace."""
    shard_id, _, group_id = key
    if not group_id:
        return
    opened: dict[str, list[dict[str, Any]]] = {}
    for table, values in group.open_rows():
        names = (column.name for column in GOLD[table].columns)
        opened.setdefault(table, []).append(dict(zip(names, values, strict=True)))
    view = group.view
    state = next(iter(opened.get("group_states", [])), {})
    tenure = next(iter(opened.get("leader_tenures", [])), {})
    members = opened.get("members", [])
    yield _row(
        CURRENT_GROUPS,
        shard_id=shard_id,
        **view.key,
        state=state.get("state", view.now),
        since_at=state.get("from_at"),
        generation_id=view.generation_id,
        protocol_type=view.state["protocol_type"],
        protocol_name=view.state["protocol_name"],
        leader_id=tenure.get("leader_id", ""),
        leader_since_at=tenure.get("from_at"),
        members=len(view.members),
        seq=group.last_seq,
    )
    for member in members:
        leads = member["member_id"] == tenure.get("leader_id")
        yield _row(CURRENT_MEMBERS, **{**member, "shard_id": shard_id, "is_leader": leads})


def _row(table: Table, **values: Any) -> tuple[str, tuple[Any, ...]]:
    return table.name, tuple(values[column.name] for column in table.columns)
