"""The identity of the last line that was read of each shard, by which a store is noticed that is another one now.

A store that was restored to an earlier moment, and has gone on since, may have more lines than were read. Its numbers
look as if nothing had been, but the lines behind the moment are others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from rota.pipeline.events import Line, lines_of
from rota.pipeline.failures import LinesMissing, WrongIncarnation
from rota.pipeline.journal import Journal, Wanted
from rota.pipeline.positions import Heads, Position, Span

Identities = Mapping[int, str]
"""By shard: epoch, time, and a hash of all that the line says."""


def identity_of(line: Line) -> str:
    """Another line hardly has the same."""
    return f"epoch {line.epoch}, {line.at_ms} ms, {blake2b(repr(line).encode(), digest_size=12).hexdigest()}"


def last_lines(journal: Journal, heads: Heads, position: Position, shards: Iterable[int]) -> dict[int, str]:
    """The identities of the last lines up to there, of these shards; none of a line that has been pruned."""
    at = {shard_id: position.shards.get(shard_id, 0) for shard_id in shards}
    spans = [Span(s, seq, seq) for s, seq in sorted(at.items()) if seq >= max(1, heads.first_seq.get(s, 1))]
    lines = (line for batch in journal.batches(spans, Wanted()) for line in lines_of(batch))
    return {line.shard_id: identity_of(line) for line in lines}


def refuse_other_lines(journal: Journal, heads: Heads, done: Position, known: Identities) -> None:
    """Raise `WrongIncarnation` if the last line that was read of a shard with new lines is another one now."""
    grown = [shard_id for shard_id in known if heads.last_seq.get(shard_id, 0) > done.shards.get(shard_id, 0)]
    try:
        found = last_lines(journal, heads, done, grown)
    except LinesMissing:
        # Pruned since `heads` was read, or lost: the next look at the heads says which.
        found = last_lines(journal, journal.heads(), done, grown)
    for shard_id, identity in found.items():
        if identity != known[shard_id]:
            raise WrongIncarnation(
                f"shard {shard_id}: line {done.shards[shard_id]:,} is not the line that was read before "
                f"({known[shard_id]}; now {identity}): the store was restored to an earlier moment and has gone on, so "
                "its lines from there on are not those that were read; use another folder of tables, and keep this one"
            )
