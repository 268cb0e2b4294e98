"""What the store has to answer before a shard decides: more than a lease, for some requests and for a sweep.

**The owner is confirmed.** A lease is as good as the clocks that judge it. Where the store's clock was set, another
replica may have taken a shard while this one, by its own clock, still owns it. It writes nothing then, as each append
carries the shard's epoch. A fence check writes nothing, and users act on it: so the store is asked for the epoch before
the answer is decided. That is a read for all checks that wait at the same time. Heartbeats rely on the lease: they are
many, and a holder that gets one answer too many is rejected by the fence.

**Side commits are known.** Users' own transactions commit offsets past the shard's memory (ADR 15). The owner takes
them in now and then, and before it would show or delete progress: it would otherwise show progress that is out of date,
or delete progress without its line in the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from rota.protocol.calls import refuse
from rota.protocol.errors import ErrorCode
from rota.protocol.messages import DeleteGroup, DeleteOffsets, FetchOffsets, Request, VerifyFence
from rota.replica.owned_shard import OwnedShard
from rota.replica.ports import Answer, ShardClaim

NOT_OWNED = "the lease went to another replica"
TAKE_IN_INTERVAL_MS = 2_000
"""How often the owner takes side commits in while no request needs them."""
SWEEP_INTERVAL_MS = 60_000
"""How often a shard expires offsets and empty groups."""


class Prerequisite(Enum):
    """An answer of the store that arrives after the request, and before its decision. The value: without it."""

    SIDE_COMMITS = "the store does not answer"
    """The shard has taken in all side commits until now."""
    OWNER = "the store does not confirm the owner"
    """The shard is owned here. Where it is not, it is given up as `NOT_OWNED`."""


def prerequisites(request: Request, *, has_side_door: bool, is_shared: bool) -> Sequence[Prerequisite]:
    """What has to be known before the shard decides this request, one after the other.

    `has_side_door`: users' transactions can commit past the shards. `is_shared`: other replicas can own shards.
    """
    if has_side_door and isinstance(request, FetchOffsets | DeleteOffsets | DeleteGroup):
        return (Prerequisite.SIDE_COMMITS,)
    if is_shared and isinstance(request, VerifyFence):
        return (Prerequisite.OWNER,)
    return ()


def refused_without(prerequisite: Prerequisite, request: Request) -> Answer:
    """The answer where the store did not say so: ask again."""
    return Answer(refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE, prerequisite.value))


def claim_to_confirm(owned: OwnedShard) -> ShardClaim:
    """The claim as the store should know it: a store that has gone back confirms none that is ahead of it."""
    return replace(owned.claim, last_seq=owned.durable_seq)
