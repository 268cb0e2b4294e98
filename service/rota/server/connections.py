"""The connections of a server, counted from the moment that they are accepted, before TLS and before any request."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import defaultdict
from collections.abc import Callable

from rota.core.access.budgets import Budgets, Share
from rota.core.access.sources import source_of

FILES_OF_OURS = 128
"""Open files that connections must leave to the store, to peers, to Redis, and to the reserve for probes."""
LEAST_PEERS, MOST_PEERS = 32, 1_000
"""Connections from peers, one from each worker of each other replica."""
CONNECTIONS_OF_PROBES = 64
"""On the address for probes, where there is one."""
RESERVED_FOR_PROBES = 16
"""Connections beyond the budget, on which only `/healthz` and `/readyz` are answered."""
SILENT_S = 1.0
"""A connection may be silent for so long, whatever the budget: where a proxy connects anew, hundreds come at
once, and their requests soon after."""
ROOM_EVERY_S = 0.25
"""So often at most all connections are looked at for idle ones."""


def allow_connections() -> None:
    """Take as many open files as the system lets us have. Many start a process with 1,024, which says nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def room() -> int:
    """As many connections of clients as the limit of open files allows."""
    return max(1, _files_for_connections() - room_for_peers())


def room_for_peers() -> int:
    """As many connections from peers."""
    return min(MOST_PEERS, max(LEAST_PEERS, _files_for_connections() // 16))


def _files_for_connections() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] - FILES_OF_OURS


def room_for_http(*, beside_grpc: bool) -> int:
    """All of it, or half if gRPC counts the other half."""
    return max(1, room() - room_for_grpc()) if beside_grpc else room()


def room_for_grpc() -> int:
    return max(1, room() // 2)


class Connection:
    """One connection's part of the budget. `close` closes it; `is_idle` says whether no request is under way."""

    __slots__ = ("_connections", "close", "is_idle", "only_probes", "source")

    def __init__(
        self, connections: Connections, source: str, close: Callable[[], None], is_idle: Callable[[], bool]
    ) -> None:
        self._connections = connections
        self.source = source
        self.close = close
        self.is_idle = is_idle
        self.only_probes = False
        """There was no room for it but in the reserve."""

    def shook_hands(self) -> None:
        """The TLS handshake is over."""
        self._connections.shook_hands(self)

    def asked(self) -> None:
        """The head of its first request is there."""
        self._connections.asked(self)

    def left(self) -> None:
        """It is closed."""
        self._connections.left(self)


class Connections:
    """All connections of a process that its HTTP listeners have accepted."""

    def __init__(self, budgets: Budgets, most: int, over_budget: Callable[[str], None]) -> None:
        self._most = most
        self._over_budget = over_budget
        self._open: dict[Connection, None] = {}
        """The oldest first."""
        self._reserve: dict[Connection, None] = {}
        self._handshakes = _Bounded(_within(budgets.handshakes, most))
        self._silent = _Bounded(_within(budgets.silent_connections, most))
        self._ending: set[str] = set()
        """Sources of which silent connections are about to be closed."""
        self._made_room_at = float("-inf")

    def enter(
        self,
        host: str,
        close: Callable[[], None],
        is_idle: Callable[[], bool] = lambda: True,
        *,
        shakes_hands: bool = False,
    ) -> Connection:
        """Count a connection that was accepted, and close others where that is too many."""
        entered = Connection(self, source_of(host), close, is_idle)
        if len(self._open) >= self._most:
            self._make_room()
        entered.only_probes = len(self._open) >= self._most
        if entered.only_probes:
            self._reserve[entered] = None
            self._end("connections", next(iter(self._reserve)) if len(self._reserve) > RESERVED_FOR_PROBES else None)
        else:
            self._open[entered] = None
        if shakes_hands:
            self._handshakes.add(entered)
            self._end("handshakes", self._handshakes.surplus(entered.source))
        else:
            self._add_silent(entered)
        return entered

    def shook_hands(self, connection: Connection) -> None:
        if self._handshakes.remove(connection):
            self._add_silent(connection)

    def asked(self, connection: Connection) -> None:
        self._silent.remove(connection)

    def left(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._reserve.pop(connection, None)
        self._handshakes.remove(connection)
        self._silent.remove(connection)

    def _add_silent(self, connection: Connection) -> None:
        self._silent.add(connection)
        if self._silent.surplus(connection.source) is not None:
            self._plan_end_of_silent(connection.source)

    def _plan_end_of_silent(self, source: str) -> None:
        """Close the surplus of a source a little later, and only after what has arrived by then is read."""
        if source not in self._ending:
            self._ending.add(source)
            loop = asyncio.get_running_loop()
            loop.call_later(SILENT_S, loop.call_soon, loop.call_soon, self._end_silent, source)

    def _end_silent(self, source: str) -> None:
        self._ending.discard(source)
        while (silent := self._silent.surplus(source)) is not None:
            if self._silent.age_s(silent) < SILENT_S:
                self._plan_end_of_silent(source)
                return
            self._end("silent_connections", silent)

    def _end(self, budget: str, connection: Connection | None) -> None:
        if connection is not None:
            self._over_budget(budget)
            self.left(connection)
            connection.close()

    def _make_room(self) -> None:
        """Close half of the idle connections of the source that has the most, those first that were opened first."""
        now = time.monotonic()
        if now - self._made_room_at < ROOM_EVERY_S:
            return
        self._made_room_at = now
        idle: dict[str, list[Connection]] = defaultdict(list)
        for connection in self._open:
            if connection.is_idle():
                idle[connection.source].append(connection)
        most = max(idle.values(), key=len, default=[])
        for connection in most[: (len(most) + 1) // 2]:
            self._end("connections", connection)


class _Bounded:
    """Connections in one stage of their beginning, by source, the oldest first."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._by_source: dict[str, dict[Connection, float]] = {}
        """Each with when it came, by the monotonic clock."""
        self._total = 0

    def add(self, connection: Connection) -> None:
        self._by_source.setdefault(connection.source, {})[connection] = time.monotonic()
        self._total += 1

    def surplus(self, source: str) -> Connection | None:
        """The one that has to go, if there are too many: the oldest of this source, or of that with the most."""
        of_source = self._by_source.get(source, {})
        if self._total > self._share.in_all:
            of_source = max(self._by_source.values(), key=len)
        elif len(of_source) <= self._share.per_source:
            return None
        return next(iter(of_source))

    def age_s(self, connection: Connection) -> float:
        return time.monotonic() - self._by_source[connection.source][connection]

    def remove(self, connection: Connection) -> bool:
        """Whether it was there."""
        of_source = self._by_source.get(connection.source)
        if of_source is None or connection not in of_source:
            return False
        del of_source[connection]
        self._total -= 1
        if not of_source:
            del self._by_source[connection.source]
        return True


def _within(share: Share, most: int) -> Share:
    """At most half of all connections."""
    return Share(min(share.per_source, max(1, most // 4)), min(share.in_all, max(1, most // 2)))
