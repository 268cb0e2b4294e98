"""How an embedded store stands, noted beside its file: at the next start an earlier copy of the file is known by it."""

from __future__ import annotations

import logging

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.protocol.ids import NO_SHARD
from rota.protocol.limits import GENERATIONS_RAISED
from rota.storage.identity import read_incarnation
from rota.storage.raising import highest_in, start_again
from rota.storage.schema import shards
from rota.storage.store_file import Note

_log = logging.getLogger(__name__)


async def read_length(connection: AsyncConnection) -> int:
    """How many lines the journal ever had, those of all shards together."""
    counted = select(func.sum(shards.c.last_seq)).where(shards.c.shard_id != NO_SHARD)
    return int(await connection.scalar(counted) or 0)


async def read_standing(connection: AsyncConnection) -> Note:
    """The note that means the store as this transaction sees it."""
    return Note(await read_incarnation(connection), await read_length(connection), await highest_in(connection))


async def recognise(connection: AsyncConnection, note: Note | None) -> bool:
    """Whether the store is an earlier state than its note says, or another store; raises its floors then.

    So is a store without a note with a shard that was claimed: a copy whose original may have gone on. What was granted
    since the note or the copy was made is not known, so the floors are raised well above the known values.
    """
    found = await read_standing(connection)
    if note is None:
        if not await connection.scalar(select(func.max(shards.c.claimed_epoch))):
            return False
        note = Note("")
    elif found.incarnation == note.incarnation and found.length >= note.length:
        return False
    incarnation = await start_again(connection, raise_by=GENERATIONS_RAISED, known=note.highest)
    _log.error(
        "the store went back to an earlier state, is another one, or is a copy without its lock's file: "
        "its generations were raised, and the changes since that state are lost",
        extra={
            "noted_incarnation": note.incarnation,
            "found_incarnation": found.incarnation,
            "incarnation": incarnation,
            "noted_lines": note.length,
            "found_lines": found.length,
            "generation_floor": (await highest_in(connection)).generation_id,
        },
    )
    return True
