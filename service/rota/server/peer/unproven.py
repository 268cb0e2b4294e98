"""Connections to the port for peers that have not proven to come from a peer: few, and for a short time.

gRPC bounds all connections of a server together, so one stranger could take the room of every peer. It neither counts
them by source nor closes one. So the replica looks for them among its own open files, and shuts down their sockets.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from contextlib import suppress
from operator import itemgetter

from rota.core.access.sources import source_of
from rota.server.grpc.receiving import host_of

PROOF_S = 10.0
"""A connection is closed unless a call on it has proven by then to come from a peer."""
SWEEP_EVERY_S = 1.0
FILES_OF_A_TURN = 50
"""Open files that are looked at in one turn of the event loop."""

End = tuple[str, int]
"""The source and port of a connection's other end."""


class UnprovenConnections:
    """Keeps this many connections of each source on which no peer has called: the newest ones."""

    def __init__(self, per_source: int) -> None:
        self._per_source = per_source
        self._proven: set[End] = set()
        self._since: dict[End, float] = {}
        """When each connection was found, the oldest first."""

    def prove(self, peer: str) -> None:
        """Keep the connection that gRPC names so: a call on it comes from a peer."""
        self._proven.add((source_of(host_of(peer)), int(peer.rpartition(":")[2])))

    async def keep_few(self, port: int) -> None:
        """Close the others that are too many or too old, until the task is cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            proven, since, surplus = set(self._proven), dict[End, float](), self._surplus(now())
            for number, name in enumerate(os.listdir("/dev/fd"), 1):
                if number % FILES_OF_A_TURN == 0:
                    await asyncio.sleep(0)
                # A handle of our own: the number of the file may be that of another file in the next moment.
                with suppress(OSError), _socket_of(os.dup(int(name))) as handle:
                    end = _end_at(handle, port)
                    if end is not None:
                        since[end] = self._since.get(end, now())
                        if end in surplus and end not in self._proven:
                            handle.shutdown(socket.SHUT_RDWR)
            self._proven -= proven - since.keys()
            self._since = dict(sorted(since.items(), key=itemgetter(1)))

    def _surplus(self, now_s: float) -> set[End]:
        """Those to close. The oldest ones give way, so that strangers that stay do not keep a peer out."""
        surplus, of_source = set[End](), Counter[str]()
        for end, since_s in reversed(self._since.items()):
            if end not in self._proven:
                of_source[end[0]] += 1
                if of_source[end[0]] > self._per_source or now_s - since_s >= PROOF_S:
                    surplus.add(end)
        return surplus


def _socket_of(file: int) -> socket.socket:
    """The socket with this number, which is closed if it is none; raises `OSError` then."""
    try:
        return socket.socket(fileno=file)
    except OSError:
        os.close(file)
        raise


def _end_at(handle: socket.socket, port: int) -> End | None:
    """The other end of a connection to the port; None for other sockets."""
    if handle.family not in (socket.AF_INET, socket.AF_INET6) or handle.getsockname()[1] != port:
        return None
    host, its_port, *_ = handle.getpeername()
    return source_of(host), its_port
