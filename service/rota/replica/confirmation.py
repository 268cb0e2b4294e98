"""Which requests need more from the store than a lease, before they are decided.

**Confirmation.** A lease is as good as the clocks that judge it. Where the store's clock was set, another replica may
have taken a shard while this one, by its own clock, still owns it. It writes nothing then, as each append carries the
shard's epoch. A fence check writes nothing, and users act on it: so the store is asked for the epoch before the answer
is decided. That is a read for all checks that wait at the same time. Heartbeats rely on the lease: they are many, and a
holder that gets one answer too many is rejected by the fence.

**Side commits.** Users' own transactions commit offsets past the shard's memory (ADR 15). The owner takes them in now
and then, and before each request that would show or delete them.
"""

from __future__ import annotations

from rota.protocol.messages import DeleteGroup, DeleteOffsets, FetchOffsets, Request, VerifyFence

NOT_OWNED = "the lease went to another replica"
TAKE_IN_INTERVAL_MS = 2_000
"""How often the owner takes side commits in while no request needs them."""


def needs_confirmation(request: Request) -> bool:
    """Whether the store confirms, after this request has come, that this replica still owns the shard."""
    return isinstance(request, VerifyFence)


def needs_side_commits(request: Request) -> bool:
    """Whether the shard takes side commits in before it decides this request.

    It would otherwise show progress that is out of date, or delete progress without its line in the journal.
    """
    return isinstance(request, FetchOffsets | DeleteOffsets | DeleteGroup)
