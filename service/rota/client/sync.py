"""The SDK for programs without asyncio: the same names, with blocking methods instead of coroutines.

    with rota.client.sync.connect("http://localhost:8080") as client:
        with client.leader("billing-writer") as election:
            for term in election.terms():
                with term:
                    while term.is_valid:
                        write(term.fencing_token)

Each object here is a proxy of the object of the same name in `rota.client`, which runs on an event loop in a separate
thread, heartbeats included (`twin.py`); `sync.pyi` has the types of its methods. Callbacks, `work` and `assign` are
plain functions, called in threads. A thread cannot be cancelled: when the async SDK would cancel a body, check
`term.is_valid` or `shard.is_held`, or wait for `term.lost`; the block still raises `LeadershipLost` at its end. Methods
that wait (`wait_assigned`, `wait_done`, `lost.wait`) take a `timeout` in seconds.
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
