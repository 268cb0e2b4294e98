"""Does the journal tell how the store came to be as it is? Folds every line and compares the result with the rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.core.group.records import (
    AssignmentSynced,
    Entry,
    GenerationCompleted,
    GenerationRaised,
    GroupEmptied,
    decode_entry,
)
from rota.core.group.rows import GroupRow, MemberRow, OffsetRow, ShardImage, SideCommit, TopicRow
from rota.core.group.shard import ShardState
from rota.core.replica.ports import JournalEvent
from rota.protocol.ids import NO_SHARD
from rota.storage.errors import store_errors
from rota.storage.pruning import opened
from rota.storage.rows import load_images, load_side_commits, read_events
from rota.storage.schema import POSTGRES_SCHEMA, shards, store

_PAGE = 1_000
_MEANS_NOTHING = (AssertionError, KeyError, TypeError, ValueError)
"""What reading a value raises that no release wrote."""


@dataclass(frozen=True, slots=True)
class ShardReport:
    """The result for one shard; `differences` are sentences, and none is the normal case."""

    shard_id: int
    events: int
    groups: int
    differences: tuple[str, ...]
    pruned: bool = False
    """The first lines are gone, so the rows cannot be made of the others: only the lines were looked at."""


async def verify(store_url: str) -> AsyncIterator[ShardReport]:
    """Check one shard after the other, and what belongs to none. Only reads, and may run beside a service.

    A shard's rows and its journal are read in one snapshot, so that a service that writes in the meantime makes no
    difference.
    """
    async with opened(store_url, writes=False) as any_engine:
        snapshots = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        engine = any_engine.execution_options(**snapshots if any_engine.dialect.name == "postgresql" else {})
        with store_errors():
            async with engine.begin() as connection:
                shard_ids = await _shard_ids(connection)
        for shard_id in shard_ids:
            with store_errors():
                async with engine.begin() as connection:
                    report = await _verify_shard(connection, shard_id)
            yield report


async def _verify_shard(connection: AsyncConnection, shard_id: int) -> ShardReport:
    await _keep_lines(connection)
    try:
        (image,) = await load_images(connection, [shard_id])
    except _MEANS_NOTHING as error:
        damage = f"{type(error).__name__}: {error}"
        return ShardReport(shard_id, 0, 0, (f"a row is damaged, restore a backup with `rota db restore`: {damage}",))
    on_the_way = await _side_commits(connection, shard_id)
    first = await connection.scalar(select(shards.c.first_seq).where(shards.c.shard_id == shard_id))
    fold = JournalFold(shard_id, first or 1)
    async for event in _events(connection, shard_id, (first or 1) - 1):
        fold.add(event)
    return fold.compare(image, on_the_way)


class JournalFold:
    """Folds one shard's journal, line by line, and notes what should not be."""

    def __init__(self, shard_id: int, first_seq: int = 1) -> None:
        self._shard = ShardState(shard_id)
        self._pruned = first_seq > 1
        self._seq = first_seq - 1
        self._epoch = 0
        self._generations: dict[tuple[str, str], int] = {}
        self._differences: list[str] = []
        self._broken = False

    def add(self, event: JournalEvent) -> None:
        """Fold the next line. After one that cannot be folded, only numbers are checked."""
        self._check_numbers(event)
        if self._broken:
            return
        try:
            entry = decode_entry({name: getattr(event, name) for name in _ENTRY_FIELDS})
            self._check_generation(event.seq, entry)
            if not self._pruned:
                self._shard.replay(entry)
        except _MEANS_NOTHING as error:
            self._broken = True
            self._differences.append(f"line {event.seq} ({event.kind}) cannot be folded: {error!r}")

    def compare(self, image: ShardImage, on_the_way: Collection[SideCommit] = ()) -> ShardReport:
        """The whole journal against the rows of the store, except for commits that the journal does not have yet."""
        if self._seq != image.last_seq:
            self._differences.append(f"the journal ends at {self._seq}, but the shard's row says {image.last_seq}")
        if not self._broken and not self._pruned:
            self._shard.forget_unsettled()
            folded = self._shard.image(image.last_seq)
            names = {(c.namespace, c.group_id, c.topic, c.partition) for c in on_the_way}
            self._differences += _differences(_less(folded, names), _less(image, names))
        seen = (self._seq, len(image.groups) if self._pruned else len(self._shard.groups))
        return ShardReport(self._shard.shard_id, *seen, tuple(self._differences), self._pruned)

    def _check_numbers(self, event: JournalEvent) -> None:
        if event.seq != self._seq + 1:
            self._differences.append(f"line {event.seq} follows line {self._seq}")
        if event.epoch < self._epoch:
            self._differences.append(f"line {event.seq} has epoch {event.epoch}, the line before {self._epoch}")
        self._seq, self._epoch = event.seq, event.epoch

    def _check_generation(self, seq: int, entry: Entry) -> None:
        """A generation is opened once: the number only grows, also across a deletion of the group."""
        opened = _opened_generation(entry)
        key = (entry.namespace, entry.group_id)
        former = self._generations.get(key, 0)
        if opened is None:
            return
        if opened <= former:
            name = f"{entry.namespace}/{entry.group_id}"
            self._differences.append(f"line {seq} opens generation {opened} of {name} after generation {former}")
        self._generations[key] = opened


