"""The SDK for programs without asyncio: the same names, which wait instead of being awaited.

    with rota.client.sync.connect("http://localhost:8080") as client:
        with client.leader("billing-writer") as election:
            for term in election.terms():
                with term:
                    while term.is_valid:
                        write(term.fencing_token)

Each object here stands for the one of the same name in `rota.client`, which lives on an event loop in a thread of its
own, heartbeats included (`twin.py`); `sync.pyi` tells type checkers what that makes of its methods. Callbacks, `work`
and `assign` are plain functions, called in threads. A thread cannot be cancelled: where the async SDK cancels a body,
look at `term.is_valid` or `shard.is_held`, or wait for `term.lost`; the block raises `LeadershipLost` at its end all
the same. What waits for something (`wait_assigned`, `wait_done`, `lost.wait`) takes a `timeout` in seconds.
"""

from rota.client.twin import (
    Client,
    ConnectWorker,
    Consumer,
    Election,
    Event,
    Member,
    Permit,
    Permits,
    Shard,
    Term,
    WorkerPool,
    connect,
)

__all__ = [
    "Client",
    "ConnectWorker",
    "Consumer",
    "Election",
    "Event",
    "Member",
    "Permit",
    "Permits",
    "Shard",
    "Term",
    "WorkerPool",
    "connect",
]
