"""Connections to the port for peers that have not proven to come from a peer: few, and for a short time.

gRPC bounds all connections of a server together, so one stranger could take the room of every peer. It neither counts
them by source nor closes one. So the replica looks for them among its own open files, and shuts down their sockets.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from urllib.parse import quote

from rota.access.sources import source_of
from rota.api.grpc.calls import host_of

PROOF_S = 10.0
"""A connection is closed unless a call on it has proven by then to come from a peer."""
SWEEP_EVERY_S = 1.0
FILES_OF_A_TURN = 50
"""Open files that are looked at in one turn of the event loop."""


class UnprovenConnections:
    """Keeps this many connections of each source on which no peer has called. gRPC's names stand for their ends."""

    def __init__(self, per_source: int) -> None:
        self._per_source = per_source
        self._proven: set[str] = set()
        self._since: dict[str, float] = {}
        """When each unproven connection was found, the oldest first."""

    def prove(self, peer: str) -> None:
        """Keep this connection: a call on it comes from a peer."""
        self._proven.add(peer)

    async def keep_few(self, port: int) -> None:
        """Close those that are too many or too old, until the task is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            known = set(self._proven)
            with ExitStack() as handles:
                found = await _connections(port, handles)
                self._proven -= known - found.keys()
                self._close_surplus(found)

    def _close_surplus(self, found: dict[str, socket.socket]) -> None:
        """The oldest ones give way, so that strangers that stay do not keep a peer out."""
        now = asyncio.get_running_loop().time()
        former = {peer: at for peer, at in self._since.items() if peer in found}
        self._since = former | {peer: now for peer in found if peer not in former}
        for peer in self._proven & found.keys():
            del self._since[peer]
        kept = Counter[str]()
        for peer, at in reversed(self._since.items()):
            source = source_of(host_of(peer))
            kept[source] += 1
            if kept[source] > self._per_source or now - at >= PROOF_S:
                with suppress(OSError):  # it has been closed meanwhile
                    found[peer].shutdown(socket.SHUT_RDWR)


async def _connections(port: int, handles: ExitStack) -> dict[str, socket.socket]:
    """This process's connections to the port, by handles of our own, which `handles` closes."""
    found = dict[str, socket.socket]()
    for number, name in enumerate(os.listdir("/dev/fd"), 1):
        if number % FILES_OF_A_TURN == 0:
            await asyncio.sleep(0)
        with suppress(OSError):  # it is no socket, not connected, or closed by now
            # The file's number may be that of another connection in the next moment; the number of a handle is ours.
            file = os.dup(int(name))
            try:
                handle = socket.socket(fileno=file)
            except OSError:
                os.close(file)
                continue
            if handle.family not in (socket.AF_INET, socket.AF_INET6) or handle.getsockname()[1] != port:
                handle.close()
            else:
                handles.enter_context(handle)
                found[_name_of(*handle.getpeername()[:2])] = handle
    return found


def _name_of(host: str, port: int) -> str:
    """The name that gRPC has for the other end of a connection."""
    address = ip_address(host)
    address = getattr(address, "ipv4_mapped", None) or address
    return f"ipv4:{address}:{port}" if address.version == 4 else f"ipv6:{quote(f'[{host}]')}:{port}"
