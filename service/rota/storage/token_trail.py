"""Changes of API tokens, in the journal: a stream that no shard's owner writes, so each event locks its end."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from rota.access.tokens import TokenAct
from rota.group.journal import encode_entry
from rota.group.records import Administered, Entry
from rota.protocol.ids import NO_SHARD
from rota.protocol.messages import Act
from rota.storage.schema import group_events, shards, store_clock_ms

_EPOCH = 1
"""The stream has no owner, so it is never taken over."""
_OPERATION_SUFFIX = "Token"
_NEWEST = (
    select(group_events.c.at, group_events.c.reason, group_events.c.payload)
    .where(group_events.c.shard_id == NO_SHARD)
    .order_by(group_events.c.seq.desc())
)


async def note_act(connection: AsyncConnection, done: str, name: str, token_id: str, act: Act) -> None:
    """Append a line, in the transaction of what was `done`: `Create`, `Revoke` or `Forget`.

    The row of the stream's end stays locked until that is over, so lines count up without a gap in the order in which
    they are committed, in spite of concurrent writers.
    """
    seq, at_ms = await _next_seq(connection)
    record = Administered(f"{done}{_OPERATION_SUFFIX}", act.actor, f"{name} {token_id}", act.note, act.origin)
    line = encode_entry(Entry("", "", 0, at_ms, record))
    place = {"shard_id": NO_SHARD, "seq": seq, "epoch": _EPOCH, "at": line.pop("at_ms")}
    await connection.execute(group_events.insert().values(**place, **line))


async def read_acts(connection: AsyncConnection, limit: int) -> list[TokenAct]:
    """The last changes, the newest first; pruned ones are gone."""
    rows = await connection.execute(_NEWEST.limit(limit))
    return [_act(at_ms, note, payload) for at_ms, note, payload in rows]


async def _next_seq(connection: AsyncConnection) -> tuple[int, int]:
    """The number of the next event, and the store's time after the number is locked."""
    engine = postgresql if connection.dialect.name == "postgresql" else sqlite
    first = engine.insert(shards).values(
        shard_id=NO_SHARD, replica_id="", address="", epoch=_EPOCH, lease_until_ms=0, last_seq=1
    )
    moved = first.on_conflict_do_update(index_elements=[shards.c.shard_id], set_={"last_seq": shards.c.last_seq + 1})
    seq, at_ms = (await connection.execute(moved.returning(shards.c.last_seq, store_clock_ms()))).one()
    return seq, at_ms


def _act(at_ms: int, note: str, payload: dict[str, str]) -> TokenAct:
    name, _, token_id = payload["target"].partition(" ")
    done = payload["operation"].removesuffix(_OPERATION_SUFFIX)
    return TokenAct(at_ms, done, name, token_id, Act(payload["actor"], note, payload["origin"]))
