"""Which answers need more than a lease.

A lease is as good as the clocks that judge it. Where the store's clock was set, another replica may have taken a shard
while this one, by its own clock, still owns it. It writes nothing then, as each append carries the shard's epoch. A
fence check writes nothing, and users act on it: so the store is asked for the epoch before the answer is decided. That
is a read for all checks that wait at the same time. Heartbeats rely on the lease: they are many, and a holder that gets
one answer too many is rejected by the fence.
"""

from __future__ import annotations

from rota.protocol.messages import Request, VerifyFence

NOT_OWNED = "the lease went to another replica"


def needs_confirmation(request: Request) -> bool:
    """Whether the store confirms, after this request has come, that this replica still owns the shard."""
    return isinstance(request, VerifyFence)