_ENTRY_FIELDS = ("at_ms", "namespace", "group_id", "generation_id", "kind", "reason", "payload")


def _opened_generation(entry: Entry) -> int | None:
    match entry.record:
        case GenerationCompleted(generation_id=opened) | GroupEmptied(generation_id=opened):
            return opened
        case AssignmentSynced(generation_id=opened, resync=True) | GenerationRaised(generation_id=opened):
            return opened
        case _:
            return None


def _less(image: ShardImage, names: Collection[tuple[str, str, str, int]]) -> ShardImage:
    return replace(image, offsets=tuple(row for row in image.offsets if _name_of(row) not in names))


def _differences(folded: ShardImage, stored: ShardImage) -> Iterator[str]:
    for kind in ("groups", "members", "offsets", "topics"):
        yield from _row_differences(kind, _by_name(getattr(folded, kind)), _by_name(getattr(stored, kind)))


def _row_differences(kind: str, folded: dict[str, Any], stored: dict[str, Any]) -> Iterator[str]:
    for name in sorted(folded.keys() | stored.keys()):
        by_journal, by_rows = folded.get(name), stored.get(name)
        if by_journal != by_rows:
            yield f"{kind} {name}: the journal says {by_journal}, the rows say {by_rows}"


def _by_name(rows: Iterable[Any]) -> dict[str, Any]:
    """Rows by what names them. A member's place is in its name, for it breaks ties."""
    return {"/".join(str(part) for part in _name_of(row)): row for row in rows}


def _name_of(row: GroupRow | MemberRow | OffsetRow | TopicRow) -> tuple[str | int, ...]:
    match row:
        case GroupRow():
            return row.namespace, row.group_id
        case MemberRow():
            return row.namespace, row.group_id, row.position, row.image.member_id
        case OffsetRow():
            return row.namespace, row.group_id, row.topic, row.partition
        case TopicRow():
            return row.namespace, row.topic


async def _keep_lines(connection: AsyncConnection) -> None:
    """Let no TRUNCATE of `rota journal prune` end between the statements of this transaction.

    Its snapshot does not protect it: a partition that another transaction truncates is empty for every snapshot. The
    lock is the one that each read of the journal takes; it must come before the statement that takes the snapshot.
    """
    if connection.dialect.name == "postgresql":
        await connection.execute(text(f"LOCK TABLE {POSTGRES_SCHEMA}.group_events IN ACCESS SHARE MODE"))


async def _events(connection: AsyncConnection, shard_id: int, after: int) -> AsyncIterator[JournalEvent]:
    while True:
        page = (await read_events(connection, shard_id, after, _PAGE)).events
        for event in page:
            yield event
        if len(page) < _PAGE:
            return
        after = page[-1].seq


async def _side_commits(connection: AsyncConnection, shard_id: int) -> list[SideCommit]:
    return await load_side_commits(connection, [shard_id]) if connection.dialect.name == "postgresql" else []


async def _shard_ids(connection: AsyncConnection) -> list[int]:
    """The shards that the store was made with, none where no service ever opened it, and what belongs to no shard."""
    shard_ids = list(range(await connection.scalar(select(store.c.shard_count)) or 0))
    shard_ids += await connection.scalars(select(shards.c.shard_id).where(shards.c.shard_id == NO_SHARD))
    return shard_ids
